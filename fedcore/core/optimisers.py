"""Optimisers of a net that is laid out as one vector, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from fedcore.core.flat_nets import FlatNet
from fedcore.core.training_settings import Training
from fedcore.types import Params

Pieces: TypeAlias = Sequence[tuple[slice, float]]
"""Consecutive parts of the vector, and the factor of the learning rate in each."""

WHOLE: Pieces = ((slice(None), 1.0),)

MOMENTS = "moments/"
"""Prefix of the tensors in a device's memory that hold its optimiser's moments."""

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

    moments: the optimiser's, read and updated in place; None: new ones.
    """
    return OPTIMISERS[training.optimiser](flat, training, {} if moments is None else moments, pieces)


def _sgd(flat: FlatNet, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    velocity = moments.setdefault("velocity", torch.zeros_like(flat.vector)) if training.momentum else None
    parts = [
        ([flat.vector[piece]], [flat.gradient[piece]], [] if velocity is None else [velocity[piece]], factor)
        for piece, factor in pieces
    ]

    def update(rate: float) -> None:
        for vector, gradient, buffer, factor in parts:
            torch._fused_sgd_(
                vector, gradient, buffer, lr=rate * factor, momentum=training.momentum, dampening=0.0,
                weight_decay=training.weight_decay, nesterov=training.nesterov, maximize=False, is_first_step=False,
            )  # fmt: skip

    return update


def _adam(flat: FlatNet, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    kernel = torch._fused_adamw_ if training.optimiser == "adamw" else torch._fused_adam_
    first, second = (moments.setdefault(name, torch.zeros_like(flat.vector)) for name in ("first", "second"))
    steps = moments.setdefault("steps", torch.zeros(()))
    counts = [steps] + [steps.clone() for _ in pieces[1:]]  # a call counts its own
    parts = [
        ([flat.vector[piece]], [flat.gradient[piece]], [first[piece]], [second[piece]], [count], factor)
        for (piece, factor), count in zip(pieces, counts, strict=True)
    ]

    def update(rate: float) -> None:
        for vector, gradient, mean, square, count, factor in parts:
            count[0].add_(1)
            kernel(
                vector, gradient, mean, square, [], count, lr=rate * factor, beta1=0.9, beta2=0.999, eps=1e-8,
                weight_decay=training.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    return update


OPTIMISERS = {"sgd": _sgd, "adam": _adam, "adamw": _adam}
"""PyTorch's fused kernels themselves. Importing its optimiser classes takes a second in each process, and its functions
around the kernels 14 microseconds of the 100 of a small net's step."""
