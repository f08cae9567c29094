r"""Functions that divide N examples of K classes among C devices, as {device name: indices of its examples}.

They divide all given examples (device_dirichlet may leave some out), and their random draws depend only on their
arguments.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InputError

Index: TypeAlias = NDArray[np.int64]

REDRAWS = 1000
AUTO = "auto"


def draws(*parts: object) -> np.random.Generator:
    """Return a random generator that depends only on the words, e.g. (seed, "split", device name)."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# equal or skewed by a draw


def iid(labels: Index, devices: int, seed: int) -> dict[str, Index]:
    """Divide the shuffled examples evenly, up to one example."""
    return _name_devices(np.array_split(draws(seed, "iid").permutation(len(labels)), devices))


def dirichlet(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    r"""Label skew: device i gets the share p_ki of class k, p_k ~ Dir(alpha, ..., alpha) independently for each class.

    alpha -> 0: each class is on one device; alpha -> inf: iid. (Yurochkin et al. 2019, sec. 4; CODE, Fig. 5.) Redrawn
    until every device has `min_size` examples, at most REDRAWS times. The shares are rounded by one common random
    offset per class, which is unbiased and off by at most one example.
    """
    rng = draws(seed, "dirichlet")
    return _by_shares(labels, devices, alpha, min_size, rng, lambda k: rng.dirichlet(np.full(devices, alpha), size=k))


def few_classes(
    labels: Index, devices: int, classes: int, alpha: float, min_size: int, seed: int, followers: Collection[int] = ()
) -> dict[str, Index]:
    r"""Label skew: a device has at most `classes` random classes, and of each the share p_ki as in `dirichlet`.

    p_k ~ Dir(alpha, ..., alpha) over the devices with class k, whose number differs by at most one between classes, so
    that every class has a device. With all classes this is `dirichlet`. ("Devices draw Dirichlet distributions from a
    subset of 4 labels": ST-LF, sec. V.)

    followers: positions of devices that have the classes of another device, drawn among those that follow none. (In the
    public code of ST-LF's authors these are the devices without labels.)
    """
    leaders = [device for device in range(devices) if device not in followers]
    _check_classes(classes, len(np.unique(labels)), len(leaders))
    rng = draws(seed, "few_classes")

    def shares(kinds: int) -> NDArray[np.float64]:
        holds = np.zeros((kinds, devices), dtype=bool)
        for device in rng.permutation(devices):  # the classes with the fewest holders; of equal ones at random
            if device in leaders:
                holds[np.lexsort((rng.random(kinds), holds.sum(1)))[:classes], device] = True
        for device in sorted(followers):
            holds[:, device] = holds[:, rng.choice(leaders)]
        fractions = np.zeros((kinds, devices))
        for share, labels_of_device in zip(fractions, holds, strict=True):
            share[labels_of_device] = rng.dirichlet(np.full(labels_of_device.sum(), alpha))
        return fractions

    return _by_shares(labels, devices, alpha, min_size, rng, shares)


def device_dirichlet(
    labels: Index, devices: int, alpha: float, classes: int | Sequence[Collection[int]], min_size: int, seed: int,
    examples: int | None = None, followers: Collection[int] = (),
) -> dict[str, Index]:  # fmt: skip
    r"""Label skew, equal sizes: device i has the share p_ik of class k, p_i ~ Dir(alpha, ..., alpha) over its classes.

    Its classes are `classes` random ones, redrawn until some device has each of all. (Hsu, Qi and Brown 2019, with all
    classes; "devices draw Dirichlet distributions from a subset of 4 labels": ST-LF, sec. V, and its authors' public
    code.) No two devices have the same example, so that the most demanded class limits the size of all devices; other
    examples are left out. Sizes differ by fewer than K.

    classes: their number, or those of each kind of device; consecutive devices are of one kind. examples: of all
    devices together, at most; None for all. followers: as in `few_classes`.
    """
    leaders = [device for device in range(devices) if device not in followers]
    _check_alpha(alpha)
    kinds, supply = np.unique(labels, return_counts=True)
    if isinstance(classes, int):
        _check_classes(classes, len(kinds), len(leaders))
    elif {*map(int, kinds)} != {k for own in classes for k in own} or not all(classes) or len(classes) > devices:
        raise InputError(
            f"federation.classes = {classes}: must be lists that together hold each class, 0 to {len(kinds) - 1}, for "
            f"at most {devices} kinds of devices"
        )
    rng, most = draws(seed, "device_dirichlet"), 0
    for _ in range(REDRAWS):
        holds = np.zeros((devices, len(kinds)), dtype=bool)
        for device in leaders:
            if isinstance(classes, int):
                holds[device, rng.choice(len(kinds), classes, replace=False)] = True
            else:
                holds[device] = np.isin(kinds, list(classes[device * len(classes) // devices]))
        for device in sorted(followers):
            holds[device] = holds[rng.choice(leaders)]
        shares = np.zeros(holds.shape)
        for share, labels_of_device in zip(shares, holds, strict=True):
            share[labels_of_device] = rng.dirichlet(np.full(labels_of_device.sum(), alpha))
        demand = shares.sum(0)
        size = min(min(examples or len(labels), len(labels)) / devices, (supply[demand > 0] / demand[demand > 0]).min())
        counts = np.floor(shares * size + 1e-9).astype(np.int64)
        most = max(most, int(counts.sum(1).min()) if holds[leaders].any(0).all() else 0)
        if most >= min_size:
            break
    else:
        raise _min_size_error(min_size, len(labels), devices, alpha, most)
    pieces = [
        np.split(rng.permutation(np.flatnonzero(labels == k)), np.cumsum(counts[:, at]))[:-1]
        for at, k in enumerate(kinds)
    ]
    return _name_devices(map(np.concatenate, zip(*pieces, strict=True)))


def _by_shares(
    labels: Index, devices: int, alpha: float, min_size: int, rng: np.random.Generator,
    drawn: Callable[[int], NDArray[np.float64]],
) -> dict[str, Index]:  # fmt: skip
    """Divide each class by random shares (K, C), redrawn until every device has `min_size` examples."""
    _check_alpha(alpha)
    if devices * min_size > len(labels):
        raise InputError(
            f"federation.min_size = {min_size}: must be at most {len(labels) // devices}, the mean size of {devices} "
            f"devices that divide {len(labels)} examples"
        )
    kinds, sizes, most = *np.unique(labels, return_counts=True), 0
    for _ in range(REDRAWS):
        shares = drawn(len(kinds))
        upto = np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]
        ends = np.minimum(np.floor(upto + rng.random((len(kinds), 1))).astype(np.int64), sizes[:, None])
        counts = np.diff(ends, axis=1, prepend=0, append=sizes[:, None]).sum(axis=0)
        most = max(most, int(counts.min()))
        if most >= min_size:
            break
    else:
        raise _min_size_error(min_size, len(labels), devices, alpha, most)
    pieces = [np.split(rng.permutation(np.flatnonzero(labels == k)), at) for k, at in zip(kinds, ends, strict=True)]
    return _name_devices(map(np.concatenate, zip(*pieces, strict=True)))


def dirichlet_capped(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    """Label skew as in `dirichlet`, but a device with an even share of all examples gets no further classes.

    Classes are divided in order, each by shares p_k ~ Dir(alpha, ..., alpha) among the devices with fewer than N / C
    examples. So devices are less unequal in size, and their label skew is stronger: the usual reading of Yurochkin et
    al. 2019, which the CODE paper cites. Redrawn as in `dirichlet`.
    """
    _check_alpha(alpha)
    rng, most = draws(seed, "dirichlet_capped"), 0
    classes = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    for _ in range(REDRAWS):
        dealt: list[tuple[Index, Index]] = []
        sizes = np.zeros(devices, dtype=np.int64)
        for members in classes:
            examples = rng.permutation(members)
            share = rng.dirichlet(np.full(devices, alpha)) * (sizes < len(labels) / devices)
            if share.sum() == 0:
                break
            ends = np.floor(np.cumsum(share / share.sum())[:-1] * len(examples) + rng.random()).astype(np.int64)
            ends = np.minimum(ends, len(examples))
            sizes += np.diff(ends, prepend=0, append=len(examples))
            dealt.append((examples, ends))
        else:
            most = max(most, int(sizes.min()))
            if most >= min_size:
                pieces = [np.split(examples, ends) for examples, ends in dealt]
                return _name_devices(map(np.concatenate, zip(*pieces, strict=True)))
    raise _min_size_error(min_size, len(labels), devices, alpha, most)


def label_skew(labels: Index, devices: int, share: float, seed: int) -> dict[str, Index]:
    r"""Label skew: `share` of each device's examples have one main label, the rest evenly the others (DFL, Table I).

    Devices get main labels in turn, in random order; sizes are equal up to one. Every example is used, so that the
    shares are not exact if labels differ in frequency (seven of MNIST's ten labels have fewer than 6,000 examples).
    Here device i first gets m_i of its n_i examples from its main label; then the remaining ones are divided evenly.
    With f_k the fraction of label k among the remaining examples,

    m_i + f_k (n_i - m_i) = share n_i    for its main label k,

    so the rest of a device is as even as the remaining examples (MNIST, share .8: 5 to 18 % of it per label; even is
    11 %). A device whose main label is used up gets more of the remaining ones.
    """
    _, which, frequency = np.unique(labels, return_inverse=True, return_counts=True)
    if not 1 / len(frequency) <= share <= 1:
        raise InputError(
            f"federation.share = {share}: must be 1 / {len(frequency)} (each of {len(frequency)} labels alike) to 1"
        )
    rng = draws(seed, "label_skew")
    main = rng.permutation(len(frequency))[np.arange(devices) % len(frequency)]
    sizes = len(labels) // devices + (np.arange(devices) < len(labels) % devices)
    room = np.bincount(main, weights=sizes, minlength=len(frequency))  # of all devices of a main label
    left = np.maximum(frequency - share * room, 0)
    part = left / (left.sum() + 1)  # f_k; the 1 is for share = 1
    pure = np.clip((share - part) / (1 - part), 0, frequency / np.maximum(room, 1))
    first = np.floor(pure[main] * sizes).astype(np.int64)

    by_label = np.argsort(which + rng.random(len(labels)))
    owner = np.full(len(labels), -1)
    for k, start in enumerate(np.cumsum(frequency) - frequency):
        who = np.flatnonzero(main == k)
        owner[start : start + first[who].sum()] = np.repeat(who, first[who])
    # Places for the rest, those of each device evenly spread: what is left, in the order of labels, goes along them.
    rest = sizes - first
    device = np.repeat(np.arange(devices), rest)
    nth = np.arange(len(device)) - np.repeat(np.cumsum(rest) - rest, rest)
    owner[owner < 0] = device[np.lexsort((rng.permutation(devices)[device], (nth + 0.5) / rest[device]))]
    return _name_devices(np.split(by_label[np.argsort(owner, kind="stable")], np.cumsum(sizes)[:-1]))


def shards(labels: Index, devices: int, classes: int, seed: int) -> dict[str, Index]:
    """Sort the examples by label, cut them into equal shards, and deal each device `classes` of them.

    Most shards have one label, so that a device has few (McMahan et al. 2017, sec. 3: two shards each). A shard may
    hold the last examples of a label and the first of the next.
    """
    if (count := devices * classes) > len(labels):
        raise InputError(f"federation.classes = {classes}: makes {count} shards of {len(labels)} examples; lower it")
    rng = draws(seed, "shards")
    shuffled = rng.permutation(len(labels))
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], count)
    dealt = rng.permutation(count).reshape(devices, classes)
    return _name_devices([np.concatenate([pieces[k] for k in own]) for own in dealt])


def quantity_skew(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    """Quantity skew: the devices get shares p ~ Dir(alpha, ..., alpha) of the shuffled examples, without label skew.

    (Li, Diao, Chen and He 2022, "Federated learning on non-IID data silos": quantity skew.) This is `dirichlet` for
    examples of a single label.
    """
    return dirichlet(np.zeros_like(labels), devices, alpha, min_size, seed)


# from the data


def by_device(owners: Sequence[str] | None) -> dict[str, Index]:
    """Give each device the examples that it recorded; `owners` names the device of each example."""
    if owners is None:
        raise InputError(
            "federation.partition = 'by_device': the data name no devices; set data.device or give a file each"
        )
    return _groups(owners)


def by_domain(domains: Sequence[str] | None) -> dict[str, Index]:
    """Make one device of each domain; `domains` names the domain of each example."""
    if domains is None:
        raise InputError("federation.partition = 'by_domain': the data name no domains")
    return _groups(domains)


def by_writer(owners: Sequence[str] | None, devices: int, seed: int) -> dict[str, Index]:
    """Assign whole writers to devices of about equal size; `owners` names the writer of each example.

    Writers go to the smallest device in order of their size, largest first (Graham 1969: the largest device is at most
    4/3 of the optimum); ties are in random order. (FEMNIST is divided by writer: DFL, sec. IV-A.)
    """
    if owners is None:
        raise InputError("federation.partition = 'by_writer': the data do not say who wrote what; set data.device")
    writers = list(_groups(owners).values())
    if not 1 <= devices <= len(writers):
        raise InputError(
            f"federation.devices = {devices}: must be 1 to {len(writers)}, the number of writers to divide"
        )
    shuffled = [writers[i] for i in draws(seed, "by_writer").permutation(len(writers))]
    shares: list[list[Index]] = [[] for _ in range(devices)]
    smallest = [(0, i) for i in range(devices)]
    heapify(smallest)
    for written in sorted(shuffled, key=len, reverse=True):
        size, i = smallest[0]
        shares[i].append(written)
        heapreplace(smallest, (size + len(written), i))
    return _name_devices(map(np.concatenate, shares))


def _groups(names: Sequence[str]) -> dict[str, Index]:
    """Return the indices of each name, by name."""
    distinct, codes, sizes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True, return_counts=True)
    pieces = np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])
    return dict(zip(distinct.tolist(), pieces, strict=True))


