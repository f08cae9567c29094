r"""Aggregation: weighted means of models, and rules that withstand hostile updates.

theta_1, ..., theta_C are the models that the devices sent (or their changes: every rule here moves with its points),
f = floor(outliers C) the number of those that may be hostile.

    mean         sum_j w_j theta_j, w by examples (McMahan et al. 2017). A single device can move it anywhere.
    median       each number's median (Yin et al. 2018, Definition 1)
    trimmed      each number's mean without its f least and its f greatest values (Yin et al. 2018, Definition 2)
    clipped      c + sum_j w_j (theta_j - c) min(1, tau / ||theta_j - c||) (Karimireddy et al. 2021, Alg. 2, one step)
    krum         the theta_i with the least s(i) = sum of ||theta_i - theta_j||^2 over the C - f - 2 nearest others j
                 (Blanchard et al. 2017, sec. 4)
    multi_krum   the even mean of the C - f - 2 models with the least s(i) (Blanchard et al. 2017, sec. 5)

Departures. All but mean and clipped ignore how many examples a device has: its word alone says how many. Clipping is
about the median, c, where the paper takes the last aggregate, and within the median distance, tau, where the paper
has a constant; so it has nothing to set. Krum's guarantee needs C > 2 f + 2; with fewer devices it counts at least one
neighbour.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedcore.core.messages import from_memory, to_chosen, to_everyone, to_sampled, took_part
from fedcore.errors import Diverged, InputError, plural
from fedcore.types.federation import Params, add_prefix, strip_prefix
from fedcore.types.method import Local, Message, RoundInfo, Stage, Update
from fedcore.types.ranges import Count, Fraction

HYPER = "hyper/"
"""Prefix of the tensors in the server's memory that hold the last value of each operator that devices share."""

ROUNDED = 1e-4
"""By so much weights may miss the sum 1, as float32 ones of thousands of devices do, or lie below 0, as a solver's."""

Rule: TypeAlias = Literal["mean", "median", "trimmed", "clipped", "krum", "multi_krum"]


def by_size(sizes: Sequence[int]) -> Tensor:
    """Return the weights n_i / sum n (McMahan et al. 2017, Algorithm 1), (C,) on the simplex; even where all are 0."""
    n = torch.tensor(sizes, dtype=torch.float64)
    return n / n.sum() if n.any() else evenly(len(n))


def evenly(count: int) -> Tensor:
    """Return equal weights, (C,) on the simplex."""
    return torch.full((count,), 1 / count, dtype=torch.float64)


def mean(members: Sequence[Params], weights: Tensor) -> Params:
    r"""Return one weighted mean, sum_j w_j theta_j.

    Integer buffers, such as batch norm's number of batches, are not averaged: the first member's is kept. Sums run in
    the given order, in the tensor's own precision, so that one member with weight 1 returns its own bits.

    Args:
        members: C models with equal tensors.
        weights: (C,) on the simplex, such as by_size(sizes).

    Raises:
        InputError: for other weights.
    """
    share = weights.tolist()
    least, total = min(share, default=0), sum(share)
    if len(share) != len(members) or least < -ROUNDED or not abs(total - 1) < ROUNDED:
        of = f"{plural(len(members), 'model')} and {plural(len(share), 'weight')} from {least:g} with the sum {total:g}"
        refused = InputError if math.isfinite(total) else Diverged  # weights by losses that are no numbers any more
        raise refused(f"mean: {of}; give a weight from 0 for each model, with the sum 1: fc.by_size(sizes)")
    names = [name for name, tensor in members[0].items() if tensor.is_floating_point()]
    totals = torch._foreach_mul([members[0][name] for name in names], share[0]) if names else ()
    for member, weight in zip(members[1:], share[1:], strict=True):
        if names:
            torch._foreach_add_(totals, [member[name] for name in names], alpha=weight)
    mixed = dict(zip(names, totals, strict=True))
    return {name: mixed[name] if name in mixed else tensor.clone() for name, tensor in members[0].items()}


