r"""Partitions as lists of indices, pure functions of the labels (or devices) and a seed.

A partition function (:mod:`fedcore.partition.schemes`) divides examples among devices; :func:`partition` then splits
each device's examples into train, val and test (:mod:`fedcore.partition.held_out`), and hides labels: examples of train
and val become unlabelled, all of a device's or a part of them. A device's split depends only on the seed, its name and
its examples, so that with `by_device` a changed device does not affect the others; the one exception is a class that
would be in no training set.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from itertools import cycle
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.builders import unknown_value
from fedcore.data import Dataset, schema_of
from fedcore.data.dataset import SPLITS
from fedcore.data.names import alike
from fedcore.data.task import require_classes
from fedcore.errors import InputError, plural
from fedcore.partition.held_out import Share, check_ids, draw, hold_out_shared, limit_shared, split_parts
from fedcore.partition.schemes import (
    AUTO,
    BY_CLASS,
    PARTITIONS,
    Index,
    by_device,
    by_domain,
    check_devices,
    device_names,
    draws,
)
from fedcore.partition.stable import HoldOut, row_keys, uniform
from fedcore.types.ranges import Count, Depth, Fraction, Positive
from fedcore.types.ranges import Share as Whole

PARTS = (*SPLITS, "unlabelled")

Hidden: TypeAlias = Share | Literal["random"] | list[Whole | Literal["random"]]
"""The share of labels that is hidden: of every device, or of the devices in turn, 1 for one without labels."""

REDRAWS = 100


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
    def of(cls, devices: Mapping[str, Mapping[str, Index]], shared: Index) -> Self:
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


def partition(
    dataset: Dataset, *, name: str = "dirichlet", devices: Count = 16, alpha: Positive = 0.5, min_size: Count = 10,
    val: Share = 0.2, test: Share = 0.2, shared_test: Share = 0.2, seed: int, share: Fraction = 0.8,
    classes: Count | list[list[Depth]] = 4, domains: Literal["mixed", "split"] = "mixed", examples: Count | None = None,
    shared_examples: Count | None = None, unlabelled: Share = 0.0, unlabelled_classes: Literal["own", "shared"] = "own",
    hidden: Hidden = 0.0, drop_small: bool = False, hold_out: HoldOut = "random",
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
            test: only that one may change its side later. A device's equal examples are on one side. "stable_each": the
            same, but equal examples have sides of their own, as answers of several people to few questions need.

    Raises:
        InputError: for invalid settings, and for a class without a labelled training example.
    """
    name = resolve_name(dataset, name)
    shared_classes = unlabelled_classes == "shared"
    check_choices(name, domains, unlabelled_classes, classes)
    by_class = {f"partition = {name!r}": name in BY_CLASS, f"unlabelled = {unlabelled}": unlabelled}
    for setting, asked in {**by_class, f"hidden = {hidden}": hidden}.items():
        if asked:
            require_classes(dataset.task.name, f"federation.{setting}:")
    if val + test >= 1:
        raise InputError(f"federation.val + federation.test = {val} + {test}: must be below 1, training needs examples")

    labels = dataset.strata
    marks = None if dataset.split is None else np.asarray(dataset.split)
    pools = pools_of(dataset, name, domains)
    if name == "by_device" and marks is not None:
        pools = without_new(pools, marks)
    rows = {who: len(index) for who, index in pools.items()}
    shared = np.array([], dtype=np.int64)
    keys = None if hold_out == "random" else row_keys(dataset, each=hold_out == "stable_each")
    if dataset.test is None:
        points = None if keys is None else uniform(keys, seed, "shared")
        pools, shared = hold_out_shared(pools, labels, marks, shared_test, seed, points)
    shared = limit_shared(shared, dataset, shared_examples, seed)
    if examples is not None and "examples" not in signature(PARTITIONS[name]).parameters:
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
        check_sizes(sizes, min_size, name == "by_device" and bool(schema_of(dataset).columns))
    if keys is None:
        check_ids(dataset, own.values(), val)
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


FROM_DATA = ("by_device", "by_domain")


EVERYONE = "everyone"


def pools_of(dataset: Dataset, name: str, domains: str) -> dict[str, Index]:
    """Return the examples to divide separately: of each device, of each domain, or of all together."""
    if domains == "split":
        if name in FROM_DATA:
            raise InputError(f"federation.domains = 'split': must be mixed with federation.partition = {name!r}")
        if dataset.domain is None:
            raise InputError("federation.domains = 'split': must be mixed, the data name no domains")
        return by_domain(dataset.domain)
    if name == "by_device":
        return by_device(dataset.device)
    if name == "by_domain":
        return by_domain(dataset.domain)
    return {EVERYONE: np.arange(len(dataset.train))}


def limit_pools(
    pools: Mapping[str, Index], labels: Index, limit: int, devices: int, min_size: int, domains: str, seed: int
) -> dict[str, Index]:
    """Keep at most `limit` examples of all pools; of split domains each keeps its devices' part."""
    if domains != "split":
        return _limit_examples(pools, labels, limit, draws(seed, "examples"))
    numbers = devices_per_pool(pools, devices, min_size)
    return {
        who: _limit_examples({who: pool}, labels, round(limit * numbers[who] / devices), draws(seed, who))[who]
        for who, pool in pools.items()
    }


def _limit_examples(
    pools: Mapping[str, Index], labels: Index, examples: int, rng: np.random.Generator
) -> dict[str, Index]:
    """Keep at most `examples` examples of all pools together."""
    everything = np.concatenate(list(pools.values()))
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[draw(everything, labels, min(examples, len(everything)), rng, whole=True)[0]] = True
    return {who: index[chosen[index]] for who, index in pools.items()}


