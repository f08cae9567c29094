"""From a partition to the devices' examples, prepared with numbers of each device or of all."""

import numpy as np
import torch

from fedcore.data import Dataset
from fedcore.data.prepare import FitTensors, fit_labels, fit_schema, fits_by_example, prepare, standardise_labels
from fedcore.data.schema import Fit, Schema
from fedcore.partition.parts import PARTS, Partition, training
from fedcore.partition.schemes import Index
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
    fit: Fit | FitTensors = schema.shared
    if dataset.test is None and fit != Fit() and (owners := owners_of(dataset, partition)) is not None:
        fit = fits_by_example(schema, [owners[i] for i in partition.shared])
    shared = prepare(standardise_labels(shared, schema), fit)
    return {who: Splits(**own) for who, own in parts_of.items()}, shared


def prepare_examples(data: Data, index: Index, schema: Schema, fit: Fit, labelled: bool = True) -> Data:
    """Return some examples as a device has them, with numbers as labels standardised."""
    return prepare(standardise_labels(take(data, index, labelled), schema), fit)


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
        if owners is not None and all(owners[index[0]] == device for device, index in trains.items()):
            return owners
    return None
