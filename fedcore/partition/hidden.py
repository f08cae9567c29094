"""Hidden labels: examples of train and val become unlabelled, all of a device's or a part of them."""

from collections.abc import Collection, Mapping
from itertools import cycle
from typing import Literal, TypeAlias

import numpy as np

from fedcore.errors import InputError
from fedcore.partition.held_out import Share
from fedcore.partition.parts import Partition
from fedcore.partition.schemes import Index, draws
from fedcore.types.ranges import Share as Whole

Hidden: TypeAlias = Share | Literal["random"] | list[Whole | Literal["random"]]
"""The share of labels that is hidden: of every device, or of the devices in turn, 1 for one without labels."""

REDRAWS = 100


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
