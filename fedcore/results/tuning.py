"""The choice among candidates, such as learning rates, by the devices' validation data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pandas as pd

from fedcore.results.criterion import Criterion, measured
from fedcore.results.summary import last_round, mean_over_devices, runs_of

T = TypeVar("T")


def validation_value(table: pd.DataFrame, criterion: Criterion) -> float | None:
    """Return what decides on the devices' validation data after the last round, the greater the better.

    It is the mean over the devices that count (:func:`measured`), then over seeds; None without validation data.

    Args:
        table: a method's tidy table, of one setting.
        criterion: what decides.
    """
    here = criterion.of_table(table)
    scores = last_round(table)
    scores = scores[(scores["split"] == "val") & (scores["metric"] == here.metric.column)]
    weights = pd.Series(measured(table, here).weights, dtype=float)
    for run in runs_of(scores.assign(value=here.metric.sign * scores["value"])).values():
        means = mean_over_devices(run[run.columns.intersection(weights.index)], weights).dropna()
        return float(means.mean()) if len(means) else None
    return None


def best(tables: Mapping[T, pd.DataFrame], criterion: Criterion) -> T:
    """Return the candidate that is best on validation data; of equal ones, or without such data, the first."""
    values = {name: validation_value(table, criterion) for name, table in tables.items()}
    validated = {name: value for name, value in values.items() if value is not None}
    return max(validated, key=lambda name: round(validated[name], 12), default=next(iter(tables)))
