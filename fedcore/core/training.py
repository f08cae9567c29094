"""Training one device's model: minibatch descent on a net whose parameters are laid out as one vector.

`train` is a stage's local step. Methods that need another loss or corrected gradients compose the same pieces:
`starting_params`, `flatten_net`, `fit`, or below it `minibatches`, `gradient_step`, `optimiser_step`, `descend`. Each
piece has its module; a method imports it from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.early_stopping import descend_until_best, refuse_patience
from fedcore.core.flat_nets import FlatNet, flatten_net, to_params, to_vector
from fedcore.core.gradients import (
    LogitGrad,
    PerExample,
    Step,
    balanced_grad,
    clip_norm,
    gradient_step,
    proximal_grad_hook,
)
from fedcore.core.loss_parts import both, own_parts, parts_prefix, refuse_parts
from fedcore.core.losses import Batch, OwnLoss
from fedcore.core.optimisers import MOMENTS, WHOLE, Pieces, learning_rates, optimiser_step
from fedcore.core.prediction import IMAGE_BATCH, SCORING_BATCH, accuracy, features, predict
from fedcore.core.steps import count_steps, descend, minibatches, plain_step
from fedcore.core.training_settings import Training, at_round, refuse_kept_state, require_cross_entropy
from fedcore.data.task import cross_entropy_grad
from fedcore.types.federation import Data, Device, Params
from fedcore.types.method import Message, StepId, Update

__all__ = [
    "DESCEND", "IMAGE_BATCH", "MOMENTS", "SCORING_BATCH", "WHOLE", "Descent", "FlatNet", "LogitGrad", "PerExample",
    "Pieces", "Step", "Training", "accuracy", "at_round", "balanced_grad", "clip_norm", "cross_entropy_grad", "descend",
    "features", "fit", "flatten_net", "gradient_step", "learning_rates", "minibatches", "optimiser_step",
    "plain_step", "predict", "proximal_grad_hook", "refuse_kept_state", "refuse_parts", "refuse_patience",
    "require_cross_entropy", "starting_params", "to_params", "to_vector", "train",
]  # fmt: skip
"""What methods use of it, and of the modules of its pieces."""


def train(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    loss: OwnLoss | None = None,
) -> tuple[Params, Update]:
    """Train the device's model on its examples and send the whole model.

    It starts from the tensors in the device's memory, then from those in the message; missing tensors are initialised.

    loss: your own, in place of `training.loss`, see :class:`fedcore.core.losses.Batch`.
    """
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    chosen = training if loss is None else replace(training, loss=loss)
    moments = fit(flat, device, step_id, chosen, memory, message=message)
    params = flat.params()
    score, size = accuracy(params, device.net, device.data.val), len(device.data.train)
    update = Update(params, size=size, score=score, steps=count_steps(flat, size, training))
    return ({**memory, **moments} if moments else memory), update


def fit(
    flat: FlatNet,
    device: Device,
    step_id: StepId,
    training: Training,
    memory: Params,
    *,
    message: Message | None = None,
    prefix: str = MOMENTS,
    grad_hook: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    logit_grad: LogitGrad | None = None,
) -> Params:
    """Train a model on the device's examples; returns the optimiser's moments if they are to be kept, and loss's parts.

    memory: the device's, whose names that begin with `prefix` hold the moments. message: what the server sent, for a
    loss of one's own. grad_hook, pieces, logit_grad: see `plain_step`.
    """
    batch_of = partial(Batch, message=message or Message(), memory=memory, round=step_id.round)
    training = at_round(training, step_id.round)
    keep = training.optimiser_state == "keep"
    moments = {name.removeprefix(prefix): x.clone() for name, x in memory.items() if keep and name.startswith(prefix)}
    parts = own_parts(flat, device, step_id, training, memory, message or Message(), prefix)
    if parts is not None:
        batch_of = partial(batch_of, parts=parts.module)
    descent = Descent(
        flat,
        training,
        device.data.train,
        minibatches(flat, len(device.data.train), training, step_id.generator("batches")),
        moments,
        step_id.generator("noise"),
        grad_hook=grad_hook,
        pieces=pieces,
        logit_grad=logit_grad or balanced_grad(training, device.data.train),
        batch_of=batch_of,
        parts=parts,
        held_out=device.data.val,
    )
    DESCEND.get()(descent)
    state = {f"{prefix}{name}": tensor for name, tensor in moments.items()} if keep else {}
    return state if parts is None else state | {parts_prefix(prefix) + name: x for name, x in parts.params().items()}


@dataclass(frozen=True)
class Descent:
    """One device's descent over the minibatches of a round, not yet begun.

    moments: the optimiser's, updated in place. noise: for nets that draw random numbers. grad_hook, pieces, logit_grad,
    batch_of: see `plain_step`. parts: those of a loss of one's own. held_out: the device's validation examples.
    """

    flat: FlatNet
    training: Training
    data: Data
    batches: Sequence[Tensor]
    moments: Params
    noise: torch.Generator
    grad_hook: Callable[[], None] | None = None
    pieces: Pieces = WHOLE
    logit_grad: LogitGrad | None = None
    batch_of: Callable[..., Batch] = Batch
    parts: FlatNet | None = None
    held_out: Data = field(default_factory=lambda: Data(torch.empty(0), torch.empty(0, dtype=torch.int64)))

    def run(self) -> None:
        """Take all steps, in place."""
        with nets.use_generator(self.noise):
            step = plain_step(
                self.flat,
                self.training,
                len(self.batches),
                self.moments,
                grad_hook=self.grad_hook,
                pieces=self.pieces,
                logit_grad=self.logit_grad,
                batch_of=self.batch_of,
            )
            if self.parts is not None:
                step = both(step, self.parts, self.training, len(self.batches), self.moments)
            if self.stops_early:
                state = [self.flat.vector, *self.flat.module.buffers(), *self.moments.values()]
                if self.parts is not None:
                    state += [self.parts.vector, *self.parts.module.buffers()]
                epoch = partial(descend, self.data, step=step)
                descend_until_best(self.flat, self.training, self.batches, epoch, self.held_out, state)
            else:
                descend(self.data, self.batches, step)

    @property
    def stops_early(self) -> bool:
        """Whether it ends when the loss on held-out examples does not fall any more."""
        return self.training.patience is not None and len(self.batches) > 0 and len(self.held_out) > 0


DESCEND: ContextVar[Callable[[Descent], None]] = ContextVar("descend", default=Descent.run)
"""Runs what `fit` is to do: at once, or with other devices' (:mod:`fedcore.core.together`)."""


def starting_params(memory: Params, message: Message, device: Device, step_id: StepId) -> Params:
    """Return the tensors to train from. A device's initial ones depend on the seed and its name alone."""
    params = {**message.params, **memory}
    names = nets.shapes(device.net)
    if any(name not in params for name in names):
        params = {**nets.init(device.net, replace(step_id, stage=0, round=0).generator("init")), **params}
    return {name: params[name] for name in names}
