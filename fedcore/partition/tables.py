"""Tables of a partition: class counts, similarity of devices, and the stored index lists."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from fedcore.data import Dataset
from fedcore.data.task import MULTILABEL, NO_LABEL, SEQUENCES, count_different
from fedcore.errors import plural
from fedcore.partition import PARTS, Partition, training
from fedcore.partition.examples import label_scale, owners_of
from fedcore.partition.new_devices import new_sites
from fedcore.partition.partitions import resolve_name
from fedcore.partition.schemes import Index, device_names

Shares: TypeAlias = tuple[float, float]
"""federation.test and federation.shared_test"""


def shares_of(federation: Mapping[str, Any]) -> Shares | None:
    """Return the shares of a federation's settings by which devices test; None if its rows are limited by a draw."""
    return None if federation.get("examples") is not None else (federation["test"], federation["shared_test"])


def counts(dataset: Dataset, partition: Partition) -> pd.DataFrame:
    """Return class counts: a row per device, labelled training examples of each class, then n_train, n_val, n_test.

    Where a label is a number there is one column in place of these, with all labelled training examples; of several
    labels it is how many examples have each, and of labels for each step how many steps. The last column is
    n_unlabelled if any label is hidden. A class of such a name, or `device`, is "class n_train", for instance.
    """
    sizes = {f"n_{part}": sizes for part, sizes in zip(PARTS, partition.sizes.T, strict=True)}
    renamed = {name: f"class {name}" for name in (*sizes, "device")}
    frame = counts_of(dataset, partition, "train").rename(columns=renamed)
    if not any(sizes["n_unlabelled"]):
        del sizes["n_unlabelled"]
    return frame.assign(**sizes)


def counts_of(dataset: Dataset, partition: Partition, part: str) -> pd.DataFrame:
    """Return class counts of one part of each device: a row per device, a column per class, or per label."""
    labels, devices = dataset.strata, partition.devices
    counts = [np.bincount(labels[own[part]], minlength=len(dataset.classes)) for own in devices.values()]
    if dataset.task == MULTILABEL:
        counts = [dataset.train.y.numpy()[own[part]].sum(0, dtype=np.int64) for own in devices.values()]
    if dataset.task == SEQUENCES:
        counts = [count_steps(dataset, own[part]) for own in devices.values()]
    return pd.DataFrame(counts, index=pd.Index(devices, name="device"), columns=list(dataset.classes))


def count_steps(dataset: Dataset, index: Index) -> Index:
    """Return how many labelled steps of some examples have each class, (K,)."""
    y = dataset.train.y.numpy()[index]
    return np.bincount(y[y != NO_LABEL], minlength=len(dataset.classes))


def dropped_devices(dataset: Dataset, partition: Partition, name: str, devices: int) -> list[str]:
    """Return the devices that a partition left out since they have too few examples; new sites are none of them.

    name: of its function; devices: how many it draws.
    """
    if name == "by_domain":
        expected = sorted({*(dataset.domain or ())})
    elif resolve_name(dataset, name) == "by_device":
        expected = sorted({*(dataset.device or ())})
    else:
        expected = device_names(devices)
        if dataset.domain is not None and {*partition.names}.isdisjoint(expected):  # named after their domains
            return []
    absent = [who for who in expected if who not in partition.names]
    sites = new_sites(replace(dataset, ids=None), partition) if absent else {}
    return [who for who in absent if who not in sites]


def dropped_note(devices: Sequence[str], section: Mapping[str, Any]) -> str:
    """Return a line that names the devices that were left out; empty without any. section: of the federation."""
    if not devices:
        return ""
    count = plural(len(devices), "device")
    return f"dropped, {count} below federation.min_size={section['min_size']}: {', '.join(devices)}"


def groups(dataset: Dataset, partition: Partition) -> dict[str, str]:
    """Return device -> its group, the domain of all its training examples; devices of several domains are omitted."""
    if dataset.domain is None:
        return {}
    domain = np.asarray(dataset.domain)
    domains = {who: np.unique(domain[index]) for who, index in training(partition).items()}
    return {who: str(names[0]) for who, names in domains.items() if len(names) == 1}


