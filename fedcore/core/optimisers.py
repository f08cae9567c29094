"""Optimisers of nets that are laid out as vectors, and the learning rate of each step.

They are PyTorch's fused kernels themselves. Importing its optimiser classes takes a second in each process, and its
functions around the kernels 14 microseconds of the 100 of a small net's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
                slot = factor, [*slot[1][:4], count]
            slots += [slot] * (name not in flat.idle)
    return slots


Slot: TypeAlias = tuple[float, list[Tensor]]
"""The factor of the learning rate in one piece, and what an optimiser reads and writes there: parameters, gradient and
moments, of sgd the velocity, if it has one, of adam the first and the second and the steps so far."""


def optimiser_slots(flat: FlatNet, training: Training, moments: Params, pieces: Pieces = WHOLE) -> list[Slot]:
    """Return a net's slots, one for each piece of its vector; moments that are missing start at zero."""
    names = ["first", "second"] if training.optimiser != "sgd" else ["velocity"] if training.momentum else []
    whole = [flat.vector, flat.gradient, *(moments.setdefault(name, torch.zeros_like(flat.vector)) for name in names)]
    counts: list[list[Tensor]] = [[] for _ in pieces]
    if training.optimiser != "sgd":
        steps = moments.setdefault("steps", torch.zeros(()))
        counts = [[steps], *([steps.clone()] for _ in pieces[1:])]  # a call of the kernel counts its own
    return [
        (factor, [*(tensor[piece] for tensor in whole), *count])
        for (piece, factor), count in zip(pieces, counts, strict=True)
    ]


def step_of_all(nets: Sequence[Sequence[Slot]], training: Training) -> Callable[[float], None]:
    """Return a function that updates several nets by their slots, each with the bits of a net alone."""
    lists = [(piece[0][0], [*map(list, zip(*(tensors for _, tensors in piece), strict=True))])
             for piece in zip(*nets, strict=True)]  # fmt: skip
    kernel = torch._fused_adamw_ if training.optimiser == "adamw" else torch._fused_adam_

    def descend(rate: float) -> None:
        for factor, (vectors, gradients, *velocities) in lists:
            torch._fused_sgd_(
                vectors, gradients, velocities[0] if velocities else [], lr=rate * factor, momentum=training.momentum,
                dampening=0.0, weight_decay=training.weight_decay, nesterov=training.nesterov, maximize=False,
                is_first_step=False,
            )  # fmt: skip

    def adapt(rate: float) -> None:
        for factor, (vectors, gradients, means, squares, counts) in lists:
            if len(counts) == 1:
                counts[0].add_(1)
            else:
                torch._foreach_add_(counts, 1)
            kernel(
                vectors, gradients, means, squares, [], counts, lr=rate * factor, beta1=0.9, beta2=0.999, eps=1e-8,
                weight_decay=training.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    return descend if training.optimiser == "sgd" else adapt
