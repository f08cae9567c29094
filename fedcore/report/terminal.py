"""Answers, summary and claims in the terminal, and what a run would compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedcore.core.metrics import recorded
from fedcore.errors import InputError, printable
from fedcore.report.answers import Box
from fedcore.report.names import in_words
from fedcore.report.tables import FEW, cells, notes, where_it_holds
from fedcore.results.summary import SPLITS, format_bytes, split_by_setting

NARROW = 13
"""Places of a head's line."""

WIDE = 100
"""The number of columns that a whole table needs."""

SPARE = ("test_std_devices", "wall", "bytes_down", "nets_run")
"""What a table leaves out where it does not fit with whole names, the first one first."""

COLUMNS = (
    "own test: on each device's own test rows. shared test: on one test set for all. worst device: the worst value "
    "of one that counts. rank: by {}. {}All columns: `fedcore docs columns`"
)
"""What is said below tables: what decides; what ± means, if a column has it."""

INSTEAD = "\N{REPLACEMENT CHARACTER}"

BREAK = "_\N{ZERO WIDTH SPACE}"
"""An underscore after which rich may break a line."""


class PlainConsole(Console):
    """Prints a control character, which could steer the terminal or turn the line around, as a replacement character.

    rich lets most of them pass. Its own styles are not text, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                words = segment.text.replace(BREAK, "_")
                text = "".join(c if c.isprintable() or c == "\n" else INSTEAD for c in words)
                yield Segment(text, segment.style)


def one_line(text: str, style: str = "") -> Text:
    """Return a text in one line, see :func:`fedcore.errors.printable`, without markup."""
    return Text(printable(text), style)


def print_summary(summary: pd.DataFrame, console: Console | None = None) -> None:
    """Print a table for each study and setting. Needs 80 columns, uses 100.

    A study with more than FEW settings is printed as one table with a line for each setting; the page shows it in full.
    """
    console = console or standard()
    for _, rows in summary.groupby("study", sort=False):
        (_print_settings if rows["setting"].nunique() <= FEW else _print_grid)(rows, console)
    if len(summary):
        decide = " or ".join(words for split, words in SPLITS.items() if (summary["primary"] == split).any())
        several = summary[[f"{split}_margin" for split in SPLITS]].notna().any(axis=None)
        console.print(Text(COLUMNS.format(decide, "±: half of the 95 % interval. " * bool(several))), end="\n\n")


def print_answers(boxes_of: Mapping[str, Sequence[Box]], console: Console | None = None) -> None:
    """Print the boxes of each study: what to do in each setting, and why."""
    console = console or standard()
    for boxes in boxes_of.values():
        for answer in boxes:
            console.print(one_line(f"{answer.title}: {answer.headline}", style="bold"))
            for sentence in answer.sentences:
                console.print(Padding(one_line(sentence), (0, 0, 0, 2)))
    console.print()


def print_claims(claims: pd.DataFrame, console: Console | None = None) -> None:
    """Print each claim with its verdict, its rule and the numbers behind it."""
    console = console or standard()
    for study, rows in claims.fillna("").groupby("study", sort=False):
        console.print(one_line(f"{study}: claims of the paper", style="bold"))
        for _, row in rows.iterrows():
            where = f" where {row['where']}" if row["where"] else ""
            style = "" if row["verdict"] == "not tested" else "bold"
            console.print(one_line(f"  {row['verdict']}: {row['says']}", style))
            numbers = where_it_holds(row["numbers"])
            console.print(one_line(f"    {row['rule']}{where} ({row['of']}): {numbers}", style="dim"))
        console.print()


def plain_table(title: str = "") -> Table:
    """Return a table without columns yet."""
    head = one_line(title, style="bold") if title else None
    return Table(title=head, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], console: Console | None = None, spare: Sequence[str] = ()
) -> None:
    """Print a table of texts; a cell that is too wide goes on in the next line, a word only where it must.

    spare: the columns that go where words would break, the first one first.
    """
    console, lines = console or standard(), [*rows]
    room = console.width + 1  # two places lie between columns, one after the last one
    texts = {head: [printable(cell) for cell in (head, *of)] for head, *of in zip(heads, *lines, strict=True)}
    longest = {
        head: max((cell_len(word) for cell in of for word in cell.split()), default=0) for head, of in texts.items()
    }
    for head in spare:
        if sum(of + 2 for of in longest.values()) > room:
            longest.pop(head, 0)
    every = longest.values()
    fits = (cap for cap in range(max(every), NARROW, -1) if sum(min(cap, of) + 2 for of in every) <= room)
    most = next(fits, NARROW)
    widths = {head: max(map(cell_len, texts[head])) for head in longest}
    while sum(width + 2 for width in widths.values()) > room and (
        loose := [head for head, width in widths.items() if width > min(longest[head], most)]
    ):
        widths[max(loose, key=widths.__getitem__)] -= 1  # the widest one with words to move, by a place
    table = plain_table()
    for head, width in widths.items():
        table.add_column(Text(head), overflow="fold", width=width)
    for line in lines:
        table.add_row(*(one_line(cell) for head, cell in zip(heads, line, strict=True) if head in longest))
    console.print(table, crop=False)


def standard(width: int = WIDE) -> Console:
    """Return a console on standard output: as wide as the terminal, else as COLUMNS says, else `width`."""
    columns = os.environ.get("COLUMNS", "")
    chosen = int(columns) if columns.isdecimal() and int(columns) else width
    return PlainConsole(width=None if sys.stdout.isatty() else chosen)


def _print_grid(summary: pd.DataFrame, console: Console) -> None:
    """Print the means of the metric that decides: a line for each setting, a column for each method."""
    split = "test" if (summary["primary"] == "test").all() else "shared"
    metric = recorded(summary["metric"].iloc[0])
    table = plain_table(
        f"{summary['study'].iloc[0]}: {metric.words} on {SPLITS[split]} data{', %' * (metric.per == 100)}"
    )
    methods = list(dict.fromkeys(summary.sort_values("control", kind="stable")["method"]))
    table.add_column(Text("setting"), overflow="fold")
    for method in methods:
        table.add_column(Text(printable(method).replace("_", BREAK)), justify="right", overflow="fold")
    for (_, _, setting), rows in split_by_setting(summary):
        cells = dict(zip(rows["method"], map(metric.scaled, rows[f"{split}_mean"]), strict=True))
        table.add_row(one_line(setting), *(Text(cells.get(method, "-")) for method in methods))
    console.print(table)
    console.print()


def _print_settings(summary: pd.DataFrame, console: Console) -> None:
    """Print the table of each setting and what it does not show."""
    for (study, dataset, setting), rows in split_by_setting(summary):
        heads, lines = cells(rows)
        hidden = {"shared_std_devices", "shared_worst", "cpu", "bytes_round", "macs"}
        hidden |= {"wall"} if rows["nets_run"].max() > 1 else {"nets_run"}
        wide = console.options.update_width(10 * WIDE)
        for count in range(len(SPARE) + 1):
            shown = [name for name in heads if name not in hidden.union(SPARE[:count])]
            table = plain_table(in_words(study, setting, dataset))
            for name in shown:
                table.add_column(
                    Text(_stacked(heads[name])), justify="left" if name in ("rank", "method") else "right",
                    no_wrap=name != "method", overflow="fold",
                )  # fmt: skip
            for i, line in enumerate(lines):
                control = bool(rows["control"].iloc[i])
                if control and i and not rows["control"].iloc[i - 1]:
                    table.add_section()
                table.add_row(*(one_line(line[name].text) for name in shown), style="dim" if control else "")
            if console.measure(table, options=wide).maximum <= console.width:
                break
        console.print(table)
        console.print()
        for sentence in notes(rows, shown):
            console.print(one_line(sentence), end="\n\n")


def _stacked(head: str) -> str:
    """Return a column's head in lines that are about as narrow as its cells: a metric may have a long name."""
    whole = head.replace("% ± 95 %", "%\xa0±\xa095\xa0%").replace("± 95 %", "±\xa095\xa0%")
    return "\n".join(part for line in whole.split("\n") for part in wrap(line, NARROW)).replace("\xa0", " ")


