"""An overview of a dataset before anything is computed from it: columns, missing cells, scales."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedcore.data import Dataset, schema_of

SPREAD = 10.0
"""Columns whose spans differ by more than this factor should be scaled: a net learns from the widest ones first."""


def columns(dataset: Dataset) -> pd.DataFrame:
    """Return a row for each column of a table that is learnt from; none for arrays.

    column, kind, inputs: how many of a net's inputs it becomes. missing: cells without a value. low, high: the least
    and greatest number, nan for texts. values: its distinct numbers, or its categories.
    """
    schema, x = schema_of(dataset), dataset.train.x.numpy()
    rows, first = [], 0
    for column in schema.columns:
        held = x[:, first : first + len(column.inputs)]
        first += len(column.inputs)
        if column.kind == "text":
            gaps, low, high, values = ~held.any(axis=1), np.nan, np.nan, len(column.categories)
        else:
            gaps = np.isnan(held[:, 0])
            known = held[~gaps, 0]
            low, high = (known.min(), known.max()) if len(known) else (np.nan, np.nan)
            values = len(np.unique(known))
        rows.append((column.name, column.kind, len(column.inputs), int(gaps.sum()), float(low), float(high), values))
    return pd.DataFrame(rows, columns=["column", "kind", "inputs", "missing", "low", "high", "values"])


def spans(dataset: Dataset) -> tuple[float, float] | None:
    """Return the least and the greatest span (high - low) of a column of numbers; None with fewer than two columns."""
    found = columns(dataset)
    wide = (found["high"] - found["low"])[found["kind"] == "number"].dropna()
    wide = wide[wide > 0]
    return (float(wide.min()), float(wide.max())) if len(wide) > 1 else None
