r"""Ways to divide N examples of K classes among C devices: settings by name -> {device name: indices of its examples}.

They divide what they are given, all of it, and draw by their arguments alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.types import InputError

Index: TypeAlias = NDArray[np.int64]

REDRAWS = 1000


def draws(*words: object) -> np.random.Generator:
    """Return a random generator that depends on the words alone, e.g. (seed, "split", device name)."""
    digest = hashlib.blake2b("\x1f".join(map(str, words)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# equal or skewed by a draw


def iid(labels: Index, devices: int, seed: int) -> dict[str, Index]:
    """Equal shares (up to one example) of a shuffled set."""
    _check_devices(devices, len(labels))
    return _name_devices(np.array_split(draws(seed, "iid").permutation(len(labels)), devices))


def dirichlet(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    r"""Label skew: device i gets the share p_ki of class k, p_k ~ Dir(alpha, ..., alpha) independently for each class.

    alpha -> 0: a class sits on one device; alpha -> inf: iid. (Yurochkin et al. 2019, sec. 4; CODE, Fig. 5.) Drawn
    again until every device has `min_size` examples, at most REDRAWS times. The shares are rounded by one common random
    offset per class, which is unbiased and never off by more than one example.
    """
    rng = draws(seed, "dirichlet")
    return _by_shares(labels, devices, alpha, min_size, rng, lambda k: rng.dirichlet(np.full(devices, alpha), size=k))


def few_classes(labels: Index, devices: int, classes: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    r"""Label skew: a device holds at most `classes` classes, drawn, and of each the share p_ki as in `dirichlet`.

    p_k ~ Dir(alpha, ..., alpha) over the devices that hold class k; their numbers differ by at most one between
    classes, so that every example has a holder. With all classes this is `dirichlet`. ("Devices draw Dirichlet
    distributions from a subset of 4 labels": ST-LF, sec. V.)
    """
    kinds = len(np.unique(labels))
    if not 1 <= classes <= kinds:
        raise InputError(f"federation.classes = {classes}: must be 1 to {kinds}, the number of classes in the data")
    if devices * classes < kinds:
        raise InputError(
            f"federation.classes = {classes}: must be at least {-(-kinds // devices)}, so that {devices} devices hold "
            f"all of {kinds} classes"
        )
    rng = draws(seed, "few_classes")

    def shares(kinds: int) -> NDArray[np.float64]:
        holds = np.zeros((kinds, devices), dtype=bool)
        for device in rng.permutation(devices):  # the classes with the fewest holders; of equal ones at random
            holds[np.lexsort((rng.random(kinds), holds.sum(1)))[:classes], device] = True
        found = np.zeros((kinds, devices))
        for share, mine in zip(found, holds, strict=True):
            share[mine] = rng.dirichlet(np.full(mine.sum(), alpha))
        return found

    return _by_shares(labels, devices, alpha, min_size, rng, shares)


def _by_shares(
    labels: Index,
    devices: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
    drawn: Callable[[int], NDArray[np.float64]],
) -> dict[str, Index]:
    """Divide each class by the shares (K, C) that are drawn for K classes, again until every device has enough."""
    if not 0 < alpha <= 1e100:
        raise InputError(f"federation.alpha = {alpha}: must be above 0 (small: skewed, 1e20: near-iid), at most 1e100")
    _check_devices(devices, len(labels))
    if devices * min_size > len(labels):
        raise InputError(
            f"federation.min_size = {min_size}: must be at most {len(labels) // devices}, the mean size of {devices} "
            f"devices that divide {len(labels)} examples"
        )
    found, sizes = np.unique(labels, return_counts=True)
    for _ in range(REDRAWS):
        shares = drawn(len(found))
        upto = np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]
        ends = np.minimum(np.floor(upto + rng.random((len(found), 1))).astype(np.int64), sizes[:, None])
        counts = np.diff(ends, axis=1, prepend=0, append=sizes[:, None]).sum(axis=0)
        if counts.min() >= min_size:
            break
    else:
        raise _min_size_error(min_size, devices, alpha)
    pieces = [np.split(rng.permutation(np.flatnonzero(labels == k)), at) for k, at in zip(found, ends, strict=True)]
    return _name_devices(map(np.concatenate, zip(*pieces, strict=True)))


def dirichlet_capped(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    """Label skew as in `dirichlet`, but a device that holds an even share of all examples gets no more classes.

    Classes are dealt out in their order, each by shares p_k ~ Dir(alpha, ..., alpha) among the devices with fewer than
    N / C examples. So devices are less unequal in size, and the skew of a device's labels is stronger: the usual
    reading of Yurochkin et al. 2019, which the CODE paper cites. Drawn again as in `dirichlet`.
    """
    if not 0 < alpha < np.inf:
        raise InputError(f"federation.alpha = {alpha}: must be a positive number (small: skewed, 1e20: near-iid)")
    _check_devices(devices, len(labels))
    rng = draws(seed, "dirichlet_capped")
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
            if sizes.min() >= min_size:
                pieces = [np.split(examples, ends) for examples, ends in dealt]
                return _name_devices(map(np.concatenate, zip(*pieces, strict=True)))
    raise _min_size_error(min_size, devices, alpha)


def label_skew(labels: Index, devices: int, share: float, seed: int) -> dict[str, Index]:
    r"""Label skew: of each device's examples `share` has one main label, the rest evenly the others (DFL, Table I).

    Main labels go round the devices in turn, in a drawn order; sizes are equal up to one. Every example is used, so
    where labels are not equally frequent this cannot hold exactly (of MNIST's ten labels seven have fewer than 6,000).
    Here device i first gets a pure part m_i of its n_i examples, then all that is left is dealt evenly. With f_k the
    part of label k in what is left,

    m_i + f_k (n_i - m_i) = share n_i    for its main label k,

    so the rest is as even as what is left (MNIST, share .8: a label makes 5 to 18 % of a device's rest, 11 % would be
    even). A device whose main label is used up gets more of the rest.
    """
    _check_devices(devices, len(labels))
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
    place = np.repeat(np.arange(devices), rest)
    nth = np.arange(len(place)) - np.repeat(np.cumsum(rest) - rest, rest)
    owner[owner < 0] = place[np.lexsort((rng.permutation(devices)[place], (nth + 0.5) / rest[place]))]
    return _name_devices(np.split(by_label[np.argsort(owner, kind="stable")], np.cumsum(sizes)[:-1]))


def quantity_skew(labels: Index, devices: int, alpha: float, min_size: int, seed: int) -> dict[str, Index]:
    """Unequal sizes, equal labels: the shares of the devices are p ~ Dir(alpha, ..., alpha) of a shuffled set.

    (Li, Diao, Chen and He 2022, "Federated learning on non-IID data silos": quantity skew.) This is `dirichlet` for
    examples that are all of one label.
    """
    return dirichlet(np.zeros_like(labels), devices, alpha, min_size, seed)


# from the data


def by_device(owners: Sequence[str] | None) -> dict[str, Index]:
    """Every device keeps what it recorded; `owners` names it for each example."""
    if owners is None:
        raise InputError(
            "federation.partition = 'by_device': the data name no devices; set data.device or give a file each"
        )
    return _groups(owners)


def by_domain(domains: Sequence[str] | None) -> dict[str, Index]:
    """A device for each domain; `domains` names it for each example."""
    if domains is None:
        raise InputError("federation.partition = 'by_domain': the data name no domains")
    return _groups(domains)


def by_writer(owners: Sequence[str] | None, devices: int, seed: int) -> dict[str, Index]:
    """Whole writers (or whoever recorded an example) go to devices, which become as equal in size as that allows.

    The writer with most examples goes to the smallest device, and so on (Graham 1969: the largest device is at most 4/3
    of the best possible); equal ones in a drawn order. (FEMNIST is divided by writer: DFL, sec. IV-A.)
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
    found, codes, sizes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True, return_counts=True)
    pieces = np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])
    return dict(zip(found.tolist(), pieces, strict=True))


def _check_devices(devices: int, examples: int) -> None:
    if not 1 <= devices <= examples:
        raise InputError(f"federation.devices = {devices}: must be 1 to {examples}, the number of examples to divide")


def _min_size_error(min_size: int, devices: int, alpha: float) -> InputError:
    return InputError(
        f"federation.min_size = {min_size}: not met by all {devices} devices in {REDRAWS} draws with "
        f"federation.alpha = {alpha}; raise alpha, or lower min_size or federation.devices"
    )


def _name_devices(shares: Iterable[Index]) -> dict[str, Index]:
    shares = list(shares)
    width = max(2, len(str(len(shares) - 1)))
    return {f"device-{i:0{width}d}": np.sort(share) for i, share in enumerate(shares)}


PARTITIONS: dict[str, Callable[..., dict[str, Index]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_capped": dirichlet_capped,
    "few_classes": few_classes,
    "label_skew": label_skew,
    "quantity_skew": quantity_skew,
    "by_device": by_device,
    "by_domain": by_domain,
    "by_writer": by_writer,
}
