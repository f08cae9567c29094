"""Files of rows as people have them: CSV with any usual separator and encoding, and Parquet.

A CSV file's encoding and separator are found by reading it, its decimal commas by its numbers. What can be read in two
ways is refused. Cells that stand for a missing value become missing, and are counted by how they are written.
"""

import codecs
import csv
import io
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pandas.api.types import is_numeric_dtype, is_string_dtype
from pyarrow import types
from pyarrow.parquet import ParquetFile

from fedcore.data.encoding import ROW, SEPARATED, blank, column_texts, find_markers
from fedcore.data.names import COMMA_WHOLE, MINUS, NUMBER
from fedcore.data.schema import MISSING_VALUES, DecimalMark, Spelling
from fedcore.errors import InputError
from fedcore.spreadsheet import quote, unquote

csv.field_size_limit((1 << 31) - 1)  # or a long cell ends a check

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
ENCODINGS = ("utf-8-sig", "cp1252")
"""Tried in this order; cp1252 is latin-1 with letters where that has control characters."""

BYTE_ORDERS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
SAMPLE = 1 << 16
"""Characters in which the separator is looked for."""

FIRST = 1000
"""Rows that tell whether all cells of a column are read as texts, too."""

CELLS, UNFOLDED = 1 << 28, 4 << 30
"""The most cells of a Parquet file (2 GiB as numbers), and the most bytes that its groups of rows declare."""

COMMA_NUMBER = re.compile(r"[+-]?(\d*,\d+|\d+,)([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""A number with a comma that may be a decimal comma or separate thousands."""

POINTED = re.compile(r"[^.]*|\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*")
"""A number without a point, or with one that may separate thousands."""

WHOLE = re.compile(r"[+-]?\d{1,400}")

DIGITS_END = 1 << 53
"""From here on float64 does not hold every whole number."""

PADDED = r"0\d+"
"""A number with a zero in front."""

GROUPED = re.compile(
    r"[+-]?\d{1,3}((\.\d{3})+,\d+|(,\d{3})+\.\d+|(\.\d{3}){2}|(,\d{3}){2,})"  # not four groups: an address
)
"""A number with separated thousands."""


@dataclass(frozen=True)
class RawTable:
    """The rows of a file, numbered from 1.

    frame: without markers of missing values; some rows may be left out. markers: column -> marker as it is written ->
    cells; without empty cells. form: how the file is written; empty for commas, points in numbers and UTF-8, and for
    Parquet. spelt: of the columns of names and texts, the cells before they became names. earlier: the columns that
    earlier versions read otherwise, as these read them. unread: columns that are not read, and why. padded: columns of
    numbers, and one with a zero in front. commas: whether numbers, or names, have decimal commas.
    """

    frame: pd.DataFrame
    markers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    form: str = ""
    spelt: Mapping[str, pd.Series] = field(default_factory=dict)
    earlier: Mapping[str, pd.Series] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, str] = field(default_factory=dict)
    commas: bool = False

    @property
    def earlier_frame(self) -> pd.DataFrame:
        """The frame as earlier versions read it."""
        return self.frame.assign(**self.earlier)

    def spellings(self, name: str) -> set[Any]:
        """Return the cells of a column in the frame before they became names; none for one of numbers."""
        return {*self.spelt[name].loc[self.frame.index].dropna().unique()} if name in self.spelt else set()


