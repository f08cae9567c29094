"""An overview of a dataset before anything is computed from it: columns, missing cells, scales."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcore.data import Dataset, schema_of
from fedcore.data.schema import Column

SPREAD = 10.0
"""Columns whose spans differ by more than this factor should be scaled: a net learns from the widest ones first."""

OFFSET = 0.5
"""If more of the variance within a class lies between devices, their levels differ for another reason than labels."""


def columns(dataset: Dataset) -> pd.DataFrame:
    """Return a row for each column of a table that is learnt from; none for arrays.

    column, kind, inputs: how many of a net's inputs it becomes. missing: cells without a value. low, high: the least
    and greatest number, nan for texts. values: its distinct numbers, or its categories.
    """
    rows = []
    for column, cells, gaps in _inputs(dataset):
        low, high, values = np.nan, np.nan, len(column.categories)
        if column.kind != "text":
            present = cells[~gaps, 0]
            low, high = (present.min(), present.max()) if len(present) else (np.nan, np.nan)
            values = len(np.unique(present))
        rows.append((column.name, column.kind, len(column.inputs), int(gaps.sum()), float(low), float(high), values))
    return pd.DataFrame(rows, columns=["column", "kind", "inputs", "missing", "low", "high", "values"])


def missing_cells(dataset: Dataset, devices: Mapping[str, NDArray[np.int64]]) -> pd.DataFrame:
    """Return how many cells each device lacks: a row per device, and a column for each column with a missing cell.

    devices: each device's examples, as indices into `dataset.train`.
    """
    counts = {
        column.name: [int(gaps[index].sum()) for index in devices.values()]
        for column, _, gaps in _inputs(dataset)
        if gaps.any()
    }
    return pd.DataFrame(counts, index=pd.Index([*devices], name="device"))


def _inputs(dataset: Dataset) -> Iterator[tuple[Column, NDArray[np.float64], NDArray[np.bool_]]]:
    """Return each column of a table with its inputs (N, n), and which of its cells are missing, (N,)."""
    for column, cells in schema_of(dataset).by_column(dataset.train.x.numpy()):
        gaps = (cells == 0).all(axis=1) if column.kind == "text" else np.isnan(cells[:, 0])
        yield column, cells, np.asarray(gaps & (not column.ticks), np.bool_)


def spans(dataset: Dataset) -> tuple[float, float] | None:
    """Return the least and the greatest span (high - low) of a column of numbers; None with fewer than two columns."""
    values = columns(dataset)
    wide = (values["high"] - values["low"])[values["kind"] == "number"].dropna()
    wide = wide[wide > 0]
    return (float(wide.min()), float(wide.max())) if len(wide) > 1 else None


def offset(dataset: Dataset, trains: Mapping[str, NDArray[np.int64]]) -> float | None:
    """Return the share of a column's variance within a class that lies between devices, in [0, 1], or None.

    A value's residual is what it exceeds the mean of its class by; the share is the variance of the devices' mean
    residuals over that of all. It is the median over columns of numbers; None without any that varies within a class.
    A level that carries the label differs between devices as far as their labels do, which does not count here.

    trains: Each device's training examples, as indices into `dataset.train`.
    """
    schema, index = schema_of(dataset), np.concatenate([*trains.values()])
    number = [column.kind == "number" for column in schema.columns for _ in column.inputs]
    if not any(number):
        return None
    x = pd.DataFrame(dataset.train.x.numpy()[index][:, number].astype(np.float64))
    x -= x.groupby(dataset.strata[index]).transform("mean")
    device = np.repeat(np.arange(len(trains)), [len(own) for own in trains.values()])
    between = x.groupby(device).transform("mean").where(x.notna())
    within_class = x.var(ddof=0)
    shares = (between.var(ddof=0) / within_class)[within_class > 0]
    return float(shares.median()) if len(shares) else None
