"""Refusals: settings of a partition that cannot be met, and classes that nobody could learn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.task import require_classes
from fedcore.partition.parts import PARTS, Partition
from fedcore.partition.schemes import AUTO, BY_CLASS, PARTITIONS
from fedcore.types import InputError


def check_choices(name: str, domains: str, unlabelled_classes: str, hold_out: str) -> None:
    """Refuse words that are not known, and words that do not go together."""
    if name not in PARTITIONS:
        raise unknown_value("federation.partition", name, [*PARTITIONS, AUTO])
    if domains not in ("mixed", "split"):
        raise unknown_value("federation.domains", domains, ("mixed", "split"))
    if hold_out not in ("random", "stable"):
        raise unknown_value("federation.hold_out", hold_out, ("random", "stable"))
    if unlabelled_classes not in ("own", "shared"):
        raise unknown_value("federation.unlabelled_classes", unlabelled_classes, ("own", "shared"))
    if unlabelled_classes == "shared" and (name not in ("few_classes", "device_dirichlet") or domains == "split"):
        raise InputError(
            "federation.unlabelled_classes = 'shared': must be own unless federation.partition is few_classes or "
            "device_dirichlet, and federation.domains is mixed"
        )


def check_task(dataset: Dataset, name: str, unlabelled: float, hidden: float | str) -> None:
    """Refuse what is by class, where labels are no classes."""
    if name in BY_CLASS:
        require_classes(dataset.task.name, f"federation.partition = {name!r}:")
    for key, value in {"unlabelled": unlabelled, "hidden": hidden}.items():
        if value:
            require_classes(dataset.task.name, f"federation.{key} = {value}:")


def check_fractions(val: float, test: float, shared_test: float, unlabelled: float, hidden: float | str) -> None:
    """Refuse fractions outside of [0, 1), and held-out parts that leave nothing to train on."""
    fractions = {"val": val, "test": test, "shared_test": shared_test, "unlabelled": unlabelled}
    for key, fraction in {**fractions, **({} if hidden == "random" else {"hidden": hidden})}.items():
        if isinstance(fraction, str) or not 0 <= fraction < 1:
            also = ", or random" if key == "hidden" else ""
            raise InputError(f"federation.{key} = {fraction}: must be a fraction, at least 0 and below 1{also}")
    if val + test >= 1:
        raise InputError(f"federation.val + federation.test = {val} + {test}: must be below 1, training needs examples")


def check_counts(min_size: int, examples: int | None, shared_examples: int | None) -> None:
    """Refuse counts below 1."""
    if min_size < 1:
        raise InputError(
            f"federation.min_size = {min_size}: must be at least 1, a device without examples cannot train"
        )
    for key, most in {"examples": examples, "shared_examples": shared_examples}.items():
        if most is not None and most < 1:
            raise InputError(f"federation.{key} = {most}: must be at least 1, or null for all")


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
        where = [part for part, held in labels_in.items() if k in held]
        if "train" not in where and (where or k not in servers):
            advice = "add training examples of it or remove the label"
            if "unlabelled" in where:
                advice = "lower federation.unlabelled or federation.hidden, or change the seed"
            raise InputError(
                f"data: no device has a training example of label {label!r} (found in: {', '.join(where) or 'nothing'})"
                f"; {advice}"
            )