def read(
    file: Path | str, missing_values: Sequence[str] = MISSING_VALUES, label: str | None = None,
    names: Collection[str | None] = (), spelling: Spelling = "written", known: Collection[str] = (),
    decimal: DecimalMark = "auto",
) -> RawTable:  # fmt: skip
    """Return the rows of one file, at least one.

    missing_values: texts that stand for a missing value, see :func:`fedcore.data.encoding.find_markers`. label: the
    column of labels, where `none` is a class unless `missing_values` are a user's own. names: columns whose cells are
    texts, whatever they look like. spelling: of these and of all texts, see :func:`fedcore.data.names.name_of`.
    known: names that a model knows. If one is such as 7,0, an earlier version read it so, and 7,0 stays a name.
    decimal: "comma": a comma in a number is decimal; "point": it separates thousands; "auto": decimal, or refused.
    """
    file = Path(file)
    if not file.is_file():
        what = "a folder without a table" if file.is_dir() else "no such file"
        raise InputError(f"data.path = {file}: {what}; give a {SUFFIXES} file or a folder of them")
    if file.suffix.lower() not in READERS:
        raise InputError(f"data.path = {file}: {file.suffix!r} cannot be read, only {SUFFIXES}")
    try:
        texts = () if spelling == "inferred" else names
        rows = READERS[file.suffix.lower()](file, missing_values, label, texts, decimal)
    except InputError:
        raise
    except Exception as error:  # damaged bytes make the readers raise anything, a SyntaxError among others
        why = " ".join(str(error).split())
        raise InputError(
            f"data.path = {file}: cannot be read as {file.suffix} ({why}); repair or replace the file"
        ) from error
    if rows.frame.empty:
        raise InputError(f"data.path = {file}: no rows; a file needs a header and at least one example")
    index = pd.RangeIndex(1, len(rows.frame) + 1, name=ROW)
    spelt = {name: column.set_axis(index) for name, column in rows.spelt.items()}
    commas = rows.commas and not any(map(COMMA_WHOLE.fullmatch, known))
    rows = replace(rows, frame=rows.frame.set_axis(index), spelt=spelt, commas=commas)
    if spelling == "inferred":
        return rows
    others = [name for name, of in rows.frame.items() if name not in names and _has_texts(of)]
    marks = commas, decimal == "point"
    plain = {str(name): of for name in others if (of := plain_numbers(rows.frame[name], *marks)) is not None}
    more = {name: find_markers(of, missing_values) for name, of in plain.items()}
    markers = {**rows.markers, **{of: {**rows.markers.get(of, {}), **to} for of, to in _written(more).items()}}
    return spell(replace(rows, frame=blank(rows.frame.assign(**plain), more), markers=markers), names, spelling)


def plain_numbers(column: pd.Series, commas: bool, thousands: bool = False) -> pd.Series | None:
    """Return texts of which numbers are as Python writes them; None if all are.

    commas: they have decimal ones. thousands: commas separate thousands.
    """
    spelt = {text: text.replace(MINUS, "-") for text in column.unique() if isinstance(text, str)}
    spelt |= {of: to.replace(",", ".") for of, to in spelt.items() if commas and COMMA_NUMBER.fullmatch(to.strip())}
    spelt |= {of: to.replace(",", "") for of, to in spelt.items() if thousands and SEPARATED.fullmatch(to)}
    plain = {of: to for of, to in spelt.items() if to != of and NUMBER.fullmatch(to.strip(" \t").lower())}
    return column.astype("str").map(lambda text: plain.get(text, text), na_action="ignore") if plain else None


def spell(rows: RawTable, names: Collection[str | None], spelling: Spelling) -> RawTable:
    """Return rows whose columns of names, and of texts, hold the names; of 7,0 that of 7.0 where commas are decimal."""
    texts = {str(name): column for name, column in rows.frame.items() if name in names or _has_texts(column)}
    spelt, named, earlier = {**texts, **rows.spelt}, {}, {}
    whole = rf"^{COMMA_WHOLE.pattern}$"
    pointed = (
        {name: of.str.replace(whole, r"\1.\2", regex=True) for name, of in spelt.items()} if rows.commas else spelt
    )
    for name, column in texts.items():
        written = column_texts(pointed, name, spelling)
        named[name] = pd.Series(written, column.index, dtype="str").where(column.notna())
        if (column_texts(texts, name, "inferred") != written)[column.notna()].any():
            earlier[name] = column
    return replace(rows, frame=rows.frame.assign(**named), spelt=spelt, earlier=earlier)


