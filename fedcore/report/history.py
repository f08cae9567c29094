"""The history of a project's answers: a table for the terminal, and a picture of the trend for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console

from fedcore.core.metrics import recorded
from fedcore.report.names import in_words
from fedcore.report.tables import FEW
from fedcore.report.terminal import one_line, print_table, standard
from fedcore.results.advice import Action

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line: TypeAlias = Mapping[str, Any]
"""A line of the history, see :mod:`fedcore.pipeline.run.history`."""

HEADS = ("date", "data", "rows", "answer", "value", "change", "local", "champion")
WIDTH = 80
PART = "part: some of the study's methods or seeds"
ASKED = ("study", "size", "setting", "dataset")
"""What lines have in common whose runs can be compared."""
PART_FIRST = "This is a part of the study. "
MOST = 8
"""The most changes that a sentence names."""


def print_history(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print a table for each study, size and setting: a line for each run, with the change against the line before."""
    console = console or standard(WIDTH)
    by_row = series(lines)
    several = len({key[4] for key in by_row}) > len({key[3] for key in by_row})  # labels of one table
    for (study, size, setting, dataset, task, metric, label, rule), lines_of_row in by_row.items():
        where = in_words(study, setting, (task if several else dataset) + f", {size}" * (size != "small"))
        of_label = (f" of {label!r}" if label else "") + (f", {rule}" if rule else "")
        console.print(one_line(f"{where}, {recorded(metric).words}{of_label}", style="bold"))
        print_table(HEADS, history_cells(lines_of_row), console)
        if not all(line.get("whole", True) for line in lines_of_row):
            console.print(PART)
        console.print()


def series(lines: Iterable[Line]) -> dict[tuple[str, ...], list[Line]]:
    """Return the lines that can be compared: those of one study, size, setting, data, task, metric, label and rule."""
    lines, by_row = [*lines], dict[tuple[str, ...], list[Line]]()
    tasks = {line["dataset"]: line["task"] for line in lines if line.get("task")}  # earlier versions' lines have none
    for line in lines:
        named = line if line.get("task") else {**line, "task": tasks.get(line["dataset"], line["dataset"])}
        key = tuple(str(named[name]) for name in ("study", "size", "setting", "dataset", "task", "metric"))
        key += (line.get("positive") or "", line.get("rule") or "")
        by_row.setdefault(key, []).append(line)
    return by_row


def history_cells(lines: Sequence[Line]) -> list[list[str]]:
    """Return the cells of one table, see HEADS. data: the first digits of its digest; change: of the value.

    It is against the last line of the same seeds, of a part also of the same methods: others are other questions.
    """
    cells, last = list[list[str]](), dict[str, Any]()
    for line in lines:
        asked = f"{line.get('seeds')} {line.get('whole', True) or _methods(line) or len(cells)}"
        metric, value, alone = recorded(line["metric"]), line["value"], line["alone_value"]
        old, last[asked] = last.get(asked), value
        change = "-" if value is None or old is None else metric.difference(metric.sign * (value - old))
        # the title implies the words of the unit
        shown, local = ("-" if number is None else metric.value(number).split(" ")[0] for number in (value, alone))
        first = [line["date"][:10], line["data"][:6], f"{line['rows']:,}", _answer(line)]
        cells.append([*first, shown, change, local, line["champion"] or "-"])
    return cells


def _answer(line: Line) -> str:
    other = f"{line['action']}: {line['best']}" if line.get("best") else line["action"]
    text = {Action.USE: f"use {line['method']}", Action.ALONE: "use local training"}.get(line["action"], other)
    return f"{text}{'' if line.get('whole', True) else ' (part)'}"


def changes(lines: Sequence[Line], earlier: Sequence[Line]) -> dict[str, str]:
    """Return study -> what changed since its last whole run: a sentence for each setting, the first FEW of them.

    It is the last one that asked for something else, or had other data, if there is one. Without a whole run it is one
    of the same methods and seeds. lines: of the run that ends now. earlier: those of the history, the oldest first.
    """
    told: dict[str, list[str]] = {}
    for line in lines:
        asked = [one for one in earlier if all(one[key] == line[key] for key in ASKED)]
        same = [one for one in asked if one.get("whole", True)] or [
            one for one in asked if one.get("seeds") == line.get("seeds") and _methods(one) == _methods(line) != []
        ]
        if same:
            old = next((one for one in reversed(same) if differences(one, line)), same[-1])
            told.setdefault(line["study"], []).append(_since(old, line))
    return {study: " ".join(sentences[:FEW]) for study, sentences in told.items()}


def _methods(line: Line) -> list[str]:
    return sorted(line.get("settings", ()))


