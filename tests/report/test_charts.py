"""The numbers behind the page's charts."""

import io
import json
import math
from functools import partial
from typing import Any

import pandas as pd
import pytest
from comparisons import METHODS, summary, sweep
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.dates import num2date
from rich.console import Console
from scipy import stats
from tables import NO_SECONDS, drawn, frame, rows

from fedcore.core.metrics import METRICS
from fedcore.report.charts import budget_steps, chart_numbers, ticks
from fedcore.report.history import HEADS, changes, history_cells, print_history, trends
from fedcore.report.names import GAP, shorten
from fedcore.report.page import courses, draw
from fedcore.report.phrases import sentences
from fedcore.results.answer import answer, answers_by_budget
from fedcore.results.criterion import RATIO, Criterion
from fedcore.results.summary import curves, front, summarise

ALONE = [[0.70, 0.60], [0.72, 0.60], [0.68, 0.60]]


def made() -> pd.DataFrame:
    """Rows that cost 0, 3, 3 and 30 kB; the last is worse than `good`, and `control` is best."""
    costs = {
        "local_only": (0.0, 0.0), "good": (1e3, 0.2), "bad": (1e3, -0.1), "dear": (1e4, 0.1), "control": (1.0, 0.25),
    }  # fmt: skip
    return frame(
        *(
            rows({name: [[value + change for value in devices] for devices in ALONE]}, up=up, shared=math.nan)
            for name, (up, change) in costs.items()
        )
    )


@pytest.mark.slow
def test_the_front_is_the_rows_that_none_beats_for_fewer_bytes():
    found = summarise(made(), NO_SECONDS, frozenset({"control"}))
    assert front(found, "test") == ["local_only", "good"]
    assert front(found, "shared") == []
    easy = made()[lambda table: (table["method"] != "bad") | (table["seed"] == 1)]
    easy.loc[easy["seed"].eq(1) & easy["split"].eq("test") & easy["metric"].eq("accuracy"), "value"] += 0.9
    assert front(summarise(easy, NO_SECONDS, frozenset({"control"})), "test") == ["local_only", "good"]
    # Of equal accuracies for equal bytes one is enough; without controls, the best of all is on the front.
    assert front(summary(made()), "test") == ["local_only", "control"]


@pytest.mark.slow
def test_chart_numbers_are_those_of_summary_and_answer_and_fit_json():
    table = made()
    found = summarise(table, NO_SECONDS, frozenset({"control"}))
    whole = answer(table, frozenset({"control"}))
    numbers = json.loads(json.dumps(chart_numbers(table, found, whole), allow_nan=False))
    assert numbers["splits"] == {"test": "own test"}
    by_method = {row["method"]: row for row in numbers["rows"]}
    assert by_method["dear"]["sent"] == 30_000
    assert by_method["dear"]["traffic"] == "sends 10 kB, receives 20 kB"
    half = round(stats.t.ppf(0.975, 2) * 0.01 * (1 / 3 + RATIO / 5) ** 0.5, 5)
    assert by_method["good"]["test"] == {"mean": 0.85, "margin": half, "worst": 0.8, "rank": 1, "front": True}
    assert by_method["control"]["control"]
    assert by_method["control"]["test"]["rank"] is None
    assert numbers["reference"] == "local_only"
    assert numbers["alone"] == {"d00": 0.7, "d01": 0.6}
    assert numbers["changes"]["bad"] == {
        "devices": {"d00": -0.1, "d01": -0.1}, "helped": 0, "hurt": 2, "shown": ["d00", "d01"], "chance": False,
    }  # fmt: skip
    loss = Criterion(METRICS["log_loss"])  # changes are those of the value, as the sentences have them
    of_loss = chart_numbers(table, found, answer(table, frozenset({"control"}), loss))["changes"]["bad"]
    assert (of_loss["devices"], of_loss["hurt"]) == ({"d00": 0.1, "d01": 0.1}, 2)
    last = numbers["budgets"][-1]["said"]
    assert last["sentences"] == sentences(whole)
    assert (last["headline"], last["advised"]) == ("Use good", {"test": "good", "shared": None})


