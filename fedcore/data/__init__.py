"""Datasets by name. A loader returns a :class:`Dataset`, which :mod:`fedcore.partition` divides among devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any

from fedcore.data.schema import Schema
from fedcore.types import Data, InputError

DATASETS: dict[str, str] = {
    "digits": "fedcore.data.digits:digits",
    "mnist": "fedcore.data.images:mnist",
    "fashion_mnist": "fedcore.data.images:fashion_mnist",
    "emnist": "fedcore.data.images:emnist",
    "usps": "fedcore.data.usps:usps",
    "mnist_m": "fedcore.data.mnist_m:mnist_m",
    "cifar10": "fedcore.data.cifar:cifar10",
    "cifar100": "fedcore.data.cifar:cifar100",
    "domains": "fedcore.data.domains:domains",
    "cwru": "fedcore.data.cwru:cwru",
    "bearings": "fedcore.data.rig:bearings",
    "leaf": "fedcore.data.leaf:leaf",
    "image_folder": "fedcore.data.pictures:image_folder",
    "table": "fedcore.data.tables:table",
}
"""name -> "module:function", imported on first use."""

OWN = ("image_folder", "table")
"""The datasets that a user brings."""


@dataclass(frozen=True)
class Dataset:
    """Examples before they are divided among devices.

    train: all examples to divide. test: the official shared test set, or None if the source has none.
    classes: names of the classes, classes[k] for y == k.
    device: the device that recorded each example of `train` (N names), if the source names it.
    split: "train", "val" or "test" for each example of `train`, if the source fixes it.
    domain: the domain of each example of `train` (N names), if the dataset combines several.
    server: examples that only the server holds.
    schema: how a user's own rows or pictures became `train`; its x has nan where the schema's `missing` fills cells.
    """

    train: Data
    test: Data | None
    classes: tuple[str, ...]
    device: tuple[str, ...] | None = None
    split: tuple[str, ...] | None = None
    domain: tuple[str, ...] | None = None
    server: Data | None = None
    schema: Schema | None = field(default=None, metadata={"optional": True})

    def __repr__(self) -> str:
        """Say what the examples are, without their numbers."""
        shape, kind = tuple(self.train.x.shape[1:]), str(self.train.x.dtype).removeprefix("torch.")
        few = [*self.classes] if len(self.classes) <= 10 else [*self.classes[:3], "...", self.classes[-1]]
        said = [f"{len(self.train):,} examples of shape {shape}, {kind}"]
        said += [f"{len(self.classes)} classes ({', '.join(few)})"]
        said += [f"{len(set(self.device)):,} devices"] if self.device else []
        said += [f"{len(set(self.domain))} domains"] if self.domain else []
        said += [f"{len(self.test):,} shared test examples"] if self.test is not None else []
        return f"Dataset: {'; '.join(said)}"


def load(name: str, **settings: Any) -> Dataset:
    """Load a dataset by name; its loader receives `settings`. Raises InputError for an unknown name or setting."""
    if name not in DATASETS:
        raise unknown_value("data.name", name, DATASETS)
    module, _, function = DATASETS[name].partition(":")
    loader = getattr(import_module(module), function)
    try:
        signature(loader).bind(**settings)
    except TypeError as error:
        takes = ", ".join(signature(loader).parameters) or "none"
        raise InputError(f"data.name = {name!r}: {error}; its settings are: {takes}") from None
    dataset: Dataset = loader(**settings)
    return dataset


def schema_of(dataset: Dataset) -> Schema:
    """Return a dataset's schema; one of arrays if its loader gives none."""
    x = dataset.train.x
    return dataset.schema or Schema(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."), dataset.classes)


def unknown_value(key: str, value: object, allowed: Iterable[str]) -> InputError:
    """Return the error for a value that is not in `allowed`; it suggests the closest one."""
    allowed = list(allowed)
    near = get_close_matches(str(value), allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"{key} = {value!r}: {hint}allowed: {', '.join(allowed)}")
