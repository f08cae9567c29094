"""The partition of a final fit: what tested a method in its study is trained on, too."""

from collections.abc import Collection

import numpy as np
import torch

from fedcore.data import Dataset
from fedcore.partition.parts import Partition
from fedcore.partition.schemes import Index
from fedcore.types.federation import Data, Splits


def final_partition(dataset: Dataset, partition: Partition, held_out: Collection[str] = ()) -> Partition:
    """Return the partition in which each device trains on all its labelled examples: its train, val and test examples,
    and those of the shared test set that come from it (:func:`shared_examples_of`).

    Rows that a split column marks as test are among them. An official test set stays out, and so do examples that the
    partition leaves out. A device without a labelled training example stays without: its test examples become
    unlabelled.

    held_out: "val", validation splits stay as they are; "shared", the shared test set does.
    """
    shared = {} if "shared" in held_out else shared_examples_of(dataset, partition)
    nothing = np.array([], dtype=np.int64)
    devices = {}
    for who, own in partition.devices.items():
        parts = {**own, "test": nothing, **({} if "val" in held_out else {"val": nothing})}
        back = [own["test"], shared.get(who, nothing), *([] if "val" in held_out else [own["val"]])]
        kind = "train" if len(own["train"]) else "unlabelled"
        devices[who] = {**parts, kind: np.sort(np.concatenate([own[kind], *back]))}
    left = np.setdiff1d(partition.shared, np.concatenate([nothing, *shared.values()]), assume_unique=True)
    return Partition.of(devices, left)


def shared_examples_of(dataset: Dataset, partition: Partition) -> dict[str, Index]:
    """Return device -> the examples of the shared test set that come from it.

    They do where the data name devices, or domains, and all that a device of the partition holds of one is its alone.
    Otherwise the shared test set was held out before there were devices, and is nobody's.
    """
    for names in (dataset.device, dataset.domain) if dataset.test is None else ():
        if names is None:
            continue
        sources = np.asarray(names)
        ids = {who: np.unique(sources[np.concatenate([*own.values()])]) for who, own in partition.devices.items()}
        if len(np.unique(np.concatenate([*ids.values()]))) == sum(map(len, ids.values())):
            of_shared = sources[partition.shared]
            return {who: partition.shared[np.isin(of_shared, ids[who])] for who in ids}
    return {}


def final_splits(own: Splits, held_out: Collection[str] = ()) -> Splits:
    """Return a device's examples for a final fit, as :func:`final_partition` divides them; nothing of a shared set."""
    none = Data(own.test.x[:0], own.test.y[:0])
    val = own.val if "val" in held_out else none
    back = [own.test] if "val" in held_out else [own.val, own.test]
    if len(own.train):
        return Splits(_join([own.train, *back]), val, none, own.unlabelled)
    hidden = _join([own.unlabelled, *back])
    return Splits(own.train, val, none, Data(hidden.x, torch.full_like(hidden.y, -1)))


def _join(parts: list[Data]) -> Data:
    some = [part for part in parts if len(part)] or parts[:1]
    return Data(torch.cat([part.x for part in some]), torch.cat([part.y for part in some]))
