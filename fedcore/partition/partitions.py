r"""Partitions as lists of indices, pure functions of the labels (or devices) and a seed.

A partition function (:mod:`fedcore.partition.schemes`) divides examples among devices; :func:`partition` then splits
each device's examples into train, val and test (:mod:`fedcore.partition.held_out`), and hides labels
(:mod:`fedcore.partition.hidden`). A device's split depends only on the seed, its name and its examples, so that with
`by_device` a changed device does not affect the others; the one exception is a class that would be in no training set.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, Literal

import numpy as np

from fedcore.data import Dataset
from fedcore.errors import InputError
from fedcore.partition.held_out import Share, hold_out_shared, limit_shared, split_parts
from fedcore.partition.hidden import Hidden, draw_unlabelled, hide_labels
from fedcore.partition.new_devices import without_new
from fedcore.partition.parts import Partition
from fedcore.partition.pools import EVERYONE, FROM_DATA, devices_per_pool, divide_pools, limit_pools, pools_of
from fedcore.partition.refusals import check_choices, check_held_out, check_labels, check_sizes, check_task
from fedcore.partition.schemes import AUTO, PARTITIONS, Index, check_devices, device_names
from fedcore.partition.stable import row_keys, uniform
from fedcore.types.ranges import Count, Depth, Fraction, Positive


def partition(
    dataset: Dataset, *, name: str = "dirichlet", devices: Count = 16, alpha: Positive = 0.5, min_size: Count = 10,
    val: Share = 0.2, test: Share = 0.2, shared_test: Share = 0.2, seed: int, share: Fraction = 0.8,
    classes: Count | list[list[Depth]] = 4, domains: Literal["mixed", "split"] = "mixed", examples: Count | None = None,
    shared_examples: Count | None = None, unlabelled: Share = 0.0, unlabelled_classes: Literal["own", "shared"] = "own",
    hidden: Hidden = 0.0, drop_small: bool = False, hold_out: Literal["random", "stable"] = "random",
) -> Partition:  # fmt: skip
    """Divide a dataset among devices, and each device's examples into train, val, test and unlabelled.

    If the dataset has a split column, `test` is not used, shared_test is a fraction of the rows marked test, and val is
    drawn from a device's train rows only if it has no row marked val. With by_device, a device whose rows are all
    marked test takes no part: it is a new site, see :func:`fedcore.partition.new_devices.new_sites`.

    Args:
        dataset: what is divided.
        name: a function of PARTITIONS, which uses some of devices, alpha, min_size, share and classes; or "auto",
            by_device if the data name devices, else dirichlet; iid where labels are no classes.
        devices: number of devices, from 1; the data's own with by_device and by_domain.
        alpha: concentration of Dirichlet draws, above 0: small is skewed, 1e20 even.
        min_size: least examples of a device, all parts together, from 1; of a device of the data also those of the
            shared test set, so that it does not depend on the seed.
        val: fraction of a device's examples that ranks and selects models, in [0, 1).
        test: fraction of a device's examples for its reported accuracy, in [0, 1).
        shared_test: fraction of all examples held out first, if there is no official test set; it does not depend on
            devices or alpha. With by_device, by_domain or split domains it is a fraction of each device or domain.
        seed: of all draws.
        share: of label_skew: fraction of a device's examples with its main label, in (0, 1].
        classes: of few_classes and device_dirichlet: the most classes that a device has; of shards: a device's shards.
            Lists of classes, with device_dirichlet: those of each kind of device; consecutive devices are of one kind.
        domains: "mixed" ignores them; "split" assigns devices to the domains in turn, by name, while a domain has
            min_size examples for one more, and divides each domain among its devices, "<domain>-00", "<domain>-01", ...
        examples: most examples of all devices, drawn from those not held out, independently of devices and alpha; with
            split domains in equal parts for each device, so that a small domain's devices are as large as it allows.
        shared_examples: most examples of the shared test set, drawn from it.
        unlabelled: fraction of the devices (rounded) without labels: their train and val examples become unlabelled
            (ST-LF, sec. V: half of the devices).
        unlabelled_classes: "shared", with few_classes or device_dirichlet: a device without labels has the classes of a
            labelled one, so that some model knows them all (the public code of ST-LF's authors); "own": its own draw.
        hidden: fraction of train and of val that is unlabelled on each other device, which keeps at least one training
            example; "random": a fraction for each device, uniform in [0, 1); a list of these: for the devices in
            turn, 1 for a device without labels. Test examples keep their labels. Labels are hidden anew, at most
            REDRAWS times, while a class has no labelled training example.
        drop_small: leave out a device with fewer than min_size examples, instead of refusing it; with by_device or
            by_domain also its examples in the shared test set.
        hold_out: what decides whether an example trains, validates or tests. "random": a draw stratified by label.
            "stable": a hash of the seed and the example, or of its id, and no other example, so that it stays on its
            side when examples are added, reordered or join with a new device; fractions are met in expectation. A
            device or a class whose examples would all be held out trains on the one that is next to be, of val before
            test: only that one may change its side later.

    Raises:
        InputError: for invalid settings, and for a class without a labelled training example.
    """
    name = resolve_name(dataset, name)
    shared_classes = unlabelled_classes == "shared"
    check_choices(name, domains, unlabelled_classes, classes)
    check_task(dataset, name, unlabelled, hidden)
    check_held_out(val, test)

    labels = dataset.strata
    marks = None if dataset.split is None else np.asarray(dataset.split)
    pools = pools_of(dataset, name, domains)
    if name == "by_device" and marks is not None:
        pools = without_new(pools, marks)
    rows = {who: len(index) for who, index in pools.items()}
    shared = np.array([], dtype=np.int64)
    keys = row_keys(dataset) if hold_out == "stable" else None
    if dataset.test is None:
        points = None if keys is None else uniform(keys, seed, "shared")
        pools, shared = hold_out_shared(pools, labels, marks, shared_test, seed, points)
    shared = limit_shared(shared, dataset, shared_examples, seed)
    if examples is not None and not _keeps_to_limit(name):
        pools = limit_pools(pools, labels, examples, devices, min_size, domains, seed)

    if name not in FROM_DATA:
        check_devices(devices, sum(map(len, pools.values())))
    names = device_names(min(devices, len(labels)))
    without = draw_unlabelled(names, unlabelled, seed) if shared_classes else set()
    scheme = partial(
        _call_scheme, PARTITIONS[name], dataset, devices=devices, examples=examples, alpha=alpha, min_size=min_size,
        share=share, classes=classes, followers=[names.index(who) for who in without],
    )  # fmt: skip
    if name in FROM_DATA:
        own = pools
    elif domains == "split":
        own = divide_pools(scheme, pools, devices_per_pool(pools, devices, min_size), seed)
    else:
        own = scheme(pools[EVERYONE], devices, seed)
    sizes = rows if name in FROM_DATA and examples is None else {who: len(index) for who, index in own.items()}
    if drop_small:
        owners = {"by_device": dataset.device, "by_domain": dataset.domain}.get(name)
        own, shared = _drop_small(own, sizes, shared, owners, min_size)
    else:
        check_sizes(sizes, min_size)
    points = None if keys is None else uniform(keys, seed, "split")
    parts = split_parts(own, labels, marks, val, test, seed, points)
    divided = hide_labels(parts, shared, labels, unlabelled, hidden, without if shared_classes else None, seed)
    check_labels(dataset, divided)
    return divided


def resolve_name(dataset: Dataset, name: str) -> str:
    """Return the name of the partition that "auto" stands for, or the name as it is."""
    if name != AUTO:
        return name
    drawn = "dirichlet" if dataset.task.has_classes else "iid"
    return drawn if dataset.device is None else "by_device"


def _keeps_to_limit(name: str) -> bool:
    """Tell whether a partition function keeps to the limit of examples by itself."""
    return "examples" in signature(PARTITIONS[name]).parameters


def _call_scheme(
    scheme: Callable[..., dict[str, Index]], dataset: Dataset, pool: Index, number: int, seed: int, *, devices: int,
    examples: int | None, **settings: Any,
) -> dict[str, Index]:  # fmt: skip
    """Divide a pool among `number` of all devices by a partition function, which is given what it takes."""
    arguments: dict[str, Any] = {**settings, "labels": dataset.strata[pool], "devices": number, "seed": seed}
    arguments["examples"] = None if examples is None else round(examples * number / devices)
    arguments["owners"] = None if dataset.device is None else np.asarray(dataset.device)[pool]
    shares = scheme(**{name: arguments[name] for name in signature(scheme).parameters})
    return {who: pool[index] for who, index in shares.items()}


def _drop_small(
    own: Mapping[str, Index], sizes: Mapping[str, int], shared: Index, owners: Sequence[str] | None, min_size: int
) -> tuple[dict[str, Index], Index]:
    """Return the devices with enough examples, and the shared test set without the others' examples.

    owners: the device of each example of the dataset, if the devices are the data's own.
    """
    large = {who: index for who, index in own.items() if sizes[who] >= min_size}
    if not large:
        most = max(sizes.values())
        raise InputError(f"federation.min_size = {min_size}: no device has so many examples, at most {most}; lower it")
    if owners is not None:
        shared = shared[np.isin(np.asarray(owners)[shared], [*large])]
    return large, shared
