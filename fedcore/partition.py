r"""Who holds which example: partitions as index lists, pure functions of the labels (or owners) and a seed.

A partition way divides all examples among devices; :func:`partition` then divides each device's share into train, val
and test. A device's division depends on (seed, its name) and its own examples only, so that with `by_device` a changed
device leaves every other one as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data import Dataset, unknown
from fedcore.types import Data, Refused, Splits

Index: TypeAlias = NDArray[np.int64]

PARTS = ("train", "val", "test")
REDRAWS = 1000


@dataclass(frozen=True, eq=False)
class Partition:
    """Sorted indices into `Dataset.train`; together they hold every example once.

    devices: name -> {"train", "val", "test"} -> indices, by name. shared: indices of the shared test set, empty where
    the dataset has an official one (or none is wanted).
    """

    devices: dict[str, dict[str, Index]]
    shared: Index


def draws(*words: object) -> np.random.Generator:
    """Return a random generator that depends on the words alone, e.g. (seed, "split", device name)."""
    digest = hashlib.blake2b("\x1f".join(map(str, words)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# ways: arguments are taken by name -> {device name: indices into what was given}


def iid(labels: Index, devices: int, seed: int) -> dict[str, Index]:
    """Equal shares (up to one example) of a shuffled set."""
    _check_devices(devices, len(labels))
    return _named(np.array_split(draws(seed, "iid").permutation(len(labels)), devices))


def dirichlet(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    r"""Label skew: device i gets the share p_ki of class k, p_k ~ Dir(alpha, ..., alpha) independently for each class.

    alpha -> 0: a class sits on one device; alpha -> inf: iid. (Yurochkin et al. 2019, sec. 4; CODE, Fig. 5.) Drawn
    again until every device has `min_size` examples, at most REDRAWS times. The shares are rounded by one common random
    offset per class, which is unbiased and never off by more than one example.
    """
    if not 0 < alpha <= 1e100:
        raise Refused(f"federation.alpha = {alpha}: must be above 0 (small: skewed, 1e20: near-iid), at most 1e100")
    _check_devices(devices, len(labels))
    if devices * min_size > len(labels):
        raise Refused(
            f"federation.min_size = {min_size}: must be at most {len(labels) // devices}, the mean size of {devices} "
            f"devices that divide {len(labels)} examples"
        )
    rng = draws(seed, "dirichlet")
    found, sizes = np.unique(labels, return_counts=True)
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(devices, alpha), size=len(found))
        upto = np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]
        ends = np.minimum(np.floor(upto + rng.random((len(found), 1))).astype(np.int64), sizes[:, None])
        counts = np.diff(ends, axis=1, prepend=0, append=sizes[:, None]).sum(axis=0)
        if counts.min() >= min_size:
            break
    else:
        raise Refused(
            f"federation.min_size = {min_size}: not met by all {devices} devices in {REDRAWS} draws with "
            f"federation.alpha = {alpha}; raise alpha, or lower min_size or federation.devices"
        )
    pieces = [np.split(rng.permutation(np.flatnonzero(labels == k)), at) for k, at in zip(found, ends, strict=True)]
    return _named([np.concatenate(share) for share in zip(*pieces, strict=True)])


def dirichlet_capped(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    """Label skew as in `dirichlet`, but a device that holds an even share of all examples gets no more classes.

    Classes are dealt out in their order, each by shares p_k ~ Dir(alpha, ..., alpha) among the devices with fewer than
    N / devices examples. So devices are less unequal in size, and the skew of a device's labels is stronger: the usual
    reading of Yurochkin et al. 2019, which the CODE paper cites. Drawn again as in `dirichlet`.
    """
    if not 0 < alpha < np.inf:
        raise Refused(f"federation.alpha = {alpha}: must be a positive number (small: skewed, 1e20: near-iid)")
    rng = draws(seed, "dirichlet_capped")
    for _ in range(REDRAWS):
        shares: list[list[Index]] = [[] for _ in range(devices)]
        sizes = np.zeros(devices)
        for k in np.unique(labels):
            examples = rng.permutation(np.flatnonzero(labels == k))
            share = rng.dirichlet(np.full(devices, alpha)) * (sizes < len(labels) / devices)
            if share.sum() == 0:
                break
            ends = np.floor(np.cumsum(share / share.sum())[:-1] * len(examples) + rng.random()).astype(np.int64)
            for i, piece in enumerate(np.split(examples, np.minimum(ends, len(examples)))):
                shares[i].append(piece)
                sizes[i] += len(piece)
        else:
            if sizes.min() >= min_size:
                return _named([np.concatenate(share) for share in shares])
    raise Refused(
        f"federation.min_size = {min_size}: not met by all {devices} devices in {REDRAWS} draws with federation.alpha "
        f"= {alpha}; raise alpha, or lower min_size or federation.devices"
    )


def by_device(owners: Sequence[str] | None) -> dict[str, Index]:
    """Every device keeps what it recorded; `owners` names it for each example."""
    if owners is None:
        raise Refused(
            "federation.partition = 'by_device': the data name no devices; set data.device or give a file each"
        )
    names, codes = np.unique(np.asarray(owners, dtype=np.str_), return_inverse=True)
    return {str(name): np.flatnonzero(codes == k) for k, name in enumerate(names)}


def _check_devices(devices: int, examples: int) -> None:
    if not 1 <= devices <= examples:
        raise Refused(f"federation.devices = {devices}: must be 1 to {examples}, the number of examples to divide")


def _named(shares: Iterable[Index]) -> dict[str, Index]:
    shares = list(shares)
    width = max(2, len(str(len(shares) - 1)))
    return {f"device-{i:0{width}d}": np.sort(share) for i, share in enumerate(shares)}


PARTITIONS: dict[str, Callable[..., dict[str, Index]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_capped": dirichlet_capped,
    "by_device": by_device,
}


# from a way to a partition


def partition(
    dataset: Dataset,
    *,
    name: str,
    devices: int,
    alpha: float,
    min_size: int,
    val: float,
    test: float,
    shared_test: float,
    seed: int,
) -> Partition:
    """Divide a dataset among devices, and each device's share into train (never empty), val and test.

    name: a way of PARTITIONS; it takes what it needs of devices, alpha and min_size. min_size: least examples of a
    device, its three parts together. val, test: fractions of a device's examples. shared_test: fraction of all examples
    held out first, if there is no official test set: the same for any devices and alpha; with by_device, of each one.

    A split column is kept: `test` is then not used, shared_test is a fraction of the rows marked test, and val is drawn
    from a device's train rows only where it has no row marked val.
    """
    if name not in PARTITIONS:
        raise unknown("federation.partition", name, PARTITIONS)
    for key, fraction in (("val", val), ("test", test), ("shared_test", shared_test)):
        if not 0 <= fraction < 1:
            raise Refused(f"federation.{key} = {fraction}: must be a fraction, at least 0 and below 1")
    if val + test >= 1:
        raise Refused(f"federation.val + federation.test = {val} + {test}: must be below 1, training needs examples")

    if min_size < 1:
        raise Refused(f"federation.min_size = {min_size}: must be at least 1, a device without examples cannot train")

    labels = dataset.train.y.numpy()
    marks = None if dataset.split is None else np.asarray(dataset.split)
    own = by_device(dataset.device) if name == "by_device" else {"everyone": np.arange(len(labels))}
    shared = np.array([], dtype=np.int64)
    if dataset.test is None:
        may = {who: index if marks is None else index[marks[index] == "test"] for who, index in own.items()}
        held = {who: _cut(index, labels, [shared_test], draws(seed, "shared", who))[0] for who, index in may.items()}
        own = {who: np.setdiff1d(index, held[who], assume_unique=True) for who, index in own.items()}
        shared = np.sort(np.concatenate(list(held.values())))
        if shared_test > 0 and not len(shared):
            raise Refused(f"federation.shared_test = {shared_test}: no example is held out of {len(labels)}; raise it")
    if name != "by_device":
        way, pool = PARTITIONS[name], own["everyone"]
        given = {"labels": labels[pool], "devices": devices, "alpha": alpha, "min_size": min_size, "seed": seed}
        shares = way(**{key: given[key] for key in signature(way).parameters})
        own = {who: pool[index] for who, index in shares.items()}
    for who, index in own.items():
        if len(index) < min_size:
            raise Refused(
                f"federation.min_size = {min_size}: {who!r} has {len(index)} examples; lower it or drop devices"
            )
    parts = {who: _parts(own[who], labels, marks, val, test, draws(seed, "split", who)) for who in sorted(own)}
    for who, part in parts.items():
        if not len(part["train"]):
            raise Refused(f"data.split: device {who!r} has no row marked train; every device needs at least one")
    made = Partition(parts, shared)
    check_labels(dataset, made)
    return made


def _cut(index: Index, labels: Index, fractions: Sequence[float], rng: np.random.Generator) -> list[Index]:
    """Draw a piece for each fraction; the last piece is the rest, never empty.

    The rest gets one example of each label first: a rare label stays in training whatever the seed.
    """
    order = rng.permutation(index)
    first = np.unique(labels[order], return_index=True)[1]
    order = np.concatenate([np.delete(order, first), order[first]])
    ends = np.clip(np.rint(len(order) * np.cumsum(fractions)).astype(np.int64), 0, max(len(order) - 1, 0))
    return [np.sort(piece) for piece in np.split(order, ends)]


def _parts(
    index: Index, labels: Index, marks: NDArray[np.str_] | None, val: float, test: float, rng: np.random.Generator
) -> dict[str, Index]:
    """Divide one device's examples."""
    if marks is None:
        part = _cut(index, labels, [val, test], rng)
        return {"train": part[2], "val": part[0], "test": part[1]}
    found = {part: index[marks[index] == part] for part in PARTS}
    if not len(found["val"]):
        found["val"], found["train"] = _cut(found["train"], labels, [val], rng)
    return found


