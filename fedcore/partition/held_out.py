r"""What is held out: the shared test set, and each device's train, val and test examples.

What is held out is a random sample, stratified by label (:func:`draw`), so that test sets have the labels' frequencies
in expectation. With `hold_out` "stable" an example's part depends on nothing but the example and the seed
(:mod:`fedcore.partition.stable`). The one exception is a class that would be in no training set.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.errors import InputError
from fedcore.partition.schemes import Index, draws
from fedcore.partition.stable import HoldOut, row_keys, uniform

Points: TypeAlias = NDArray[np.float64]
"""Of each example a number in [0, 1), uniform, by which it is held out."""

Share: TypeAlias = Annotated[float, Ge(0), Lt(1)]
"""A fraction that may be 0 and is below 1."""


def hold_out_shared(
    pools: Mapping[str, Index], labels: Index, marks: NDArray[np.str_] | None, shared_test: float, seed: int,
    points: Points | None,
) -> tuple[dict[str, Index], Index]:  # fmt: skip
    """Hold out the shared test set, a fraction of each pool; returns what is left of the pools, and the set."""
    candidates = {who: index if marks is None else index[marks[index] == "test"] for who, index in pools.items()}
    drawn = [
        draw(index, labels, shared_test * len(index), draws(seed, "shared", who))[0]
        if points is None
        else index[points[index] < min(shared_test, points[index].max(initial=0.0))]
        for who, index in candidates.items()
    ]
    shared = np.sort(np.concatenate(drawn))
    if marks is None:  # give back an example of each class that the shared test set would have in full
        whole = np.setdiff1d(labels[shared], np.delete(labels, shared))
        back = [_choose(shared[labels[shared] == label], label, seed, points) for label in whole]
        shared = np.setdiff1d(shared, np.concatenate([np.array([], dtype=np.int64), *back]))
    if points is not None:  # with all rows of an id that one device or class keeps for itself
        kept = np.setdiff1d(np.concatenate([*candidates.values()]), shared)
        shared = shared[~np.isin(points[shared], points[kept])]
    marked = sum(map(len, candidates.values()))
    expected = shared_test * marked
    all_on_new_sites = marks is not None and not marked and bool((marks == "test").any())
    if shared_test > 0 and not all_on_new_sites and (expected < 0.5 or not len(shared)):
        one_each = "each has a device of its own (data.device); name a column whose values repeat"
        cure = one_each if len(pools) == len(labels) > 1 else "raise it"
        if points is not None and (different := len(np.unique(points))) <= len(labels) / 2:
            cure = f"only {different} of them differ, and equal ones stay on one side"
        raise InputError(f"federation.shared_test = {shared_test}: no example is held out of {len(labels)}; {cure}")
    return {who: np.setdiff1d(index, shared, assume_unique=True) for who, index in pools.items()}, shared


def _choose(candidates: Index, label: int, seed: int, points: Points | None) -> Index:
    """Return the example of a class to train on of those held out: a random one, or the last by its place, with its
    duplicates."""
    drawn: Index = draws(seed, "taught", label).choice(candidates, 1)
    return drawn if points is None else candidates[points[candidates] == points[candidates].max()]


def limit_shared(shared: Index, dataset: Dataset, limit: int | None, seed: int) -> Index:
    """Draw at most `limit` examples of the shared test set: those held out, or the official ones."""
    whole = shared if dataset.test is None else np.arange(len(dataset.test))
    if limit is None or len(whole) <= limit:
        return shared
    return np.sort(draws(seed, "shared examples").choice(whole, limit, replace=False))


def check_ids(dataset: Dataset, devices: Collection[Index], val: float) -> None:
    """Refuse what would be drawn row by row, where rows of one id, such as a patient's, would be on several sides.

    Of rows that are marked, validation rows are drawn on each device that has none: from its rows marked train.
    """
    if dataset.ids is None:
        return
    ids = np.asarray(dataset.ids)
    if dataset.split is not None:
        marks = np.asarray(dataset.split)
        drawn = val > 0 and any("val" not in marks[index] for index in devices)
        ids = ids[marks == "train"] if drawn else ids[:0]
    if len(np.unique(ids)) < len(ids):
        raise InputError("federation.hold_out = 'random': parts rows of one data.id; write federation.hold_out=stable")


def split_parts(
    own: Mapping[str, Index], labels: Index, marks: NDArray[np.str_] | None, val: float, test: float, seed: int,
    points: Points | None,
) -> dict[str, dict[str, Index]]:  # fmt: skip
    """Divide each device's examples into train, val and test; each needs a training example."""
    parts = {who: _parts(own[who], labels, marks, val, test, draws(seed, "split", who), points) for who in sorted(own)}
    if marks is None:
        _train_every_class(parts, labels, seed, points)
    if points is not None:
        _train_with_their_ids(parts, marks, points)
    for who, part in parts.items():
        if not len(part["train"]):
            raise InputError(f"data.split: device {who!r} has no row marked train; every device needs at least one")
    return parts


