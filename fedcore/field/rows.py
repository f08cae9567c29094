"""A device's own rows: a table or a folder of pictures, read by the study's schema and checked against it.

Tables need pandas (and pyarrow for Parquet), pictures Pillow; a device with a file of examples needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedcore.data import Dataset
from fedcore.errors import InputError, require_extra
from fedcore.field.examples import read_examples
from fedcore.field.recipe import NO_FIT, Recipe
from fedcore.types.federation import Data, Splits

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from fedcore.data.schema import Fit, Schema

TABLES = {".csv": ("pandas", "pyarrow"), ".tsv": ("pandas", "pyarrow"), ".parquet": ("pandas", "pyarrow")}
"""The files of rows, and the packages that read them."""


class DeviceRows:
    """A device's rows at a path, which is read again for each run: a table, a folder of pictures or a file of examples.

    Raises InputError for a path that cannot be read, and a package that is not installed.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.examples: Splits | None = None
        needed = ("PIL",) if path.is_dir() else TABLES.get(path.suffix.lower(), ())
        if needed:
            require_extra("tables", needed, subject=f"--data {path}: ")
        if not path.exists():
            raise InputError(f"--data {path}: no such file or folder")
        if not needed:
            self.examples = read_examples(path)

    def __str__(self) -> str:
        if self.examples is not None:
            return f"{len(self.examples.train)} examples"
        return f"rows of {self.path}"

    def splits(self, recipe: Recipe | None, seed: int) -> Splits:
        """Return the device's examples, not prepared, as a run's recipe asks for."""
        if self.examples is not None:
            return self.examples
        if recipe is None:
            raise InputError(f"{self.name}: the run has no schema, by which rows could be read; give --data examples")
        rows = self.read(recipe)
        if len(rows.train) < recipe.min_size:
            raise InputError(
                f"--data {self.path}: {len(rows.train)} rows, the study needs at least {recipe.min_size} "
                "(federation.min_size)"
            )
        parts = recipe.split_rows(rows, self.name, seed)
        if not len(parts.train):
            raise InputError(f"--data {self.path}: no row is for training")
        return parts

    def prepared(self, recipe: Recipe | None, seed: int) -> tuple[Splits, Fit]:
        """Return the device's examples as its net takes them, and the numbers that prepared them."""
        raw = self.splits(recipe, seed)
        return (raw, NO_FIT) if recipe is None or self.examples is not None else recipe.prepare(raw)

    def read(self, recipe: Recipe) -> Dataset:
        """Return the rows as the study's dataset would hold them."""
        if self.path.is_dir() == bool(recipe.schema.columns):
            wanted = "a table" if recipe.schema.columns else "a folder of pictures"
            raise InputError(f"--data {self.path}: the study learns from {wanted}")
        with _naming(self.path):
            return self._table(recipe) if recipe.schema.columns else self._pictures(recipe)

    def _table(self, recipe: Recipe) -> Dataset:
        import numpy as np
        import pandas as pd

        from fedcore.data.encoding import cells, check_complete
        from fedcore.data.readers import read
        from fedcore.data.tables import earlier_names, ids_of, label_numbers, split_marks, texts, zeros_and_ones

        schema, file = recipe.schema, self.path
        labels_are_names = schema.label is not None and recipe.task.has_classes
        columns_of_names = {*schema.names, recipe.split, recipe.id, schema.label if labels_are_names else None}
        reading = schema.label, columns_of_names, schema.spelling, schema.known, schema.decimal
        rows = read(file, schema.missing_values, *reading)
        frame = rows.frame
        targets = schema.classes if schema.label is None else (schema.label,)
        needed = [*targets, *(name for name in (recipe.split, recipe.id) if name is not None)]
        for name in (*needed, *(column.name for column in schema.columns)):
            if name not in frame:
                raise InputError(f"no column {name!r}, which the study learns from; it has: {_few(frame)}")
        check_owner(frame, schema, self.name)
        labels = [texts(file, rows, name) for name in targets]
        y: NDArray[Any]
        if recipe.task.has_classes:
            self._check_labels(labels[0].tolist(), schema.classes)
            y = pd.Index(schema.classes).get_indexer(pd.Index(labels[0])).astype(np.int64)
        else:
            y = (label_numbers if recipe.task.standardised else zeros_and_ones)(file, frame, targets)
        x = cells(frame, schema.columns, schema.spelling)
        keep = np.full(len(frame), True)
        if schema.missing == "drop":
            needed = [column.name for column in schema.columns if not column.ticks]
            keep = frame[needed].notna().all(axis=1).to_numpy(copy=True)
        elif schema.missing == "refuse":
            check_complete(frame, schema.columns, "; the study takes only complete rows (data.missing)")
        marks = None if recipe.split is None else np.array(split_marks(file, rows, recipe.split))
        as_in_study = {name: rows.spelt[name] for name in recipe.texts if name in rows.spelt}
        read_rows = {file: replace(rows, earlier={**rows.earlier, **as_in_study})}
        named = None if recipe.id is None else ids_of(read_rows, recipe.id, schema.spelling)
        in_keys = (*schema.names, *([targets[0]] if labels_are_names else []))
        if recipe.earlier is not None:  # a part of the rows may look otherwise than all of them
            in_keys = tuple(name for name in in_keys if name in recipe.earlier)
        earlier = earlier_names(read_rows, in_keys, keep)
        if called := (recipe.earlier or {}).get(schema.device or "", {}).get(self.name):
            earlier = (*earlier, (schema.device or "", (called,) * int(keep.sum())))
        kept_rows = torch.from_numpy(keep)
        return Dataset(
            Data(x[kept_rows], torch.from_numpy(y)[kept_rows]), None, schema.classes, (self.name,) * int(keep.sum()),
            None if marks is None else tuple(marks[keep].tolist()), schema=schema,
            ids=None if named is None else tuple(named[keep].tolist()),
            earlier=earlier,
        )  # fmt: skip

    def _check_labels(self, labels: list[str], classes: tuple[str, ...]) -> None:
        if unknown := sorted({*labels} - {*classes}):
            raise InputError(f"label {unknown[0]!r} is unknown to the study; it has: {', '.join(classes)}")

    def _pictures(self, recipe: Recipe) -> Dataset:
        from fedcore.data.folders import roles_of
        from fedcore.data.pictures import find_folders, squares
        from fedcore.data.prepare import standardise_channels
        from fedcore.data.schema import Fit

        schema = recipe.schema
        folders = find_folders(self.path, sites=False)
        self._check_labels([source.folder.name for source in folders], schema.classes)
        data, counts = squares(folders, schema.classes, schema.shape[-1], schema.shape[0] == 1)
        roles: dict[str | None, str] = {None: "train"}
        roles.update(roles_of({source.part for source in folders if source.part is not None}).items())
        marks = tuple(roles[source.part] for source, count in zip(folders, counts, strict=True) for _ in range(count))
        if schema.channels != Fit():
            data = Data(standardise_channels(data.inputs(), schema.channels), data.y)
        split = marks if {*marks} != {"train"} else None
        return Dataset(data, None, schema.classes, (self.name,) * len(data), split, schema=schema)


def check_owner(frame: pd.DataFrame, schema: Schema, name: str, *others: str) -> None:
    """Refuse a table whose column of devices names another one than `name`. others: what may stand there too."""
    from fedcore.data.encoding import column_texts

    if (column := schema.device) is None or column not in frame:
        return
    if wrong := sorted({*column_texts(frame, column).tolist()} - {name, *others}):
        raise InputError(f"column {column!r} has rows of {wrong[0]!r}; this device is {name!r}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the option in an InputError about the rows, as a study's messages name its setting."""
    try:
        yield
    except InputError as error:
        message = str(error).replace("data.path = ", "--data ")
        raise InputError(message if message.startswith("--data ") else f"--data {path}: {message}") from None


def _few(names: object) -> str:
    texts = [str(name) for name in names]  # type: ignore[attr-defined]
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