def check_devices(devices: int, examples: int) -> None:
    if not 1 <= devices <= examples:
        raise InputError(f"federation.devices = {devices}: must be 1 to {examples}, the number of examples to divide")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1e100:
        raise InputError(f"federation.alpha = {alpha}: must be above 0 (small: skewed, 1e20: near-iid), at most 1e100")


def _check_classes(classes: int, kinds: int, devices: int) -> None:
    """Check the number of classes on each of the devices that draw their own."""
    if not 1 <= classes <= kinds:
        raise InputError(f"federation.classes = {classes}: must be 1 to {kinds}, the number of classes in the data")
    if devices * classes < kinds:
        raise InputError(
            f"federation.classes = {classes}: must be at least {-(-kinds // devices)}, so that {devices} devices hold "
            f"all of {kinds} classes"
        )


def _min_size_error(min_size: int, rows: int, devices: int, alpha: float, most: int) -> InputError:
    """Return an error about draws whose smallest device has at most so many examples."""
    return InputError(
        f"federation.min_size = {min_size}: {rows:,} examples give each of {devices} devices at most "
        f"{rows // devices:,}, and {REDRAWS} draws with federation.alpha = {alpha} at most {most:,}; raise alpha, or "
        "lower min_size or federation.devices"
    )


def device_names(devices: int) -> list[str]:
    """Return the names of drawn devices, all of one width: device-00, device-01, ..."""
    width = max(2, len(str(devices - 1)))
    return [f"device-{i:0{width}d}" for i in range(devices)]


def _name_devices(shares: Iterable[Index]) -> dict[str, Index]:
    shares = list(shares)
    return {name: np.sort(share) for name, share in zip(device_names(len(shares)), shares, strict=True)}


PARTITIONS: dict[str, Callable[..., dict[str, Index]]] = {
    "iid": iid, "dirichlet": dirichlet, "dirichlet_capped": dirichlet_capped, "few_classes": few_classes,
    "device_dirichlet": device_dirichlet, "label_skew": label_skew, "shards": shards, "quantity_skew": quantity_skew,
    "by_device": by_device, "by_domain": by_domain, "by_writer": by_writer,
}  # fmt: skip

BY_CLASS = frozenset({"dirichlet", "dirichlet_capped", "few_classes", "device_dirichlet", "label_skew", "shards"})
"""The partitions that divide each class apart."""
