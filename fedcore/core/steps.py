"""A round's minibatches, and the step that a device takes on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedcore.core.flat_nets import FlatNet
from fedcore.core.gradients import LogitGrad, Step, clip_norm, gradient_step, manual_step
from fedcore.core.losses import Batch, own_gradient
from fedcore.core.optimisers import WHOLE, Pieces, learning_rates, optimiser_step
from fedcore.core.training_settings import Training
from fedcore.nets.mlp import ManualGradients
from fedcore.types.federation import Data, Params


def minibatches(flat: FlatNet, count: int, training: Training, generator: torch.Generator) -> list[Tensor]:
    """Draw all of a round's minibatches before the first step: S tensors of at most `batch` indices below `count`.

    If the net has buffers, a last batch of one example is left out, as it has no batch statistics.
    """
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    epochs = training.epochs if training.steps is None else math.ceil(training.steps / max(usable, 1))
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    batches = [batch for order in orders for batch in torch.split(order, training.batch) if len(batch) >= least]
    return batches[: training.steps]


def count_steps(flat: FlatNet, count: int, training: Training) -> int:
    """Return the number of minibatches that `minibatches` draws, S."""
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    return usable * training.epochs if training.steps is None else training.steps * (usable > 0)


def least_batch(flat: FlatNet) -> int:
    """Return the fewest examples of a minibatch."""
    return 2 if any(True for _ in flat.module.buffers()) else 1


def descend(data: Data, batches: Sequence[Tensor], step: Step) -> None:
    """Take a step on each minibatch."""
    x, y = data.inputs(), data.y
    for index in batches:
        step(x.index_select(0, index), y.index_select(0, index))


def plain_step(
    flat: FlatNet,
    training: Training,
    steps: int,
    moments: Params | None = None,
    *,
    grad_hook: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    logit_grad: LogitGrad | None = None,
    batch_of: Callable[..., Batch] = Batch,
    update: Callable[[float], None] | None = None,
) -> Step:
    """Return the step that minimises the mean loss.

    moments: the optimiser's, updated by each step; an empty one is filled. grad_hook: changes `flat.gradient` before
    the optimiser uses it. pieces: parts of the vector with their own learning rates. logit_grad: of a loss that
    replaces `training.loss`. batch_of: makes the `Batch` for a loss of one's own. update: what updates the vector at a
    learning rate, if there is an optimiser already.
    """
    rates = iter(learning_rates(training, steps))
    at_logits = logit_grad or (own_gradient if training.loss == "ce" else None)
    if isinstance(flat.module, ManualGradients) and at_logits is not None and in_place(training, grad_hook, pieces):
        module = flat.module

        def fused(x: Tensor, y: Tensor) -> None:
            rate = next(rates)
            keep = 1 - rate * training.weight_decay
            manual_step(module, flat.parameters, x, y, flat.parameters, keep=keep, scale=-rate, logit_grad=at_logits)

        return fused
    gradient = gradient_step(flat, training.loss, logit_grad, batch_of, training.precision)
    update = update or optimiser_step(flat, training, moments, pieces)

    def step(x: Tensor, y: Tensor) -> None:
        gradient(x, y)
        if grad_hook is not None:
            grad_hook()
            flat.idle[:] = [name for name in flat.idle if not flat.gradients[name].any()]
        if training.clip is not None:
            clip_norm(flat.gradient, training.clip)
        update(next(rates))

    return step


def in_place(training: Training, grad_hook: Callable[[], None] | None, pieces: Pieces) -> bool:
    """Tell whether a step of a net with `ManualGradients` adds the gradient to the parameters as it is computed."""
    plain = training.optimiser == "sgd" and training.momentum == 0 and training.clip is None
    return plain and grad_hook is None and len(pieces) == 1 and training.precision == "float32"
