"""A user's table: a CSV or Parquet file with one example per row, or a folder with one file per device.

Inputs are as in the file, so that a device's examples depend on its own rows only: texts become an input for each
category, and a missing number stays nan. :func:`fedcore.partition.splits` fills and scales each device's inputs by its
own training examples.
"""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from itertools import chain, compress, islice, pairwise, product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype, is_timedelta64_dtype

from fedcore.builders import suggestion, unknown_value
from fedcore.data import Dataset
from fedcore.data.dataset import SPLITS
from fedcore.data.encoding import (
    SEPARATED,
    WORDS,
    cell_error,
    cells,
    check_complete,
    column_texts,
    decimal_setting,
    finite,
    name_of_file,
    numbers,
    row_number,
    unknown_cells,
)
from fedcore.data.folders import Source, check_exclude, describe, find_sources
from fedcore.data.names import NUMBER, alike, name_of, typed, typed_setting
from fedcore.data.readers import DIGITS_END, READERS, RawTable, line_of, read
from fedcore.data.schema import MISSING_VALUES, Column, DecimalMark, Missing, Schema, Spelling
from fedcore.data.task import LabelKindName
from fedcore.errors import InputError, plural
from fedcore.types.federation import Data
from fedcore.types.ranges import Count

TIME = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]+\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:.*)?"
)
"""A date, a date with a time, or a time of day."""

FEW_CLASSES, FEW_ROWS = 20, 10
"""A label with more than FEW_CLASSES values and fewer than FEW_ROWS rows for each on average has no classes."""

ASKED_CLASSES = 4
"""Of more numbers as classes, or with fractions, the preview says how to learn them as a quantity."""

ONE_OR_ZERO = ("0", "1", "False", "True")
"""What a cell of several labels may have."""

UNREAD = "; correct it, or {empty}, or name the column in data.ignore or data.categorical"
"""What to do with a text among numbers."""

NINES = re.compile(r"-?9{2,}")
"""A number by which some programs write a missing one."""

TRUTHS = {"1", "true", "yes", "y"}, {"0", "false", "no", "n"}
"""What files write for true, and for false, in small letters."""

MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[ T]00:00(:00(\.0+)?)?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE)
"""A day's begin, of a zone or none, that no date without a time equals."""

MARKED = re.compile(
    r"\(?[+\u2212-]?([$€£]|(?P<before>[A-Z]{3}))? ?\d+([.,'_ \u00a0\u202f\u2019]\d+)*"
    r"( ?[%$€£°][CF]?| (?P<after>[^\W\d_]{1,4}))?[)-]?"
)
"""A number with marks that keep it from being read as one."""
AS_TEXTS = "{!r} and others are texts, not numbers; write them as 1234.5"
"""What is said of such texts; the preview adds a setting."""


