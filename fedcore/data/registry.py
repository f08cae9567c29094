"""Datasets by name. A loader returns a :class:`Dataset`, which :mod:`fedcore.partition` divides among devices."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from fedcore.builders import unknown_value
from fedcore.data.dataset import Dataset
from fedcore.types import InputError

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
    "bearings": "fedcore.data.simulated_rig:bearings",
    "leaf": "fedcore.data.leaf:leaf",
    "image_folder": "fedcore.data.pictures:image_folder",
    "table": "fedcore.data.tables:table",
}
"""name -> "module:function", imported on first use."""

USER_DATASETS = ("image_folder", "table")
"""The datasets that a user brings."""


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