# what a run would compute


@dataclass(frozen=True)
class CostEstimate:
    """What one method would cost in one setting and seed.

    steps, cached: the method's steps that no method before it shares, and those of them that are in the cache. seconds:
    what the others take, and to read these; anew: what all take. traffic: bytes that all devices send and receive.
    unknown: kinds of steps without a time. bound: whether a part stands for the whole, and the cache says nothing.
    refused: why it cannot run. without: how many runs without a device it stands for.
    """

    study: str
    method: str
    steps: int
    cached: int
    seconds: float
    traffic: float
    unknown: frozenset[str]
    bound: bool = False
    refused: str = ""
    anew: float = 0.0
    without: int = 0

    @property
    def is_cached(self) -> bool:
        """Whether nothing is to be computed."""
        return self.steps == self.cached and not self.bound

    def times(self, count: int, bound: bool = False) -> CostEstimate:
        """Return what it would cost so often, with steps of its own each time. bound: see above."""
        steps, cached, seconds = self.steps * count, self.cached * count, (self.anew if bound else self.seconds) * count
        traffic, anew, bound = self.traffic * count, self.anew * count, self.bound or bound
        return replace(self, steps=steps, cached=cached, seconds=seconds, traffic=traffic, bound=bound, anew=anew)


FIRST = "add seed=0"
"""What makes a run after which a forecast has seconds."""

