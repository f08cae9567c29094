import io
import re

import pandas as pd
import pytest
from answer_tables import ALONE, GUESS, plus
from answer_tables import table as made
from comparisons import METHODS, claims, comparison, summary, sweep
from project_params import PARAMS
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tables import NO_SECONDS, frame, rows

from fedcore.config.studies import grid_points
from fedcore.report import figures
from fedcore.report.answers import study_answers
from fedcore.report.names import shorten
from fedcore.report.tables import score_table
from fedcore.report.terminal import (
    INSTEAD,
    CostEstimate,
    PlainConsole,
    print_answers,
    print_claims,
    print_forecast,
    print_summary,
    print_table,
    standard,
)
from fedcore.results.answer import answers
from fedcore.results.summary import summarise

SUPERLATIVE = re.compile(r"\b(best|better|serves?|tied?|ahead|within|wins?)\b|\d=|[≈↑]")
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
BOLD = "\x1b[1m"


def printed(found: pd.DataFrame, width: int) -> str:
    out = io.StringIO()
    print_summary(found, PlainConsole(file=out, width=width))
    assert INSTEAD not in out.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\x1b]0;title\x07b", "a\u202eb", "a\rb", "a\x9bb"])
def test_a_name_does_not_steer_the_terminal(name: str):
    out = io.StringIO()
    console = PlainConsole(file=out, width=60)
    table = Table("device", name)
    table.add_row(name, Text(name))
    console.print(table)
    console.print(Text(name, style="bold"))
    console.print(name, markup=False)
    assert all(line.isprintable() for line in out.getvalue().split("\n"))
    assert out.getvalue().count("a") > 4


@pytest.mark.parametrize("name", ["a\nb", "[red]a", "a\u202eb"])
def test_a_name_takes_one_line_of_a_table_with_its_escape_sequence(name: str):
    assert shorten([name], 60) == [repr(name)[1:-1]]
    out = io.StringIO()
    print_table(["device"], [[name]], PlainConsole(file=out, width=60))
    print_forecast([CostEstimate("s", name, 1, 0, 0.0, 0.0, frozenset())], console=PlainConsole(file=out, width=60))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert [repr(name)[1:-1]] in lines
    assert ["s", repr(name)[1:-1], "1", "0", "0.0", "0"] in lines


@pytest.mark.parametrize(("columns", "width"), [("180", 180), ("", 80), ("0", 80), ("wide", 80)])
def test_columns_says_the_width_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int):
    monkeypatch.setenv("COLUMNS", columns)
    assert standard(80).width == width