def table(
    path: str | Path, label: str | Sequence[str], device: str | None = None, split: str | None = None,
    features: Sequence[str] | None = None, ignore: Sequence[str] = (), categorical: Sequence[str] = (),
    categories: Count = 20, missing: Missing = "refuse", missing_values: Sequence[str | int | float] = MISSING_VALUES,
    exclude: Sequence[str | int] = (), id: str | None = None, task: LabelKindName | Literal["auto"] = "auto",
    join_names: bool = False, drop_unlabelled: bool = False, drop_without_device: bool = False,
    decimal: DecimalMark = "auto",
) -> Dataset:  # fmt: skip
    """Read a table, x (N, F) float64.

    A column of numbers is one input, and so is one of booleans, as 0 and 1. One of texts is an input for each of its
    sorted distinct values, 1 where the text is that one; a missing text has zeros only. A column is left out, which the
    schema says, if it has one value in all rows or one number, or more than `categories` texts. Rows marked test do not
    count here. Beside one text an empty cell is another value, not a missing one.

    Args:
        path: one file, or a folder with a file per device, named by the file's stem (`device` is then refused). Files
            or folders named train, val and test mark their rows, see :func:`fedcore.data.folders.find_sources`.
        label: a column of strings or numbers; classes are the sorted distinct values, numbers by size. Or a list of
            columns, each a label that a row has or not: 1 or 0, True or False.
        device: the column that names each row's device.
        split: a column of "train", "val" and "test".
        features: the columns to learn from, in order; None: all except these, `id` and `ignore`.
        ignore: columns to leave out.
        categorical: columns whose numbers are names, such as a type or a postal code.
        categories: the most different texts of a column, from 1.
        missing: "refuse" rows with a missing cell; "drop" those rows; "median" leaves missing numbers nan, to be filled
            with the median of the device's training examples; "common_median" with the mean of the devices' medians.
        missing_values: texts and numbers that stand for a missing cell, besides the empty one.
        exclude: names of devices to leave out; a column of true and false beside texts of theirs stays one of texts.
        id: a column that names the rows, such as a number of a part or a patient, which is not learnt from. With
            federation.hold_out: stable, rows of one id are held out together.
        task: "classification": labels are classes; "regression": they are a number, whatever it is; "multilabel": a row
            has several. "auto": the last if `label` is a list; a number if it has more than 20 different values and
            fewer than ten rows for each on average; else classes.
        join_names: whether names of devices, classes and categories are one if they are equal as numbers, or but for
            case, blanks or Unicode form.
        drop_unlabelled: whether to leave out rows with a missing label.
        drop_without_device: whether to leave out rows whose device is missing.
        decimal: what a comma in a number is: "comma": a decimal comma; "point": it separates thousands, and decimals
            have a point; "auto": a file tells, or is refused.

    Raises:
        InputError: for a column of dates or times, for a cell that is not a finite number in a column of numbers, and
            for a missing label. Messages count rows from 1, after the header.
    """
    lists = {"features": features, "ignore": ignore, "categorical": categorical, "missing_values": missing_values}
    for key, listed in (lists | {"exclude": exclude}).items():
        if isinstance(listed, str):
            raise InputError(f"data.{key} = {listed!r}: must be a list, for example [{listed}]")
    for key, word, allowed in (
        ("missing", missing, get_args(Missing)),
        ("task", task, ("auto", *get_args(LabelKindName))),
        ("decimal", decimal, get_args(DecimalMark)),
    ):
        if word not in allowed:
            raise unknown_value(f"data.{key}", word, allowed)
    targets = label_columns(label, task)
    path, markers = Path(path), tuple(map(str, missing_values))
    excluded = tuple(map(str, exclude))
    named = targets[0] if isinstance(label, str) and task != "multilabel" else None
    columns_of_names = {device, split, id, *categorical, named if task != "regression" else None}
    spelling: Spelling = "joined" if join_names else "written"
    reading = markers, named, device, split, excluded, columns_of_names, spelling, decimal
    sources, files, rows = read_sources(path, *reading)
    if drop_without_device and device is None:
        raise InputError("data.drop_without_device = True: the data have no column of devices; set data.device")
    dropped = []
    for drops, gaps, what in ((drop_unlabelled, targets, "label"), (drop_without_device, (str(device),), "device")):
        if drops:
            rows, line = drop_missing(rows, gaps, what, sources, device)
            dropped.append(line)
    frames = {file: raw.frame for file, raw in rows.items()}
    given = (*("label" for _ in targets), "device", "split", "id"), (*targets, device, split, id)
    roles = [(key, name) for key, name in zip(*given, strict=True) if name is not None]
    special = [name for _, name in roles]
    unread = {name: why for raw in files.values() for name, why in raw.unread.items()}
    asked = names(frames, roles, features, ignore, categorical, unread)

    def all_rows(name: str) -> NDArray[np.str_]:
        mend = {device: "data.drop_without_device"} | dict.fromkeys(targets, "data.drop_unlabelled")
        return np.concatenate([texts(file, raw, name, mend.get(name)) for file, raw in rows.items()])

    labels = np.stack([all_rows(name) for name in targets], axis=1)
    found_task = task
    if found_task == "auto":
        found_task = "multilabel"
        if named is not None:  # a number if it has many values, else classes
            texts_of = earlier_texts(rows, named)
            many = has_many_values(texts_of) and amounts(np.unique(texts_of).tolist())
            found_task = "regression" if many else "classification"
    if found_task == "classification":
        check_classes(path, targets[0], labels[:, 0])
    else:
        kind = label_numbers if found_task == "regression" else zeros_and_ones
        amounts_of = np.concatenate([kind(file, raw.earlier_frame, targets) for file, raw in rows.items()])
    marks = find_marks(sources, rows, split)
    seen = frames
    if marks is not None:
        seen = {file: frame[[mark != "test" for mark in marks[file]]] for file, frame in frames.items()}
    columns, left_out = choose_columns(
        path, seen, asked, special, features, categorical, categories, ignore, rows, decimal
    )
    left_out |= {name: why for name, why in sorted(unread.items()) if name not in {*special, *ignore}}
    if device != "device" and "device" in {*ignore, *special} - {named}:
        left_out["device"] = "it names no devices"  # nor does it in rows to predict
    x, keep = learnt_cells(frames, columns, missing, () if markers == MISSING_VALUES else markers)
    labels = labels[keep]
    if found_task == "classification":
        classes = check_classes(path, targets[0], labels[:, 0])
        y = pd.Index(classes).get_indexer(pd.Index(labels[:, 0])).astype(np.int64)
    else:
        classes, y = targets, amounts_of[keep]
        for name, values in zip(targets, y.reshape(len(y), -1).T, strict=True):
            if len({*values.tolist()}) < 2:
                raise InputError(f"data.path = {path}: one value in column {name!r}; at least two are needed")
    devices = [name_of_file(source.device, spelling) for source in sources if source.device is not None]
    owners = np.repeat(devices, list(map(len, frames.values()))) if devices else None
    if device is not None:
        owners = all_rows(device)
    if owners is not None and (emptied := sorted({*owners.tolist()} - {*owners[keep].tolist()})):
        raise InputError(f"data.missing = 'drop': every row of device {emptied[0]!r} has a missing cell; use median")
    named_rows = None if id is None else tuple(ids_of(rows, id, spelling)[keep].tolist())
    schema = Schema(
        tuple(x.shape[1:]), "float64", classes, tuple(columns), named, device, missing, left_out, len(keep) - len(x),
        missing_values=markers, task=found_task, spelling=spelling, id=id or "", decimal=decimal,
    )  # fmt: skip
    new: dict[str, NDArray[np.str_]] = {}
    if marks is not None:
        texts_only = replace(schema, columns=tuple(column for column in columns if column.kind == "text"))
        new = dict(unknown_cells(pd.concat(frames.values()), texts_only))
    in_use = (*([named] if found_task == "classification" and named else []), *schema.names)
    as_they_are: dict[str, Iterable[object]] = {"files": {source.device for source in sources} - {None}}
    as_they_are |= {} if join_names or named_rows is None else {str(id): named_rows}
    notes = (
        *form_notes(files), *describe(sources),
        *([f"left out by data.exclude: {', '.join(excluded)}"] if excluded else []), *dropped,
        *marker_notes(files, schema, len(keep)), *task_note(targets, labels, found_task),
        *spelling_notes(rows, filter(None, (*in_use, id)), join_names, as_they_are),
        *number_notes(rows, columns, left_out, {targets[0]: amounts_of} if found_task == "regression" else {}),
        *(f"{of.name}: texts true and false, an input for each; as truth values, which a CSV file's are, they are one"
          for of in columns if WORDS.keys() == {*of.categories} and of.name not in categorical),
    )  # fmt: skip
    return Dataset(
        Data(x, torch.from_numpy(y)), None, classes, None if owners is None else tuple(owners[keep].tolist()),
        None if marks is None else tuple(np.concatenate([*marks.values()])[keep].tolist()),
        schema=schema, notes=notes, ids=named_rows, earlier=earlier_names(rows, in_use, keep),
        unknown=tuple((name, tuple(strange[keep].tolist())) for name, strange in new.items()),
    )  # fmt: skip


