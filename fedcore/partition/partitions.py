r"""Partitions as lists of indices, pure functions of the labels (or devices) and a seed.

A partition function (:mod:`fedcore.partition.schemes`) divides examples among devices; :func:`partition` then splits
each device's examples into train, val and test, and hides labels. What is held out is a random sample, stratified by
label (:func:`_draw`), so that test sets have the labels' frequencies in expectation. A device's split depends only on
the seed, its name and its examples, so that with `by_device` a changed device does not affect the others; the one
exception is a class that would be in no training set. With `hold_out` "stable" an example's part depends on nothing but
the example and the seed (:mod:`fedcore.partition.stable`), with the same exception.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.task import require_classes
from fedcore.partition.new_devices import without_new
from fedcore.partition.parts import PARTS, Partition
from fedcore.partition.schemes import (
    BY_CLASS,
    PARTITIONS,
    Index,
    by_device,
    by_domain,
    device_names,
    draws,
)
from fedcore.partition.stable import row_keys, uniform
from fedcore.types import Count, Fraction, InputError, Positive

Places: TypeAlias = NDArray[np.float64]
"""Of each example a number in [0, 1), uniform, by which it is held out."""

Share: TypeAlias = Annotated[float, Ge(0), Lt(1)]
"""A fraction that may be 0 and is below 1."""

REDRAWS = 100
FROM_DATA = ("by_device", "by_domain")
EVERYONE = "everyone"
AUTO = "auto"


def partition(
    dataset: Dataset,
    *,
    name: str = "dirichlet",
    devices: Count = 16,
    alpha: Positive = 0.5,
    min_size: Count = 10,
    val: Share = 0.2,
    test: Share = 0.2,
    shared_test: Share = 0.2,
    seed: int,
    share: Fraction = 0.8,
    classes: Count = 4,
    domains: Literal["mixed", "split"] = "mixed",
    examples: Count | None = None,
    shared_examples: Count | None = None,
    unlabelled: Share = 0.0,
    unlabelled_classes: Literal["own", "shared"] = "own",
    hidden: Share | Literal["random"] = 0.0,
    drop_small: bool = False,
    hold_out: Literal["random", "stable"] = "random",
) -> Partition:
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
        classes: of few_classes and device_dirichlet: the most classes that a device has.
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
            example; "random": a fraction for each device, uniform in [0, 1). Test examples keep their labels. Labels
            are hidden anew, at most REDRAWS times, while a class has no labelled training example.
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
    if name == AUTO:
        drawn = "dirichlet" if dataset.task.has_classes else "iid"
        name = drawn if dataset.device is None else "by_device"
    shared_classes = unlabelled_classes == "shared"
    _check_choices(name, domains, unlabelled_classes, hold_out)
    _check_task(dataset, name, unlabelled, hidden)
    _check_fractions(val, test, shared_test, unlabelled, hidden)
    _check_counts(min_size, examples, shared_examples)

    labels = dataset.strata
    marks = None if dataset.split is None else np.asarray(dataset.split)
    pools = _pools(dataset, name, domains)
    if name == "by_device" and marks is not None:
        pools = without_new(pools, marks)
    rows = {who: len(index) for who, index in pools.items()}
    shared = np.array([], dtype=np.int64)
    keys = row_keys(dataset) if hold_out == "stable" else None
    if dataset.test is None:
        places = None if keys is None else uniform(keys, seed, "shared")
        pools, shared = _hold_out(pools, labels, marks, shared_test, seed, places)
    shared = _limit_shared(shared, dataset, shared_examples, seed)
    if examples is not None and not _keeps_to_limit(name):
        pools = _limit_pools(pools, labels, examples, devices, min_size, domains, seed)

    names = device_names(devices)
    without = _without_labels(names, unlabelled, seed) if shared_classes else set()
    scheme = partial(
        _call_scheme, PARTITIONS[name], dataset, devices=devices, examples=examples, alpha=alpha, min_size=min_size,
        share=share, classes=classes, followers=[names.index(who) for who in without],
    )  # fmt: skip
    if name in FROM_DATA:
        own = pools
    elif domains == "split":
        own = _divide_pools(scheme, pools, _devices_per_pool(pools, devices, min_size), seed)
    else:
        own = scheme(pools[EVERYONE], devices, seed)
    sizes = rows if name in FROM_DATA and examples is None else {who: len(index) for who, index in own.items()}
    if drop_small:
        owners = {"by_device": dataset.device, "by_domain": dataset.domain}.get(name)
        own, shared = _drop_small(own, sizes, shared, owners, min_size)
    else:
        _check_sizes(sizes, min_size)
    places = None if keys is None else uniform(keys, seed, "split")
    parts = _split(own, labels, marks, val, test, seed, places)
    made = _hide_labels(parts, shared, labels, unlabelled, hidden, without if shared_classes else None, seed)
    check_labels(dataset, made)
    return made


def _check_choices(name: str, domains: str, unlabelled_classes: str, hold_out: str) -> None:
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


def _check_task(dataset: Dataset, name: str, unlabelled: float, hidden: float | str) -> None:
    """Refuse what is by class, where labels are no classes."""
    if name in BY_CLASS:
        require_classes(dataset.task.name, f"federation.partition = {name!r}:")
    for key, value in {"unlabelled": unlabelled, "hidden": hidden}.items():
        if value:
            require_classes(dataset.task.name, f"federation.{key} = {value}:")


def _check_fractions(val: float, test: float, shared_test: float, unlabelled: float, hidden: float | str) -> None:
    """Refuse fractions outside of [0, 1), and held-out parts that leave nothing to train on."""
    fractions = {"val": val, "test": test, "shared_test": shared_test, "unlabelled": unlabelled}
    for key, fraction in {**fractions, **({} if hidden == "random" else {"hidden": hidden})}.items():
        if isinstance(fraction, str) or not 0 <= fraction < 1:
            also = ", or random" if key == "hidden" else ""
            raise InputError(f"federation.{key} = {fraction}: must be a fraction, at least 0 and below 1{also}")
    if val + test >= 1:
        raise InputError(f"federation.val + federation.test = {val} + {test}: must be below 1, training needs examples")


def _check_counts(min_size: int, examples: int | None, shared_examples: int | None) -> None:
    """Refuse counts below 1."""
    if min_size < 1:
        raise InputError(
            f"federation.min_size = {min_size}: must be at least 1, a device without examples cannot train"
        )
    for key, most in {"examples": examples, "shared_examples": shared_examples}.items():
        if most is not None and most < 1:
            raise InputError(f"federation.{key} = {most}: must be at least 1, or null for all")


def _hold_out(
    pools: Mapping[str, Index],
    labels: Index,
    marks: NDArray[np.str_] | None,
    shared_test: float,
    seed: int,
    places: Places | None,
) -> tuple[dict[str, Index], Index]:
    """Hold out the shared test set, a fraction of each pool; returns what is left of the pools, and the set."""
    candidates = {who: index if marks is None else index[marks[index] == "test"] for who, index in pools.items()}
    drawn = [
        _draw(index, labels, shared_test * len(index), draws(seed, "shared", who))[0]
        if places is None
        else index[places[index] < min(shared_test, places[index].max(initial=0.0))]
        for who, index in candidates.items()
    ]
    shared = np.sort(np.concatenate(drawn))
    if marks is None:
        shared = _leave_every_class(shared, labels, seed, places)
    marked = sum(map(len, candidates.values()))
    expected = shared_test * marked
    all_on_new_sites = marks is not None and not marked and bool((marks == "test").any())
    if shared_test > 0 and not all_on_new_sites and (expected < 0.5 or not len(shared)):
        raise InputError(f"federation.shared_test = {shared_test}: no example is held out of {len(labels)}; raise it")
    return {who: np.setdiff1d(index, shared, assume_unique=True) for who, index in pools.items()}, shared


def _leave_every_class(shared: Index, labels: Index, seed: int, places: Places | None) -> Index:
    """Give back an example of each class that the shared test set would have in full."""
    left = np.delete(labels, shared)
    whole = np.setdiff1d(labels[shared], left)
    back = [_choose(shared[labels[shared] == label], label, seed, places) for label in whole]
    return np.setdiff1d(shared, np.concatenate([np.array([], dtype=np.int64), *back]))


def _choose(held: Index, label: int, seed: int, places: Places | None) -> Index:
    """Return the example of a class to train on of those held out: a random one, or the last by its place, with its
    duplicates."""
    drawn: Index = draws(seed, "taught", label).choice(held, 1)
    return drawn if places is None else held[places[held] == places[held].max()]


def _limit_shared(shared: Index, dataset: Dataset, limit: int | None, seed: int) -> Index:
    """Draw at most `limit` examples of the shared test set: those held out, or the official ones."""
    whole = shared if dataset.test is None else np.arange(len(dataset.test))
    if limit is None or len(whole) <= limit:
        return shared
    return np.sort(draws(seed, "shared examples").choice(whole, limit, replace=False))


def _keeps_to_limit(name: str) -> bool:
    """Tell whether a partition function keeps to the limit of examples by itself."""
    return "examples" in signature(PARTITIONS[name]).parameters


def _limit_pools(
    pools: Mapping[str, Index], labels: Index, limit: int, devices: int, min_size: int, domains: str, seed: int
) -> dict[str, Index]:
    """Keep at most `limit` examples of all pools; of split domains each keeps its devices' part."""
    if domains != "split":
        return _limit_examples(pools, labels, limit, draws(seed, "examples"))
    numbers = _devices_per_pool(pools, devices, min_size)
    return {
        who: _limit_examples({who: pool}, labels, round(limit * numbers[who] / devices), draws(seed, who))[who]
        for who, pool in pools.items()
    }


