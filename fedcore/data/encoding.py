"""From a data frame or an array to the inputs of a net, by a schema; and schemas as JSON.

Cells become float64 numbers, nan where one is missing, which are float32 once they are scaled; a text becomes an input
for each of its categories, 1 where it is that one and 0 elsewhere, so that a missing or unknown text has zeros only.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedcore.data.inputs import check_rows, in_order, require_unmasked
from fedcore.data.names import name_of
from fedcore.data.prepare import fill_and_scale, fit_for, standardise_channels
from fedcore.data.schema import MISSING_VALUES, Column, Fit, Schema, Spelling
from fedcore.errors import InputError, plural
from fedcore.types.federation import Data

WORDS = {"True": 1.0, "False": 0.0}
"""Of a column of booleans, besides 1 and 0."""

SEPARATED = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")
"""A number with commas that separate thousands, or with one that is decimal."""

COMMA = re.compile(rf"(?!{SEPARATED.pattern}$)[+-]?\d+,\d+", re.ASCII)
"""A number whose comma is decimal."""

EITHER = "data.decimal=comma or data.decimal=point"
FEW_WORDS, FEW_TEXTS = 8, 0.1
"""Texts among numbers are named as empty cells if they are so few different ones, and a smaller share of a column: that
is one of numbers then, and refused for them."""

FAR = 10
"""No standardised pixels are whole numbers so far from 0; bytes are."""

ROW = "row"
"""The name of the index of a frame that lacks some rows of its file: it numbers them as the file does, from 1."""


def encode(
    rows: pd.DataFrame | NDArray[Any], schema: Schema, device: str | None = None, new: bool = False
) -> Tensor:  # fmt: skip
    """Return the inputs (N, *shape) float32 exactly as a net was trained on them.

    rows: a frame with the schema's columns (any others are ignored), or an array (N, *shape) of the schema's dtype.
    device: prepares the rows as that device prepared its own; None: as those of no device. new: as those of one device
    that did not train.

    Raises InputError for an unknown device, a column that is not there, a cell of another kind or a missing one that
    nothing fills, and for an array of another shape or dtype. An unknown text is not refused, see `unknown_texts`.
    """
    if device is not None and device not in schema.devices:
        raise InputError(f"device = {device!r}: no such device; the model knows: {', '.join(schema.devices) or 'none'}")
    if not schema.columns:
        if isinstance(rows, pd.DataFrame):
            raise InputError("rows: the model learnt from an array; give rows.to_numpy() with its columns as learnt")
        require_unmasked(rows, "array")
        x = _pixels(np.asarray(rows), schema)
        x = fill_and_scale(x, fit_for(schema, x, device, new))
        x = x.float() if x.is_floating_point() else x
        if x.isinf().any():
            raise InputError(why := "array: some values are too large for float32 once they are scaled", why)
        return x
    if not isinstance(rows, pd.DataFrame):
        raise InputError(f"rows: {type(rows).__name__} has no column names; give a data frame with {_list(schema)}")
    for column in schema.columns:
        if (count := [*rows].count(column.name)) != 1:
            there = "there twice" if count else "not there"
            raise InputError(f"column {column.name!r} is {there}; the model needs {_list(schema)}")
    rows = without_markers(rows, schema)
    x = cells(rows, schema.columns, schema.spelling).to(getattr(torch, schema.dtype))
    if not schema.shared.fill:
        check_complete(rows, schema.columns, "; the model was trained on complete rows and cannot fill it")
    prepared, names = (
        fill_and_scale(x, fit_for(schema, x, device, new)).float(),
        [of.name for of in schema.columns for _ in of.inputs],
    )
    for row, place in prepared.isinf().nonzero()[:1].tolist():  # beside a small deviation in training
        raise cell_error(rows, names[place], row, "a number that float32 holds once it is scaled")
    return prepared


def unknown_cells(rows: pd.DataFrame, schema: Schema) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Return each column with texts that are no category of the schema, and these texts, (N,), "" in other rows.

    They count as none of the categories. A column that is not there has none; `encode` refuses it.
    """
    rows = without_markers(rows, schema)
    for column in schema.columns:
        if column.kind == "text" and column.name in rows:
            values = column_texts(rows, column.name, schema.spelling)
            if (strange := np.where(np.isin(values, column.categories), "", values)).any():
                yield column.name, strange


