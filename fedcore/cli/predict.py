"""Labels for new rows, with a registered model; and a model as a file for a machine without PyTorch and MLflow."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.cli.project import PATH, enter_project
from fedcore.errors import InputError, plural, require_extra

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from fedcore.api.serving import ServedModels
    from fedcore.data.drift import Reference
    from fedcore.data.schema import Schema
    from fedcore.pipeline.record.registry import Version

TABLES = (".csv", ".tsv", ".parquet", ".xlsx")
"""Files that are tables, whether or not they can be read."""

DRIFTED = 3
"""The exit code of --fail-on-drift."""

ALL = "all"
"""Of --keep: every column."""

NO_NAME = r"[^\w.-]+"
"""What a file's name does not have of a device's."""


@click.command()
@click.argument("rows", type=PATH)
@click.option("--device", help="Whose rows they all are; by default those of their column, or of their file's name.")
@click.option("--out", type=PATH, help="A CSV file to write; the terminal by default.")
@click.option(
    "--model",
    help="A dataset's name as `fedcore promote` shows it, for its champion; with @ALIAS or /NUMBER another version. It "
    "may be left out if only one dataset has a champion.",
)
@click.option("--fail-on-drift", is_flag=True, help="End with exit code 3 if a column or the predictions have moved.")
@click.option("--all-drift", is_flag=True, help="Say each column that has moved, not the five that moved most.")
@click.option("--keep", help="Columns of the table to write beside the predictions: id,machine, or all.")
def predict(
    rows: Path, device: str | None, out: Path | None, model: str | None, keep: str | None, fail_on_drift: bool,
    all_drift: bool = False,
) -> None:  # fmt: skip
    """Predict labels of new rows or pictures by a registered model.

    \b
    fedcore predict new.csv                                      with the champion, to the terminal as CSV
    fedcore predict new.csv --device plant_A --out labels.csv    as one device
    fedcore predict sites/                                       a folder with a file, or pictures, of each device
    fedcore predict new.csv --keep id,time                       with two columns of the table beside the labels
    fedcore predict pictures/ --model shapes@previous            a folder of pictures; another version
    fedcore predict new.npy --model digits/3                     an array (N, *shape)

    A table has the columns of the training data. Each row is its device's, by the column of the devices, a column
    `device`, or the name of a file or folder; without any it is a new device's, if all devices share a model. The
    output has the number of each row (or a picture's file), its device, label, and the probability of each class;
    `predicted_as` says whose rows were taken for a new device's. Lines tell which columns moved most from training.
    """
    if not rows.exists():  # this and a wrong model are refused before imports that take seconds
        raise InputError(f"{rows}: no such file or folder")
    require_writable(out)
    enter_project()
    model_name, version, served, reference = load(model)
    from fedcore import spreadsheet

    examples, index, owners = read_rows(rows, served, model_name, device)
    predicted, examples, lines = label(rows, examples, index, served, owners, keep)
    moved, drift = compare(examples, predicted, served, reference, owners, all_drift)
    for line in [f"predicted by {version}", *lines, *drift]:
        sys.stderr.write(f"fedcore: {line}\n")
    spreadsheet.write(predicted, out or sys.stdout)
    if out:
        print(f"{plural(len(predicted), 'row')}: {out}")
    if fail_on_drift and moved:
        raise click.exceptions.Exit(DRIFTED)


@click.command()
@click.argument("model")
@click.option("--device", help="Whose model and scales.")
@click.option("--all-devices", is_flag=True, help="A file for each device: NAME-DEVICE.onnx.")
@click.option("--to", type=PATH, required=True, help="The file to write, NAME.onnx; of trees NAME.ubj.")
def export(model: str, device: str | None, all_devices: bool, to: Path) -> None:
    """Write a device's model as ONNX, and its inputs as JSON.

    \b
    fedcore export machines-fault --device plant_A --to fault.onnx     the champion
    fedcore export machines-fault/3 --all-devices --to fault.onnx      version 3: fault-plant_A.onnx, ...
    fedcore export machines-fault --device plant_A --to fault.ubj      boosted trees, which xgboost alone runs

    onnxruntime runs it without PyTorch. Labels are first compared with those of `fedcore predict` on 1,000 made rows.
    """
    if device is not None and all_devices:
        raise InputError("--device: not with --all-devices")
    if to.suffix not in (".onnx", ".ubj"):
        raise InputError(f"--to = {to}: must end in .onnx, or of boosted trees in .ubj")
    require_writable(to)
    if to.suffix == ".onnx":
        require_extra("export")
    enter_project()
    model_name, _, served, _ = load(model)
    if device is None and not all_devices:
        how = f"fedcore export {model_name} --device {shlex.quote(next(iter(served.devices)))} --to {to}"
        raise InputError(f"--device: name one of {', '.join(served.devices)}, or type --all-devices: {how}")
    from fedcore.api import export as onnx_files
    from fedcore.config.settings import apart

    stems = apart(served.devices, lambda name: f"{to.stem}-{re.sub(NO_NAME, '-', name)}")
    files = {name: to.with_stem(stem) for name, stem in stems.items()} if device is None else {device: to}
    for name, path in files.items():
        onnx_files.export(served, name, path)
        size, refused = path.stat().st_size / 1e6, f"rows that predict refuses: `refused` in {path.stem}.json"
        print(f"{path}: {size:.2f} MB; equal labels on {onnx_files.CHECKED:,} rows; {refused}")


def load(wanted: str | None) -> tuple[str, str, ServedModels, Reference | None]:
    """Return a model's name, its version in words, its models, and what new rows are compared with, if it has that.

    MLflow, which takes two seconds to import, is asked only if its database names no files of this project: it is no
    file, or the project has moved.
    """
    from fedcore.pipeline.record import registry, tracked

    folder = None
    if (catalogue := registry.read()) is not None:
        try:
            model_name, word = registry.choose(catalogue, wanted)
        except InputError:  # a clone has the files of the champion, and no record of it
            if (kept := tracked.find_champion(wanted)) is None:
                raise
            model_name, folder = kept
            words = f"{model_name}, as {folder.parent.name}/ has it"
        else:
            version = catalogue[model_name].find(word)
            folder, words = own_files(version), registry.title(version) if version else ""
    if folder is None:
        from fedcore.pipeline.record import promotion
        from fedcore.pipeline.record.runs import Record

        model_name, words, folder = promotion.find_files(Record().client, wanted)
    from fedcore.pipeline.record import models

    return model_name, words, models.load(folder), models.load_reference(folder)


def own_files(version: Version | None) -> Path | None:
    """Return the folder of a version's files; None if there is none that this project registered."""
    from fedcore.pipeline.record import models

    if version is not None and version.location is not None:
        with suppress(InputError):  # of a project that has moved; otherwise MLflow says it again
            return models.folder_of(version.name, version.version, version.location)
    return None


def label(
    path: Path, rows: Any, index: pd.Index, served: ServedModels, owners: pd.Series | None, keep: str | None
) -> tuple[pd.DataFrame, Any, list[str]]:
    """Return the columns to keep and the predictions of rows, the rows that were predicted, and lines about them.

    path: where the rows were read.
    """
    from fedcore.data.encoding import unknown_texts

    columns = kept_columns(path, rows, index, served, owners, keep)
    rows, columns, lines = leave_out_unknown(rows, columns, served, owners)
    lines += unknown_texts(rows, served.schema) if served.schema.columns else []
    if served.threshold is not None:
        name, value = served.threshold.label, served.threshold.value
        lines.append(f"{name!r} from probability {value:.3g} on, chosen on the study's validation rows")
    elif served.costs is not None:
        lines.append("label: the class of least expected cost by the study's run.costs")
    if index.name == "file" and path.is_dir():
        from fedcore.data import pictures

        one = path in {Path(file).parent for file in index}
        advice = "put pictures into one folder, or into one of each device"
        lines += pictures.not_read(path, [path] if one else pictures.subfolders(path), "deeper", advice)
    whose = None if owners is None else owners[columns.index].tolist()
    return columns.join(served.predict(rows, whose, every_class=True).set_index(columns.index)), rows, lines


def compare(
    rows: Any, predicted: pd.DataFrame, served: ServedModels, reference: Reference | None, owners: pd.Series | None,
    every: bool = False,
) -> tuple[bool, list[str]]:  # fmt: skip
    """Return whether rows and their predictions have moved from those of training, and lines about it.

    every: whether each column that has moved gets a line.
    """
    import numpy as np
    import pandas as pd

    from fedcore.api.serving import LABEL
    from fedcore.data import drift
    from fedcore.data.encoding import cells, without_markers

    schema = served.schema
    if reference is None:
        return False, ["drift not checked: this version kept nothing of its training rows"]
    if len(rows) < drift.LEAST:
        return False, [f"drift not checked: {plural(len(rows), 'row')}, {drift.LEAST} needed"]
    whose = np.array([""] * len(rows) if owners is None else owners[predicted.index].tolist())
    checked, said = ~np.isin(whose, served.scaled_alone(whose)), list[str]()
    if not checked.all():
        said = [f"drift not checked: {plural(int((~checked).sum()), 'row')}, which their own numbers scale"]
        rows, predicted, whose = rows[checked], predicted[checked], whose[checked]
        if len(rows) < drift.LEAST:
            return False, said
    x = np.empty((len(rows), 0))
    if schema.columns:
        x = cells(without_markers(rows, schema), schema.columns, schema.spelling).numpy()
    answers: Any = predicted[served.label_columns].to_numpy()
    if served.task.has_classes:
        answers = pd.Index(schema.classes).get_indexer(pd.Index(predicted[LABEL]))
    elif served.task.standardised:
        answers = predicted[LABEL].to_numpy(np.float32)
    changes = drift.compare(reference, schema, x, whose.tolist(), answers)
    lines = (f"drift: {line}" for line in drift.lines(changes, None if every else drift.MOST_LINES))
    return bool(changes), [*said, *lines]


def kept_columns(
    path: Path, rows: Any, index: pd.Index, served: ServedModels, owners: pd.Series | None, keep: str | None
) -> pd.DataFrame:
    """Return the columns to write before the predictions: those of `keep`, and each row's device, if it is known.

    Cells to keep are as the file has them, while models read numbers and :func:`fedcore.data.names.name_of`.
    """
    import pandas as pd

    from fedcore.api.serving import DEVICE, PREDICTED_AS, UNKNOWN
    from fedcore.data import folders, readers

    own, names = {*index.names, *served.output_columns, PREDICTED_AS, UNKNOWN}, list[str]()
    if keep is not None:
        if not isinstance(rows, pd.DataFrame):
            raise InputError(f"--keep = {keep}: needs a table; pictures and arrays have no columns")
        names = [*rows] if keep == ALL else [name.strip() for name in keep.split(",")]
    for name in names:
        if name not in rows:
            raise InputError(f"--keep = {keep}: no column {name!r}; the table has: {', '.join(map(str, rows))}")
        if name in own:
            raise InputError(
                f"--keep = {keep}: the predictions have a column {name!r} of their own; rename the table's"
            )
    column = served.device_column(rows) or served.schema.device or DEVICE
    column = DEVICE if column in own else column
    columns = pd.DataFrame(index=index)
    if names := [*dict.fromkeys(names)]:
        files = folders.listing(path) if path.is_dir() else [path]
        columns = pd.concat([readers.as_written(file, names) for file in files]).set_index(index)
    return columns if owners is None or column in names else columns.assign(**{column: owners})


def leave_out_unknown(
    rows: Any, columns: pd.DataFrame, served: ServedModels, owners: pd.Series | None
) -> tuple[Any, pd.DataFrame, list[str]]:
    """Leave out rows of devices that the models do not know, unless one model serves all; also returns a line on them.

    If no row is of a known device, all stay, and the models refuse them by name.
    """
    from fedcore.api.serving import DEVICE, names_devices

    others = "fedcore promote MODEL --list names other methods"
    if owners is None:
        if len(served.models) > 1:
            column = f"add a column {served.schema.device or DEVICE!r}, or " * bool(served.schema.columns)
            names = ", ".join(served.devices)
            why = f"no device given, and each device has a model of its own: {column}type --device NAME ({names})"
            raise InputError(f"{why}; for new devices promote a method with one model: {others}")
        if not names_devices(served.schema):
            return rows, columns, []
        how = f"a column {served.schema.device or DEVICE!r}, or --device, says whose they are"
        how += "; in the column a new name has its rows scaled by themselves" * bool(
            served.schema.own_scale and served.schema.columns
        )
        line = f"no device given: {plural(len(columns), 'row')} predicted as those of a new device; {how}"
        return rows, columns, [line]
    is_known = owners.isin([*served.devices]).to_numpy()
    if is_known.all():
        return rows, columns, []
    named = [repr(str(name)) if name else "no device" for name in dict.fromkeys(owners[~is_known].tolist())]
    examples = ", ".join(named[:3]) + ", ..." * (len(named) > 3)
    which = f"device unknown in training in {int((~is_known).sum())} of {plural(len(is_known), 'row')} ({examples})"
    if len(served.models) == 1:
        how = scaled(served, owners[~is_known])
        return rows, columns, [f"{which}: predicted by the model that all devices share{how}"]
    if not is_known.any():
        return rows, columns, []
    why = f"left out, as each device has a model of its own ({others})"
    return rows[is_known], columns[is_known], [f"{which}: {why}"]


def scaled(served: ServedModels, names: Iterable[str]) -> str:
    """Say by what rows of new devices, named for each row, are scaled; "" where the model scales all devices alike."""
    from fedcore.data.prepare import LEAST_OWN

    if not served.schema.own_scale:
        return ""
    own, few = served.scaled_alone(names), f"by numbers of all training rows, as fewer than {LEAST_OWN} tell no scale"
    if {*own} == {*names}:
        return "; scaled by their own rows"
    return f"; scaled {f'by their own rows from {LEAST_OWN} rows of a device on, else ' * bool(own)}{few}"


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


def read_rows(
    path: Path, served: ServedModels, model_name: str, device: str | None = None
) -> tuple[Any, pd.Index, pd.Series | None]:
    """Return the examples at a path, an index of them, and whose each is, None if nothing says it.

    The index has their files, or their numbers from 1, as messages call them. Each device has a file, or pictures, of
    its name in a folder; one file's name counts if it is a device's. model_name: for messages. device: of them all.
    """
    import numpy as np
    import pandas as pd

    from fedcore.data.encoding import ROW

    if device is not None:
        served.require(device)
    rows: Any
    schema, several = served.schema, False
    if schema.columns:
        files = path.rglob("*") if path.is_dir() else [path]
        if not any(of.suffix.lower() in TABLES for of in files) and (seen := pictures_of(path)):
            what = "is a picture" if path.is_file() else f"has pictures, such as {seen[0]}"
            raise InputError(f"{model_name} predicts rows of a table; {path} {what}")
        rows, index, names = read_tables(path, schema)
        several = path.is_dir()
    elif path.suffix == ".npy":
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)  # no more memory than the file has bytes
            if not isinstance(rows, np.ndarray) or not rows.ndim:
                raise ValueError("it holds no array (N, ...)")
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise InputError(f"{path}: cannot be read as an array: {error}") from None
        index, names = pd.RangeIndex(1, len(rows) + 1, name=ROW), [path.stem] * len(rows)
    elif path.suffix.lower() in TABLES:
        what = "pictures" if len(schema.shape) == 3 else "arrays (.npy)"
        raise InputError(f"{model_name} predicts {what}; {path} is a table")
    else:
        from fedcore.data import pictures

        files = pictures_of(path)
        several = bool(files) and path.is_dir() and files[0].parent != path
        if not files:
            raise InputError(f"{path}: no picture ({', '.join(pictures.TYPES)}) and no .npy array")
        channels, size = schema.shape[0], schema.shape[-1]
        rows = np.stack([pictures.square(f, size, channels == 1) for f in files])
        index, names = (
            pd.Index(map(str, files), name="file"),
            [Path(os.path.abspath(file)).parent.name for file in files],
        )
    named: Any = [device] * len(index) if device is not None else served.devices_of(rows)
    if several and device is None and schema.columns:
        named = np.array(names, dtype=object)
        for at in rows.groupby(level="file").indices.values():  # each file by its own columns
            own = served.devices_of(rows.iloc[at].dropna(axis=1, how="all"))
            named[at] = named[at] if own is None else own
    if named is None and (several or {*names} <= {*served.devices}):
        named = names
    return rows, index, None if named is None else pd.Series(named, index)