BOUNDS = (
    "Not all is looked up: a long run's first rounds stand for all of them, one seed with steps to compute for all "
    "later ones. Steps are thus upper bounds."
)
"""Said of a plan of more than :data:`fedcore.pipeline.run.forecast.RUNS` runs, or of more than its TURNS."""

TOP = "10 to 60 s, and up to 2 s for each method and seed"
"""What a run takes beside its steps, where none has run: measured with 4 and 24 methods and seeds on two busy cores."""

START = 10
"""The seconds of that which do not grow with methods and seeds."""

FINAL_FIT = (
    "Traffic includes what fills and scales columns, also for methods that send nothing else.\n"
    "Bytes are estimates: methods of several stages and boosted trees may send more or less, a run in which "
    "models fail or combining gains may add a probe or a remedy, and a promotion adds its final fit."
)


def print_forecast(
    rows: Iterable[CostEstimate], stops_rows: bool = False, console: Console | None = None,
    beside: tuple[float, int] | None = None, runs: int = 0,
) -> None:  # fmt: skip
    """Print a line for each study and method, over its settings and seeds, and their sum.

    stops_rows: whether rows that cannot win are not run with all of these seeds. beside: what the last run took beside
    its steps, seconds, and its runs of methods. runs: those of this plan. Raises InputError if none can run.
    """
    console = console or standard()
    listed = list(rows)
    forecasts, refused = [row for row in listed if not row.refused], [row for row in listed if row.refused]
    if refused and not forecasts:
        raise InputError(refused[0].refused)
    bound = any(row.bound for row in forecasts)
    table = Table("study", "method", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("steps", *(() if bound else ("cached",)), "seconds", "traffic"):
        table.add_column(name, justify="right")
    for study, method in dict.fromkeys((row.study, row.method) for row in forecasts):
        of_method = [row for row in forecasts if (row.study, row.method) == (study, method)]
        table.add_row(one_line(study), one_line(method), *_cells(of_method, bound))
    table.add_section()
    table.add_row("", "all", *_cells(forecasts, bound))
    console.print(table)
    for study, method, why in dict.fromkeys((row.study, row.method, row.refused) for row in refused):
        console.print(one_line(f"{study}: {method} is left out: {why}"))
    if more := sum(row.without for row in forecasts):
        console.print(Text(f"For a new device: {more:,} runs without a device; run.new_device=shared skips them."))
    if bound:
        console.print(Text(BOUNDS))
    unknown = sorted({kind for row in forecasts for kind in row.unknown})
    if unknown and not any(row.seconds for row in forecasts):
        console.print(Text("Seconds are not known yet: nothing has run here. Run one seed first: " + FIRST))
    else:
        what = "Seconds are medians of earlier steps here"
        if forecasts and all(row.is_cached for row in forecasts):
            what = "Nothing to compute: seconds are of reading the cache"
        console.print(Text(f"{what}."))
        if unknown:
            kinds = f"{len(unknown)} {'kind' if len(unknown) == 1 else 'kinds'} of steps"
            console.print(Text(f"Not run here, and left out (+): {kinds}."))
    taken = TOP
    if beside is not None:
        each = min(2.0, max(0.0, beside[0] - START) / max(beside[1], 1))  # its runs without a device are not counted
        top = min(beside[0], START) + each * runs
        whole = sum(row.seconds for row in forecasts) + top
        taken = f"about {in_time(top)} for {runs:,} methods and seeds, by the last run here"
        taken += f".\nIn all: {'over' if unknown else 'about'} {in_time(whole)}"
    console.print(Text(f"Starting and recording come on top: {taken}."))
    console.print(Text(FINAL_FIT))
    if stops_rows:
        console.print(Text("Fewer if methods that cannot win stop after three seeds (run.stop_rows)."))


def in_time(seconds: float) -> str:
    """Return seconds in words: 40 s, 27 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _cells(rows: list[CostEstimate], bound: bool) -> list[str]:
    seconds_known = sum(row.seconds for row in rows)
    unknown = any(row.unknown for row in rows)
    seconds = "not known" if unknown and not seconds_known else f"{seconds_known:,.1f}{'+' * unknown}"
    return [
        f"{sum(row.steps for row in rows):,}", *([] if bound else [f"{sum(row.cached for row in rows):,}"]),
        seconds, format_bytes(sum(row.traffic for row in rows)),
    ]  # fmt: skip
