r"""Mixing that withstands hostile updates: the mean, and what may take its place.

theta_1, ..., theta_C are the models that the devices sent (or their changes: every rule here moves with its points),
f = floor(outliers C) the number of those that may be hostile.

mean         sum_j w_j theta_j, w by examples (McMahan et al. 2017). A single device can move it anywhere.
median       each number's median (Yin et al. 2018, Definition 1)
trimmed      each number's mean without its f least and its f greatest values (Yin et al. 2018, Definition 2)
clipped      c + sum_j w_j (theta_j - c) min(1, tau / ||theta_j - c||) (Karimireddy et al. 2021, Algorithm 2, one step)
krum         the theta_i with the least s(i) = sum of ||theta_i - theta_j||^2 over the C - f - 2 nearest others j
             (Blanchard et al. 2017, sec. 4)
multi_krum   the even mean of the C - f - 2 models with the least s(i) (Blanchard et al. 2017, sec. 5)

Departures. All but mean and clipped ignore how many examples a device has: its word alone says how many. Clipping is
about the median, c, where the paper takes the last aggregate, and within the median distance, tau, where the paper
has a constant; so it has nothing to set. Krum's guarantee needs C > 2 f + 2; with fewer devices it counts at least one
neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedcore.mixing import evenly, mean
from fedcore.types import Params

Rule: TypeAlias = Literal["mean", "median", "trimmed", "clipped", "krum", "multi_krum"]


@dataclass(frozen=True)
class Mixing:
    """How a server makes one model of many.

    mixing: the rule, see :mod:`fedcore.robust`. outliers: share of the updates that may be hostile, for trimmed, krum
    and multi_krum.
    """

    mixing: Rule = "mean"
    outliers: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def __call__(self, members: Sequence[Params], weights: Tensor) -> Params:
        """Mix C models with equal leaves; weights (C,) on the simplex. Integer leaves are the first member's."""
        if self.mixing == "mean":
            return mean(members, weights)
        if self.mixing in ("krum", "multi_krum"):
            return _krum(members, self.outliers, self.mixing == "multi_krum")
        if self.mixing == "clipped":
            return clip_to_median(members, weights)
        middle = _median if self.mixing == "median" else _trimmed(self.outliers)
        return _number_by_number(members, middle)


MEAN = Mixing()


def _number_by_number(members: Sequence[Params], middle: Callable[[Tensor], Tensor]) -> Params:
    """Apply a rule to each leaf's sorted values, (C, *shape) -> (*shape)."""
    return {
        name: middle(torch.stack([member[name] for member in members]).sort(0).values)
        if leaf.is_floating_point()
        else leaf.clone()
        for name, leaf in members[0].items()
    }


def _median(ordered: Tensor) -> Tensor:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _trimmed(outliers: float) -> Callable[[Tensor], Tensor]:
    return lambda ordered: ordered[(cut := most_hostile(len(ordered), outliers)) : len(ordered) - cut].mean(0)


def most_hostile(count: int, outliers: float) -> int:
    """Return f, the most updates of `count` that may be hostile."""
    return math.floor(outliers * count + 1e-9)  # 0.3 * 10 is 3


def clip_to_median(members: Sequence[Params], weights: Tensor) -> Params:
    """Return the weighted mean of the models, each pulled to within the median distance of their median."""
    centre = _number_by_number(members, _median)
    distances = (_points(members) - _points([centre])).norm(dim=1)
    bound = _median(distances.sort().values)
    factors = [min(1.0, (bound / d).item()) if d > 0 else 1.0 for d in distances]
    return mean([_pull(member, centre, factor) for member, factor in zip(members, factors, strict=True)], weights)


def _pull(member: Params, centre: Params, factor: float) -> Params:
    """Return c + factor (theta - c); with factor 1 the model's own bits."""
    if factor == 1:
        return member
    return {
        name: centre[name] + factor * (leaf - centre[name]) if leaf.is_floating_point() else leaf
        for name, leaf in member.items()
    }


def _krum(members: Sequence[Params], outliers: float, several: bool) -> Params:
    near = max(1, len(members) - most_hostile(len(members), outliers) - 2)
    scores = krum_scores(_points(members), near)
    best = sorted(scores.sort(stable=True).indices[: near if several else 1].tolist())
    return mean([members[i] for i in best], evenly(len(best)))


def krum_scores(points: Tensor, near: int) -> Tensor:
    """Return s(i), (C,): the sum of squared distances to the `near` nearest other points; points (C, P)."""
    apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart.fill_diagonal_(-1)  # a point is the nearest to itself, also among equal ones
    return apart.sort(1).values[:, 1 : near + 1].sum(1)


def _points(members: Sequence[Params]) -> Tensor:
    """Return the models' numbers as rows, (C, P) float64."""
    return torch.stack(
        [torch.cat([leaf.double().flatten() for leaf in one.values() if leaf.is_floating_point()]) for one in members]
    )