def subtract(after: Params, before: Params) -> Params:
    """Return after - before, tensor by tensor, integer tensors too; of booleans which differ."""
    return {
        name: tensor ^ before[name] if tensor.dtype == torch.bool else tensor - before[name]
        for name, tensor in after.items()
    }


def add(before: Params, change: Params) -> Params:
    """Return before + change, tensor by tensor."""
    return {
        name: tensor ^ change[name] if tensor.dtype == torch.bool else tensor + change[name]
        for name, tensor in before.items()
    }


def mean_of_users(
    members: Mapping[str, Params],
    sizes: Mapping[str, int],
    aggregate: Callable[[Sequence[Params], Tensor], Params] = mean,
) -> Params:
    r"""Average each tensor over the models that have it, by their examples (Deng et al. 2024, eq. 9, S(o) > 0).

    theta_hp(o) = sum_k N_k,o / (sum_i N_i,o) theta_k(o)

    members: for each device the tensors of the operators o that it used. sizes: N_k. Where all have equal tensors this
    is `mean` of `by_size`: FedAvg. aggregate: what takes the mean's place.
    """
    users: dict[tuple[str, ...], list[str]] = {}
    for key in dict.fromkeys(key for params in members.values() for key in params):
        users.setdefault(tuple(name for name, params in members.items() if key in params), []).append(key)
    mixed: Params = {}
    for names, keys in users.items():
        parts = [{key: members[name][key] for key in keys} for name in names]
        mixed |= aggregate(parts, by_size([sizes[name] for name in names]))
    return mixed


@dataclass(frozen=True)
class Aggregator:
    """How a server makes one model of many.

    Args:
        aggregation: "mean", or a rule that withstands hostile devices: "median", "trimmed", "krum", "multi_krum" or
            "clipped", see :mod:`fedcore.core.aggregation`.
        outliers: share of the updates that may be hostile, from 0, below .5, for trimmed, krum and multi_krum.
    """

    aggregation: Rule = "mean"
    outliers: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def __call__(self, members: Sequence[Params], weights: Tensor) -> Params:
        """Mix C models with equal tensors; weights (C,) on the simplex. Integer tensors are the first member's."""
        if self.aggregation == "mean":
            return mean(members, weights)
        if self.aggregation in ("krum", "multi_krum"):
            return _krum(members, self.outliers, self.aggregation == "multi_krum")
        if self.aggregation == "clipped":
            return clip_to_median(members, weights)
        middle = _median if self.aggregation == "median" else _trimmed(self.outliers)
        return _number_by_number(members, middle)


MEAN = Aggregator()


