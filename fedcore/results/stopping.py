"""Rows that cannot win: after a few seeds they are not run with further ones.

The rule, once three seeds have run all rows, on the devices' validation data, by which the answer chooses the best
row: a row stops if the best of its kind is better, interval included (rule 2 of :mod:`fedcore.results.answer`), by more
than the least difference that matters. Kinds are rows that train alone; rows that combine; of these, where devices are
left out in turn, those with a model for a new device and those without; and controls, which the best of all rows stops.
The controls that always guess go on. Nothing stops without validation data. It depends on the data alone, so that a
resumed or repeated run stops the same rows.
"""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from fedcore.results.answer import GUESSES
from fedcore.results.criterion import RATIO, Criterion, measured
from fedcore.results.gains import gain_of
from fedcore.results.summary import last_round, mean_over_devices, runs_of


def rows_that_cannot_win(
    table: pd.DataFrame, controls: Collection[str], criterion: Criterion, able: Collection[str] | None = None
) -> frozenset[str]:
    """Return the rows of one setting's tidy table that need no further seeds.

    able: the rows that have a model for a new device; None: that makes no difference.
    """
    criterion = criterion.of_table(table)
    weights = pd.Series(measured(table, criterion).weights, dtype=float)
    scores = last_round(table)
    values = scores[(scores["metric"] == criterion.metric.column) & (scores["split"] == "val")]
    runs = runs_of(values.assign(value=criterion.metric.sign * values["value"]))
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