def draw(
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
    index: Index, labels: Index, val: float, test: float, rng: np.random.Generator, points: Points | None
) -> dict[str, Index]:
    """Draw a device's val and test examples; the rest, its training examples, is never empty."""
    if points is not None:
        point = points[index]
        trains = point >= min(test + val, point.max(initial=0.0))
        tests = (point < test) & ~trains
        return {"train": index[trains], "val": index[~trains & ~tests], "test": index[tests]}
    out, train = draw(index, labels, (val + test) * len(index), rng)
    tested, validated = draw(out, labels, len(out) * test / (val + test) if val + test else 0.0, rng, whole=True)
    return {"train": train, "val": validated, "test": tested}


def _parts(
    index: Index, labels: Index, marks: NDArray[np.str_] | None, val: float, test: float, rng: np.random.Generator,
    points: Points | None,
) -> dict[str, Index]:  # fmt: skip
    """Divide one device's examples into train, val and test."""
    if marks is None:
        return _hold_back(index, labels, val, test, rng, points)
    marked = {part: index[marks[index] == part] for part in ("train", "val", "test")}
    if not len(marked["val"]):
        divided = _hold_back(marked["train"], labels, val, 0.0, rng, points)
        marked |= {part: divided[part] for part in ("train", "val")}
    return marked


def _train_every_class(parts: dict[str, dict[str, Index]], labels: Index, seed: int, points: Points | None) -> None:
    """Move an example of a class that would be in no training set from val, or else from test, to its device's train.

    This is the one exception to a random sample: without it nobody could learn a class of few examples.
    """
    trained = np.unique(labels[np.concatenate([part["train"] for part in parts.values()])])
    for kind in ("val", "test"):
        held_out = np.concatenate([part[kind] for part in parts.values()])
        for label in np.setdiff1d(labels[held_out], trained):
            chosen = _choose(held_out[labels[held_out] == label], label, seed, points)
            for part in parts.values():
                moved = np.intersect1d(part[kind], chosen)
                if len(moved):
                    part[kind] = np.setdiff1d(part[kind], moved)
                    part["train"] = np.union1d(part["train"], moved)
            trained = np.append(trained, label)


def _train_with_their_ids(parts: dict[str, dict[str, Index]], marks: NDArray[np.str_] | None, points: Points) -> None:
    """Move to train what an exception has parted: held-out rows of an id, or equal ones, of which one trains."""
    trained = points[np.concatenate([part["train"] for part in parts.values()])]
    for part in parts.values():
        drawn = ("val", "test") if marks is None else ("val",) * ("val" not in marks[part["val"]])
        for kind in drawn:
            moved = part[kind][np.isin(points[part[kind]], trained)]
            part[kind] = np.setdiff1d(part[kind], moved)
            part["train"] = np.union1d(part["train"], moved)


def split_device(
    dataset: Dataset, device: str, *, seed: int, val: Share = 0.2, test: Share = 0.2, shared_test: Share = 0.2,
    hold_out: HoldOut = "random",
) -> dict[str, Index]:  # fmt: skip
    """Return a device's parts, part -> index, as :func:`partition` makes them with by_device, from its rows alone.

    What would be in the shared test set is left out. Nobody knows here whether a class is in no other device's training
    set, or whether another device trains on an id, so that no example is moved for it: the one difference.

    dataset: the device's own examples. The other settings are those of :func:`partition`.
    """
    last = len(dataset.classes) - 1 if dataset.task.has_classes else 0  # draws depend on the number of classes
    labels = np.append(dataset.strata, last)
    index = np.arange(len(dataset.train))
    marks = None if dataset.split is None else np.asarray(dataset.split)
    keys = None if hold_out == "random" else row_keys(dataset, each=hold_out == "stable_each")
    points = None if keys is None else partial(uniform, keys, seed)
    candidates = index if marks is None else index[marks == "test"]
    if points is None:
        check_ids(dataset, [index], val)
        shared, _ = draw(candidates, labels, shared_test * len(candidates), draws(seed, "shared", device))
    else:
        drawn = points("shared")
        shared = candidates[drawn[candidates] < min(shared_test, drawn[candidates].max(initial=0.0))]
    own, rng = np.setdiff1d(index, shared, assume_unique=True), draws(seed, "split", device)
    parts = _parts(own, labels, marks, val, test, rng, None if points is None else points("split"))
    return {**parts, "unlabelled": index[:0]}