def similarity(dataset: Dataset, partition: Partition) -> pd.DataFrame:
    """Return the cosine similarity of the mean features of devices' training examples, (C, C) (FedASA, Fig. 1).

    It is 0 for a mean of zeros. The scale of a device's features does not matter. A mean is over the values that are
    not missing.
    """
    owned, examples = training(partition), dataset.train
    parts = (examples.inputs(torch.from_numpy(index)).flatten(1).double() for index in owned.values())
    means = np.stack([(x.nanmean(0).nan_to_num() if x.isnan().any() else x.mean(0)).numpy() for x in parts])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(float).tiny)
    return pd.DataFrame(means @ means.T, index=list(owned), columns=list(owned))


def expected_tests(dataset: Dataset, partition: Partition, shares: Shares | None) -> pd.DataFrame | None:
    """Return how many test examples each device is to expect, and how many classes of them, whatever the seed.

    The examples are its rows, or those marked test, times the share that tests; a class is expected if half an example
    of it is. None where devices or their examples are drawn, and where the data mark all that is tested.

    shares: federation.test and federation.shared_test; None: unknown, or federation.examples limits the rows.
    """
    owners, marked = owners_of(dataset, partition), dataset.split is not None
    if shares is None or owners is None or owners is not dataset.device or (marked and not shares[1]):
        return None
    share = (1.0 if marked else shares[0]) * (1.0 if dataset.test is not None else 1 - shares[1])
    rows = np.asarray(dataset.split) == "test" if marked else np.full(len(owners), True)
    names, labels, y = np.asarray(owners)[rows], dataset.strata[rows], dataset.train.y.numpy()[rows]
    tests = share * pd.Series(names).value_counts().reindex(partition.names, fill_value=0)
    if dataset.task == SEQUENCES:  # each example once for each class that one of its steps has
        example, step = np.nonzero(y != NO_LABEL)
        keys = np.unique(example * len(dataset.classes) + y[example, step])
        example, labels = np.divmod(keys, len(dataset.classes))
        names = names[example]
    elif not dataset.task.has_classes:
        labels = np.unique(y.reshape(len(y), -1), axis=0, return_inverse=True)[1]
    cells = share * pd.crosstab(names, labels.reshape(-1)).reindex(partition.names, fill_value=0)
    classes = (cells >= 0.5).sum(axis=1) if dataset.task.predicts_classes else (cells > 0).sum(axis=1)
    return pd.DataFrame({"expected_test": tests.round(9), "expected_classes": classes}).astype(float)


