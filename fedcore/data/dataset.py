"""A dataset: examples before they are divided among devices."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.schema import Fit, Schema
from fedcore.data.task import LabelKind, label_kind_of
from fedcore.types.federation import Data

SPLITS = ("train", "val", "test")
"""The parts into which a source may divide its examples."""


@dataclass(frozen=True)
class Dataset:
    """Examples before they are divided among devices.

    train: all examples to divide. test: the official shared test set, or None if the source has none.
    classes: names of the classes, classes[k] for y == k; where labels are numbers the name of the number; of several
        labels the name of each.
    device: the device that recorded each example of `train` (N names), if the source names it.
    split: "train", "val" or "test" for each example of `train`, if the source fixes it.
    domain: the domain of each example of `train` (N names), if the dataset combines several.
    server: examples that only the server holds.
    schema: how a user's own rows or pictures became `train`; its x has nan where the schema's `missing` fills cells.
    notes: lines about how a user's files were understood, for the preview.
    ids: what names each example of `train` (N texts), if a column of a user's table does.
    earlier: columns of names, and the text of each example as earlier versions read it, where that differs. What is
        held out goes by it, so that it stays.
    unknown: columns of texts, and the text of each example that no training example has, "" for others.
    may_lack: whether a class may have no training example, such as a rare letter of a text.
    channels: the mean and deviation by which bytes were standardised when they were loaded; stored data lack it.
    """

    train: Data
    test: Data | None
    classes: tuple[str, ...]
    device: tuple[str, ...] | None = None
    split: tuple[str, ...] | None = None
    domain: tuple[str, ...] | None = None
    server: Data | None = None
    schema: Schema | None = field(default=None, metadata={"optional": True})
    notes: tuple[str, ...] = field(default=(), metadata={"optional": True})
    ids: tuple[str, ...] | None = field(default=None, metadata={"optional": True})
    may_lack: bool = field(default=False, metadata={"optional": True})
    earlier: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), metadata={"optional": True})
    unknown: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), metadata={"optional": True})
    channels: Fit | None = field(default=None, metadata={"unstored": True})

    @property
    def task(self) -> LabelKind:
        """What the labels are."""
        return label_kind_of(self.train.y)

    @property
    def strata(self) -> NDArray[np.int64]:
        """The class of each example of `train`, by which samples are stratified; 0 where labels are no classes."""
        y = self.train.y
        classes: NDArray[np.int64] = (y if self.task.has_classes else torch.zeros(len(y), dtype=torch.int64)).numpy()
        return classes

    def __repr__(self) -> str:
        """Say what the examples are, without their numbers."""
        shape, kind = tuple(self.train.x.shape[1:]), str(self.train.x.dtype).removeprefix("torch.")
        few = [*self.classes] if len(self.classes) <= 10 else [*self.classes[:3], "...", self.classes[-1]]
        inputs = ", ".join(f"{entry.name} {entry.shape}" for entry in self.schema.several) if self.schema else ""
        parts = [f"{len(self.train):,} examples of {inputs or f'shape {shape}, {kind}'}"]
        if self.task.standardised:
            parts += [f"a number, {few[0]}"]
        else:
            what = "classes" if self.task.predicts_classes else "labels"
            steps = "" if self.task.has_classes or what == "labels" else f" of each of {self.train.y.shape[1]} steps"
            parts += [f"{len(self.classes)} {what}{steps} ({', '.join(few)})"]
        parts += [f"{len(set(self.device)):,} devices"] if self.device else []
        parts += [f"{len(set(self.domain))} domains"] if self.domain else []
        parts += [f"{len(self.test):,} shared test examples"] if self.test is not None else []
        return f"Dataset: {'; '.join(parts)}"


def schema_of(dataset: Dataset) -> Schema:
    """Return a dataset's schema; one of arrays if its loader gives none."""
    x = dataset.train.x
    dtype = str(x.dtype).removeprefix("torch.")
    return dataset.schema or Schema(tuple(x.shape[1:]), dtype, dataset.classes, task=dataset.task.name)
