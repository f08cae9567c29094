"""A user's table: a CSV or Parquet file with one example per row, or a folder with one file per device.

Features are unscaled, so that a device's examples depend on its own rows only; :func:`fedcore.partition.splits` can
scale each device by its training examples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype
from pyarrow import types
from pyarrow.parquet import ParquetFile

from fedcore.data import Dataset, unknown_value
from fedcore.types import Data, InputError

SPLITS = ("train", "val", "test")


def table(
    path: str | Path,
    label: str,
    device: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
) -> Dataset:
    """Read a table, x (N, F) float32.

    path: one file, or a folder with a file per device, named by the file's stem (`device` is then refused). label: a
    column of strings or numbers; classes are the sorted distinct values, numbers by size. split: a column of "train",
    "val" and "test". features: the columns to use, in order; None: all columns of numbers except these three.

    Raises InputError for a feature that is not a finite number in every row. Messages count rows from 1, after the
    header.
    """
    path = Path(path)
    folder = path.is_dir()
    if folder and device is not None:
        raise InputError(
            f"data.device = {device!r}: data.path = {path} is a folder with a file per device; leave one out"
        )
    frames = {file: read(file) for file in (per_device(path) if folder else [path])}
    chosen = columns(frames, [name for name in (label, device, split) if name is not None], features)

    def all_rows(name: str) -> NDArray[np.str_]:
        return np.concatenate([texts(file, frame, name) for file, frame in frames.items()])

    labels = all_rows(label)
    classes, y = np.unique(labels, return_inverse=True)
    if len(y) < 2 or len(classes) < 2:
        raise InputError(
            f"data.path = {path}: {len(y)} rows and {len(classes)} different labels in column {label!r}; "
            "at least 2 of each are needed"
        )
    order = np.array(sorted(range(len(classes)), key=by_size(classes.tolist())))
    owners = [file.stem for file, frame in frames.items() for _ in range(len(frame))] if folder else None
    if device is not None:
        owners = all_rows(device).tolist()
    marks = None
    if split is not None:
        marks = [mark for file, frame in frames.items() for mark in split_marks(file, frame, split)]
    x = np.concatenate([values(file, frame, chosen) for file, frame in frames.items()])
    return Dataset(
        train=Data(torch.from_numpy(x), torch.from_numpy(np.argsort(order)[y])),
        test=None,
        classes=tuple(classes[order].tolist()),
        device=None if owners is None else tuple(owners),
        split=None if marks is None else tuple(marks),
    )


def columns(
    frames: Mapping[Path, pd.DataFrame], special: Sequence[str], features: Sequence[str] | None
) -> Sequence[str]:
    """Return the feature columns, after a check that every file has them and the special ones."""
    first, frame = next(iter(frames.items()))
    chosen = numeric(frame, special) if features is None else list(features)
    for file, frame in frames.items():
        for name in [*special, *chosen]:
            if name not in frame:
                raise InputError(f"data.path = {file}: no column {name!r}; it has: {', '.join(map(str, frame))}")
        extra = sorted(set(numeric(frame, special)) - set(chosen)) if features is None else []
        if extra:
            raise InputError(f"data.path = {file}: column {extra[0]!r} is not in {first}; choose with data.features")
    if not chosen:
        raise InputError(f"data.features = {features}: {first} has no column of numbers except {', '.join(special)}")
    for name in [*special, *chosen]:
        if [*special, *chosen].count(name) > 1:
            raise InputError(
                f"data.features = {chosen}: {name!r} is there twice, or is also the label, device or split"
            )
    return chosen


def per_device(folder: Path) -> list[Path]:
    """Return a folder's files, sorted by name, without hidden ones."""
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    if not files:
        raise InputError(
            f"data.path = {folder}: the folder is empty; it needs a {' or '.join(READERS)} file per device"
        )
    stems = [file.stem for file in files]
    for file in files:
        if stems.count(file.stem) > 1:
            raise InputError(f"data.path = {folder}: two files are named {file.stem!r}; each file is one device")
    return files


