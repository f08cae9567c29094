"""Weighted means of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedcore.types import Params


def by_size(sizes: Sequence[int]) -> Tensor:
    """Return the weights n_i / sum n (McMahan et al. 2017, Algorithm 1), (C,) on the simplex; even where all are 0."""
    n = torch.tensor(sizes, dtype=torch.float64)
    return n / n.sum() if n.any() else evenly(len(n))


def evenly(count: int) -> Tensor:
    """Return equal weights, (C,) on the simplex."""
    return torch.full((count,), 1 / count, dtype=torch.float64)


def mean(members: Sequence[Params], weights: Tensor) -> Params:
    r"""Return one weighted mean, sum_j w_j theta_j.

    members: C models with equal leaves. weights: (C,) on the simplex. Integer buffers, such as
    batch norm's number of batches, are not averaged: the first member's is kept. Sums run in the given order, in the
    leaf's own precision, so that one member with weight 1 returns its own bits.
    """
    share = weights.tolist()
    mixed: Params = {}
    for name, leaf in members[0].items():
        if leaf.is_floating_point():
            total = leaf * share[0]
            for member, weight in zip(members[1:], share[1:], strict=True):
                total.add_(member[name], alpha=weight)
            mixed[name] = total
        else:
            mixed[name] = leaf.clone()
    return mixed


def subtract(after: Params, before: Params) -> Params:
    """Return after - before, leaf by leaf, integer leaves too."""
    return {name: leaf - before[name] for name, leaf in after.items()}


def add(before: Params, change: Params) -> Params:
    """Return before + change, leaf by leaf."""
    return {name: leaf + change[name] for name, leaf in before.items()}


def mix(members: Sequence[Params], weights: Tensor) -> list[Params]:
    r"""Replace each device's model by a weighted mean of everyone's.

    theta'_i = sum_j W_ij theta_j

    weights: (C', C), rows on the simplex. Equal rows share one result.
    """
    rows, which = torch.unique(weights, dim=0, return_inverse=True)
    mixed = [mean(members, row) for row in rows]
    return [mixed[i] for i in which.tolist()]


def mean_of_users(
    members: Mapping[str, Params],
    sizes: Mapping[str, int],
    aggregate: Callable[[Sequence[Params], Tensor], Params] = mean,
) -> Params:
    r"""Average each leaf over the models that have it, weighted by their examples (Deng et al. 2024, eq. 9, S(o) > 0).

    theta_hp(o) = sum_k N_k,o / (sum_i N_i,o) theta_k(o)

    members: for each device the leaves of the operators o that it used. sizes: N_k. Where all have equal leaves this
    is `mean` of `by_size`: FedAvg. aggregate: what takes the mean's place.
    """
    users: dict[tuple[str, ...], list[str]] = {}
    for leaf in dict.fromkeys(leaf for params in members.values() for leaf in params):
        users.setdefault(tuple(name for name, params in members.items() if leaf in params), []).append(leaf)
    mixed: Params = {}
    for names, leaves in users.items():
        parts = [{leaf: members[name][leaf] for leaf in leaves} for name in names]
        mixed |= aggregate(parts, by_size([sizes[name] for name in names]))
    return mixed
