"""What a run would compute, in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.errors import InputError
from fedcore.report.terminal import one_line, standard
from fedcore.results.summary import format_bytes


@dataclass(frozen=True)
class CostEstimate:
    """What one method would cost in one setting and seed.

    steps, cached: the method's steps that no method before it shares, and those of them that are in the cache. seconds:
    what the others take. traffic: bytes that all devices send and receive. unknown: kinds of steps without a time.
    bound: whether a part stands for the whole, and the cache says nothing. refused: why it cannot run.
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

    def times(self, count: int, bound: bool = False) -> CostEstimate:
        """Return what it would cost so often, with steps of its own each time. bound: see above."""
        steps, cached, seconds = self.steps * count, self.cached * count, self.seconds * count
        traffic, bound = self.traffic * count, self.bound or bound
        return replace(self, steps=steps, cached=cached, seconds=seconds, traffic=traffic, bound=bound)


FIRST = "add seed=0"
"""What makes a run after which a forecast has seconds."""

BOUNDS = (
    "So many runs are not looked up: the first rounds stand for all of them, the second seed for all later ones, and "
    "nothing counts as cached. These are bounds."
)
"""Said of a plan of more than :data:`fedcore.pipeline.run.forecast.RUNS` runs, or of more than its TURNS."""

FINAL_FIT = (
    "Traffic includes what fills and scales columns, also for methods that send nothing else.\n"
    "These are least numbers: boosted trees may send more, a run in which models fail adds a probe or a remedy, and a "
    "promotion adds its final fit."
)


def print_forecast(rows: Iterable[CostEstimate], stops_rows: bool = False, console: Console | None = None) -> None:
    """Print a line for each study and method, over its settings and seeds, and their sum.

    stops_rows: whether rows that cannot win are not run with all of these seeds. Raises InputError if none can run.
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
    if bound:
        console.print(Text(BOUNDS))
    unknown = sorted({kind for row in forecasts for kind in row.unknown})
    if unknown and not any(row.seconds for row in forecasts):
        console.print(Text("Seconds are not known yet: nothing has run here. Run one seed first: " + FIRST))
    else:
        console.print(Text("Seconds are medians of earlier steps here. Starting and recording come on top."))
        if unknown:
            console.print(Text(f"+ the sum leaves out steps that have not run here: {', '.join(unknown)}"))
    console.print(Text(FINAL_FIT))
    if stops_rows:
        console.print(Text("Fewer if methods that cannot win stop after three seeds (run.stop_rows)."))


def _cells(rows: list[CostEstimate], bound: bool) -> list[str]:
    seconds_known = sum(row.seconds for row in rows)
    unknown = any(row.unknown for row in rows)
    seconds = "not known" if unknown and not seconds_known else f"{seconds_known:,.1f}{'+' * unknown}"
    return [
        f"{sum(row.steps for row in rows):,}", *([] if bound else [f"{sum(row.cached for row in rows):,}"]),
        seconds, format_bytes(sum(row.traffic for row in rows)),
    ]  # fmt: skip
