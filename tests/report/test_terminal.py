from __future__ import annotations

import io

import pandas as pd
import pytest
from comparisons import METHODS, claims, comparison, summary, sweep
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tables import NO_SECONDS, frame, rows

from fedcore.report.console import PlainConsole
from fedcore.report.terminal import print_claims, print_summary, standard
from fedcore.results.summary import summarise


def printed(found: pd.DataFrame, width: int) -> str:
    out = io.StringIO()
    print_summary(found, Console(file=out, width=width))
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


@pytest.mark.parametrize(("columns", "width"), [("180", 180), ("", 80), ("0", 80), ("wide", 80)])
def test_columns_says_the_width_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int):
    monkeypatch.setenv("COLUMNS", columns)
    assert standard(80).width == width


@pytest.mark.slow
def test_the_terminal_table_fits_100_columns():
    text = printed(comparison()[1], 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for word in [*METHODS, "study: alpha=1 (digits)", "control", "4 kB", "1.5", "devices", "serves the 4 devices best"]:
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
def test_a_narrow_terminal_drops_columns_not_digits():
    text = printed(comparison()[1], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(name in text for name in METHODS)


def test_ties_and_unknown_seconds():
    table = frame(rows({"a": [[0.5, 0.6], [0.5, 0.6]], "[red]b": [[0.6, 0.5], [0.6, 0.5]]}))
    text = printed(summary(table), 100)
    assert text.count("1=") == 2
    assert "= a tie" in text
    assert "[red]b" in text
    assert "seconds" not in text


@pytest.mark.slow
def test_without_a_console_it_prints_plain_text(capsys: pytest.CaptureFixture[str]):
    print_summary(comparison()[1])
    assert "local_only" in capsys.readouterr().out


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
def test_a_metric_with_a_long_name_leaves_the_names_of_the_methods(width: int):
    found = comparison()[1].assign(metric="average_precision")
    text = printed(found, width)
    assert max(map(len, text.splitlines())) <= width
    lines = [line for line in text.splitlines() if " ± " in line]
    for method in METHODS:
        assert any(f" {method[:10]}" in line for line in lines), method