def unknown_texts(rows: pd.DataFrame, schema: Schema) -> list[str]:
    """Return a line for each column of `unknown_cells`."""
    lines = []
    for name, values in unknown_cells(rows, schema):
        strange = pd.Series(values[values != ""])
        named = ", ".join(repr(word) for word in strange.unique()[:3])
        lines.append(f"column {name!r}: {plural(len(strange), 'row', 'has', 'have')} {named}, unknown in training")
    return lines


def to_json(schema: Schema) -> str:
    """Return a schema as JSON."""
    return TypeAdapter(Schema).dump_json(schema, indent=1, exclude=schema.absent).decode()


def from_json(text: str | bytes, where: str = "schema.json") -> Schema:
    """Return the schema of a text by :func:`to_json`; raises InputError, which names the file, for another text."""
    try:
        return TypeAdapter(Schema).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where}: not a schema: {'.'.join(map(str, first['loc']))} {first['msg']}") from None


# missing cells


def find_markers(column: pd.Series, missing_values: Sequence[str], labels: bool = False) -> dict[str, int]:
    """Return the cells that stand for a missing value: text as it is written -> how often.

    A text stands for one if it is one of `missing_values` in any case and with any blanks around it, or is empty; a
    number, be it written as a text, if it is one of them: -99.90 is -99.9. labels: of a column of labels, where `none`
    is a class (a fault, a treatment: none), unless it is written None or `missing_values` are not the default ones.
    """
    wanted = {"", *(text.strip().lower() for text in missing_values)}
    if is_bool_dtype(column.dtype):
        return {}
    found = _as_numbers(wanted)
    markers = {text: int(n) for text in sorted(found) if (n := _are_numbers(column, {text: found[text]}).sum())}
    if is_numeric_dtype(column.dtype):
        return markers
    counts = {text: int(n) for text, n in column.value_counts().items() if isinstance(text, str) and n}
    written = pd.Series([*counts], dtype=str)
    equal = {*written[pd.to_numeric(written, errors="coerce").isin([*found.values()])]} if found else set()
    texts = {text: n for text, n in counts.items() if text.strip().lower() in wanted or text in equal}
    named = labels and tuple(missing_values) == MISSING_VALUES
    return markers | {
        text: n for text, n in texts.items() if not named or text.strip().lower() != "none" or text == "None"
    }


def _as_numbers(texts: Iterable[str]) -> dict[str, Any]:
    return {text: number for text in texts if pd.notna(number := pd.to_numeric(text, errors="coerce"))}


def _are_numbers(column: pd.Series, found: Mapping[str, Any]) -> pd.Series:
    """Tell which cells are one of some numbers, a float32 the nearest to it. found: text as it is written -> number."""
    numbers = [*found.values()]
    kind = getattr(column.dtype, "numpy_dtype", column.dtype)  # pandas has a Float32 of its own
    if kind in ("float16", "float32"):
        with np.errstate(over="ignore"):
            return column.astype("float64").isin([*np.array(numbers, kind).astype(float)])
    if is_numeric_dtype(kind):
        return column.isin(numbers)
    cells = column.astype(object)
    if not found or infer_dtype(cells) in ("string", "empty"):
        return pd.Series(False, column.index)
    decimals = [*map(Decimal, found)]

    def equal(cell: Any) -> bool:
        if isinstance(cell, np.floating):
            return cell in [type(cell)(number) for number in numbers]
        return (
            isinstance(cell, Number)
            and not isinstance(cell, bool | np.bool_)
            and (cell in (decimals if isinstance(cell, Decimal) else numbers))
        )

    return cells.map(equal).astype(bool)


def blank(rows: pd.DataFrame, markers: Mapping[str, Iterable[str]]) -> pd.DataFrame:
    """Return a frame whose markers of missing values are missing cells. markers: by column, from `find_markers`."""
    changed = {}
    for name, texts in markers.items():
        if columns := list(texts):
            column = rows[name]
            changed[name] = column.mask(_are_numbers(column, _as_numbers(columns)) | column.isin(columns))
    return rows.assign(**changed) if changed else rows


