"""Early stopping: a round ends once the loss on a device's own validation examples does not fall any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from fedcore.core.flat_nets import FlatNet
from fedcore.core.losses import own_loss
from fedcore.core.prediction import SCORING_BATCH, predict
from fedcore.core.training_settings import Training
from fedcore.errors import InputError
from fedcore.types.federation import Data


def descend_until_best(
    flat: FlatNet,
    training: Training,
    batches: Sequence[Tensor],
    descend: Callable[[Sequence[Tensor]], None],
    held_out: Data,
    state: Sequence[Tensor],
) -> None:
    """Take a step on each minibatch; keep the model after the epoch with the least loss on held-out examples.

    After `training.patience` epochs without a lower loss no further one follows. descend: takes a step on each of some
    minibatches. state: all tensors that a step changes: the model, the optimiser's moments, the parts of a loss.
    """
    epoch = len(batches) // training.epochs
    best, best_state, waited = math.inf, [tensor.clone() for tensor in state], 0
    for first in range(0, len(batches), epoch):
        descend(batches[first : first + epoch])
        loss = validation_loss(flat, held_out)
        if not loss < best:
            waited += 1
        else:
            best, best_state, waited = loss, [tensor.clone() for tensor in state], 0
        if waited == training.patience:
            break
    if best < math.inf:
        for tensor, value in zip(state, best_state, strict=True):
            tensor.copy_(value)


def validation_loss(flat: FlatNet, data: Data) -> float:
    """Return the mean loss of a model, of classes in nats; its own batch statistics stay as they are."""
    return own_loss(predict(flat.params(), flat.net, data.x, SCORING_BATCH), data.y).item()


def refuse_patience(name: str, training: Training) -> None:
    """Refuse early stopping where a method counts on all steps of a round."""
    if training.patience is not None:
        raise InputError(
            f"training.patience = {training.patience}: {name} needs all steps of a round; leave it out, or set "
            f"{name}.training.patience=null"
        )