def read_csv(
    file: Path, missing_values: Sequence[str], label: str | None, names: Collection[str | None], decimal: DecimalMark
) -> RawTable:
    """Read a CSV file. Refuses rows of another length than the header; pandas would shift, cut or fill them."""
    options = _options(file)
    encoding, separator = options["encoding"], options["sep"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        refuse_twice(_csv(file, **options, header=None, nrows=1, dtype="str").iloc[0].tolist())
        frame = _csv(file, **options)
        if frame.iloc[:, -1].isin(["", None]).any() or len(frame.columns) == 1:
            refuse_short(file, encoding, separator)
        others = frame.drop(columns=[name for name in frame if name in names and name != label])
        may = separator != "," or decimal != "auto"
        comma = named_commas = may and has_decimal_commas(file, others, missing_values, names, decimal)
        with suppress(InputError):  # names alone may have commas: 7,0 beside 7
            named_commas = comma or (may and has_decimal_commas(file, frame, missing_values, names, decimal))
        markers = {str(name): find_markers(frame[name], missing_values, name == label) for name in frame}
        if any(markers.values()) or comma:
            spelt = {name: [*counts, *map(quote, counts)] for name, counts in markers.items()}
            missing = {of: texts for name, texts in spelt.items() for of in (name, quote(name))}
            frame = _csv(file, **options, na_values=missing, decimal="," if comma else ".")
            frame = blank(frame, spelt)  # pandas does not beside a whole number of 2**63 or more
            more = {
                str(name): find_markers(frame[name], missing_values) for name in frame if is_numeric_dtype(frame[name])
            }
            frame = blank(frame, more)  # such as -999.0 for -999, which other cells hid among texts
            markers |= {name: {**markers[str(name)], **counts} for name, counts in more.items() if counts}
        for name in (of for of in frame if decimal == "point" and _has_texts(frame[of])):
            if (plain := plain_numbers(frame[name], False, thousands=True)) is not None:
                values = pd.to_numeric(plain, errors="coerce")
                frame[name] = values if (values.isna() == plain.isna()).all() else frame[name]
        floats = [name for name in frame if frame[name].dtype.kind == "f" and frame[name].isna().any()]
        if large := [str(name) for name in floats if frame[name].abs().max() >= DIGITS_END]:
            digits = _csv(file, **options, usecols=partial(_is_one, names=large), dtype="str")
            frame = frame.assign(**{name: exact(frame[name], digits[name]) for name in large})
        typed = [str(name) for name in frame if name in names and not is_string_dtype(frame[name])]
        first = _csv(file, **options, nrows=FIRST, dtype="str")
        numeric = [str(name) for name in frame if is_numeric_dtype(frame[name])]
        may = separator != "," and decimal == "auto" and not comma
        pointed = [name for name in numeric if may and frame[name].dtype.kind == "f"]
        padded, thousands = count_zeros(file, separator)
        pointed = [name for name in pointed if first[name].str.fullmatch(POINTED).all()]
        pointed = [name for name in pointed if thousands or (frame[name] % 1 > 0).any()]
        for early in ([name for name in numeric if first[name].str.fullmatch(PADDED).any()], numeric):
            asked = {*typed, *pointed, *early}
            usecols = partial(_is_one, names=asked)
            written = _csv(file, **options, usecols=usecols, dtype="str") if asked else frame[[]]
            if padded <= sum(int(of.str.fullmatch(PADDED).sum()) for _, of in written.items()):
                break  # no other column has any
    notes = [] if separator == "," else [f"columns separated by {SEPARATORS[separator]}"]
    notes += ["decimal commas"] if comma else []
    notes += [f"encoding {encoding}"] if encoding != ENCODINGS[0] else []
    broken = [name for name in frame if _has_texts(frame[name]) and any("\n" in str(of) for of in frame[name].unique())]
    notes += [f"line breaks in cells of {broken[0]!r}, where a stray quote may join rows"] if broken else []
    for name in pointed:
        if written[name].str.fullmatch(POINTED).all() and written[name].str.contains(".", regex=False).any():
            notes += [f"points in {name!r} as decimal points (if they separate thousands, write 1234 for 1.234)"]
    texts = {name: written[name].where(frame[name].notna()) for name in typed}
    zeros = {name: of[of.str.fullmatch(PADDED)] for name, of in written.items() if name in numeric}
    return RawTable(
        frame, _written(markers), ", ".join(notes), texts, commas=named_commas,
        padded={n: of.iloc[0] for n, of in zeros.items() if len(of)},
    )  # fmt: skip


def exact(column: pd.Series, written: pd.Series) -> pd.Series:
    """Return whole numbers, of which some are missing, without the rounding of float64, where that changed one.

    As texts if no type holds them, as pandas reads them where none is missing.
    """
    texts = written[column.notna()].str.strip()
    numbers = [int(text) for text in texts if WHOLE.fullmatch(text)]
    if len(numbers) < len(texts) or numbers == column.dropna().tolist():  # Python compares them exactly
        return column
    kind = _whole(pa.int64() if max(numbers) < 1 << 63 else pa.uint64())
    with suppress(OverflowError, TypeError, ValueError):
        return pd.Series(pd.array(numbers, kind), texts.index).reindex(column.index)
    return texts.reindex(column.index)


def as_written(file: Path, names: Sequence[Any]) -> pd.DataFrame:
    """Return columns of a file as they are written, missing values and all; a name that it lacks is an empty column.

    Blanks after a separator belong to no cell.
    """
    if READERS[file.suffix.lower()] is read_csv:
        frame = _csv(file, **_options(file), dtype="str")
    else:
        with ParquetFile(file) as opened:
            frame = opened.read().to_pandas(types_mapper=_whole, ignore_metadata=True)
    return frame.reindex(columns=[*names])


def _options(file: Path) -> dict[str, Any]:
    encoding = find_encoding(file)
    return {
        "sep": find_separator(file, encoding), "encoding": encoding, "index_col": False, "low_memory": False,
        "skipinitialspace": True, "keep_default_na": False,
    }  # fmt: skip


def _csv(file: Path, **options: Any) -> pd.DataFrame:
    """Read a table whose texts, and names of columns, fedcore may have written for a spreadsheet."""
    frame: pd.DataFrame = pd.read_csv(file, **options)
    for name in frame:
        if _has_texts(frame[name]) and frame[name].str.startswith("'").any():
            frame[name] = frame[name].map(unquote)
    return frame.rename(columns=unquote)


def _is_one(written: str, names: Collection[str]) -> bool:
    return unquote(written) in names


def _has_texts(column: pd.Series) -> bool:
    return is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)