def _call_scheme(
    scheme: Callable[..., dict[str, Index]],
    dataset: Dataset,
    pool: Index,
    number: int,
    seed: int,
    *,
    devices: int,
    examples: int | None,
    **settings: Any,
) -> dict[str, Index]:
    """Divide a pool among `number` of all devices by a partition function, which is given what it takes."""
    arguments: dict[str, Any] = {**settings, "labels": dataset.strata[pool], "devices": number, "seed": seed}
    arguments["examples"] = None if examples is None else round(examples * number / devices)
    arguments["owners"] = None if dataset.device is None else np.asarray(dataset.device)[pool]
    shares = scheme(**{name: arguments[name] for name in signature(scheme).parameters})
    return {who: pool[index] for who, index in shares.items()}


def _check_sizes(sizes: Mapping[str, int], min_size: int) -> None:
    """Refuse devices with too few examples."""
    small = [who for who, size in sizes.items() if size < min_size]
    if small:
        others = f" and {len(small) - 1} more devices have too few" if len(small) > 1 else ""
        raise InputError(
            f"federation.min_size = {min_size}: {small[0]!r} has {sizes[small[0]]} examples{others}; lower it, or "
            "set federation.drop_small=true"
        )


def _drop_small(
    own: Mapping[str, Index],
    sizes: Mapping[str, int],
    shared: Index,
    owners: Sequence[str] | None,
    min_size: int,
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


def _split(
    own: Mapping[str, Index],
    labels: Index,
    marks: NDArray[np.str_] | None,
    val: float,
    test: float,
    seed: int,
    places: Places | None,
) -> dict[str, dict[str, Index]]:
    """Divide each device's examples into train, val and test; each needs a training example."""
    parts = {who: _parts(own[who], labels, marks, val, test, draws(seed, "split", who), places) for who in sorted(own)}
    if marks is None:
        _teach_every_class(parts, labels, seed, places)
    for who, part in parts.items():
        if not len(part["train"]):
            raise InputError(f"data.split: device {who!r} has no row marked train; every device needs at least one")
    return parts


def _hide_labels(
    parts: Mapping[str, dict[str, Index]],
    shared: Index,
    labels: Index,
    unlabelled: float,
    hidden: float | str,
    without: Collection[str] | None,
    seed: int,
) -> Partition:
    """Hide labels, again while a class has no labelled training example, at most REDRAWS times.

    without: the devices without labels; None: they are drawn, anew each time.
    """
    for again in ((), *((number,) for number in range(1, REDRAWS))):
        blank = _without_labels(parts, unlabelled, seed, *again) if without is None else without
        made = Partition.of(_hide(parts, blank, hidden, seed, *again), shared)
        if not _has_unknown_class(made, labels):
            break
    return made


def _has_unknown_class(partition: Partition, labels: Index) -> bool:
    """Tell whether a class among the devices' training examples has no labelled one on any device."""
    known, had = (
        np.unique(labels[np.concatenate([own[part] for own in partition.devices.values() for part in parts])])
        for parts in (("train",), ("train", "val", "unlabelled"))
    )
    return len(known) < len(had)


def _pools(dataset: Dataset, name: str, domains: str) -> dict[str, Index]:
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


def _limit_examples(
    pools: Mapping[str, Index], labels: Index, examples: int, rng: np.random.Generator
) -> dict[str, Index]:
    """Keep at most `examples` examples of all pools together."""
    everything = np.concatenate(list(pools.values()))
    kept = np.zeros(len(labels), dtype=bool)
    kept[_draw(everything, labels, min(examples, len(everything)), rng, whole=True)[0]] = True
    return {who: index[kept[index]] for who, index in pools.items()}


def _devices_per_pool(pools: Mapping[str, Index], devices: int, min_size: int) -> dict[str, int]:
    """Return the number of devices of each domain, assigned in turn while it has min_size examples for one more."""
    if devices < len(pools):
        raise InputError(f"federation.devices = {devices}: must be at least {len(pools)}, one for each domain")
    numbers = dict.fromkeys(pools, 0)
    for given in range(devices):
        room = [who for who, index in pools.items() if len(index) >= (numbers[who] + 1) * min_size]
        if not room:
            raise InputError(
                f"federation.devices = {devices}: must be at most {given}, so many devices of federation.min_size = "
                f"{min_size} examples find room in the domains"
            )
        numbers[min(room, key=numbers.__getitem__)] += 1
    for who, number in numbers.items():
        if not number:
            raise InputError(
                f"federation.min_size = {min_size}: domain {who!r} has {len(pools[who])} examples; lower it"
            )
    return numbers


def _divide_pools(
    divided: Callable[[Index, int, int], dict[str, Index]],
    pools: Mapping[str, Index],
    numbers: Mapping[str, int],
    seed: int,
) -> dict[str, Index]:
    """Divide each domain, by separate random draws, among devices named after it."""
    own: dict[str, Index] = {}
    for domain, number in numbers.items():
        try:
            shares = divided(pools[domain], number, int(draws(seed, "domain", domain).integers(2**63)))
        except InputError as refused:
            raise InputError(f"{refused} (in domain {domain!r})") from None
        own |= {f"{domain}{who.removeprefix('device')}": index for who, index in shares.items()}
    return own


def _draw(
    index: Index, labels: Index, expected: float, rng: np.random.Generator, whole: bool = False
) -> tuple[Index, Index]:
    """Draw a sample of `expected` examples on average, and return it and the rest.

    whole: the sample may be everything; else one example is left, so that a device can train.

    Systematic sampling in the order of the labels (Madow 1949): every example is drawn with the same probability,
    expected / N, the size is `expected` rounded up or down, and so is each label's number around its own share, up to
    one. So the sample has the labels' frequencies in expectation, however small the device or rare the label.
    """
    shuffled = rng.permutation(index)
    rank = rng.permutation(labels.max(initial=0) + 1)  # no label always comes first
    order = shuffled[np.argsort(rank[labels[shuffled]], kind="stable")]
    ticks = np.floor(np.arange(len(order) + 1) * (expected / max(len(order), 1)) + rng.random())
    drawn = np.diff(ticks) > 0
    if not whole and len(drawn) and drawn.all():
        drawn[rng.integers(len(drawn))] = False
    return np.sort(order[drawn]), np.sort(order[~drawn])


def _hold_back(
    index: Index, labels: Index, val: float, test: float, rng: np.random.Generator, places: Places | None
) -> dict[str, Index]:
    """Draw a device's val and test examples; the rest, its training examples, is never empty."""
    if places is not None:
        place = places[index]
        trains = place >= min(test + val, place.max(initial=0.0))
        tests = (place < test) & ~trains
        return {"train": index[trains], "val": index[~trains & ~tests], "test": index[tests]}
    held, train = _draw(index, labels, (val + test) * len(index), rng)
    tested, validated = _draw(held, labels, len(held) * test / (val + test) if val + test else 0.0, rng, whole=True)
    return {"train": train, "val": validated, "test": tested}


def _parts(
    index: Index,
    labels: Index,
    marks: NDArray[np.str_] | None,
    val: float,
    test: float,
    rng: np.random.Generator,
    places: Places | None,
) -> dict[str, Index]:
    """Divide one device's examples into train, val and test."""
    if marks is None:
        return _hold_back(index, labels, val, test, rng, places)
    marked = {part: index[marks[index] == part] for part in ("train", "val", "test")}
    if not len(marked["val"]):
        divided = _hold_back(marked["train"], labels, val, 0.0, rng, places)
        marked |= {part: divided[part] for part in ("train", "val")}
    return marked


def _teach_every_class(parts: dict[str, dict[str, Index]], labels: Index, seed: int, places: Places | None) -> None:
    """Move an example of a class that would be in no training set from val, or else from test, to its device's train.

    This is the one exception to a random sample: without it nobody could learn a class of few examples.
    """
    taught = np.unique(labels[np.concatenate([part["train"] for part in parts.values()])])
    for kind in ("val", "test"):
        held = np.concatenate([part[kind] for part in parts.values()])
        for label in np.setdiff1d(labels[held], taught):
            chosen = _choose(held[labels[held] == label], label, seed, places)
            for part in parts.values():
                moved = np.intersect1d(part[kind], chosen)
                if len(moved):
                    part[kind] = np.setdiff1d(part[kind], moved)
                    part["train"] = np.union1d(part["train"], moved)
            taught = np.append(taught, label)


def _without_labels(names: Collection[str], unlabelled: float, seed: int, *again: int) -> set[str]:
    """Draw the devices without labels. A device's draw depends only on the seed and its name."""
    ranked = sorted(names, key=lambda who: draws(seed, "unlabelled", who, *again).random()) if unlabelled else []
    without = set(ranked[: round(unlabelled * len(names))])
    if len(without) == len(names):
        raise InputError(f"federation.unlabelled = {unlabelled}: leaves no label on {len(names)} devices; lower it")
    return without


def _hide(
    devices: Mapping[str, dict[str, Index]], without: Collection[str], hidden: float | str, seed: int, *again: int
) -> dict[str, dict[str, Index]]:
    """Move examples of train and val to unlabelled, all of them on the devices `without` labels.

    A device's draws depend only on the seed and its name.
    """
    made = {}
    for who, own in devices.items():
        rng = draws(seed, "hidden", who, *again)
        fraction = 1.0 if who in without else rng.random() if isinstance(hidden, str) else hidden
        most = {"train": len(own["train"]) - (fraction < 1), "val": len(own["val"])}
        taken = {
            part: rng.permutation(own[part])[: min(round(fraction * len(own[part])), n)] for part, n in most.items()
        }
        known = {part: np.setdiff1d(own[part], index, assume_unique=True) for part, index in taken.items()}
        made[who] = {**own, **known, "unlabelled": np.sort(np.concatenate([taken["train"], taken["val"]]))}
    return made


def check_labels(dataset: Dataset, partition: Partition) -> None:
    """Raise InputError if no device has a labelled training example of some class: no model could learn it.

    A class that the server alone knows may be (CWRU's normal bearings at location C): no device is asked for it. So may
    any class of a dataset that may lack some.
    """
    if dataset.may_lack or not dataset.task.has_classes:
        return
    labels = dataset.train.y.numpy()
    everyone = {part: np.concatenate([own[part] for own in partition.devices.values()]) for part in PARTS}
    found = {part: np.unique(labels[index]) for part, index in everyone.items()}
    found["shared test"] = np.unique(labels[partition.shared] if dataset.test is None else dataset.test.y.numpy())
    servers = set() if dataset.server is None else set(dataset.server.y.tolist())
    for k, label in enumerate(dataset.classes):
        where = [part for part, held in found.items() if k in held]
        if "train" not in where and (where or k not in servers):
            advice = "add training examples of it or remove the label"
            if "unlabelled" in where:
                advice = "lower federation.unlabelled or federation.hidden, or change the seed"
            raise InputError(
                f"data: no device has a training example of label {label!r} (found in: {', '.join(where) or 'nothing'})"
                f"; {advice}"
            )
