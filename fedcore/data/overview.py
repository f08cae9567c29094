"""An overview of a dataset before anything is computed from it: columns, missing cells, scales."""

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from fedcore.data import Dataset, schema_of
from fedcore.data.names import typed_setting
from fedcore.data.schema import Column

SPREAD = 10.0
"""Columns whose spans differ by more than this factor should be scaled: a net learns from the widest ones first."""

OFFSET = 0.5
"""If more of the variance within a class lies between devices, their levels differ for another reason than labels."""

LEAST_EACH = 10
"""The rows per device, in the mean, from which that share is told: of two rows each, half lies between by chance."""

STEPS = 1000
"""Half of a device's numbers should have so many steps."""

FEW_VALUES, BY_CHANCE, HEAD = 20, 1e-9, 1000
"""The most values of a label with a rare class, and of a column that may tell it alone, by so many rows at least; the
chance, if it did not, that all rows of a value have one class, below which it does; rows read first for many values."""

SAME_ORDER = 0.998
"""The rank correlation with a number as label above which a column tells it: a copy, rounded, in any unit or scale."""

FALLS, RISES = 0.01, 0.1
"""Of the steps from row to row of a time that rises: the most that fall, and the least share that rise."""

IDENTIFIER = re.compile(r"(?i:(^|[^a-z])(ids?|uid|uuid|idx|nr|hash)([^a-z]|$))|[a-z]I[dD]$")
"""The name of a column whose whole numbers name rows, if all differ."""


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


def encoded(dataset: Dataset, index: NDArray[np.int64] | None = None) -> Iterator[tuple[str, pd.Series]]:
    """Yield each column of a table with its numbers, or its texts numbered from 1, nan where missing, of some rows."""
    for column, cells, gaps in _inputs(dataset, index):
        yield column.name, pd.Series(np.where(gaps, np.nan, cells @ np.arange(1.0, cells.shape[1] + 1)))


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


def _inputs(
    dataset: Dataset, index: NDArray[np.int64] | None = None
) -> Iterator[tuple[Column, NDArray[np.float64], NDArray[np.bool_]]]:
    """Return each column of a table with its inputs (N, n), and which of its cells are missing, (N,); of some rows."""
    x, unknown = dataset.train.x.numpy(), dict(dataset.unknown)
    for column, cells in schema_of(dataset).by_column(x if index is None else np.asfortranarray(x[index])):
        gaps = (cells == 0).all(axis=1) if column.kind == "text" else np.isnan(cells[:, 0])
        if column.name in unknown:
            gaps &= (np.array(unknown[column.name]) == "")[slice(None) if index is None else index]
        yield column, cells, np.asarray(gaps & (not column.ticks), np.bool_)


def spans(dataset: Dataset) -> tuple[float, float] | None:
    """Return the least and the greatest span of a column, see `widths`; None with fewer than two columns."""
    table = columns(dataset).set_index("column")
    wide = widths(table["high"] - table["low"], table.index[table["kind"] == "text"])
    return (float(wide.min()), float(wide.max())) if len(wide) > 1 else None


def widths(numbers: pd.Series, texts: Iterable[Hashable]) -> pd.Series:
    """Return the spans (high - low) of columns that vary: of numbers as given; of texts, whose inputs are 0 or 1, 1."""
    return pd.Series({**numbers[numbers > 0], **dict.fromkeys(texts, 1.0)}, dtype=np.float64)


def identifies(name: str, values: NDArray[np.float64]) -> bool:
    """Tell whether numbers of rows are names: whole, different, and named so, or too dense to differ by chance.

    N numbers drawn from so many values all differ with a chance of about exp(-N (N - 1) / 2 / values), here below .001.
    """
    rows = len(values)
    differ = rows > 1 and not (values % 1).any() and len(np.unique(values)) == rows
    return bool(differ and (IDENTIFIER.search(name) or rows * (rows - 1) > 14 * np.ptp(values)))


def rising(cells: Mapping[str, NDArray[np.float64]], owner: Any) -> list[str]:
    """Return the columns that rise with the rows, all or each device's, as times do. owner: of each row, or None."""
    found, orders = list[str](), list[tuple[Any, Any]]([(slice(None), slice(None))])  # and the steps of one device
    if owner is not None:
        devices = np.unique(np.asarray(owner), return_inverse=True)[1]
        order = np.argsort(devices, kind="stable")
        orders.append((order, np.diff(devices[order]) == 0))
    for name, values in cells.items():
        steps = [np.diff(values[order])[same] for order, same in orders]
        rise = any((one < 0).mean() <= FALLS and (one > 0).mean() >= RISES for one in steps if len(one))
        found += [name] * bool(rise and len(np.unique(values)) > FEW_VALUES)
    return found