def count_zeros(file: Path, separator: str) -> tuple[int, bool]:
    """Return how many cells of a CSV file may be digits after a zero (01067), and whether one ends .000.

    Quick, as it finds bytes, in any encoding: of these, every other digit is 1, and every end of a cell one of a line.
    """
    padded, thousands = 0, False
    plain = bytes.maketrans(b"23456789\r" + separator.encode(), b"11111111\n\n")
    with file.open("rb") as opened:
        while rows := opened.read(1 << 20) + opened.readline():
            cells = (b"\n" + rows).translate(plain, b"\0 '\"")
            padded += len(re.findall(rb"\n0[01]+(?=\n|$)", cells))
            thousands = thousands or (separator != "," and bool(re.search(rb"\.000(\n|$)", cells)))
    return padded, thousands


def refuse_twice(header: Sequence[str]) -> None:
    """Refuse a name that two columns have, of which one may be a copy of the label."""
    if twice := {name for name in header if name and header.count(name) > 1}:
        raise ValueError(f"{len(header)} columns, two of them named {min(twice)!r}")


def refuse_short(file: Path, encoding: str, separator: str) -> None:
    """Refuse a row with fewer cells than the header, which may be cut off; pandas would fill it.

    It would leave out a blank line, which in a table of one column is an empty cell.
    """
    with file.open(encoding=encoding, newline="") as opened:
        rows = csv.reader(opened, delimiter=separator, skipinitialspace=True)
        width, blank = len(next(filter(None, rows))), 0
        for row in rows:
            if row and blank and width == 1:
                raise ValueError(f'line {blank} is blank; in a table of one column write an empty cell as ""')
            blank = 0 if row else rows.line_num
            if len(row) < width and any(row):
                raise ValueError(f"line {rows.line_num} has {len(row)} of {width} cells; write empty ones, too")


def line_of(file: Path, row: int) -> str:
    """Return ", line N" for the line of a CSV file on which a row, from 1, ends: cells may have breaks; else ""."""
    if READERS.get(file.suffix.lower()) is not read_csv:
        return ""
    options = _options(file)
    with file.open(encoding=options["encoding"], newline="") as opened:
        rows = csv.reader(opened, delimiter=options["sep"], skipinitialspace=True)
        lines = (f", line {rows.line_num}" for cells in rows if len(cells) > 1)  # pandas skips blank lines
        return next(islice(lines, row, None), "")


