"""Predict the label of each row of a new table, or of new pictures, with a registered model.

    python -m flows.predict new.csv                                      with the champion, to the terminal as CSV
    python -m flows.predict new.csv --device plant_A --out labels.csv    as one device
    python -m flows.predict pictures/ --model shapes@previous            a folder of pictures; another version
    python -m flows.predict new.npy --model digits/3                     an array (N, *shape)

--device: whose model predicts and whose scales prepare the rows. --model: the name of a dataset as `flows.promote`
shows it, for its champion; with @ALIAS or /NUMBER another version. It may be left out if only one
dataset has a champion.

A table has the columns of the training data; if it has that of the devices, each row is its device's.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.record import registry

environment.prepare()

if TYPE_CHECKING:
    import pandas as pd

    from fedcore.data.schema import Schema

TABLES = (".csv", ".tsv", ".parquet", ".xlsx")
"""Files that are tables, whether or not they can be read."""


class Words(argparse.ArgumentParser):
    """Reports wrong words as other commands do."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m flows.predict --help")


def arguments(words: list[str]) -> argparse.Namespace:
    """Parse the arguments of the command line."""
    parser = Words("python -m flows.predict", add_help=False)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model")
    return parser.parse_args(words)


def main(words: list[str]) -> None:
    given = arguments(words)
    if not given.rows.exists():  # this and a wrong model are refused before the imports below, which take seconds
        raise InputError(f"{given.rows}: no such file or folder")
    check_place(given.out)
    if (known := registry.read()) is not None:
        registry.choose(known, given.model)
    from fedcore.data.encoding import unknown_texts
    from fedcore.pipeline.record import promotion
    from fedcore.pipeline.record.runs import Record
    from fedcore.report import spreadsheet

    task, served = promotion.load(Record().client, given.model)
    rows, index = read(given.rows, served.schema, task)
    for line in unknown_texts(rows, served.schema) if served.schema.columns else ():
        print(f"fedcore: {line}", file=sys.stderr)
    predicted = served.predict(rows, given.device).set_index(index)
    spreadsheet.write(predicted, given.out or sys.stdout, index=index.name is not None)
    if given.out:
        print(f"{len(predicted)} rows: {given.out}")


def check_place(out: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is predicted for it."""
    if out is None:
        return
    if out.is_dir():
        raise InputError(f"--out = {out}: is a folder; give a file in it")
    if not out.parent.is_dir():
        raise InputError(f"--out = {out}: no such folder")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InputError(f"--out = {out}: you may not write there")


def read(path: Path, schema: Schema, task: str) -> tuple[Any, pd.Index]:
    """Return the examples at a path, and an index of them, which has a name if it tells more than their order.

    task: the name of the model, for messages.
    """
    import numpy as np
    import pandas as pd

    from fedcore.data import pictures, tables

    if schema.columns:
        frame = tables.read(path)
        return frame, frame.index
    if path.suffix == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as an array: {error}") from None
        return array, pd.RangeIndex(len(array))
    if path.suffix.lower() in TABLES:
        what = "pictures" if len(schema.shape) == 3 else "arrays (.npy)"
        raise InputError(f"{task} predicts {what}; {path} is a table")
    files = pictures.pictures(path.iterdir() if path.is_dir() else [path])
    if not files:
        raise InputError(f"{path}: no picture ({', '.join(pictures.TYPES)}) and no .npy array")
    channels, size = schema.shape[0], schema.shape[-1]
    return np.stack([pictures.square(f, size, channels == 1) for f in files]), pd.Index(map(str, files), name="file")


if __name__ == "__main__":
    from fedcore.pipeline.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
