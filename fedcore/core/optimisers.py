"""Optimisers of nets that are laid out as vectors, and the learning rate of each step.

They are PyTorch's fused kernels themselves. Importing its optimiser classes takes a second in each process, and its
functions around the kernels 14 microseconds of the 100 of a small net's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedcore.core.flat_nets import FlatNet
from fedcore.core.training_settings import Training
from fedcore.types.federation import Params

Pieces: TypeAlias = Sequence[tuple[slice, float]]
"""Consecutive parts of the vector, and the factor of the learning rate in each."""

WHOLE: Pieces = ((slice(None), 1.0),)

MOMENTS = "moments/"
"""Prefix of the tensors in a device's memory that hold its optimiser's moments."""

COUNT = "steps/"
"""Prefix of the moments that count the steps of one parameter."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
}
"""Factor of the learning rate, by the share of this call's steps that are done."""


def learning_rates(training: Training, steps: int) -> list[float]:
    """Return the learning rate of each step, (S,)."""
    return [training.lr * SCHEDULES[training.schedule](step / steps) for step in range(steps)]


def optimiser_step(
    flat: FlatNet, training: Training, moments: Params | None = None, pieces: Pieces = WHOLE
) -> Callable[[float], None]:
    """Return a function that updates `flat.vector` from `flat.gradient` at a given learning rate.

    moments: the optimiser's, read and updated in place; None: new ones. A parameter that is idle stays what it is,
    with its moments, as in PyTorch; from then on each has a count of its own steps, which Adam divides by.
    """
    kept = {} if moments is None else moments
    whole = step_of_all([optimiser_slots(flat, training, kept, pieces)], training)

    def update(rate: float) -> None:
        if not flat.idle and not any(name.startswith(COUNT) for name in kept):
            whole(rate)
            return
        for slot in _slots_apart(flat, training, kept, pieces):
            step_of_all([[slot]], training)(rate)

    return update


def _slots_apart(flat: FlatNet, training: Training, moments: Params, pieces: Pieces) -> list[Slot]:
    """Return a slot for each parameter that is not idle, with a count of its own."""
    slots = []
    for name, tensor in flat.parameters.items():
        first = int(tensor.storage_offset() - flat.vector.storage_offset())
        for factor in [factor for piece, factor in pieces if first in range(len(flat.vector))[piece]]:
            (slot,) = optimiser_slots(flat, training, moments, ((slice(first, first + tensor.numel()), factor),))
            if "steps" in moments:
                count = moments.setdefault(COUNT + name, moments["steps"].clone())
                slot = replace(slot, moments=[*slot.moments[:2], count])
            slots += [slot] * (name not in flat.idle)
    return slots


@dataclass(frozen=True)
class Slot:
    """What an optimiser reads and writes of one piece. moments: of sgd the velocity, if it has one, of adam the first
    and the second and the steps so far. factor: of the learning rate.
    """

    vector: Tensor
    gradient: Tensor
    moments: Sequence[Tensor]
    factor: float


def optimiser_slots(flat: FlatNet, training: Training, moments: Params, pieces: Pieces = WHOLE) -> list[Slot]:
    """Return a net's slots, one for each piece of its vector; moments that are missing start at zero."""
    whole: list[Tensor] = []
    if training.optimiser != "sgd":
        whole = [moments.setdefault(name, torch.zeros_like(flat.vector)) for name in ("first", "second")]
        steps = moments.setdefault("steps", torch.zeros(()))
        counts = [[steps], *([steps.clone()] for _ in pieces[1:])]  # a call of the kernel counts its own
    else:
        if training.momentum:
            whole = [moments.setdefault("velocity", torch.zeros_like(flat.vector))]
        counts = [[] for _ in pieces]
    return [
        Slot(flat.vector[piece], flat.gradient[piece], [*(moment[piece] for moment in whole), *count], factor)
        for (piece, factor), count in zip(pieces, counts, strict=True)
    ]


def step_of_all(nets: Sequence[Sequence[Slot]], training: Training) -> Callable[[float], None]:
    """Return a function that updates several nets by their slots, each with the bits of a net alone."""
    return (_sgd if training.optimiser == "sgd" else _adam)(nets, training)


def _lists(nets: Sequence[Sequence[Slot]]) -> list[tuple[list[list[Tensor]], float]]:
    """Return for each piece the lists that a kernel takes: vectors, gradients, moments; and the rate's factor."""
    return [
        (
            [[slot.vector for slot in piece], [slot.gradient for slot in piece],
             *map(list, zip(*(slot.moments for slot in piece), strict=True))],
            piece[0].factor,
        )
        for piece in zip(*nets, strict=True)
    ]  # fmt: skip


def _sgd(nets: Sequence[Sequence[Slot]], training: Training) -> Callable[[float], None]:
    lists = _lists(nets)

    def update(rate: float) -> None:
        for (vectors, gradients, *velocities), factor in lists:
            torch._fused_sgd_(
                vectors, gradients, velocities[0] if velocities else [], lr=rate * factor, momentum=training.momentum,
                dampening=0.0, weight_decay=training.weight_decay, nesterov=training.nesterov, maximize=False,
                is_first_step=False,
            )  # fmt: skip

    return update


def _adam(nets: Sequence[Sequence[Slot]], training: Training) -> Callable[[float], None]:
    kernel = torch._fused_adamw_ if training.optimiser == "adamw" else torch._fused_adam_
    lists = _lists(nets)

    def update(rate: float) -> None:
        for (vectors, gradients, means, squares, counts), factor in lists:
            if len(counts) == 1:
                counts[0].add_(1)
            else:
                torch._foreach_add_(counts, 1)
            kernel(
                vectors, gradients, means, squares, [], counts, lr=rate * factor, beta1=0.9, beta2=0.999, eps=1e-8,
                weight_decay=training.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    return update