def read_parquet(
    file: Path, missing_values: Sequence[str], label: str | None, names: Collection[str | None], decimal: DecimalMark
) -> RawTable:
    """Read a Parquet file and check its strings now rather than at their first use.

    Columns of lists, structs or bytes are left out: they hold neither numbers nor names. So is the index of a frame.
    """
    with ParquetFile(file) as opened:
        declared = opened.metadata  # a small file may unfold to any size
        nbytes = sum(declared.row_group(i).total_byte_size for i in range(declared.num_row_groups))
        if (cells := declared.num_rows * declared.num_columns) > CELLS:
            raise ValueError(f"it declares {cells:,} cells, at most {CELLS:,} are read")
        if nbytes > UNFOLDED:
            raise ValueError(f"it declares {nbytes:,} bytes, at most {UNFOLDED:,} are read")
        rows = opened.read()
    rows.validate(full=True)
    refuse_twice(rows.column_names)
    nested = [f.name for f in rows.schema if types.is_nested(f.type) or "binary" in str(f.type)]
    frame: pd.DataFrame = rows.drop_columns(nested).to_pandas(types_mapper=_whole)
    frame.columns = frame.columns.map(str)
    unread = dict.fromkeys(nested, "lists, structs or bytes; give a column for each number")
    unread |= {
        str(name): "the index of the file's frame; reset_index() makes it a column"
        for name in frame.index.names
        if name is not None and not isinstance(frame.index, pd.RangeIndex)
    }
    markers = {str(name): find_markers(frame[name], missing_values, name == label) for name in frame}
    texts = frame[[name for name in frame if _has_texts(frame[name]) and (name not in names or name == label)]]
    commas = decimal != "auto" and has_decimal_commas(file, texts, missing_values, names, decimal)
    return RawTable(blank(frame, markers), _written(markers), unread=unread, commas=commas)


def _whole(kind: Any) -> Any:
    """Return the type of pandas for whole numbers of which some are missing, which it would round as float64."""
    signed = pd.Int64Dtype() if types.is_signed_integer(kind) else None
    return pd.UInt64Dtype() if types.is_unsigned_integer(kind) else signed


READERS: dict[str, Callable[[Path, Sequence[str], str | None, Collection[str | None], DecimalMark], RawTable]] = {
    ".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet,
}  # fmt: skip
SUFFIXES = " or ".join((", ".join([*READERS][:-1]), [*READERS][-1]))


def find_encoding(file: Path) -> str:
    """Return the encoding of a text file. Raises ValueError for a file that is no text."""
    with file.open("rb") as opened:
        first = opened.read(4)
    if marked := next((encoding for mark, encoding in BYTE_ORDERS.items() if first.startswith(mark)), None):
        return marked
    for encoding in ENCODINGS:
        with suppress(UnicodeDecodeError), file.open(encoding=encoding, newline="") as opened:
            while chunk := opened.read(1 << 20):
                if "\0" in chunk:
                    raise ValueError("a zero byte in it: it is no text in UTF-8")
            return encoding
    raise ValueError("it is no text in UTF-8 or cp1252")


def find_separator(file: Path, encoding: str) -> str:
    """Return what separates the columns: what gives the header and every row of a sample as many, at least two.

    If nothing does, it is the separator with the most columns in the header. Raises InputError if two do.
    """
    with file.open(encoding=encoding) as opened:  # lines may end in \r alone
        sample = opened.read(SAMPLE)
        cut = bool(opened.read(1))
    widths, cells = {}, {}
    for mark in SEPARATORS:
        rows = [row for row in csv.reader(io.StringIO(sample), delimiter=mark, skipinitialspace=True) if row]
        cells[mark] = rows[:-1] if cut and len(rows) > 1 else rows
        widths[mark] = [*map(len, cells[mark])]
    whole = [mark for mark, rows in widths.items() if rows and rows[0] > 1 and {*rows} == {rows[0]}]
    above = re.match(r'("?(#|sep=).*\n)*', sample, re.IGNORECASE)
    comments = above[0].splitlines() if above else []
    below = {mark: rows[len(comments) :] for mark, rows in cells.items()}
    mark = max(below, key=lambda mark: len(below[mark][0]) if below[mark] else 0)
    narrow = 0 if whole else count_above(widths[mark], comments)
    if not narrow and comments and has_header(below[mark]):
        narrow = len(comments)
    if narrow:
        these = f"lines 1 to {narrow}" if narrow > 1 else "it"
        line = sample.splitlines()[0][:40]
        raise InputError(f"data.path = {file}: line 1, {line!r}, is not the header; remove {these}")
    if len(whole) > 1:
        several = " and ".join(f"{widths[mark][0]} by {SEPARATORS[mark]}" for mark in whole)
        raise InputError(
            f"data.path = {file}: columns may be separated in two ways ({several}); put cells that hold the other one "
            "in quotes"
        )
    return whole[0] if whole else max(SEPARATORS, key=lambda mark: (widths[mark] or [0])[0])


