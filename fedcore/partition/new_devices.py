"""Devices that take no part in training: those left out one by one, and sites whose rows are all marked test."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.data.dataset import SPLITS
from fedcore.data.prepare import fit_new, fit_schema
from fedcore.errors import InputError
from fedcore.partition.examples import owners_of, prepare_examples
from fedcore.partition.partitions import Partition, training
from fedcore.partition.schemes import Index
from fedcore.types.federation import Data


def leave_out(dataset: Dataset, partition: Partition, device: str) -> tuple[Partition, Index, Index]:
    """Return the partition of the other devices, and the indices of the labelled examples that only this one knows.

    Where the devices are the data's own, the device's examples in the shared test set are among them and no longer in
    that set. All other devices keep their examples. Third are the device's other labelled examples: those whose id
    trains or validates on another device, such as a patient's of two hospitals.
    """
    if device not in partition.names or len(partition.names) < 2:
        raise InputError(f"{device!r} cannot be left out: it must be one of at least two devices")
    own = {name: parts for name, parts in partition.devices.items() if name != device}
    rows, shared = [partition.devices[device][part] for part in SPLITS], partition.shared
    owners = owners_of(dataset, partition)
    if owners is not None and dataset.test is None:
        owned = np.array([owners[i] == device for i in shared], dtype=bool)
        rows, shared = [*rows, shared[owned]], shared[~owned]
    index, others = np.sort(np.concatenate(rows)), Partition.of(own, shared)
    elsewhere = known(dataset, [*own.values()])[index]
    return others, index[~elsewhere], index[elsewhere]


def new_sites(dataset: Dataset, partition: Partition) -> dict[str, Index]:
    """Return the sites that take no part as all their rows are marked test, with their rows: name -> indices.

    Only data that name their devices, divided by them, have such sites. Rows whose id trains or validates on another
    device are left out, as in :func:`leave_out`, and so is a site that has no others.
    """
    owners = None if dataset.split is None else owners_of(dataset, partition)
    if owners is None or owners is not dataset.device:
        return {}
    names, marks = np.asarray(owners), np.asarray(dataset.split)
    sites = np.setdiff1d(names, [*partition.names, *names[marks != "test"]])
    unknown = ~known(dataset, [*partition.devices.values()])
    rows = {str(name): np.flatnonzero((names == name) & unknown) for name in sites}
    return {name: index for name, index in rows.items() if len(index)}


def known(dataset: Dataset, devices: Sequence[Mapping[str, Index]]) -> NDArray[np.bool_]:
    """Tell which examples have an id that trains or validates on one of some devices, given by their parts, (N,)."""
    if dataset.ids is None:
        return np.zeros(len(dataset.train), dtype=bool)
    ids = np.asarray(dataset.ids)
    seen = [parts[part] for parts in devices for part in ("train", "val", "unlabelled")]
    return np.isin(ids, ids[np.concatenate(seen)])


def new_examples(dataset: Dataset, partition: Partition, index: Index, scale: str) -> Data:
    """Return examples of a device that took no part, prepared as predictions of them would be.

    partition: of those that did.
    """
    schema = fit_schema(dataset, training(partition), scale)
    fit = fit_new(schema, dataset.train.inputs(torch.from_numpy(index)))
    return prepare_examples(dataset.train, index, schema, fit)