@pytest.mark.slow
def test_the_terminal_table_fits_100_columns():
    text = printed(comparison()[1], 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert " ".join(text.split()).count("All columns: `fedcore docs columns`") == 1
    for word in [*METHODS, "study: alpha=1 (digits)", "control", "4 kB", "1.5", "devices"]:
        assert word in text
    assert "\x1b" not in text


@pytest.mark.slow
@pytest.mark.parametrize("nets", [1.0, 16.0])
def test_methods_that_cost_more_leave_the_names_and_fit(nets):
    """The nets that a device runs are shown where they are several, multiplications on the page alone."""
    found = comparison()[1].assign(nets_run=1.0, macs=52544.0)
    found.loc[found.index[0], ["nets_run", "macs"]] = [nets, 1_623_144.0]
    text = printed(found, 100)
    assert max(map(len, text.splitlines())) <= 100
    assert all(name in text for name in METHODS)
    assert ("nets" in text) == (nets > 1)
    assert "multiplications" not in text


@pytest.mark.slow
def test_equal_rows_share_a_rank_and_unknown_seconds_are_left_out():
    table = frame(rows({"a": [[0.5, 0.6], [0.5, 0.6]], "[red]b": [[0.6, 0.5], [0.6, 0.5]]}))
    text = printed(summary(table), 100)
    assert sum(line.startswith("1 ") for line in text.splitlines()) == 2
    assert "[red]b" in text
    assert "seconds" not in text


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.slow
def test_an_interval_is_explained_only_where_a_column_has_one(seeds: int):
    text = printed(summary(frame(rows({"a": [[0.5, 0.6], [0.4, 0.6]][:seeds]}))), 100)
    assert ("±: half of the" in text, "% ±" in text) == (seeds > 1, seeds > 1)


@pytest.mark.slow
def test_without_a_console_it_prints_plain_text(capsys: pytest.CaptureFixture[str]):
    print_summary(comparison()[1])
    assert "local_only" in capsys.readouterr().out


@pytest.mark.parametrize("study", PARAMS["run"]["studies"])
@pytest.mark.parametrize(
    ("seeds", "lift", "says"), [(1, 0.2, "Cannot say"), (3, -0.1, "Use local training"), (3, 0.2, "Use")]
)
@pytest.mark.slow
def test_one_screen_never_says_two_things(study: str, seeds: int, lift: float, says: str):
    """Default studies with made numbers: which row is best, or that nobody can say, stands in the answer alone."""
    methods = grid_points(PARAMS, study, "small", {})[0].methods
    controls = frozenset(row.label for row in methods if row.control)
    runs = {row.label: GUESS if row.control else plus(lift - 0.01 * i) for i, row in enumerate(methods)}
    table = made({label: run[:seeds] for label, run in (runs | {"local_only": ALONE}).items()})
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="standard")
    print_answers(study_answers(answers(table, controls)), console)
    answer = out.getvalue()
    assert says in answer
    found = summarise(table, NO_SECONDS, controls)
    print_summary(found, console)
    below = out.getvalue().removeprefix(answer)
    plain = ESCAPE.sub("", below)
    assert len(re.findall(r"^(?:\d+|control) ", plain, re.MULTILINE)) == len(methods)
    assert not [line for line in below.splitlines() if BOLD in line and re.search(r"\d\.\d", line)]
    assert not SUPERLATIVE.search(plain)
    drawing = figures.comparison(found)
    words = [str(text.get_text()) for text in drawing.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert not SUPERLATIVE.search(" ".join(words))
    assert all(text.get_fontweight() == "normal" for panel in drawing.axes for text in panel.texts)
    assert not any(cell.right for line in score_table(found).lines for cell in line.cells)


def test_claims_are_printed():
    out = io.StringIO()
    print_claims(claims(), Console(file=out, width=100))
    words = " ".join(out.getvalue().split())
    assert "study: claims of the paper" in words
    assert "does not hold: It is cheap a ~ b within 1 (shared.loss): holds in 0 of 1 setting; least: +3" in words
    assert "holds in most: It is fast b > a (shared.accuracy): holds in 7 of 8 settings" in words
    assert "It lasts a rises with round (shared.accuracy): needs three seeds" in words
    out = io.StringIO()
    print_claims(claims()[:0], Console(file=out, width=100))
    assert out.getvalue() == ""


@pytest.mark.slow
def test_a_study_of_many_settings_is_printed_as_one_table():
    found = summarise(sweep(4), NO_SECONDS, frozenset(["half_best"]))
    text = printed(found, 100)
    lines = text.splitlines()
    for setting in (f"devices={i}" for i in range(4)):
        (line,) = [line for line in lines if line.startswith(f"{setting} ")]
        means = found[found["setting"] == setting].set_index("method")["test_mean"]
        order = [*(name for name in found["method"].unique() if name != "half_best"), "half_best"]
        assert line.split()[1:] == [f"{100 * means[name]:.1f}" for name in order]
    assert text.count("accuracy on own test data") == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("metric", ["accuracy", "average_precision"])
def test_a_narrow_terminal_drops_columns_not_digits_nor_parts_of_names(metric: str, width: int):
    found = comparison()[1].replace("code_ot", "gaussian_distillation").assign(metric=metric)
    text = printed(found.assign(nets_run=[*range(1, len(found) + 1)], macs=[*range(len(found))]), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    lines = [line for line in text.splitlines() if " ± " in line]
    for method in found["method"]:
        assert any(f" {method} " in line for line in lines), method


def test_a_table_spares_columns_only_where_words_would_break(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)
    for width, heads in ((80, "method net study"), (36, "method study")):
        print_table(("method", "net", "study"), [["gaussian_distillation"] * 2 + ["code"]], standard(width), ["net"])
        assert " ".join(capsys.readouterr().out.split()[:3]).startswith(heads)