def count_above(widths: Sequence[int], comments: Sequence[str]) -> int:
    """Return how many first lines stand above a header, some with fewer cells; #id may begin one, of as many cells."""
    width = widths[len(comments)] if len(comments) < len(widths) else 0
    if all(cells >= width for cells in widths[: len(comments)]):
        return 0
    headers = (i for i, line in enumerate(comments) if widths[i] >= width and re.match(r'"?#\S', line))
    return next(headers, len(comments))


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first of rows is a header: all texts, and at least one stands above numbers alone."""
    if len(rows) < 2 or len({*map(len, rows)}) > 1 or not all(map(str.strip, rows[0])):
        return False
    first, *rest = [[NUMBER.fullmatch(text.strip().lower().replace(",", ".")) for text in row] for row in rows]
    return not any(first) and any(map(all, zip(*rest, strict=True)))


def has_decimal_commas(
    file: Path, frame: pd.DataFrame, missing_values: Sequence[str], names: Collection[str | None], decimal: DecimalMark
) -> bool:
    """Tell whether a frame's numbers have decimal commas: a column whose cells are all numbers, some with a comma.

    Without one, and without a point, a column that is none of `names` tells by more such numbers than other texts.
    Raises InputError if the commas may separate thousands, or if other columns have numbers with a point. decimal: what
    the user says of it; a number that is written otherwise is refused.
    """
    commas, points, mostly = dict[str, list[str]](), list[str](), False
    for name in frame:
        column = frame[name]
        if is_numeric_dtype(column.dtype):  # or of booleans
            points += [str(name)] if column.dtype.kind == "f" else []
            continue
        skipped = find_markers(column, missing_values)
        cells = [text.replace(MINUS, "-") for text in map(str, column.dropna().unique()) if text not in skipped]
        with_comma = [text for text in cells if COMMA_NUMBER.fullmatch(text.strip())]
        grouped = [text for text in cells if GROUPED.fullmatch(text.strip())]
        others = pd.to_numeric(pd.Series([*{*cells} - {*with_comma, *grouped}]), errors="coerce")
        if others.notna().all():
            if decimal == "point":
                grouped = [text for text in (*grouped, *with_comma) if not SEPARATED.fullmatch(text)]
            if grouped:
                where, point = f"data.path = {file}: {grouped[0]!r} in column {str(name)!r}", "data.decimal"
                if decimal == "point":
                    raise InputError(f"{where} needs a decimal point, as {point} = point")
                why = "; write it without them" + f", or set {point}=point" * bool(SEPARATED.fullmatch(grouped[0]))
                raise InputError(f"{where} has separated thousands{why}")
            if with_comma:
                commas[str(name)] = with_comma
            if any("." in text for text in cells):
                points.append(str(name))
        elif name not in names and len(with_comma) > others.isna().sum():
            mostly = mostly or not all(map(THOUSANDS.fullmatch, map(str.strip, with_comma)))
    if decimal == "point":
        return False
    if points and decimal == "comma":
        raise InputError(
            f"data.path = {file}: column {points[0]!r} has numbers with a point, not with data.decimal = comma; write "
            "all of them in one way"
        )
    if not commas or decimal == "comma":
        return decimal == "comma" or (mostly and not points)
    name, cells = next(iter(commas.items()))
    if points:
        raise InputError(
            f"data.path = {file}: numbers with a comma ({cells[0]!r} in column {name!r}) and with a point (column "
            f"{points[0]!r}); write all of them in one way"
        )
    if all(THOUSANDS.fullmatch(text.strip()) for texts in commas.values() for text in texts):
        raise InputError(
            f"data.path = {file}: {cells[0]!r} in column {name!r} may have a decimal comma or a comma for thousands; "
            "set data.decimal=comma or data.decimal=point (fedcore docs files)"
        )
    return True


def _written(texts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the markers that are written, not the empty cells."""
    written = {name: {text: count for text, count in counts.items() if text.strip()} for name, counts in texts.items()}
    return {name: counts for name, counts in written.items() if counts}