def read_sources(
    path: Path, markers: tuple[str, ...], named: str | None, device: str | None, split: str | None,
    excluded: tuple[str, ...], names: Collection[str | None], spelling: Spelling, decimal: DecimalMark = "auto",
) -> tuple[list[Source], dict[Path, RawTable], dict[Path, RawTable]]:  # fmt: skip
    """Return the files of a path that are not excluded, what was read of each, and that without excluded devices."""
    sources = find_sources(path, " or ".join(READERS))
    if device is not None and sources[0].device is not None:
        raise InputError(
            f"data.path = {path} is a folder, one file for each device: leave data.device out, or give one file"
        )
    if split is not None and sources[0].part is not None:
        raise InputError(f"data.split = {split!r}: the names of the files in data.path = {path} say it; leave one out")
    if excluded and sources[0].device is not None:
        check_exclude(excluded, in_order({str(source.device) for source in sources}))
        sources = [source for source in sources if source.device not in excluded]
    files = {source.file: read(source.file, markers, named, names, spelling, (), decimal) for source in sources}
    rows = files
    if excluded and sources[0].device is None:
        rows = leave_out(files, device, excluded)
        sources = [source for source in sources if source.file in rows]
    return sources, files, rows


def drop_missing(
    rows: Mapping[Path, RawTable], columns: Sequence[str], what: str, sources: Sequence[Source], device: str | None
) -> tuple[dict[Path, RawTable], str]:
    """Return the rows that lack no cell in some columns, and a line on the others and whose none stays."""

    def owners(of: Mapping[Path, pd.DataFrame]) -> set[str]:
        if device is None:
            return {source.device for source in sources if source.device is not None and len(of[source.file])}
        return {name for frame in of.values() if device in frame for name in column_texts(frame, device)} - {""}

    frames = {file: raw.frame for file, raw in rows.items()}
    whole = {file: frame.dropna(subset=[*frame.columns.intersection([*columns])]) for file, frame in frames.items()}
    gone_rows = sum(len(frames[file]) - len(whole[file]) for file in frames)
    line = f"{plural(gone_rows, 'row')} without a {what} left out"
    if written := sorted({text for raw in rows.values() for name in columns for text in raw.markers.get(name, {})}):
        line += f" ({', '.join(map(repr, written))} counts as missing: data.missing_values)"
    if gone := in_order(owners(frames) - owners(whole)):
        line += f"; no row is left of {plural(len(gone), 'device')}: {', '.join(gone[:5])}" + ", ..." * (len(gone) > 5)
    return {file: replace(rows[file], frame=frame) for file, frame in whole.items()}, line


