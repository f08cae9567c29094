"""The names of devices, classes and categories in cells. Nothing here needs pandas, which workers do not load."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Context, Decimal
from typing import Any
from unicodedata import category, normalize

import numpy as np

from fedcore.data.schema import Spelling

BOOLEANS = {"True", "TRUE", "true", "False", "FALSE", "false"}
WHOLE = re.compile(r"(?:-(?=0))?(0|-?[1-9]\d*)\.0+")
COMMA_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*)),(0{1,2}|0{4,})")
"""A whole number as a file with decimal commas may write it; three zeros may be of thousands."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,5})?", re.ASCII)
MINUS = "\u2212"
"""The minus of typesetting, which some programs write."""

DIGITS = 40
"""Names that are equal as numbers have that number as their name, with an exponent if it needs more digits."""

PLAIN = re.compile(r"(?!(true|false|null)$)[^\W\d_]([\w ./%()=-]*[\w./%()=-])?", re.IGNORECASE)
"""A name that YAML takes as a text where it stands in a list without quotes."""


def name_of(value: Any, spelling: Spelling) -> str:
    """Return the name that a cell holds: a text as it is written, but a whole number without .0, and True for true.

    So a name is the same whatever else its file holds, in CSV and Parquet; a time at midnight is a date.
    spelling: "joined": texts that are equal as numbers, or but for case, blanks or Unicode form, are one name, and what
    cannot be seen does not count; "inferred": texts as they are.
    """
    inferred, name = spelling == "inferred", str(value)
    if isinstance(value, float if inferred else float | np.floating) and value.is_integer():
        name = str(int(value)) if inferred or abs(value) < 1e16 else name  # as in a CSV
    if inferred or not isinstance(value, str | Decimal | datetime | float | np.floating):
        return name
    name = name.removesuffix(" 00:00:00")
    if spelling == "joined":
        visible = "".join(c for c in name if category(c) != "Cf")  # no mark of a byte order, no zero-width space
        name = normalize("NFC", " ".join(visible.split()).casefold()).replace(MINUS, "-")
        if NUMBER.fullmatch(name):
            exact = Context(prec=len(name))
            number = exact.normalize(exact.add(Decimal(name), 0))
            name = f"{number:f}" if abs(number.adjusted()) < DIGITS else str(number)
    return name.capitalize() if name in BOOLEANS else whole[1] if (whole := WHOLE.fullmatch(name)) else name


def typed(names: Iterable[str]) -> str:
    """Return names as the list that is typed for a setting, in double quotes where one is needed."""
    return f"[{', '.join(name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in names)}]"


def typed_setting(key: str, names: Iterable[str]) -> str:
    """Return a setting that is a list of names, quoted as a shell needs it."""
    return shlex.quote(f"{key}={typed(names)}")


def alike(names: Iterable[object]) -> Iterator[list[str]]:
    """Return groups of names that differ in case, blanks, Unicode form or a number's form alone."""
    groups: dict[str, list[str]] = {}
    for name in sorted({str(name) for name in names}):
        groups.setdefault(name_of(name, "joined"), []).append(name)
    return (group for group in groups.values() if len(group) > 1)