def without_markers(rows: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return a frame whose columns of the schema have no markers of missing values."""
    names = [column.name for column in schema.columns if column.name in rows]
    return blank(rows, {name: find_markers(rows[name], schema.missing_values) for name in names})


# cells


def cells(
    rows: pd.DataFrame, columns: Iterable[Column], spelling: Spelling = "written", advice: str = "",
    markers: Sequence[str] = (),
) -> Tensor:  # fmt: skip
    """Return a frame's cells as inputs (N, F) float64; nan where a number is missing.

    Raises InputError, which ends in `advice`, for a cell of another kind and for a number that is not finite. markers:
    of missing cells, which the user has set.
    """
    parts = []
    for column in columns:
        if column.kind == "text":
            _check_text(rows, column)
            texts = column_texts(rows, column.name, spelling)
            parts.append(texts[:, None] == np.array(column.categories, dtype=np.str_))
        else:
            parts.append(finite(rows, column, advice, markers)[:, None])
    return torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float64))


def check_complete(rows: pd.DataFrame, columns: Iterable[Column], advice: str) -> None:
    """Raise InputError, which ends in `advice`, for the first missing cell of these columns."""
    for column in columns:
        gaps = np.flatnonzero(rows[column.name].isna())
        if len(gaps) and not column.ticks:
            why = f"column {column.name!r}, row {row_number(rows, int(gaps[0]))}: the cell is missing{advice}"
            raise InputError(why, why)


def finite(
    rows: pd.DataFrame, column: Column, advice: str = "", markers: Sequence[str] = ()
) -> NDArray[np.float64]:  # fmt: skip
    """Return a column of numbers or booleans, nan for a missing cell; raises InputError for any other cell.

    advice: how the error ends. markers: of missing cells, which the user has set.
    """
    entries = rows[column.name]
    values = numbers(entries)
    if column.kind == "boolean" and not is_numeric_dtype(entries.dtype):
        words = entries.astype("string").map(WORDS).to_numpy(np.float64, na_value=np.nan)
        values = np.where(np.isnan(values), words, values)
    wrong = ~np.isfinite(values) & entries.notna().to_numpy()
    wanted = "a finite number"
    if column.kind == "number" and entries.dtype.kind in "bO":  # a request's true is no 1
        wrong |= entries.map(lambda cell: isinstance(cell, bool | np.bool_)).to_numpy(bool)
    if column.kind == "boolean":
        wrong |= np.isfinite(values) & (values != 0) & (values != 1)
        wanted = "True or False"
    for row in np.flatnonzero(wrong).tolist():
        raise cell_error(rows, column.name, row, wanted, advice, few_words(entries[wrong], rows), markers)
    return values


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return a column as numbers, nan for cells that are not numbers, inf for those too large for float32."""
    if not is_numeric_dtype(column.dtype) or column.dtype.kind == "c":
        column = pd.to_numeric(column.astype("string"), errors="coerce")
    values = column.to_numpy(np.float64, na_value=np.nan)
    return np.where(np.abs(values) > np.finfo(np.float32).max, np.inf, values)


def column_texts(
    rows: pd.DataFrame | Mapping[str, pd.Series], name: str, spelling: Spelling = "written"
) -> NDArray[np.str_]:
    """Return a column of names as strings, see :func:`name_of`, "" where a cell is missing."""
    column = rows[name]
    if column.dtype == object and infer_dtype(column) not in ("string", "empty"):  # pandas takes True for 1
        column = column.map(partial(name_of, spelling=spelling), na_action="ignore")
    codes, categories = pd.factorize(column)
    half = "float16" if column.dtype == "float16" else None  # which pandas widens
    floats = np.asarray(categories, half)  # of float32 .1, not 0.10000000149
    values = floats if spelling != "inferred" and floats.dtype.kind == "f" else categories
    return np.array([*(name_of(v, spelling) for v in values), ""], dtype=np.str_)[codes]  # -1 is a missing cell


def name_of_file(stem: str, spelling: Spelling) -> str:
    """Return the device whose rows a file of this name holds."""
    return name_of(stem, spelling) if spelling == "joined" else stem


def cell_error(
    rows: pd.DataFrame, name: str, row: int, wanted: str, advice: str = "", words: Sequence[str] = (),
    markers: Sequence[str] = (),
) -> InputError:  # fmt: skip
    """Return the error for one cell; `row` counts from 0, the message from 1.

    advice: its end, see `count_as_empty`. words: all cells of its kind, if they may count as empty. markers: those set.
    """
    cell = " ".join(str(rows[name].iloc[row])[:40].split())
    where = f"column {name!r}, row {row_number(rows, row)}:"
    if COMMA.fullmatch(cell):
        advice = f"; write it as {cell.replace(',', '.')}{advice.partition('{empty}')[2]}"
    elif (setting := decimal_setting(cell, [of for _, of in rows.items()])) and (
        rest := advice.partition("{empty}")[2]
    ):
        advice = f"; set {setting} (fedcore docs files){rest}"
    end = advice.format(empty=count_as_empty(words or [cell], markers))
    mends = {"data.missing_values": ["", *words]} if words else {}
    return InputError(f"{where} {cell!r} is not {wanted}{end}", f"{where} must be {wanted}", mends)


def few_words(cells: pd.Series, rows: pd.DataFrame) -> list[str]:
    """Return the different texts of a column's cells that are to be empty, and the same in all columns.

    None where they are many, where one has a digit, which a number is meant by, or means something in another column.
    """
    texts = list(dict.fromkeys(cells.astype(str)))
    if len(texts) > FEW_WORDS or len(cells) >= FEW_TEXTS * len(rows) or any(map(str.isdigit, "".join(texts))):
        return []
    return [] if rows.drop(columns=cells.name).isin(texts).any(axis=None) else texts


def count_as_empty(texts: Sequence[str], markers: Sequence[str] = ()) -> str:
    """Return how texts among numbers are read as empty cells, beside markers that the user has set."""
    what = "it as an empty cell" if len(texts) == 1 else "these as empty cells"
    listed = json.dumps([*dict.fromkeys(["", *markers, *texts])], ensure_ascii=False)
    return f"count {what}: {shlex.quote(f'data.missing_values={listed}')}"


def decimal_setting(text: str, columns: Iterable[Any]) -> str:
    """Return the settings that make a number of a text whose comma may separate thousands, else "".

    columns: those of the table. Beside a number with a point, a decimal comma would be refused.
    """
    if not SEPARATED.fullmatch(text):
        return ""
    pointed = any((np.abs(np.modf(np.asarray(of, float))[0]) > 0).any() for of in columns if of.dtype.kind == "f")
    pointed = pointed or "." in text or text.count(",") > 1
    return f"data.decimal=point if it is {text.replace(',', '')}" if pointed else EITHER


def row_number(rows: pd.DataFrame, row: int) -> int:
    """Return the number by which messages call a row, from 1: the file's own if rows were left out, see ROW."""
    return int(rows.index[row]) if rows.index.name == ROW and rows.index.dtype.kind == "i" else row + 1


def _check_text(rows: pd.DataFrame, column: Column) -> None:
    """Refuse numbers where every category is a word: the columns were swapped."""
    entries = rows[column.name].dropna()
    numeric = not is_bool_dtype(entries.dtype) and len(entries) and np.isfinite(numbers(entries)).all()
    if numeric and not np.isfinite(numbers(pd.Series(column.categories))).any():
        examples = ", ".join(map(repr, column.categories[:3]))
        raise InputError(f"column {column.name!r} has numbers; the model was trained on texts such as {examples}")


def are_fractions(x: NDArray[Any]) -> bool:
    """Tell whether images are fractions of bytes, 0 to 1: standardised ones have pixels below 0."""
    return bool(x.any() and ((x >= 0) & (x <= 1)).all())


def _pixels(x: NDArray[Any], schema: Schema) -> Tensor:
    """Return an array's inputs as they are loaded: pixels divided by 255, channels standardised."""
    alike = str(x.dtype) == schema.dtype or (x.dtype.kind in "iuf" and "uint8" not in (str(x.dtype), schema.dtype))
    if x.shape[1:] != schema.shape or not alike:
        wanted = f"(N, {', '.join(map(str, schema.shape))}) {schema.dtype}"
        raise InputError(f"array of {x.shape} {x.dtype}: the model needs {wanted}{in_order(schema.several)}")
    check_rows(x, schema.several)
    with np.errstate(invalid="ignore"):
        values = np.ascontiguousarray(x, schema.dtype)
    if "int" in schema.dtype and (values != x).any():  # no fraction is cut off
        values = np.ascontiguousarray(x)
    far = np.abs(x).max(initial=0) > FAR and not (x % 1).any()
    if schema.standardised and (x.dtype.kind in "iu" or far or are_fractions(x)):
        why = "the model learnt standardised pixels, not bytes: load pictures with the scaling of its data"
        raise InputError(f"array: {why}", f"array: {why}")
    inputs = Data(torch.from_numpy(values), torch.empty(0)).inputs()
    if not torch.isfinite(inputs).all():
        raise InputError(why := "array: some values are not finite numbers", why)
    return inputs if schema.channels == Fit() else standardise_channels(inputs, schema.channels)


def _list(schema: Schema) -> str:
    return ", ".join(column.name for column in schema.columns)
