"""Datasets by name. A loader returns a :class:`Dataset`, which :mod:`fedcore.partition` divides among devices."""

from collections.abc import Callable
from inspect import signature
from os.path import isfile
from typing import Any

from fedcore.builders import group_settings, import_builder, settings_of, suggesting, unknown_value
from fedcore.data.dataset import Dataset
from fedcore.errors import InputError, failing

DATASETS: dict[str, str] = {
    "digits": "fedcore.data.domains:digits", "mnist": "fedcore.data.images:mnist",
    "fashion_mnist": "fedcore.data.images:fashion_mnist", "emnist": "fedcore.data.images:emnist",
    "usps": "fedcore.data.images:usps", "mnist_m": "fedcore.data.domains:mnist_m",
    "cifar10": "fedcore.data.cifar:cifar10", "cifar100": "fedcore.data.cifar:cifar100",
    "domains": "fedcore.data.domains:domains", "cwru": "fedcore.data.cwru:cwru",
    "bearings": "fedcore.data.simulated_rig:bearings", "leaf": "fedcore.data.leaf:leaf",
    "image_folder": "fedcore.data.pictures:image_folder", "table": "fedcore.data.tables:table",
}  # fmt: skip
"""name -> "module:function", imported on first use."""

USER_DATASETS = ("image_folder", "table")
"""The datasets that a user brings, beside those of a function of one's own."""


def is_own(name: object) -> bool:
    """Tell whether a name is the place of a function of one's own, "package.module:function"."""
    return isinstance(name, str) and ":" in name


def is_users(name: object) -> bool:
    """Tell whether a dataset is one that a user brings."""
    return name in USER_DATASETS or is_own(name)


def loader_of(name: str) -> Callable[..., Dataset]:
    """Return the function that reads the dataset of that name; raises InputError for another name."""
    if not is_own(name) and name not in DATASETS:
        if isfile(str(name)):
            how = f"load('table', path={name!r}, label=...), or data.name=table with data.path={name}"
            raise InputError(f"data.name = {name!r}: is a file, which is read by {how}")
        raise unknown_value("data.name", name, (*DATASETS, "package.module:function"))
    with suggesting(name):
        return import_builder(DATASETS.get(name, name), "data.name")


def load(name: str, **settings: Any) -> Dataset:
    """Load a dataset by name, or by the place of a function of your own; its loader receives `settings`.

    Raises InputError for an unknown name or setting, and for a function that fails or returns no dataset.
    """
    loader = loader_of(name)
    grouped = group_settings(loader, settings)
    try:
        signature(loader).bind(**grouped)
    except TypeError as error:
        takes = ", ".join(settings_of(loader)) or "none"
        raise InputError(f"data.name = {name!r}: {error}; its settings are: {takes}") from None
    if not is_own(name):
        return loader(**grouped)
    with failing(f"data.name = {name!r}: fails"):
        dataset = loader(**grouped)
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"data.name = {name!r}: must return a dataset, such as fedcore.from_arrays(x, y), returned "
            f"{type(dataset).__name__}"
        )
    if not len(dataset.train):
        raise InputError(f"data.name = {name!r}: returned no example")
    return dataset