def check_labels(dataset: Dataset, partition: Partition) -> None:
    """Refuse a class of which no device has a training example: nobody could learn what the tests ask."""
    labels = dataset.train.y.numpy()
    held = np.unique(np.concatenate([labels[part["train"]] for part in partition.devices.values()]))
    asked = {part: [labels[own[part]] for own in partition.devices.values()] for part in ("val", "test")}
    asked["shared test"] = [dataset.test.y.numpy() if dataset.test is not None else labels[partition.shared]]
    for k, label in enumerate(dataset.classes):
        if k not in held:
            where = [part for part, ys in asked.items() if any(k in y for y in ys)]
            found = ", ".join(where) or "nothing"
            raise Refused(
                f"data: no device has a training example of label {label!r} (found in: {found}); "
                "add training examples of it or remove the label"
            )


# from a partition to what devices hold


def splits(dataset: Dataset, partition: Partition, scale: str = "none") -> tuple[dict[str, Splits], Data]:
    """Return each device's examples, in tensors of its own, and the shared test set.

    scale "none": as loaded. "device": every feature is standardised, (x - mean) / std over the device's own training
    examples. Shared test examples are scaled as those of the device that gave them; if no one device did (any partition
    but by_device), with the mean and std over all training examples.
    """
    if scale not in ("none", "device"):
        raise unknown("data.scale", scale, ("none", "device"))
    held = {
        who: {part: _take(dataset.train, index) for part, index in own.items()}
        for who, own in partition.devices.items()
    }
    shared = dataset.test if dataset.test is not None else _take(dataset.train, partition.shared)
    if scale == "device":
        shared = _standardised(shared, *_shared_moments(dataset, partition, held))
        for who, own in held.items():
            moments = _moments(own["train"])
            held[who] = {part: _standardised(data, *moments) for part, data in own.items()}
    return {who: Splits(**own) for who, own in held.items()}, shared


