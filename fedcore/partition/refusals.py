"""Refusals: settings of a partition that cannot be met, and classes that nobody could learn."""

from collections.abc import Mapping

import numpy as np

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.task import require_classes
from fedcore.errors import InputError
from fedcore.partition.hidden import Hidden
from fedcore.partition.parts import PARTS, Partition
from fedcore.partition.schemes import AUTO, BY_CLASS, PARTITIONS


def check_choices(name: str, domains: str, unlabelled_classes: str, classes: object) -> None:
    """Refuse a partition that is not known, and words that do not go together."""
    if name not in PARTITIONS:
        raise unknown_value("federation.partition", name, [*PARTITIONS, AUTO])
    if unlabelled_classes == "shared" and (name not in ("few_classes", "device_dirichlet") or domains == "split"):
        raise InputError(
            "federation.unlabelled_classes = 'shared': must be own unless federation.partition is few_classes or "
            "device_dirichlet, and federation.domains is mixed"
        )
    if isinstance(classes, list) and (name != "device_dirichlet" or unlabelled_classes == "shared"):
        raise InputError(
            f"federation.classes = {classes}: must be a number unless federation.partition is device_dirichlet and "
            "federation.unlabelled_classes is own"
        )


def check_task(dataset: Dataset, name: str, unlabelled: float, hidden: Hidden) -> None:
    """Refuse what is by class, where labels are no classes."""
    if name in BY_CLASS:
        require_classes(dataset.task.name, f"federation.partition = {name!r}:")
    for key, value in {"unlabelled": unlabelled, "hidden": hidden}.items():
        if value:
            require_classes(dataset.task.name, f"federation.{key} = {value}:")


def check_held_out(val: float, test: float) -> None:
    """Refuse held-out parts that leave nothing to train on."""
    if val + test >= 1:
        raise InputError(f"federation.val + federation.test = {val} + {test}: must be below 1, training needs examples")


def check_sizes(sizes: Mapping[str, int], min_size: int) -> None:
    """Refuse devices with too few examples."""
    small = [who for who, size in sizes.items() if size < min_size]
    if small:
        others = f" and {len(small) - 1} more devices have too few" if len(small) > 1 else ""
        raise InputError(
            f"federation.min_size = {min_size}: {small[0]!r} has {sizes[small[0]]} examples{others}; lower it, or "
            "set federation.drop_small=true"
        )


def check_labels(dataset: Dataset, partition: Partition) -> None:
    """Raise InputError if no device has a labelled training example of some class: no model could learn it.

    A class that the server alone knows may be (CWRU's normal bearings at location C): no device is asked for it. So may
    any class of a dataset that may lack some.
    """
    if dataset.may_lack or not dataset.task.has_classes:
        return
    labels = dataset.train.y.numpy()
    everyone = {part: np.concatenate([own[part] for own in partition.devices.values()]) for part in PARTS}
    labels_in = {part: np.unique(labels[index]) for part, index in everyone.items()}
    labels_in["shared test"] = np.unique(labels[partition.shared] if dataset.test is None else dataset.test.y.numpy())
    servers = set() if dataset.server is None else set(dataset.server.y.tolist())
    for k, label in enumerate(dataset.classes):
        where = [part for part, present in labels_in.items() if k in present]
        if "train" not in where and (where or k not in servers):
            advice = "add training examples of it or remove the label"
            if "unlabelled" in where:
                advice = "lower federation.unlabelled or federation.hidden, or change the seed"
            raise InputError(
                f"data: no device has a training example of label {label!r} (found in: {', '.join(where) or 'nothing'})"
                f"; {advice}"
            )
