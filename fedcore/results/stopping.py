"""What validation data say while seeds run: the best candidate, rows that cannot win, and which row leads so far.

The rule by which a row is not run with further seeds, once three seeds have run all rows, on the devices' validation
data, by which the answer chooses the best row: a row stops if the best of its kind is better, interval
included (docs/answer.md), by more than the least difference that matters. Kinds are rows that train alone; rows
that combine; of these, where devices are left out in turn, those with a model for a new device and those without; and
controls, which the best of all rows stops. The controls that always guess go on. Nothing stops without validation data.
It depends on the data alone, so that a resumed or repeated run stops the same rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TypeVar

import pandas as pd

from fedcore.results.answer import GUESSES
from fedcore.results.criterion import RATIO, Criterion, measured
from fedcore.results.gains import gain_of
from fedcore.results.summary import last_round, mean_over_devices, runs_on

T = TypeVar("T")

WIDTH = 80
"""The most characters in a line about which row leads."""


def rows_that_cannot_win(
    table: pd.DataFrame, controls: Collection[str], criterion: Criterion, able: Collection[str] | None = None
) -> frozenset[str]:
    """Return the rows of one setting's tidy table that need no further seeds.

    able: the rows that have a model for a new device; None: that makes no difference.
    """
    criterion = criterion.of_table(table)
    weights = pd.Series(measured(table, criterion).weights, dtype=float)
    runs = runs_on(last_round(table), "val", criterion.metric)
    means = {name: float(mean_over_devices(run, weights).mean()) for name, run in runs.items()}
    sent = table[(table["split"] == "traffic") & (table["metric"] == "bytes_up")].groupby("method")["value"].sum()
    methods = [name for name in runs if name not in controls]
    alone = [name for name in methods if not sent.get(name, 0.0)]
    combining = [name for name in methods if name not in alone]
    kinds = [alone, [name for name in combining if able is None or name in able]]
    kinds += [[name for name in combining if name not in kinds[1]]]
    leaders = {name: kind for kind in kinds for name in kind}
    stopped = set()
    for name, run in runs.items():
        best = max(leaders.get(name, methods), key=lambda method: (means[method], method), default=name)
        gain = None if best == name or name in GUESSES else gain_of(runs[best], run, weights, RATIO)
        if gain is not None and gain.low > criterion.min_effect:
            stopped.add(name)
    return frozenset(stopped)


def validation_value(table: pd.DataFrame, criterion: Criterion) -> float | None:
    """Return what decides on the devices' validation data after the last round, the greater the better.

    It is the mean over the devices that count (:func:`measured`), then over seeds; None without validation data.

    Args:
        table: a method's tidy table, of one setting.
        criterion: what decides.
    """
    here = criterion.of_table(table)
    weights = pd.Series(measured(table, here).weights, dtype=float)
    for run in runs_on(last_round(table), "val", here.metric).values():
        counted = run[run.columns.intersection(weights.index)] if len(weights) else run  # no device is tested: all
        means = mean_over_devices(counted, weights if len(weights) else None).dropna()
        return float(means.mean()) if len(means) else None
    return None


def best(tables: Mapping[T, pd.DataFrame], criterion: Criterion) -> T:
    """Return the candidate that is best on validation data; of equal ones, or without such data, the first."""
    values = {name: validation_value(table, criterion) for name, table in tables.items()}
    validated = {name: value for name, value in values.items() if value is not None}
    return max(validated, key=lambda name: round(validated[name], 12), default=next(iter(tables)))


@dataclass(frozen=True)
class Leader:
    """A row and its mean over devices: on validation data, the greater the better, and on own test data, in words.

    metric: in words.
    """

    label: str
    validation: float
    test: str
    metric: str


@dataclass
class SoFar:
    """The best row that trains alone and the best one that combines, by validation data, as the answer chooses them."""

    leaders: dict[bool, Leader] = field(default_factory=dict)

    def add(self, row: Leader, combines: bool, more: str = "") -> list[str]:
        """Return lines about both if this row leads its kind now; none otherwise, and before there is one of each."""
        before = self.leaders.get(combines)
        if before is not None and row.validation <= before.validation:
            return []
        self.leaders[combines] = row
        if len(self.leaders) < 2:
            return []
        best, alone = self.leaders[True], self.leaders[False]
        scores = f"test {row.metric} {best.test}, local training ({alone.label}) {alone.test}"
        line = f"  so far, by one seed's validation rows, the best combining method is {best.label}: {scores}{more}"
        return wrap(line, WIDTH, subsequent_indent="    ")