def training_numbers(
    dataset: Dataset, partition: Partition, shares: Shares | None = None
) -> dict[str, dict[str, float]]:
    """Return device -> numbers of its data: labelled training examples, their classes, the largest class's fraction.

    Where labels are no classes only the first of these is there, and test_classes counts different labels; label_std is
    the deviation of all training labels that are numbers, labels how many each example has where there are several.
    Further: test_examples and their test_classes, with expected_test and expected_classes of :func:`expected_tests`,
    which takes `shares`; and, the same for all devices, shared_examples, the size of the
    shared test set, and largest_class, the largest class's fraction of all examples of all devices; for a dataset that
    marks its test examples same_test, 1: every seed tests them.

    For a dataset with domains they include in_<domain>, the fraction of the device's training examples, with or without
    label, from that domain. A device in a group (see :func:`groups`) also has similarity_same, the least cosine of its
    mean features with those of another device of its group, and similarity_other, the greatest with one of another
    group; a number without such a device is omitted.
    """
    table = counts_of(dataset, partition, "train")
    examples = table.sum(axis=1)
    tested = counts_of(dataset, partition, "test")
    everything = np.bincount(dataset.strata[partition.indices], minlength=1)
    shared = len(dataset.test) if dataset.test is not None and not len(partition.shared) else len(partition.shared)
    columns = {
        "examples": examples, "classes": (table > 0).sum(axis=1), "largest_share": table.max(axis=1) / examples,
        "test_examples": tested.sum(axis=1), "test_classes": (tested > 0).sum(axis=1), "shared_examples": shared,
        "largest_class": everything.max(initial=0) / max(everything.sum(), 1),
    }  # fmt: skip
    if not dataset.task.has_classes:
        y, own_parts = dataset.train.y, partition.devices
        sizes = {part: pd.Series({who: len(own[part]) for who, own in own_parts.items()}) for part in PARTS}
        different = {who: count_different(y[torch.from_numpy(own["test"])]) for who, own in own_parts.items()}
        of_steps = {name: columns[name] for name in ("classes", "largest_share")}
        columns = {"examples": sizes["train"], "test_examples": sizes["test"], "shared_examples": shared}
        columns["test_classes"] = pd.Series(different)
        if dataset.task.standardised:
            columns["label_std"] = label_scale(dataset, partition)[1]
        elif dataset.task == MULTILABEL:
            columns["labels"] = len(dataset.classes)
        else:
            steps = count_steps(dataset, partition.indices)
            columns |= of_steps | {"largest_class": steps.max() / max(steps.sum(), 1)}
    if dataset.split is not None:
        columns["same_test"] = 1.0
    numbers = pd.DataFrame(columns, index=table.index).astype(float).fillna(0.0)
    if (expected := expected_tests(dataset, partition, shares)) is not None:
        numbers = numbers.join(expected)
    beside = _domain_numbers(dataset, partition)
    return {
        str(who): dict(zip(map(str, numbers), row, strict=True)) | beside.get(str(who), {})
        for who, row in zip(numbers.index, numbers.to_numpy().tolist(), strict=True)
    }


def _domain_numbers(dataset: Dataset, partition: Partition) -> dict[str, dict[str, float]]:
    """Return the numbers of :func:`training_numbers` about domains and groups."""
    if dataset.domain is None:
        return {}
    domain = np.asarray(dataset.domain)
    of, table = groups(dataset, partition), similarity(dataset, partition)
    cosine = {str(who): dict(zip(table, row, strict=True)) for who, row in zip(table, table.to_numpy(), strict=True)}
    numbers = {}
    for who, index in training(partition).items():
        own = {f"in_{name}": float((domain[index] == name).mean()) for name in sorted(set(dataset.domain))}
        others = {other: float(cosine[who][other]) for other in of if who in of and other != who}
        same = [value for other, value in others.items() if of[other] == of[who]]
        other_group = [value for other, value in others.items() if of[other] != of[who]]
        own |= {"similarity_same": min(same)} if same else {}
        numbers[who] = own | ({"similarity_other": max(other_group)} if other_group else {})
    return numbers


def to_frame(partition: Partition) -> pd.DataFrame:
    """Return a partition as a tidy table (device, split, index); the shared test set has the split "shared"."""
    times = [*partition.sizes.ravel(), len(partition.shared)]
    return pd.DataFrame(
        {
            "device": np.repeat([*np.repeat(partition.names, len(PARTS)), "server"], times),
            "split": np.repeat([*PARTS * len(partition.names), "shared"], times),
            "index": np.concatenate([partition.indices, partition.shared]),
        }
    )


def from_frame(frame: pd.DataFrame) -> Partition:
    """Return the partition of a table by :func:`to_frame`; the order of the rows does not matter."""
    is_shared = frame["split"] == "shared"
    shared, rest = (rows["index"].to_numpy(np.int64) for rows in (frame[is_shared], frame[~is_shared]))
    names, device = np.unique(frame["device"][~is_shared].to_numpy(str), return_inverse=True)
    part = pd.Categorical(frame["split"][~is_shared], PARTS).codes
    sizes = np.bincount(device * len(PARTS) + part, minlength=len(names) * len(PARTS)).reshape(-1, len(PARTS))
    return Partition(tuple(map(str, names)), sizes, rest[np.lexsort((rest, part, device))], np.sort(shared))