def _take(data: Data, index: Index) -> Data:
    """Copy some examples."""
    chosen = torch.from_numpy(index)
    return Data(data.x[chosen], data.y[chosen])


def _moments(data: Data) -> tuple[Tensor, Tensor]:
    """Return each feature's mean and standard deviation, (1, *shape) float64; 1 in place of a deviation of 0."""
    x = data.inputs().double()
    constant = x.amax(0) == x.amin(0)
    return x.mean(0, keepdim=True), x.std(0, correction=0, keepdim=True).masked_fill_(constant, 1.0)


def _standardised(data: Data, mean: Tensor, std: Tensor) -> Data:
    return Data(((data.inputs().double() - mean) / std).float(), data.y)


def _shared_moments(
    dataset: Dataset, partition: Partition, held: Mapping[str, Mapping[str, Data]]
) -> tuple[Tensor, Tensor]:
    """Return the mean and deviation that scale the shared test set: for each example (N, *shape), or (1, *shape)."""
    owners, names = dataset.device, list(held)
    if owners is None or any(owners[own["train"][0]] != who for who, own in partition.devices.items()):
        return _moments(_take(dataset.train, np.concatenate([own["train"] for own in partition.devices.values()])))
    mean, std = (torch.cat(m) for m in zip(*(_moments(own["train"]) for own in held.values()), strict=True))
    giver = [names.index(owners[i]) for i in partition.shared]
    return mean[giver], std[giver]


# from a partition to tables


def counts(dataset: Dataset, partition: Partition) -> pd.DataFrame:
    """Return who holds what: a row per device, training examples of each class, then n_train, n_val and n_test."""
    labels = dataset.train.y.numpy()
    devices = partition.devices
    held = [np.bincount(labels[own["train"]], minlength=len(dataset.classes)) for own in devices.values()]
    frame = pd.DataFrame(held, index=pd.Index(devices, name="device"), columns=list(dataset.classes))
    return frame.assign(**{f"n_{part}": [len(own[part]) for own in devices.values()] for part in PARTS})


def to_frame(partition: Partition) -> pd.DataFrame:
    """Return a partition as a tidy table (device, split, index) to store; the shared test set is split "shared"."""
    rows = [(who, part, i) for who, own in partition.devices.items() for part in PARTS for i in own[part].tolist()]
    rows += [("server", "shared", i) for i in partition.shared.tolist()]
    return pd.DataFrame(rows, columns=["device", "split", "index"]).astype({"index": np.int64})


def from_frame(frame: pd.DataFrame) -> Partition:
    """Return the partition that :func:`to_frame` wrote; the order of the rows does not matter."""
    found: dict[tuple[str, str], Index] = {}
    for (who, part), rows in frame.groupby(["device", "split"])["index"]:
        found[str(who), str(part)] = np.sort(rows.to_numpy(np.int64))
    nothing = np.array([], dtype=np.int64)
    names = sorted({who for who, part in found if part != "shared"})
    devices = {who: {part: found.get((who, part), nothing) for part in PARTS} for who in names}
    return Partition(devices, found.get(("server", "shared"), nothing))