def telling(cells: Iterable[tuple[Hashable, pd.Series]], y: NDArray[Any], ignored: Collection[str] = ()) -> list[str]:
    """Return a line about columns that tell the label alone, at least of some rows, as those filled in later do.

    Each of few values has one class only, or each class has an interval of numbers, or one of two values has one class
    only: also of zero or empty, if most frequent, and the rest. Of a number as label: a column of numbers in its order.
    cells: by column, (N,). y: the class of each row, or its number, (N,). ignored: columns that are left out already.
    """
    amounts = pd.Series(y) if y.dtype.kind == "f" else None
    y, sizes = np.unique(y, return_inverse=True, return_counts=True)[1:]
    if len(y) < FEW_VALUES or len(sizes) < 2:
        return []
    shares, order, starts = sizes / len(y), np.argsort(y, kind="stable"), np.cumsum(sizes) - sizes

    def chances(codes: NDArray[np.integer], y: NDArray[np.integer]) -> NDArray[np.float64]:  # nan: several classes
        size = int(codes.max(initial=0)) + 1, len(sizes)
        counts = np.bincount(codes * size[1] + y, minlength=size[0] * size[1]).reshape(size)
        return np.where((counts > 0).sum(1) == 1, shares[counts.argmax(1)] ** (counts.sum(1) - 1), np.nan)

    def tells(column: pd.Series) -> bool:
        filled, numeric = column.notna().to_numpy(), is_numeric_dtype(column.dtype)
        coded = column if numeric else pd.Series(pd.factorize(column)[0] + 1).where(filled)
        values = coded.to_numpy(float, na_value=np.nan)
        if amounts is not None:
            both = pd.DataFrame({"x": values, "y": amounts})
            some_first = both[:: len(both) // HEAD + 1], both
            orders = (rows.corr("spearman", min_periods=FEW_VALUES).to_numpy()[0, 1] for rows in some_first)
            return numeric and all(abs(order) > SAME_ORDER for order in orders)
        low, high = (least.reduceat(values[order], starts) for least in (np.fmin, np.fmax))
        by = np.argsort(low)
        if numeric and (high[by][:-1] < low[by][1:]).all():  # not if a class is all nan
            return bool((shares ** (np.bincount(y[filled]) - 1)).prod() < BY_CHANCE)
        codes, found = pd.factorize(values[:HEAD])
        codes, found = pd.factorize(values) if len(found) <= FEW_VALUES else (codes, found)
        each = chances(codes[filled], y[filled]) if len(found) <= FEW_VALUES else np.ones(1)
        if each.prod() < BY_CHANCE or (len(found) == 2 and (each < BY_CHANCE).any()):
            return True
        some = filled & (values != 0)
        alone = (chances(some.astype(np.int64), y) < BY_CHANCE).any()
        return bool(alone and len(y) - some.sum() >= pd.Series(values[some]).value_counts().max())

    names = [str(name) for name, column in cells if tells(column)]
    verb = "tells" if len(names) == 1 else "each tell"
    known = f"if it is known only after the label: {typed_setting('data.ignore', dict.fromkeys([*ignored, *names]))}"
    line = f"{', '.join(map(repr, names))} {verb} the label of all or some rows without other columns; {known}"
    return [line] * bool(names)


def rounded(numbers: pd.DataFrame, owner: NDArray[Any], scale: str) -> pd.DataFrame:
    """Return where float32 leaves less than STEPS steps to the middle half of a device's numbers of a column.

    A row for each such device and column: device, column, step and span of that half, in the column's unit; whether
    float64 is as coarse.

    numbers: (N, F). owner: the device of each row. scale: federation.scale.
    """
    groups = numbers.groupby(owner)
    low, high = groups.quantile(0.25), groups.quantile(0.75)
    fitted: Any = {"common": numbers, "device": groups}.get(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = (0.0, 1.0) if fitted is None else (fitted.mean(), fitted.std(ddof=0).replace(0.0, 1.0))
        far = np.maximum((low - mean).abs(), (high - mean).abs()) / std
        steps = np.spacing(far.astype(np.float32)).astype(float) * std
        least, span = np.spacing(np.maximum(low.abs(), high.abs())), high - low
    step = np.maximum(steps, least)
    who, which = np.nonzero(np.asarray((span > 0) & (span < STEPS * step)))
    found = {"step": step, "span": span, "double": span < STEPS * least}
    cells = {name: np.asarray(of)[who, which] for name, of in found.items()}
    return pd.DataFrame({"device": span.index[who], "column": span.columns[which], **cells})


def offsets(dataset: Dataset, trains: Mapping[str, NDArray[np.int64]]) -> pd.Series:
    """Return :func:`between` of a dataset. trains: each device's training examples, as indices into `dataset.train`."""
    schema, index = schema_of(dataset), np.concatenate([*trains.values()])
    number = [column.kind == "number" for column in schema.columns for _ in column.inputs]
    if not any(number):
        return pd.Series(dtype=float)
    names = np.array(schema.inputs)[number]
    x = pd.DataFrame(dataset.train.x.numpy()[index][:, number].astype(np.float64), columns=names)
    device = np.repeat(np.arange(len(trains)), [len(own) for own in trains.values()])
    return between(x, device, dataset.strata[index])


def between(x: pd.DataFrame, device: NDArray[Any], classes: NDArray[Any]) -> pd.Series:
    """Return the share of a column's variance within a class that lies between devices, in [0, 1].

    A value's residual is what it exceeds the mean of its class by; the share is the variance of the devices' mean
    residuals over that of all. Of columns that vary within a class, and on some device, and have LEAST_EACH rows per
    device. A level that carries the label differs between devices as far as their labels do, which does not count here.

    x: (N, F) numbers. device, classes: of each row.
    """
    of_each = x.groupby(device)
    varies = (of_each.max() > of_each.min()).any()
    residual = x - x.groupby(classes).transform("mean")
    means = residual.groupby(device).transform("mean").where(x.notna())
    within_class = residual.var(ddof=0)
    enough = of_each.count().sum() >= LEAST_EACH * (of_each.count() > 0).sum()
    return (means.var(ddof=0) / within_class)[varies & (within_class > 0) & enough]