@pytest.mark.slow
def test_neighbouring_budgets_that_say_the_same_are_one_step():
    steps = budget_steps(answers_by_budget(made(), never := frozenset({"control"}), answer(made(), never)))
    assert [(step["below"], step["text"], step["said"]["headline"]) for step in steps] == [
        (3_000, "less than 3 kB", "Use local training"), (None, "3 kB or more", "Use good"),
    ]  # fmt: skip


def test_ticks_are_the_powers_of_ten_around_what_is_sent():
    assert ticks([0.0, 2e3, 4e4]) == [(1e3, "1 kB"), (1e4, "10 kB"), (1e5, "100 kB")]
    assert ticks([1e3]) == [(1e3, "1 kB"), (1e4, "10 kB")]
    assert ticks([0.0]) == []


# Shortened names are short, and different names stay different.


@given(names=st.lists(st.text("ab", max_size=30), unique=True, max_size=9), width=st.integers(4, 20))
@pytest.mark.slow
def test_names_are_short_and_different(names: list[str], width: int):
    short = shorten(names, width)
    assert all(len(name) <= width for name in short)
    assert len({*short}) == len(names)


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (["education-years", "education-name"], 10, ["educa…ears", "educa…name"]),
        (["site-1-of-the-plant", "site-2-of-the-plant"], 9, None),
        (["plant one, the north hall of it", "plant one, the south hall of it"], 10, ["p…north h…", "p…south h…"]),
        (["short", "names"], 5, ["short", "names"]),
        ([], 5, []),
    ],
)
def test_both_ends_are_kept(names: list[str], width: int, expected: list[str] | None):
    short = shorten(names, width)
    assert len({*short}) == len(names)
    assert expected is None or short == expected


def test_one_name_keeps_its_ends():
    assert shorten(["/a/long/way/to/the/rows.csv"], 14) == [f"/a/long{GAP}ws.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "keys"), [(3, 3), (4, 1), (13, 0)])
def test_few_settings_have_a_plot_over_rounds_each_more_share_one(settings: int, keys: int):
    table = sweep(settings, rounds=3)
    found = courses(curves(table, Criterion()), summary(table))
    assert len(found) == keys
    assert all(picture.startswith(b"\x89PNG") for picture in found.values())
    assert keys != 1 or list(found) == [("study", "")]


@pytest.mark.slow
def test_a_single_round_has_no_course():
    table = drawn(METHODS, 2)
    assert courses(curves(table, Criterion()), summary(table)) == {}


@pytest.mark.slow
def test_rounds_of_which_the_last_alone_is_scored_have_no_course():
    table = sweep(1, rounds=3)
    scored = table[(table["split"] == "traffic") | (table["round"] == 3)]
    assert courses(curves(scored, Criterion()), summary(scored)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "pictures"), [(3, 3), (4, 0)])
def test_a_comparison_is_drawn_for_each_of_few_settings(settings: int, pictures: int):
    table = frame(*(rows({"a": [[0.5, 0.6 + i / 100]]}, setting=f"devices={i}") for i in range(settings)))
    found = draw(table, summary(table), Criterion()).comparisons
    assert len(found) == pictures
    assert len(set(found.values())) == pictures


# The history of answers: its table and its trend.


def line(date: str, best: float, data: str = "aaaaaaaaaa", **more: Any) -> dict[str, Any]:
    return {
        "date": f"{date}T02:00:00+00:00", "study": "my_data", "size": "base", "setting": "base", "dataset": "machines",
        "metric": "accuracy", "data": data, "rows": 1200, "action": "use", "method": "fedavg", "value": best,
        "best_value": best, "alone_value": 0.6, "champion": "3", **more,
    }  # fmt: skip


