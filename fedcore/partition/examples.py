"""From a partition to the devices' examples, prepared with numbers of each device or of all."""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from fedcore.data import Dataset
from fedcore.data.prepare import fit_labels, fit_schema, prepare, standardise_labels
from fedcore.data.schema import Fit, Schema
from fedcore.partition.partitions import PARTS, Partition, training
from fedcore.partition.schemes import Index, by_device
from fedcore.types.federation import Data, LabelScale, Splits


def splits(dataset: Dataset, partition: Partition, scale: str = "none") -> tuple[dict[str, Splits], Data]:
    """Return each device's examples, copied, and the shared test set.

    Each device's inputs are prepared with numbers of its own training examples, or of all devices', see
    :func:`fedcore.data.prepare.fit_schema`, which also explains `scale`. Shared test examples are prepared as on the
    device they come from; without one (an official test set, or a partition other than by_device or by_domain), with
    numbers of all training examples.
    """
    trains = training(partition)
    schema = fit_schema(dataset, trains, scale)
    parts_of = {
        who: {
            part: prepare_examples(dataset.train, own[part], schema, schema.devices[who], part != "unlabelled")
            for part in PARTS
        }
        for who, own in partition.devices.items()
    }
    shared = dataset.test
    if shared is None or len(partition.shared):
        shared = take(dataset.train if shared is None else shared, partition.shared)
    shared = standardise_labels(shared, schema)
    owners = owners_of(dataset, partition) if dataset.test is None and schema.shared != Fit() else None
    if owners is None or not len(shared):
        shared = prepare(shared, schema.shared)
    else:
        shared = prepare_as_owners(shared, schema, [owners[i] for i in partition.shared])
    return {who: Splits(**own) for who, own in parts_of.items()}, shared


def prepare_examples(data: Data, index: Index, schema: Schema, fit: Fit, labelled: bool = True) -> Data:
    """Return some examples as a device has them, with numbers as labels standardised."""
    return prepare(standardise_labels(take(data, index, labelled), schema), fit)


def prepare_as_owners(data: Data, schema: Schema, owners: Sequence[str]) -> Data:
    """Return examples of several devices, each prepared as on its own. owners: the device of each example, (N,)."""
    groups = by_device(owners)
    joined = _join([prepare(take(data, index), schema.devices[who]) for who, index in groups.items()])
    return take(joined, np.argsort(np.concatenate([*groups.values()])))


def label_scale(dataset: Dataset, partition: Partition) -> LabelScale:
    """Return the mean and the deviation by which `splits` standardises a number as label; 0 and 1 for classes."""
    return fit_labels(dataset, training(partition))


def server_examples(dataset: Dataset, partition: Partition, scale: str = "none") -> Data:
    """Return the server's examples, scaled as on a device, with "common" by the devices' numbers; empty if none."""
    own = dataset.server
    if own is None or not len(own):
        return take(dataset.train, np.array([], dtype=np.int64)) if own is None else own
    if dataset.task.standardised:
        own = standardise_labels(own, fit_schema(dataset, training(partition), "none"))
    if scale == "common":
        return prepare(own, fit_schema(dataset, training(partition), scale).shared)
    alone = Dataset(own, None, dataset.classes)
    return prepare(own, fit_schema(alone, {"server": np.arange(len(own))}, scale).devices["server"])


def take(data: Data, index: Index, labelled: bool = True) -> Data:
    """Copy some examples; unknown labels become -1."""
    chosen = torch.from_numpy(index)
    return Data(data.x[chosen], data.y[chosen] if labelled else torch.full_like(data.y[chosen], -1))


def owners_of(dataset: Dataset, partition: Partition) -> tuple[str, ...] | None:
    """Return the device of each example where the devices are the data's own devices or domains, else None."""
    trains = training(partition)
    for owners in (dataset.device, dataset.domain):
        names = np.asarray(owners)
        if owners is not None and all((names[index] == device).all() for device, index in trains.items()):
            return owners
    return None


# a final fit: what tested a method in its study is trained on, too


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