def _number_by_number(members: Sequence[Params], middle: Callable[[Tensor], Tensor]) -> Params:
    """Apply a rule to each tensor's sorted values, (C, *shape) -> (*shape)."""
    return {
        name: middle(torch.stack([member[name] for member in members]).sort(0).values)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in members[0].items()
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
    """Return the weighted mean of the models, each clipped to within the median distance of their median."""
    centre = _number_by_number(members, _median)
    distances = (_points(members) - _points([centre])).norm(dim=1)
    bound = _median(distances.sort().values)
    factors = [min(1.0, (bound / d).item()) if d > 0 else 1.0 for d in distances]
    clipped = [of if factor == 1 else shorten(of, centre, factor) for of, factor in zip(members, factors, strict=True)]
    return mean(clipped, weights)


def shorten(params: Params, about: Params, factor: float) -> Params:
    """Return c + factor (theta - c), c being the tensors `about`; where there is none factor theta."""
    return {
        name: (about[name] + factor * (tensor - about[name]) if name in about else factor * tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in params.items()
    }


def _krum(members: Sequence[Params], outliers: float, several: bool) -> Params:
    near = max(1, len(members) - most_hostile(len(members), outliers) - 2)
    scores = krum_scores(_points(members), near)
    best = sorted(scores.sort(stable=True).indices[: near if several else 1].tolist())
    return mean([members[i] for i in best], evenly(len(best)))


def krum_scores(points: Tensor, near: int) -> Tensor:
    """Return s(i), (C,): the sum of squared distances to the `near` nearest other points; points (C, P)."""
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.fill_diagonal_(-1)  # a point is the nearest to itself, also among equal ones
    return distances.sort(1).values[:, 1 : near + 1].sum(1)


def _points(members: Sequence[Params]) -> Tensor:
    """Return the models' numbers as rows, (C, P) float64."""
    return torch.stack(
        [
            torch.cat([tensor.double().flatten() for tensor in member.values() if tensor.is_floating_point()])
            for member in members
        ]
    )


def apply_changes(
    server: Params, changes: Sequence[Params], weights: Tensor,
    aggregate: Callable[[Sequence[Params], Tensor], Params] = mean,
) -> Params:  # fmt: skip
    r"""Return the model in the server's memory, moved by the weighted mean of the changes.

    w <- w + sum_k p_k Delta_k

    Args:
        server: the server's memory, which holds w.
        changes: each device's Delta_k.
        weights: p, (C,) on the simplex.
        aggregate: what takes the mean's place.
    """
    return add(from_memory(server), aggregate(changes, weights))


def average_models(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, aggregator: Aggregator = MEAN
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the mean of the updates, weighted by examples, or what stands in its place."""
    return server, to_everyone(round_info.names, Message(hyper_model(updates, aggregator)))


@dataclass(frozen=True)
class Course:
    """Rounds in which devices train and the server combines what they send.

    Args:
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
    """

    rounds: Count = 10
    fraction: Fraction = 1.0


@dataclass(frozen=True)
class Averaging(Course):
    """A course in which the rule for the mean can be chosen.

    Args:
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        aggregator: how the server combines what devices send.
    """

    aggregator: Aggregator = MEAN

    def stage(self, local: Local, combine: Callable[..., Any] = average_models) -> Stage:
        """Return these rounds. combine: takes the aggregator beside what the server's step is given."""
        return Stage(local, partial(combine, aggregator=self.aggregator), self.rounds, self.fraction)


def exchange_sampled(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, aggregator: Aggregator = MEAN
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the shared tensors, aggregated, and the initial others to those that never took part."""
    return to_sampled(server, updates, round_info.names, Message(hyper_model(updates, aggregator)))


def exchange_parts(
    server: Params, updates: Mapping[str, Update], shared: Mapping[str, Collection[str]], aggregator: Aggregator = MEAN
) -> tuple[Params, dict[str, Message]]:
    """Aggregate (9) what the sampled devices sent, and send every device the last values of the tensors that it shares.

    One that never took part gets the initial others as well. server: its memory holds the initial model, if devices
    have one in common, and the last values under HYPER. shared: of each device.
    """
    server = server | add_prefix(HYPER, hyper_model(updates, aggregator)) | to_chosen(updates)
    initial = from_memory(server)
    latest = initial | strip_prefix(HYPER, server)
    sent: dict[tuple[bool, tuple[str, ...]], Message] = {}
    messages = {}
    for name, keys in shared.items():
        kind = (took_part(server, name), tuple(keys))
        if kind not in sent:
            sent[kind] = Message(({} if kind[0] else initial) | {key: latest[key] for key in keys if key in latest})
        messages[name] = sent[kind]
    return server, messages


def hyper_model(updates: Mapping[str, Update], aggregator: Aggregator = MEAN) -> Params:
    """Return all tensors of the updates, aggregated (9), each over the devices that sent it."""
    sizes = {name: update.size for name, update in updates.items()}
    return mean_of_users({name: update.params for name, update in updates.items()}, sizes, aggregator)