def test_a_line_has_the_change_against_the_line_before():
    found = history_cells([line("2026-01-01", 0.7), line("2026-01-02", 0.745, "bbbbbbbbbb", champion=None)])
    assert found == [
        ["2026-01-01", "aaaaaa", "1,200", "use fedavg", "70.0%", "-", "60.0%", "3"],
        ["2026-01-02", "bbbbbb", "1,200", "use fedavg", "74.5%", "+4.5", "60.0%", "-"],
    ]
    worse = [line("2026-01-01", 0.5, metric="log_loss"), line("2026-01-02", 0.75, metric="log_loss")]
    assert history_cells(worse)[1][HEADS.index("change")] == "+0.25"
    mixed = [
        line("2026-01-01", 0.5, seeds=[0]),
        line("2026-01-02", 0.7, whole=False),
        line("2026-01-03", 0.6, seeds=[0]),
    ]
    assert [cells[HEADS.index("change")] for cells in history_cells(mixed)] == ["-", "-", "+10.0"]


def test_parts_of_a_study_are_compared_by_their_methods():
    """Those of earlier versions, which kept no methods, not at all."""
    part = partial(line, whole=False, seeds=[0])
    first, other = ({"": {}, "local_only": {}, name: {}} for name in ("fedavg", "analytic"))
    parts = [part("2026-01-01", 0.6, settings=first), part("2026-01-02", 0.7, settings=other),
             part("2026-01-03", 0.65, settings=first), part("2026-01-04", 0.5), part("2026-01-05", 0.8)]  # fmt: skip
    assert [cells[HEADS.index("change")] for cells in history_cells(parts)] == ["-", "-", "+5.0", "-", "-"]


def test_a_run_says_what_changed_since_the_last_whole_one():
    def told(new: dict[str, Any], *earlier: dict[str, Any]) -> str:
        return changes([new], earlier).get("my_data", "").removeprefix("Since the whole run of 2026-01-02 02:00")

    def settings(**own: dict[str, str]) -> dict[str, Any]:
        return {"settings": {"": {"data.label": "fault"}, **own}}

    first, one = line("2026-01-01", 0.9), line("2026-01-02", 0.7, **settings(code_ot={"code_ot.reg": "0.01"}))
    part = line("2026-01-03", 0.8, whole=False)
    assert told(one) == told(one, part) == told(one, first | {"dataset": "another"}) == ""
    best = ": best combining method fedavg 70.0% right -> fedavg 70.0% right; "
    assert told(one, first, one, part) == f"{best}no setting and no data changed."
    reg = line("2026-01-04", 0.75, **settings(code_ot={"code_ot.reg": "0.1"}, lmf={})) | {"best": "code_ot"}
    came = "methods none -> lmf; code_ot.reg 0.01 -> 0.1"
    told_of_reg = f": best combining method by validation data fedavg 70.0% right -> code_ot 75.0% right; {came}."
    assert told(reg | {"validated": True}, one) == told_of_reg
    assert told(reg | {"validated": True}, one, reg, reg) == told_of_reg  # asked again: the older text stays
    assert told(reg | {"data": "bbbbbbb", "rows": 1260, "seeds": [1]}, one | {"seeds": [0]}).endswith(
        f"; data aaaaaa (1,200 rows) -> bbbbbb (1,260 rows); seeds [0] -> [1]; {came}."
    )
    unknown = line("2026-01-02", 0.7, action="cannot say", method=None) | {"best": None, "best_value": None}
    assert told(one, unknown) == ": best combining method none -> fedavg 70.0% right; the data are the same."
    edited = one | {"tasks": {"tasks.fuse:fuse": "aa"}}
    assert told(edited, one) == told(one, one)  # which is of an earlier version, and knows no tasks
    for other in ({}, {"tasks.fuse:fuse": "bb"}):
        assert (
            told(edited, one | {"tasks": other})
            == f"{best}tasks that changed or took part in one run alone: tasks.fuse:fuse."
        )
    many = one | settings(code_ot={f"code_ot.{i}": "1" for i in range(20)})
    assert told(many, one).endswith("; code_ot.6 off -> 1; 13 more.")
    of = [
        settings(**{name: {"training.epochs": n} for name, n in zip("abcd", epochs, strict=True)})
        for epochs in (["20", "20", "2", "5"], ["5"] * 4, ["9"] * 4)
    ]
    old, new, all_other = (one | own for own in of)
    assert told(new, old).endswith("; training.epochs of a, b 20 -> 5; of c 2 -> 5.")
    assert told(all_other, new).endswith("; training.epochs 5 -> 9.")
    small, grown = (part | of[0] | {"seeds": [0], "data": data} for data in ("aaaaaaa", "bbbbbbb"))
    said = "This is a part of the study. Since the {} of 2026-01-0{} 02:00: data aaaaaa"
    assert changes([grown], [small])["my_data"].startswith(said.format("run", 3))
    assert changes([grown], [one, small])["my_data"].startswith(said.format("whole run", 2))
    assert changes([grown | {"seeds": [1]}], [small]) == {}
    several = [one | {"setting": f"alpha={i}"} for i in range(5)]
    assert told(several[0], *several).startswith(", alpha=0: best")
    assert changes(several, several)["my_data"].count("Since") == 3


