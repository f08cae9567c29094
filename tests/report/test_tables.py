import io
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparisons import LINKS, add_links, comparison
from scipy import stats
from tables import frame, rows

import fedcore as fc
from fedcore.core.metrics import METRICS
from fedcore.report.latex import escape, number
from fedcore.report.tables import cells, confusion_table, csv, links, notes, score_table
from fedcore.results.criterion import RATIO
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import COLUMNS, NO_SECONDS, summarise


@pytest.mark.slow
def test_csv_reads_back():
    summary = comparison()[1]
    text = csv(summary)
    back = pd.read_csv(io.StringIO(text))
    assert list(back.columns) == COLUMNS
    assert text == csv(summary)
    pd.testing.assert_series_equal(back["test_mean"], summary["test_mean"], rtol=1e-5)
    assert back["rank"].isna().tolist() == summary["control"].tolist()


def test_confusions_stand_beside_recall_and_precision():
    table = confusion_table(Outcomes(("ok", "worn"), np.array([[6, 2], [0, 0]]), np.array([[8.0, 7.0, 6.0]])))
    assert table is not None
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["ok", "6", "2", "75.0"],
        ["worn", "0", "0", "-"],
        ["precision, %", "100.0", "0.0", "75.0"],
    ]
    assert table.unit == "of 8 own test rows"
    assert confusion_table(Outcomes((), np.zeros((0, 0), dtype=np.int64), np.zeros((10, 3)))) is None


@pytest.mark.slow
def test_half_an_interval_that_has_every_value_is_not_written():
    """Two seeds of one class each: 10 and 90 %, beside 50 % twice."""
    table = frame(rows({"majority": [[0.1, 0.1], [0.8, 1.0]], "b": [[0.5] * 2] * 2}))
    summary = summarise(table, NO_SECONDS, frozenset())
    assert {line["method"].text: line["test"].text for line in cells(summary)[1]} == {
        "majority": "50.0 ±  any", "b": "50.0 ±  0.0",
    }  # fmt: skip
    first, *others = notes(summary)
    assert first == "± any: with so few seeds the 95 % interval has every value."
    assert not others
    assert notes(summary.assign(metric="balanced_accuracy"))[1].startswith(
        "majority is above chance, since some device"
    )


def test_scores_by_a_metric_that_is_gone_are_plain_numbers():
    summary = summarise(frame(rows({"a": [[0.1, 0.1], [0.8, 1.0]], "b": [[0.5] * 2] * 2})), NO_SECONDS, frozenset())
    heads, lines = cells(summary.assign(metric="matthews"))
    assert (heads["test"].split("\n")[1][:8], lines[0]["test"].text[:5]) == ("matthews", "0.5 ±")


def test_a_narrow_table_names_the_worst_device_of_each_row():
    """At 1,280 pixels Prefect's page has room for five columns."""
    summary = summarise(frame(rows({"a": [[0.1, 0.3]], "b": [[0.5, 0.5]]}, shared=0.4)), NO_SECONDS, frozenset())
    drawn = score_table(summary, {"a": "device-07"})
    heads = ["rank", "method", "own test %", "worst device", "shared test %"]
    assert [head.replace("\n", " ") for head in drawn.heads] == heads
    assert [[cell.text for cell in line.cells] for line in drawn.lines] == [
        ["1", "b", "50.0", "50.0", "40.0"],
        ["2", "a", "20.0", "10.0 (device-07)", "40.0"],
    ]


def test_links_are_means_over_targets_and_sums_over_devices():
    found = links(add_links(frame(rows({"a": [[0.8] * 3] * 2, "b": [[0.5] * 3] * 2})), LINKS))
    means = {method: {name: mean for name, (mean, _) in row.items()} for method, row in found.items()}
    assert means["a"] == pytest.approx({"accuracy": 70, "target": 1.5, "energy": 3, "share": 25})
    assert means["b"] == pytest.approx({"accuracy": 35, "target": 2, "energy": 12, "share": 100})
    half = stats.t.ppf(0.975, 1) * 200**0.5 * (1 / 2 + RATIO / 5) ** 0.5
    assert found["a"]["accuracy"][1] == pytest.approx(half)


@pytest.mark.slow
def test_the_cost_of_an_answer_is_shown_where_methods_differ_in_it():
    summary = comparison()[1]
    place = summary[summary["setting"] == summary["setting"].iloc[0]].copy()
    assert "macs" not in cells(place)[0]
    place["nets_run"], place["macs"] = 1.0, 52544.0
    assert "macs" not in cells(place)[0]
    place.loc[place.index[0], ["nets_run", "macs"]] = [16.0, 16 * 52544.0]
    heads, lines = cells(place)
    assert [heads["nets_run"], heads["macs"]] == ["nets\nrun", "multiplications\nper example"]
    assert [text.partition(":")[0] for text in notes(place, heads)] == ["std over devices", "nets run"]
    assert [lines[0][cost].text for cost in ("nets_run", "macs")] == ["16", "840,704"]
    assert [lines[1][cost].text for cost in ("nets_run", "macs")] == ["1", "52,544"]


@pytest.mark.slow
def test_one_device_has_no_spread_over_devices_and_no_worst():
    one, two = (
        cells(summarise(frame(rows({"a": own, "b": own})), NO_SECONDS, frozenset()))[0]
        for own in ([[0.7], [0.6]], [[0.7, 0.6], [0.6, 0.5]])
    )
    parts = ("std_devices", "worst")
    assert [name for name in two if name not in one] == [f"{at}_{part}" for at in ("test", "shared") for part in parts]
    assert len({*two.values()}) == len(two)


# Tables for papers: the numbers are those of the comparison, by hand, and LaTeX can read them.
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


@pytest.mark.slow
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
@pytest.mark.slow
def test_other_words_are_refused(found: Any, ask: Any, says: str):
    with pytest.raises(fc.InputError, match=says):
        ask(found)
