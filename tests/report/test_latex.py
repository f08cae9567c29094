"""Tables for papers: the numbers are those of the comparison, by hand, and LaTeX can read them."""

import re
from typing import Any

import pytest
from scipy import stats

import fedcore as fc
from fedcore.core.metrics import METRICS
from fedcore.report.latex import escape, number

SEEDS = 3
QUICK = {"epochs": 1, "shared_init": True}


@pytest.fixture(scope="module")
def found() -> Any:
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(6), examples=300)
    rows = [fc.local_only(training=QUICK), fc.fedavg(rounds=2, training=QUICK, label="fedavg_2 & more")]
    return fc.compare(rows, fed, range(SEEDS), progress=False)


def lines(text: str) -> list[list[str]]:
    """The cells of a table, without its frame."""
    held = [line for line in text.splitlines() if line.endswith(r" \\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\"))] for line in held]


def plain(cell: str) -> list[float]:
    return [float(part) for part in re.findall(r"[-\d.]+", cell.replace("mathbf", ""))]


def column(head: list[str]) -> int:
    """The place of the shared test's means, whose head says what is behind ±."""
    (place,) = [i for i, name in enumerate(head) if name.startswith(r"Shared test ($\pm$ ")]
    return place


@pytest.mark.parametrize("spread", ["interval", "std"])
@pytest.mark.slow
def test_a_methods_row_is_its_mean_with_its_interval_by_hand(found: Any, spread: Any):
    head, *rows = lines(found.to_latex(spread=spread))
    assert {len(row) for row in rows} == {len(head)}
    assert [row[0] for row in rows] == [escape(method) for method in found.summary["method"]]
    table = found.table[(found.table["metric"] == "accuracy") & (found.table["split"] == "shared")]
    numbers = found.table[found.table["split"] == "data"].groupby("metric")["value"].mean()
    ratio = min(numbers["shared_examples"] / (3 * numbers["examples"]), 1 / 3)
    for method, row in zip(found.summary["method"], rows, strict=True):
        mine = table[table["method"] == method]
        means = mine[mine["round"] == mine["round"].max()].groupby("seed")["value"].mean()
        half = means.std()
        if spread == "interval":
            half *= stats.t.ppf(0.975, SEEDS - 1) * (1 / SEEDS + ratio / 5) ** 0.5
        assert plain(row[column(head)]) == pytest.approx([100 * means.mean(), 100 * half], abs=0.051)


def test_the_best_is_bold(found: Any):
    head, *rows = lines(found.to_latex())
    bold = {row[0] for row in rows if "mathbf" in row[column(head)]}
    assert bold == {escape(m) for m in found.summary["method"][found.summary["shared_rank"].fillna(0) == 1]}


def test_a_devices_row_is_its_mean_over_seeds(found: Any):
    head, *rows = lines(found.to_latex(by="device"))
    assert head[1:] == [escape(method) for method in found.summary["method"]]
    table = found.table[(found.table["metric"] == "accuracy") & (found.table["split"] == "test")]
    for row in rows:
        for method, cell in zip(found.summary["method"], row[1:], strict=True):
            mine = table[(table["method"] == method) & (table["device"] == row[0])]
            last = mine[mine["round"] == mine["round"].max()]["value"].mean()
            assert plain(cell) == pytest.approx([100 * last], abs=0.051)
        best = max(plain(cell)[0] for cell in row[1:])
        assert all(plain(cell)[0] == best for cell in row[1:] if "mathbf" in cell)


def test_numbers_are_written_in_the_metrics_unit():
    assert number(0.9484, 0.012, METRICS["accuracy"]) == r"$94.8 \pm 1.2$"
    assert number(0.4123, float("nan"), METRICS["log_loss"], bold=True) == r"$\mathbf{0.412}$"
    assert number(0.0143, 0.001, METRICS["cost"]) == r"$14.3 \pm 1.0$"
    assert number(float("nan"), float("nan"), METRICS["accuracy"]) == "--"
    assert escape("a_b & 50% {x}") == r"a\_b \& 50\% \{x\}"


@pytest.mark.slow
def test_curves_show_what_the_rounds_scored(found: Any):
    figure = found.curves()
    panel = figure.axes[-1]
    drawn = {line.get_label(): line.get_ydata() for line in panel.lines}
    table = found.table.query("method == 'fedavg_2 & more' and split == 'shared' and metric == 'accuracy'")
    means = table.groupby("round")["value"].mean().tolist()
    assert any(list(y) == pytest.approx(means) for y in drawn.values() if len(y) == 2)
    assert len(panel.collections) >= 1  # a band
    assert found.curves("loss").axes


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda found: found.to_latex(by="seed"), "to_latex.by = 'seed'"),
        (lambda found: found.to_latex(spread="sem"), "to_latex.spread = 'sem'"),
        (lambda found: found.curves("auc"), "curves.metric = 'auc'"),
    ],
)
def test_other_words_are_refused(found: Any, ask: Any, says: str):
    with pytest.raises(fc.InputError, match=says):
        ask(found)