def devices_per_pool(pools: Mapping[str, Index], devices: int, min_size: int) -> dict[str, int]:
    """Return the number of devices of each domain, assigned in turn while it has min_size examples for one more."""
    if devices < len(pools):
        raise InputError(f"federation.devices = {devices}: must be at least {len(pools)}, one for each domain")
    numbers = dict.fromkeys(pools, 0)
    for placed in range(devices):
        room = [who for who, index in pools.items() if len(index) >= (numbers[who] + 1) * min_size]
        if not room:
            raise InputError(
                f"federation.devices = {devices}: must be at most {placed}, so many devices of federation.min_size = "
                f"{min_size} examples find room in the domains"
            )
        numbers[min(room, key=numbers.__getitem__)] += 1
    for who, number in numbers.items():
        if not number:
            raise InputError(
                f"federation.min_size = {min_size}: domain {who!r} has {plural(len(pools[who]), 'example')}; lower it"
            )
    return numbers


def without_new(pools: dict[str, Index], marks: NDArray[np.str_]) -> dict[str, Index]:
    """Return the pools of the devices that take part: those of which some row is not marked test.

    Raises InputError if there is none.
    """
    taking_part = {who: index for who, index in pools.items() if (marks[index] != "test").any()}
    if not taking_part:
        raise InputError("data.split: all rows are marked test; at least one device needs rows marked train")
    return taking_part


def divide_pools(
    divided: Callable[[Index, int, int], dict[str, Index]], pools: Mapping[str, Index], numbers: Mapping[str, int],
    seed: int,
) -> dict[str, Index]:  # fmt: skip
    """Divide each domain, by separate random draws, among devices named after it."""
    own: dict[str, Index] = {}
    for domain, number in numbers.items():
        try:
            shares = divided(pools[domain], number, int(draws(seed, "domain", domain).integers(2**63)))
        except InputError as refused:
            raise InputError(f"{refused} (in domain {domain!r})") from None
        own |= {f"{domain}{who.removeprefix('device')}": index for who, index in shares.items()}
    return own


def hide_labels(
    parts: Mapping[str, dict[str, Index]], shared: Index, labels: Index, unlabelled: float, hidden: Hidden,
    without: Collection[str] | None, seed: int,
) -> Partition:  # fmt: skip
    """Hide labels, again while a class has no labelled training example, at most REDRAWS times.

    without: the devices without labels; None: they are drawn, anew each time.
    """
    for again in ((), *((number,) for number in range(1, REDRAWS))):
        blank = draw_unlabelled(parts, unlabelled, seed, *again) if without is None else without
        partition = Partition.of(_hide(parts, blank, hidden, seed, *again), shared)
        owned = partition.devices.values()
        seen = np.unique(labels[np.concatenate([own["train"] for own in owned])])
        every = [own[part] for own in owned for part in ("train", "val", "unlabelled")]
        if len(seen) == len(np.unique(labels[np.concatenate(every)])):  # each class has a label somewhere
            break
    return partition


def draw_unlabelled(names: Collection[str], unlabelled: float, seed: int, *again: int) -> set[str]:
    """Draw the devices without labels. A device's draw depends only on the seed and its name."""
    ranked = sorted(names, key=lambda who: draws(seed, "unlabelled", who, *again).random()) if unlabelled else []
    without = set(ranked[: round(unlabelled * len(names))])
    if len(without) == len(names):
        raise InputError(f"federation.unlabelled = {unlabelled}: leaves no label on {len(names)} devices; lower it")
    return without


def _hide(
    devices: Mapping[str, dict[str, Index]], without: Collection[str], hidden: Hidden, seed: int, *again: int
) -> dict[str, dict[str, Index]]:
    """Move examples of train and val to unlabelled, all of them on the devices `without` labels.

    A device's draws depend only on the seed and its name.
    """
    parts, shares = {}, cycle(hidden if isinstance(hidden, list) else [hidden])
    for (who, own), share in zip(devices.items(), shares, strict=False):
        rng = draws(seed, "hidden", who, *again)
        fraction = 1.0 if who in without else rng.random() if isinstance(share, str) else share
        most = {"train": len(own["train"]) - (fraction < 1), "val": len(own["val"])}
        taken = {
            part: rng.permutation(own[part])[: min(round(fraction * len(own[part])), n)] for part, n in most.items()
        }
        labelled = {part: np.setdiff1d(own[part], index, assume_unique=True) for part, index in taken.items()}
        parts[who] = {**own, **labelled, "unlabelled": np.sort(np.concatenate([taken["train"], taken["val"]]))}
    return parts


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


def check_sizes(sizes: Mapping[str, int], min_size: int, in_table: bool = False) -> None:
    """Refuse devices with too few examples. in_table: whether a table names them, so that names may be joined."""
    small = [who for who, size in sizes.items() if size < min_size]
    if small:
        others = f" ({len(small):,} of {len(sizes):,} devices have fewer)" if len(small) > 1 else ""
        count = plural(sizes[small[0]], "example")
        twins = [names for names in alike(sizes) if {*names} & {*small}] if in_table else []
        join = ", ".join(map(repr, twins[0][:4])) + " look alike: data.join_names=true; " if twins else ""
        least = min(sizes.values())
        keep = f"keep them: federation.min_size={least}, or " if least else ""
        raise InputError(
            f"federation.min_size = {min_size}: {small[0]!r} has {count}{others}; {join}{keep}leave them out: "
            "federation.drop_small=true",
            mends={"data.join_names": True} if twins else {"federation.min_size": least} if least else None,
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
