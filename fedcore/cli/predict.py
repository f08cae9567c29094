"""Labels for new rows, with a registered model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fedcore.data.schema import Schema

TABLES = (".csv", ".tsv", ".parquet", ".xlsx")
"""Files that are tables, whether or not they can be read."""


@click.command()
@click.argument("rows", type=click.Path(path_type=Path))
@click.option("--device", help="Whose model predicts, and whose scales prepare the rows.")
@click.option("--out", type=click.Path(path_type=Path), help="A CSV file to write; the terminal by default.")
@click.option(
    "--model",
    help="A dataset's name as `fedcore promote` shows it, for its champion; with @ALIAS or /NUMBER another version. It "
    "may be left out if only one dataset has a champion.",
)
def predict(rows: Path, device: str | None, out: Path | None, model: str | None) -> None:
    """Predict the label of each row of a new table, or of new pictures, with a registered model.

    \b
    fedcore predict new.csv                                      with the champion, to the terminal as CSV
    fedcore predict new.csv --device plant_A --out labels.csv    as one device
    fedcore predict pictures/ --model shapes@previous            a folder of pictures; another version
    fedcore predict new.npy --model digits/3                     an array (N, *shape)

    A table has the columns of the training data; if it has that of the devices, each row is its device's.
    """
    from fedcore.cli.project import enter_project

    if not rows.exists():  # this and a wrong model are refused before imports that take seconds
        raise InputError(f"{rows}: no such file or folder")
    require_writable(out)
    enter_project()
    from fedcore.pipeline.record import registry

    if (known := registry.read()) is not None:
        registry.choose(known, model)
    from fedcore.data.encoding import unknown_texts
    from fedcore.pipeline.record import promotion
    from fedcore.pipeline.record.runs import Record
    from fedcore.report import spreadsheet

    task, served = promotion.load(Record().client, model)
    examples, index = read(rows, served.schema, task)
    for line in unknown_texts(examples, served.schema) if served.schema.columns else ():
        sys.stderr.write(f"fedcore: {line}\n")
    if served.threshold is not None:
        label, value = served.threshold.label, served.threshold.value
        sys.stderr.write(f"fedcore: {label!r} from probability {value:.3g} on, chosen on the study's validation rows\n")
    predicted = served.predict(examples, device).set_index(index)
    spreadsheet.write(predicted, out or sys.stdout, index=index.name is not None)
    if out:
        print(f"{len(predicted)} rows: {out}")


def require_writable(out: Path | None) -> None:
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

    from fedcore.data import pictures, readers

    if schema.columns:
        frame = readers.read(path, schema.missing_values, schema.label).frame
        return frame, frame.index
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)  # no more memory than the file has bytes
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise ValueError("it holds no array (N, ...)")
        except (OSError, ValueError, EOFError, OverflowError) as error:
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
