"""CSV files that a spreadsheet may open: no text in them becomes a formula.

A spreadsheet computes a cell that begins with = + - @ or a tab, and a formula may read other cells or call a program
(OWASP, CSV injection). Devices, labels and columns have the names that a user's data give them. A text of that kind is
written with an apostrophe before it, which spreadsheets take for "this is text"; numbers stay numbers. `read` takes the
apostrophe away again.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

FORMULA = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")  # noqa: RUF001  # the wide signs of East Asian keyboards count too
NAMES = ("study", "dataset", "setting", "method")
"""Columns of texts, also where one looks like a number."""


def quote(cell: Any) -> Any:
    """Return a text that would be a formula with an apostrophe before it; anything else, and a number, as it is."""
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) and not _is_number(cell) else cell


def unquote(cell: Any) -> Any:
    """Undo `quote`."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and quote(cell[1:]) == cell else cell


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))  # a decimal comma
    except ValueError:
        return False
    return text == text.strip()


def write(frame: pd.DataFrame, path: Path | IO[str] | None = None, **options: Any) -> str | None:
    """Write a table as CSV, or return it as a text; options: those of `DataFrame.to_csv`."""
    text: str | None = _in_each_cell(frame, quote).to_csv(path, **options)
    return text


def read(path: Path, types: Mapping[str, str] | None = None, **options: Any) -> pd.DataFrame:
    """Read a table that `write` wrote; a gap is an empty cell alone. options: those of `pandas.read_csv`."""
    kinds = {**dict.fromkeys(NAMES, "str"), **(types or {})}
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=kinds, **options)
    return _in_each_cell(frame, unquote)


def _in_each_cell(frame: pd.DataFrame, change: Any) -> pd.DataFrame:
    """Apply a change to the texts of a table, its column names and its index included."""
    changed = frame.rename(columns=change, index=change).rename_axis(index=[change(name) for name in frame.index.names])
    for at, kind in enumerate(changed.dtypes):
        if not (pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)):
            changed.isetitem(at, np.fromiter(map(change, changed.iloc[:, at]), dtype=object))
    return changed