def read_csv(file: Path) -> pd.DataFrame:
    """Read a CSV file. Refuses rows that are too long; pandas would shift their columns or cut them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(file, index_col=False, low_memory=False)


def read_parquet(file: Path) -> pd.DataFrame:
    """Read a Parquet file and check its strings now rather than at their first use.

    Columns of lists, structs or bytes are left out: they hold neither numbers nor names.
    """
    rows = ParquetFile(file).read()
    rows.validate(full=True)
    if twice := {name for name in rows.column_names if rows.column_names.count(name) > 1}:
        raise ValueError(f"{len(rows.column_names)} columns, two of them named {min(twice)!r}")
    unread = [f.name for f in rows.schema if types.is_nested(f.type) or "binary" in str(f.type)]
    frame: pd.DataFrame = rows.drop_columns(unread).to_pandas()
    return frame


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {".csv": read_csv, ".parquet": read_parquet}


def read(file: Path) -> pd.DataFrame:
    """Return the rows of one file, at least one."""
    if not file.is_file():
        raise InputError(f"data.path = {file}: no such file; give a {' or '.join(READERS)} file or a folder of them")
    if file.suffix not in READERS:
        raise unknown_value(f"format of data.path = {file}", file.suffix, READERS)
    try:
        frame = READERS[file.suffix](file)
    except Exception as error:  # damaged bytes make the readers raise anything, a SyntaxError among others
        why = " ".join(str(error).split())
        raise InputError(
            f"data.path = {file}: cannot be read as {file.suffix} ({why}); repair or replace the file"
        ) from error
    if frame.empty:
        raise InputError(f"data.path = {file}: no rows; a file needs a header and at least one example")
    return frame


def numeric(frame: pd.DataFrame, special: Sequence[str]) -> list[str]:
    """Return the columns, except the special ones, with a number in any row or of a numeric type."""
    names = [str(name) for name in frame if name not in special]
    return [n for n in names if is_numeric_dtype(frame[n].dtype) or bool(np.isfinite(numbers(frame[n])).any())]


def numbers(column: pd.Series) -> NDArray[np.float32]:
    """Return a column as float32, nan for cells that are not numbers."""
    if not is_numeric_dtype(column.dtype):
        column = pd.to_numeric(column.astype("string"), errors="coerce")
    with np.errstate(over="ignore"):  # values too large become inf, refused below
        return column.to_numpy(np.float64, na_value=np.nan).astype(np.float32)


def values(file: Path, frame: pd.DataFrame, features: Sequence[str]) -> NDArray[np.float32]:
    """Return a file's features (N, F). Raises InputError for a value that is not finite."""
    x = np.stack([numbers(frame[name]) for name in features], axis=1)
    for row, column in np.argwhere(~np.isfinite(x)).tolist():
        raise cell_error(file, frame, features[column], row, "a finite number; correct it or choose data.features")
    return x


def texts(file: Path, frame: pd.DataFrame, name: str) -> NDArray[np.str_]:
    """Return a column of names as strings; whole numbers have no decimal point, so that 3 and 3.0 are the same."""
    codes, found = pd.factorize(frame[name])
    named = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in found]
    bad = (codes < 0) | np.isin(codes, [k for k, v in enumerate(found) if isinstance(v, float) and math.isinf(v)])
    for row in np.flatnonzero(bad).tolist():
        raise cell_error(file, frame, name, row, "a name or a number; fill it in or remove the row")
    return np.array(named, dtype=np.str_)[codes]


def split_marks(file: Path, frame: pd.DataFrame, name: str) -> list[str]:
    """Return a file's split column. Raises InputError for a value that is not in SPLITS."""
    found: list[str] = texts(file, frame, name).tolist()
    for row, mark in enumerate(found):
        if mark not in SPLITS:
            raise cell_error(file, frame, name, row, f"one of {', '.join(SPLITS)}")
    return found


def cell_error(file: Path, frame: pd.DataFrame, name: str, row: int, wanted: str) -> InputError:
    """Return the error for one cell; `row` counts from 0, the message from 1."""
    cell = str(frame[name].iloc[row])[:40]
    return InputError(f"data.path = {file}: column {name!r}, row {row + 1}: {cell!r} is not {wanted}")


def by_size(classes: Sequence[str]) -> Callable[[int], tuple[float, str]]:
    """Return the sort key of class numbers: by value if all classes are numbers, else as strings."""
    try:
        sizes = [float(name) for name in classes]
    except ValueError:
        sizes = [math.nan]
    if not np.isfinite(sizes).all():
        sizes = [0.0] * len(classes)
    return lambda k: (sizes[k], classes[k])