def pictures_of(path: Path) -> list[Path]:
    """Return a path's pictures: itself, a folder's, or those of the folders below it."""
    from fedcore.data import pictures

    files = pictures.pictures(path.iterdir() if path.is_dir() else [path])
    if path.is_dir() and not files:
        files = [file for inner in pictures.subfolders(path) for file in pictures.pictures(inner.iterdir())]
    return files


def read_tables(path: Path, schema: Schema) -> tuple[pd.DataFrame, pd.Index, list[str]]:
    """Return the rows of a file, or of each file in a folder; an index of them, and the name of each row's file."""
    import pandas as pd

    from fedcore.api.serving import read_table
    from fedcore.data import folders
    from fedcore.data.encoding import encode, name_of_file
    from fedcore.data.tables import form_notes

    frames, tables = {}, {}
    for file in folders.listing(path) if path.is_dir() else [path]:
        tables[file] = read_table(file, schema)
        frames[file] = tables[file].frame
        if path.is_dir():
            try:
                encode(frames[file], schema)
            except InputError as error:
                raise InputError(f"{file}: {error}") from None
    if not frames:
        raise InputError(f"{path}: the folder is empty; it needs a table for each device")
    for line in form_notes(tables):
        sys.stderr.write(f"fedcore: {line}\n")
    owners = [name_of_file(file.stem, schema.spelling) for file, frame in frames.items() for _ in range(len(frame))]
    if not path.is_dir():
        return frames[path], frames[path].index, owners
    rows = pd.concat({file.name: frame for file, frame in frames.items()}, names=["file"])
    return rows, rows.index, owners