def _since(old: Line, new: Line) -> str:
    """Return what changed from one line to another; one of an earlier version knows no settings."""
    best, whole = [], new.get("whole", True)
    for line in (old, new):
        value = "" if line["best_value"] is None else recorded(line["metric"]).named(line["best_value"])
        best.append(f"{line.get('best', line['method']) or 'none'} {value}".strip())
    same = "no setting and no data changed" if "settings" in old else "the data are the same"
    words = differences(old, new) or [same]
    more = [f"{len(words) - MOST} more"] * (len(words) > MOST)
    where = "" if new["setting"] == "base" else f", {new['setting']}"
    date, kind = old["date"][:16].replace("T", " "), "whole run" if old.get("whole", True) else "run"
    by = " by validation data" * new.get("validated", False)
    said = [f"best combining method{by} {' -> '.join(best)}"] * whole + words[:MOST] + more
    return f"{'' if whole else PART_FIRST}Since the {kind} of {date}{where}: {'; '.join(said)}."


def differences(old: Line, new: Line) -> list[str]:
    """Return what two runs were asked otherwise, or on other data; a setting names its methods if not all changed."""
    found: list[tuple[Any, ...]] = [("data", *(f"{of['data'][:6]} ({of['rows']:,} rows)" for of in (old, new)))]
    found += [(key, old.get(key) or "none", new.get(key) or "none") for key in ("metric", "positive", "rule", "seeds")]
    found.append(("min_effect", *(of.get("min_effect") or "usual" for of in (old, new))))
    by_key = dict[str, dict[tuple[str, str], list[str]]]()
    if "settings" in old:
        one, other = ({**line["settings"]} for line in (old, new))
        shared = one.pop(""), other.pop("")
        names = [", ".join(name for name in a if name not in b) or "none" for a, b in ((one, other), (other, one))]
        found.append(("methods", *names))
        for name in (name for name in one if name in other):
            before, now = shared[0] | one[name], shared[1] | other[name]
            for key in {**before, **now}:
                by_key.setdefault(key, {}).setdefault((before.get(key, "off"), now.get(key, "off")), []).append(name)
    words = [f"{key} {a} -> {b}" for key, a, b in found if a != b]
    if "tasks" in old and (of_tasks := {name for name, _ in old["tasks"].items() ^ new.get("tasks", {}).items()}):
        words.append(f"tasks that changed or took part in one run alone: {', '.join(sorted(of_tasks))}")
    for key, pairs in by_key.items():
        of = {f"of {', '.join(some)} " if len(pairs) > 1 else "": pair for pair, some in pairs.items()}
        changed = [f"{some}{a} -> {b}" for some, (a, b) in of.items() if a != b]
        words += [f"{key} {'; '.join(changed)}"] * bool(changed)
    return words


def trends(lines: Iterable[Line]) -> dict[tuple[str, str], Figure]:
    """Return the trend of each study and setting whose last run has one of at least two days before it.

    It is that of the last line's size, data and metric, without requests of a part of the study.
    """
    figures: dict[tuple[str, str], Figure] = {}
    by_key = series(line for line in lines if line.get("whole", True))
    last = {
        (key[0], key[2]): key for key in sorted(by_key, key=lambda key: datetime.fromisoformat(by_key[key][-1]["date"]))
    }
    for setting_key, key in last.items():
        if len({line["date"][:10] for line in by_key[key]}) > 1:
            figures[setting_key] = trend(by_key[key])
    return figures


def trend(lines: Sequence[Line]) -> Figure:
    """Draw the best row that combines, and local training, over the dates of runs; a dotted line where data change."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num  # takes half a second

    from fedcore.report.figures.drawing import BLUE, COLOURS, bare, grid, percent

    metric = recorded(lines[0]["metric"])
    figure, (panel,) = grid(1, 1, (0, 0), (5.6, 2.6))
    days = [float(date2num(datetime.fromisoformat(line["date"][:10]))) for line in lines]  # type: ignore[no-untyped-call]
    for key, label, colour, marker in (
        ("best_value", "best method that combines", BLUE, "o"),
        ("alone_value", "local training", COLOURS[1], "s"),
    ):
        values = [float("nan") if line[key] is None else line[key] for line in lines]
        panel.plot(days, values, color=colour, marker=marker, markersize=5, label=label)
    for (_, before), (day, line) in pairwise(zip(days, lines, strict=True)):
        if line["data"] != before["data"]:
            panel.axvline(day, color="0.7", linestyle=":", linewidth=0.8, zorder=0)
    few = max(1, min(5, int(days[-1] - days[0])))  # no hours between two days
    dates = AutoDateLocator(minticks=few)  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(dates)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]
    if metric.per == 100:
        panel.yaxis.set_major_formatter(percent)
    panel.set_ylabel(metric.words)
    bare(panel)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return figure
