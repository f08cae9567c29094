"""A partition: which device holds which examples, for training, validation, test or without their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcore.data.dataset import SPLITS
from fedcore.partition.schemes import Index

PARTS = (*SPLITS, "unlabelled")


@dataclass(frozen=True, eq=False)
class Partition:
    """Sorted indices into `Dataset.train`, disjoint between devices and parts.

    names: the devices, (C,). sizes: how many examples of each of PARTS they hold, (C, 4). indices: which, device after
    device, part after part: one array, since ten thousand devices would have forty thousand. shared: indices of the
    shared test set. If the dataset has an official test set, they are indices into that, and no indices stand for all
    of it.
    """

    names: tuple[str, ...]
    sizes: Index
    indices: Index
    shared: Index

    @classmethod
    def of(cls, devices: Mapping[str, Mapping[str, Index]], shared: Index) -> Partition:
        """Return the partition of some devices: name -> part -> indices."""
        pieces = [own[part] for own in devices.values() for part in PARTS]
        sizes = np.array(list(map(len, pieces)), np.int64).reshape(len(devices), len(PARTS))
        return cls(tuple(devices), sizes, np.concatenate([np.array([], np.int64), *pieces]), shared)

    @cached_property
    def devices(self) -> dict[str, dict[str, Index]]:
        """The devices' examples: name -> {"train", "val", "test", "unlabelled"} -> indices."""
        pieces = iter(np.split(self.indices, np.cumsum(self.sizes)[:-1]))
        return {name: {part: next(pieces) for part in PARTS} for name in self.names}


def training(partition: Partition) -> dict[str, Index]:
    """Return device -> its training examples, with or without label."""
    return {who: np.concatenate([own["train"], own["unlabelled"]]) for who, own in partition.devices.items()}