def test_nothing_said_is_a_line_too():
    unsure = line("2026-01-01", 0.7, action="cannot say", method=None, value=None, alone_value=None)
    assert history_cells([unsure, line("2026-01-02", 0.7)])[0][3:7] == ["cannot say", "-", "-", "-"]
    assert history_cells([line("2026-01-02", 0.7, action="train alone")])[0][3] == "use local training"


def test_a_history_tells_of_a_metric_that_is_gone():
    one = line("2026-01-02", 0.7, metric="matthews")
    assert "0.700" in history_cells([one])[0]
    assert "matthews 0.8" in changes([line("2026-01-03", 0.8, "b", metric="matthews")], [one])["my_data"]


def test_the_table_fits_80_columns_and_separates_what_cannot_be_compared():
    out = io.StringIO()
    lines = [
        line("2026-01-01", 0.7, method="fedavg_with_a_long_name_of_its_own", rows=123456789),
        line("2026-01-02", 0.7),
        line("2026-01-02", 0.7, metric="cost", value=0.143, size="small"),
        line("2026-01-03", 0.5, metric="f1", positive="bad"),
        line("2026-01-04", 0.9, metric="f1", positive="ok"),
        line("2026-01-05", 0.9, rule=Criterion(weigh="examples", least_test=0).rule({})),
    ]
    print_history(lines, Console(file=out, width=80))
    shown = out.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    heads = [text for text in shown if text.startswith("my_data (machines, base)")]
    ends = ["accuracy", "F1 of 'bad'", "F1 of 'ok'", "least_test = 0"]
    assert [text.split(", ")[-1] for text in heads] == ends
    assert "my_data (machines), cost" in [text.strip() for text in shown]
    assert not any("+40.0" in text or "…" in text for text in shown)
    out = io.StringIO()
    one, other = (line(f"2026-01-0{day}", 0.5 * day, task=f"machines-{name}") for day, name in enumerate(["a", "b"], 1))
    print_history([one, other], Console(file=out, width=80))
    assert "+50.0" not in out.getvalue(), "two labels of one table cannot be compared"
    assert ["machines-a" in out.getvalue(), "machines-b" in out.getvalue()] == [True, True]
    out = io.StringIO()
    print_history(
        [line("2026-01-01", 0.5), other], Console(file=out, width=80)
    )  # an earlier version's line has no task
    assert "+50.0" in out.getvalue()
    assert "machines-b" not in out.getvalue()


def test_a_trend_needs_two_days_and_is_of_the_last_data():
    first, again, next_day = line("2026-01-01", 0.7), line("2026-01-01", 0.8), line("2026-01-03", 0.75, "b")
    assert trends([]) == trends([first, again]) == {}
    other = line("2026-01-02", 0.9, dataset="another")
    part = line("2026-01-03", 0.1, whole=False)
    assert history_cells([part])[0][3] == "use fedavg (part)"
    (figure,) = trends([first, other, next_day, part]).values()
    best, alone, *marks = figure.axes[0].lines
    assert list(best.get_ydata()) == [0.7, 0.75]
    assert list(alone.get_ydata()) == [0.6, 0.6]
    assert [num2date(day).day for day in best.get_xdata()] == [1, 3]
    assert len(marks) == 1  # where the data changed