def earlier_texts(rows: Mapping[Path, RawTable], name: str) -> NDArray[np.str_]:
    """Return a column of names as earlier versions read it, of all rows."""
    return np.concatenate([column_texts(raw.earlier_frame, name, "inferred") for raw in rows.values()])


def ids_of(rows: Mapping[Path, RawTable], name: str, spelling: Spelling) -> NDArray[np.str_]:
    """Return a column of ids, joined or as earlier versions read it; whole where these read two as one or one as two.

    Raises InputError for a missing one: rows without an id would be held out together, as rows of one id are.
    """
    own = "give each such row an id of its own"
    whole = np.concatenate([texts(file, raw, name, advice=own) for file, raw in rows.items()])
    if spelling == "joined":
        return whole
    earlier = earlier_texts(rows, name)
    pairs = {*zip(whole.tolist(), earlier.tolist(), strict=True)}
    forms = Counter(text for text, _ in pairs)  # two of a day, in CSV and Parquet
    wrong = [
        a != b and (forms[b] > 1 or name_of(a, "joined") != name_of(b, "joined"))
        for a, b in zip(earlier.tolist(), whole.tolist(), strict=True)
    ]
    return np.where(wrong, whole, earlier)


def earlier_names(
    rows: Mapping[Path, RawTable], names: Iterable[str], keep: NDArray[np.bool_]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns of names that earlier versions read otherwise, and the texts of the rows that stay."""
    changed = {name for raw in rows.values() for name in raw.earlier}
    called = sorted(changed.intersection(names))
    return tuple((name, tuple(earlier_texts(rows, name)[keep].tolist())) for name in called)


def choose_columns(
    path: Path, frames: Mapping[Path, pd.DataFrame], asked: Sequence[str], special: Iterable[str],
    features: Sequence[str] | None, categorical: Sequence[str], categories: int, ignore: Sequence[str],
    rows: Mapping[Path, RawTable], decimal: DecimalMark,
) -> tuple[list[Column], dict[str, str]]:  # fmt: skip
    """Return the columns to learn from, and column -> why it is left out. frames: the rows that are not for tests.

    Raises InputError where a column that `features` names cannot be learnt from, and where no column can, which names
    what would make numbers of texts.
    """
    refuse_times(frames, asked, ignore)
    inspected = {name: inspect(frames, name, name in categorical, categories) for name in asked}
    left_out = {name: column for name, column in inspected.items() if isinstance(column, str)}
    columns = [column for column in inspected.values() if isinstance(column, Column)]
    if features is not None and left_out:
        name, why = next(iter(left_out.items()))
        raise InputError(f"data.features = {list(features)}: {name!r} cannot be learnt from: {why}; leave it out")
    if not columns:
        reasons, every = "", [numbers(of) for frame in frames.values() for _, of in frame.items()]
        for name, why in left_out.items():
            reasons += f"; {name!r}: {with_others(name, why, categorical)}"
            if text := unread_number(rows, name):
                setting = decimal_setting(text, every) if decimal == "auto" else ""
                reasons += f"; {AS_TEXTS.format(text)}" + f", or set {setting}" * bool(setting)
        raise InputError(f"data.path = {path}: no column to learn from except {', '.join(special)}{reasons}")
    return columns, left_out


def learnt_cells(
    frames: Mapping[Path, pd.DataFrame], columns: Sequence[Column], missing: Missing, markers: tuple[str, ...]
) -> tuple[torch.Tensor, NDArray[np.bool_]]:
    """Return the inputs of the rows that stay, (N, F) float64, and which of all rows they are.

    markers: of missing cells, which the user has set.
    """
    if missing == "refuse":
        refuse_missing(frames, columns)
    inputs, whole_rows = [], []
    for file, frame in frames.items():
        with naming(file):
            inputs.append(cells(frame, columns, advice=UNREAD, markers=markers))
        whole = frame[[column.name for column in columns if not column.ticks]].notna().all(axis=1).to_numpy()
        whole_rows.append(whole if missing == "drop" else np.full(len(frame), True))
    keep = np.concatenate(whole_rows)
    return torch.cat(inputs)[torch.from_numpy(keep)], keep


def label_columns(label: str | Sequence[str], task: str) -> tuple[str, ...]:
    """Return the columns of labels; refuses several where each row has one, and none."""
    columns = (label,) if isinstance(label, str) else tuple(label)
    if not columns:
        raise InputError("data.label = []: must name a column, or several")
    if not isinstance(label, str) and task in ("classification", "regression"):
        raise InputError(f"data.label = {[*columns]}: several labels need data.task = multilabel, not {task}")
    return columns


def no_column(file: Path, key: str, name: str, frame: pd.DataFrame, unread: Mapping[str, str]) -> InputError:
    """Return the error for a column that a file does not have, or that is not read.

    key: of `data`, which names it; "path" where none does, but another file has it.
    """
    if name in unread:
        which = f"{file}: column {name!r}" if key == "path" else f"{name!r}: this column of {file}"
        return InputError(f"data.{key} = {which} is not read: {unread[name]}")
    has = [*map(str, frame)]
    which = f"{file}: no column {name!r}" if key == "path" else f"{name!r}: no column of {file}"
    return InputError(f"data.{key} = {which}{suggestion(name, has)} (it has: {', '.join(has)})")


def leave_out(rows: Mapping[Path, RawTable], device: str | None, exclude: Sequence[str]) -> dict[Path, RawTable]:
    """Return the files without the rows of some devices, and without a file that has no others."""
    if device is None:
        raise InputError(f"data.exclude = {[*exclude]}: the data name no devices; set data.device")
    for file, raw in rows.items():
        if device not in raw.frame:
            raise no_column(file, "device", device, raw.frame, raw.unread)
    owners = {file: column_texts(raw.frame, device) for file, raw in rows.items()}
    check_exclude(exclude, in_order({*np.concatenate([*owners.values()]).tolist()} - {""}))
    remaining = {file: replace(raw, frame=raw.frame[~np.isin(owners[file], exclude)]) for file, raw in rows.items()}
    return {file: raw for file, raw in remaining.items() if len(raw.frame)}


def find_marks(
    sources: Sequence[Source], rows: Mapping[Path, RawTable], split: str | None
) -> dict[Path, list[str]] | None:
    """Return each row's part, by a column or by the names of the files; None if nothing says it."""
    if split is not None:
        return {file: split_marks(file, raw, split) for file, raw in rows.items()}
    if sources[0].part is None:
        return None
    return {source.file: [str(source.part)] * len(rows[source.file].frame) for source in sources}


def form_notes(rows: Mapping[Path, RawTable]) -> list[str]:
    """Return a line for each form of file that is not the usual one."""
    forms: dict[str, list[str]] = {}
    for file, rows_read in rows.items():
        forms.setdefault(rows_read.form, []).append(file.name)
    lines = []
    for form in sorted(filter(None, forms)):
        names = forms[form]
        few = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        lines.append(f"read: {form}" + f" ({len(names):,} of {len(rows):,} files: {few})" * (len(rows) > 1))
    return lines


def marker_notes(rows: Mapping[Path, RawTable], schema: Schema, used: int) -> list[str]:
    """Return a line about the texts that stand for missing cells, in the columns learnt from. used: rows that stay."""
    counts = defaultdict[str, Counter[str]](Counter)
    for raw, column in product(rows.values(), schema.columns):
        for text, count in raw.markers.get(column.name, {}).items():
            counts[text][column.name] += count
    texts = {column.name for column in schema.columns if column.kind == "text"}
    notes, among = [], []
    for text, counts_in in sorted(counts.items(), key=lambda item: -sum(item[1].values())):
        where = ", ".join([*counts_in][:3]) + (f" and {len(counts_in) - 3} more columns" if len(counts_in) > 3 else "")
        notes.append(f"{text!r} {sum(counts_in.values()):,} in {where}")
        among += [text] if texts & counts_in.keys() else []
    gone = ", with those of rows left out" * (used < sum(len(raw.frame) for raw in rows.values()))
    lines = [f"cells that count as missing{gone}: {'; '.join(notes)}"] if notes else []
    if among:
        keep = " too (data.missing_values)"
        plain = {text: text.strip().casefold() for text in counts}
        in_numbers = {plain[text] for text, counts_in in counts.items() if counts_in.keys() - texts}
        if own := [text for text in among if plain[text] not in in_numbers]:
            others = [text for text in counts if text and plain[text] != plain[own[0]]]
            listed = json.dumps(others, ensure_ascii=False)
            keep = f"; to keep {own[0]!r} as a category: {shlex.quote(f'data.missing_values={listed}')}"
        lines.append(f"{', '.join(map(repr, among))}: empty cells of a column of texts{keep}")
    return lines


def spelling_notes(
    rows: Mapping[Path, RawTable], columns: Iterable[str], joined: bool, as_they_are: Mapping[str, Iterable[object]]
) -> list[str]:
    """Return a line for each column with names that differ in case, blanks, Unicode form or a number's form alone.

    as_they_are: names by what has them, where they are not the texts of its cells: of files, and of ids.
    """
    lines = []
    for column in dict.fromkeys((*columns, *as_they_are)):
        written = set().union(*(raw.spellings(column) for raw in rows.values()))
        names_of = {*map(str, as_they_are.get(column, ()))}
        for group in islice(alike(written or names_of), 3):
            apart_in = {name_of(cell, "written") for cell in group}
            if names_of:
                apart_in = {name for name in names_of if name_of(name, "joined") == name_of(group[0], "joined")}
            one = joined or len(apart_in) == 1
            apart = "look alike, and are names apart; data.join_names=true makes them one, in small letters"
            lines.append(f"{column}: {', '.join(map(repr, group[:4]))} {'are one name' if one else apart}")
        truths = {name_of(str(name), "joined").casefold() for name in written or names_of}
        if truths <= {*chain(*TRUTHS)} and (same := [of for each in TRUTHS if len(of := sorted(truths & each)) > 1]):
            pairs = " and ".join(", ".join(map(repr, of)) for of in same)
            lines.append(f"{column}: {pairs} may mean the same, and are names apart; write one of them in all files")
        final = names_of or {name_of(cell, "joined" if joined else "written") for cell in written}
        if days := sorted(name for name in final if (day := MIDNIGHT.fullmatch(name)) and day[1] in final):
            pair = f"{days[0][:10]!r}, {days[0]!r}"
            lines.append(f"{column}: {pair} may mean the same, and are names apart; write one of them in all files")
    return lines


def unread_number(rows: Mapping[Path, RawTable], name: str) -> str:
    """Return a text of a column of which most texts are numbers with marks, all in one unit; "" of another column."""
    cells_of = set().union(*(raw.spellings(name) for raw in rows.values()))
    marked = {cell: of for cell in cells_of if isinstance(cell, str) and (of := MARKED.fullmatch(cell.strip()))}
    one_unit = len({(of["before"], of["after"]) for of in marked.values()}) == 1
    unread = [*compress(marked, np.isnan(numbers(pd.Series([*marked], dtype="str"))))]
    first = max(unread, key=lambda text: (not SEPARATED.fullmatch(text), text), default="")  # which no setting reads
    return first if one_unit and len(marked) > max(1, len(cells_of) / 2) else ""


def number_notes(
    rows: Mapping[Path, RawTable], columns: Sequence[Column], left_out: Collection[str],
    amounts: Mapping[str, NDArray[np.float64]],
) -> list[str]:  # fmt: skip
    """Return a line for each column of texts that are numbers with marks, and of numbers that may be something else.

    amounts: a label that is a number, its values.
    """
    lines = []
    for name in (*(column.name for column in columns if column.kind == "text"), *left_out):
        if text := unread_number(rows, name):
            lines.append(f"{name}: {AS_TEXTS.format(text)}")
    for name in (*(column.name for column in columns if column.kind == "number"), *amounts):
        read = [amounts[name]] if name in amounts else [numbers(raw.frame[name]) for raw in rows.values()]
        values = np.concatenate(read)
        for end in (of for of in (np.nanmin(values), np.nanmax(values)) if NINES.fullmatch(f"{of:.0f}")):
            others, rows_of = values[(values != end) & ~np.isnan(values)], int((values == end).sum())
            if len(others) and abs(others - end).min() > np.ptp(others):
                where = f"{name}: {end:g} in {plural(rows_of, 'row')}"
                drops = " and data.drop_unlabelled=true" if name in amounts else ""
                lines.append(f"{where} may stand for a missing number: data.missing_values{drops}")
        if np.nanmax(np.abs(values)) >= DIGITS_END:
            lines += equal_notes(name, [raw.frame[name].drop_duplicates() for raw in rows.values()])
    padded = {name: text for raw in rows.values() for name, text in raw.padded.items()}
    for name in (column.name for column in columns if column.kind == "number" and column.name in padded):
        keeps = typed_setting("data.categorical", [name])
        lines.append(f"{name}: numbers such as {padded[name]} may be names; {keeps} keeps them so")
    return lines


def equal_notes(name: str, parts: Sequence[pd.Series]) -> list[str]:
    """Return a line about two of a column's numbers that are one in float64; none if all are apart."""
    again = pd.Series(np.concatenate([*map(numbers, parts)])).duplicated(keep=False)
    cells_of = {str(cell).strip().lower() for cell in compress(chain(*parts), again)}
    exact = sorted({Decimal(text) for text in cells_of if NUMBER.fullmatch(text)})
    for one, next_one in pairwise(exact):
        if float(one) == float(next_one):
            mend = f"subtract a constant, or {typed_setting('data.categorical', [name])} makes names"
            return [f"{name}: {one} and {next_one} are equal as 64-bit numbers; {mend}"]
    return []


def names(
    frames: Mapping[Path, pd.DataFrame], roles: Sequence[tuple[str, str]], features: Sequence[str] | None,
    ignore: Sequence[str], categorical: Sequence[str], unread: Mapping[str, str],
) -> list[str]:  # fmt: skip
    """Return the names of the columns to look at, after a check that every file has them and all others.

    roles: keys of `data` for a column that is no input, and its name.
    """
    special = [name for _, name in roles]
    first, frame = next(iter(frames.items()))
    for key, listed in (("features", features or ()), ("ignore", ignore), ("categorical", categorical)):
        for name in listed:
            if list(listed).count(name) > 1 or (name in special and key != "ignore"):
                raise InputError(
                    f"data.{key} = {list(listed)}: {name!r} is there twice, or is also the label, device, split or id"
                )
    if both := [name for name in ignore if name in special or name in (features or ())]:
        raise InputError(f"data.ignore = {list(ignore)}: {both[0]!r} is also in use; leave it out of one")
    if twice := [name for name in special if special.count(name) > 1]:
        raise InputError(
            f"data.label, data.device, data.split, data.id: must be different columns, two are {twice[0]!r}"
        )
    chosen = [str(name) for name in frame if name not in {*special, *ignore}] if features is None else list(features)
    for file, frame in frames.items():
        inputs = ("path" if features is None else "features", chosen)
        every = (inputs, ("ignore", ignore), ("categorical", categorical))
        for key, name in [*roles, *((key, name) for key, listed in every for name in listed)]:
            if name not in frame and not (name in ignore and name in unread):
                raise no_column(file, key, name, frame, unread)
        extra = [name for name in map(str, frame) if name not in {*special, *chosen, *ignore}]
        if extra and features is None:
            raise InputError(f"data.path = {file}: column {extra[0]!r} is not in {first}; choose with data.features")
    return chosen


def inspect(frames: Mapping[Path, pd.DataFrame], name: str, named: bool, categories: int) -> Column | str:
    """Return how to learn from a column, or why it is left out. named: its numbers are names."""
    parts = [part for frame in frames.values() if len(part := frame[name].dropna())]
    if not parts:
        return "no value in any row"
    values, categorical = pd.concat(parts), f"data.categorical={typed([name])}"  # as digests of data have it
    if values.nunique() < 2 or (not named and np.ptp(numbers(values)) == 0):
        word = str(column_texts(parts[0].head(1).to_frame(), name).item())
        if len(some := [*map(str, values.unique()[:2])]) > 1:
            return f"{some[0]!r} and {some[1]!r} are equal as 64-bit numbers; {categorical} makes names"
        if not (empty := sum(map(len, frames.values())) - len(values)):
            return f"the same value in every row: {word!r}"
        if named or not (word in WORDS or np.isfinite(numbers(values)).any()):
            return Column(name, "text", (word,))
        return f"one value, {word!r}, besides {plural(empty, 'empty cell')}; {categorical} makes it an input"
    if not named and all(is_bool_dtype(part.dtype) or {*map(type, part)} == {bool} for part in parts):
        return Column(name, "boolean")
    if not named and any(is_numeric_dtype(part.dtype) or np.isfinite(numbers(part)).any() for part in parts):
        words = () if is_numeric_dtype(values.dtype) else {*column_texts(values.to_frame(), name).tolist()}
        return Column(name, "boolean" if {"0", "1", *WORDS}.issuperset(words) and WORDS.keys() & words else "number")
    distinct = in_order({*np.concatenate([column_texts(part.to_frame(), name) for part in parts]).tolist()} - {""})
    if len(distinct) > categories:
        several = " of several words" if sum(" " in text.strip() for text in distinct) > len(distinct) / 2 else ""
        return f"{len(distinct):,} different texts{several}, more than data.categories = {categories}"
    return Column(name, "text", distinct)


def with_others(name: str, line: str, categorical: Sequence[str]) -> str:
    """Return a line about a column in which data.categorical names those that it has already, quoted for a shell."""
    quoted, others = (typed_setting("data.categorical", [*of, name]) for of in ((), categorical))
    return others.join(part.replace(f"data.categorical={typed([name])}", others) for part in line.split(quoted))


def refuse_times(frames: Mapping[Path, pd.DataFrame], names: Iterable[str], ignore: Sequence[str]) -> None:
    """Raise InputError for columns of dates or times, all that there are. ignore: columns that are left out already."""
    times = [(file, name) for name in names for file, frame in frames.items() if holds_times(frame[name])]
    for file, name in times:
        value = str(frames[file][name].dropna().iloc[0])[:30]
        columns = tuple(dict.fromkeys(column for _, column in times))
        raise InputError(
            f"data.path = {file}: column {name!r} holds times ({value!r}), which no net can use; leave it out with "
            f"{typed_setting('data.ignore', [*ignore, *columns])}, or replace it by numbers, such as the hour",
            mends={"data.ignore": [*columns]},
        )  # fmt: skip


def holds_times(column: pd.Series) -> bool:
    """Tell whether all values of a column, at least one, are dates or times."""
    dates = column.dropna()
    if is_numeric_dtype(dates.dtype) or not len(dates):
        return False
    typed = is_datetime64_any_dtype(dates.dtype) or is_timedelta64_dtype(dates.dtype)
    return typed or all(map(TIME.fullmatch, map(str, dates.unique())))


def refuse_missing(frames: Mapping[Path, pd.DataFrame], columns: Sequence[Column]) -> None:
    """Raise InputError, which counts all missing cells, for the first one."""
    names = [column.name for column in columns if not column.ticks]
    gaps = {name: sum(int(frame[name].isna().sum()) for frame in frames.values()) for name in names}
    several = {name: count for name, count in gaps.items() if count}
    advice = (
        f" ({sum(several.values()):,} in {plural(len(several), 'column')}); set data.missing=common_median, median or "
        "drop, or fill them in"
    )
    for file, frame in frames.items():
        with naming(file):
            check_complete(frame, columns, advice)


def check_classes(path: Path, label: str, labels: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the classes, sorted. Raises InputError for fewer than two, and for a label without classes."""
    classes = np.unique(labels).tolist()
    if len(labels) < 2 or len(classes) < 2:
        raise InputError(
            f"data.path = {path}: {plural(len(labels), 'row')} and {plural(len(classes), 'different label')} in column "
            f"{label!r}; at least 2 of each are needed"
        )
    if has_many_values(labels):
        advice = "data.task=regression learns the number" if amounts(classes) else "choose a column of classes"
        raise InputError(
            f"data.label = {label!r}: {len(classes):,} different values in {len(labels):,} rows of {path}; {advice}"
        )
    return in_order(classes)


def has_many_values(labels: NDArray[np.generic]) -> bool:
    """Tell whether labels have more values than FEW_CLASSES, and fewer rows for each than FEW_ROWS."""
    different = len(np.unique(labels))
    return different > FEW_CLASSES and len(labels) < FEW_ROWS * different


def task_note(targets: Sequence[str], labels: NDArray[np.str_], task: LabelKindName) -> list[str]:
    """Return a line about what is learnt, where the label may be taken for something else. labels: (N, K)."""
    if task == "multilabel":
        counts = np.isin(labels, ["1", "True"]).sum(axis=1)
        return [
            f"task: multilabel, {counts.mean():.3g} labels on average, {(counts == 0).mean():.1%} of the rows have none"
        ]
    label, values = targets[0], np.unique(labels).tolist()
    if task == "regression":
        return [f"task: regression, {label} is a number of {len(values):,} different values (data.task)"]
    if (numeric := amounts(values)) and (len(values) > ASKED_CLASSES or any(value % 1 for value in numeric)):
        return [f"task: classification, {label} has {len(values):,} classes; data.task=regression learns the number"]
    return []


def label_numbers(file: Path, frame: pd.DataFrame, targets: Sequence[str]) -> NDArray[np.float64]:
    """Return a label that is a number, (N,)."""
    with naming(file):
        return finite(frame, Column(targets[0], "number"))


def zeros_and_ones(file: Path, frame: pd.DataFrame, targets: Sequence[str]) -> NDArray[np.float32]:
    """Return whether each row has each of several labels, (N, K)."""
    texts_of_rows = np.stack([column_texts(frame, name) for name in targets], axis=1)
    with naming(file):
        for row, k in np.argwhere(~np.isin(texts_of_rows, ONE_OR_ZERO)).tolist():
            raise cell_error(frame, targets[k], row, "1 or 0: a row has each of several labels or not")
    return np.isin(texts_of_rows, ["1", "True"]).astype(np.float32)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name a file in an InputError about its rows, and the line of one."""
    try:
        yield
    except InputError as error:
        row = re.match(r"column .+?, row (\d+):", str(error))
        line = line_of(file, int(row[1])) if row else ""
        raise InputError(f"data.path = {file}{line}: {error}", mends=error.mends) from None


def texts(file: Path, rows: RawTable, name: str, drops: str | None = None, advice: str = "") -> NDArray[np.str_]:
    """Return a column of names as strings, none of which may be missing.

    drops: the setting that leaves out rows without one. advice: what else helps them.
    """
    frame = rows.frame
    values, written = column_texts(frame, name), rows.markers.get(name, {})
    also = f" ({', '.join(map(repr, written))}: data.missing_values)" if written else ""
    with naming(file):
        for row in np.flatnonzero(frame[name].isna()).tolist():
            more = f", or {advice or f'set {drops}=true'}" * bool(advice or drops)
            where = f"column {name!r}, row {row_number(frame, row)}: the cell is missing{also}"
            mends = {drops: True} if drops else {}
            raise InputError(f"{where}; fill it in or remove the row{more}", mends=mends)
        for row in np.flatnonzero(np.isin(values, ["", "inf", "-inf"])).tolist():
            raise cell_error(frame, name, row, "a name or a number; fill it in or remove the row")
    return values


def split_marks(file: Path, rows: RawTable, name: str) -> list[str]:
    """Return a file's split column. Raises InputError for a value that is not in SPLITS."""
    marks: list[str] = texts(file, rows, name).tolist()
    with naming(file):
        for row, mark in enumerate(marks):
            if mark not in SPLITS:
                raise cell_error(rows.frame, name, row, f"one of {', '.join(SPLITS)}")
    return marks


def in_order(strings: Collection[str]) -> tuple[str, ...]:
    """Return names in order: by value if all are numbers, else as strings."""
    values = amounts(strings)
    return tuple(sorted(strings) if values is None else [name for _, name in sorted(zip(values, strings, strict=True))])


def amounts(strings: Collection[str]) -> list[float] | None:
    """Return the values of names that are all finite numbers, else None."""
    try:
        values = [float(name) for name in strings]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None
