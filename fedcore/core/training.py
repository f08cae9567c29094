"""Training one device's model: minibatch descent on a net whose parameters are laid out as one vector.

`train` is a stage's local step. Methods that need another loss or corrected gradients compose the same pieces:
`starting_params`, `flatten_net`, `fit`, or below it `minibatches`, `gradient_step`, `optimiser_step`, `descend`. A
method imports all of them from here. A round that stops early and a loss with trainable parts of its own are below.
"""

import math
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedcore import nets
from fedcore.core.flat_nets import FlatNet, flatten_net, to_params, to_vector
from fedcore.core.gradients import (
    LogitGrad,
    PerExample,
    Step,
    balanced_grad,
    clip_norm,
    gradient_step,
    manual_step,
    proximal_grad_hook,
)
from fedcore.core.losses import PARTS, Batch, OwnLoss, own_gradient, own_loss, parts_of
from fedcore.core.optimisers import MOMENTS, WHOLE, Pieces, learning_rates, optimiser_step
from fedcore.core.prediction import IMAGE_BATCH, SCORING_BATCH, accuracy, features, predict
from fedcore.core.training_settings import Training, at_round, refuse, require_cross_entropy
from fedcore.data.task import cross_entropy_grad
from fedcore.nets.mlp import MLP
from fedcore.types.federation import NO_DATA, Data, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, StepId, Update

__all__ = [
    "IMAGE_BATCH", "MOMENTS", "SCORING_BATCH", "SENT", "WHOLE", "FlatNet", "LogitGrad", "PerExample", "Pieces", "Step",
    "Training", "accuracy", "at_round", "balanced_grad", "clip_norm", "count_steps", "cross_entropy_grad",
    "descend", "features", "fit", "flatten_net", "gradient_step", "learning_rates", "minibatches", "optimiser_step",
    "plain_step", "predict", "proximal_grad_hook", "refuse", "require_cross_entropy", "starting_params",
    "to_params", "to_vector", "train", "train_shared",
]  # fmt: skip
"""What methods use of it, and of the modules of its pieces."""

SENT = "sent/"
"""Prefix of the tensors in a device's memory that hold what it last sent, which are the server's to replace."""


def train(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training,
    loss: OwnLoss | None = None,
) -> tuple[Params, Update]:  # fmt: skip
    """Train the device's model on its examples and send the whole model.

    It starts from the tensors in the device's memory, then from those in the message; missing tensors are initialised.

    Args:
        memory: the tensors that the device keeps.
        message: what the server sent.
        device: its net and examples.
        step_id: the seed, stage and round, from which minibatches are drawn: alike in each call of a step. For others
            a second call takes `replace(step_id, stage=step_id.stage + 100)`.
        training: how the device trains.
        loss: your own, in place of `training.loss`, see :class:`fedcore.core.losses.Batch`.
    """
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    chosen = training if loss is None else replace(training, loss=loss)
    moments = fit(flat, device, step_id, chosen, memory, message=message)
    params = flat.params()
    score, size = accuracy(params, device.net, device.data.val), len(device.data.train)
    update = Update(params, size=size, score=score, steps=count_steps(flat, size, training))
    return ({**memory, **moments} if moments else memory), update


def train_shared(
    memory: Params, message: Message, device: Device, step_id: StepId, *, shared: Collection[str], training: Training,
    personal_lr: float | None = None,
) -> tuple[Params, Update]:  # fmt: skip
    r"""Train shared theta and personal phi together, the device's whole model, and send theta.

    theta <- theta - eta_g grad L,  phi <- phi - eta_h grad L   (FedASA, Deng et al. 2024, eqs. 4 and 13)

    shared: the tensors of theta. eta_g is training's rate, eta_h personal_lr (None: the same; else theta is the net's
    first tensors). The device keeps phi, and theta as it sent it; what the server sends replaces that of theta alone.
    """
    own = {name: x for name, x in memory.items() if name not in shared}
    latest = Message({**strip_prefix(SENT, memory), **memory, **message.params})
    flat = flatten_net(device.net, starting_params(own, latest, device, step_id))
    pieces = cut_pieces(flat, shared, training.lr, personal_lr)
    moments = fit(flat, device, step_id, training, memory, message=message, pieces=pieces)
    params = flat.params()
    sent = {name: params.pop(name) for name in [*params] if name in shared}
    return params | add_prefix(SENT, sent) | moments, Update(sent, size=len(device.data.train))


def cut_pieces(flat: FlatNet, shared: Collection[str], lr: float, personal_lr: float | None) -> Pieces:
    """Cut the vector at the first personal parameter."""
    personal = [tensor.storage_offset() for name, tensor in flat.parameters.items() if name not in shared]
    if personal_lr is None or personal_lr == lr or not personal:
        return WHOLE
    return ((slice(None, personal[0]), 1.0), (slice(personal[0], None), personal_lr / lr))


def fit(
    flat: FlatNet, device: Device, step_id: StepId, training: Training, memory: Params, *,
    message: Message | None = None, prefix: str = MOMENTS, grad_hook: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE, logit_grad: LogitGrad | None = None,
) -> Params:  # fmt: skip
    """Train a model on the device's examples; returns the optimiser's moments if they are to be kept, and loss's parts.

    memory: the device's, whose names that begin with `prefix` hold the moments. message: what the server sent, for a
    loss of one's own. grad_hook, pieces, logit_grad: see `plain_step`.
    """
    batch_of = partial(Batch, message=message or Message(), memory=memory, round=step_id.round)
    training = at_round(training, step_id.round)
    keep = training.optimiser_state == "keep"
    moments = {name: x.clone() for name, x in strip_prefix(prefix, memory).items()} if keep else {}
    parts = own_parts(flat, device, step_id, training, memory, message or Message(), prefix)
    if parts is not None:
        batch_of = partial(batch_of, parts=parts.module)
    descent = Descent(
        flat, training, device.data.train,
        minibatches(flat, len(device.data.train), training, step_id.generator("batches")), moments,
        step_id.generator("noise"), grad_hook=grad_hook, pieces=pieces,
        logit_grad=logit_grad or balanced_grad(training, device.data.train), batch_of=batch_of, parts=parts,
        held_out=device.data.val,
    )  # fmt: skip
    DESCEND.get()(descent)
    state = add_prefix(prefix, moments) if keep else {}
    return state if parts is None else state | add_prefix(parts_prefix(prefix), parts.params())


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
    held_out: Data = NO_DATA

    def run(self) -> None:
        """Take all steps, in place."""
        with nets.use_generator(self.noise):
            step = plain_step(
                self.flat, self.training, len(self.batches), self.moments, grad_hook=self.grad_hook, pieces=self.pieces,
                logit_grad=self.logit_grad, batch_of=self.batch_of,
            )  # fmt: skip
            if self.parts is not None:
                step = both(step, self.parts, self.training, len(self.batches), self.moments)
            if self.stops_early:
                epoch = partial(descend, self.data, step=step)
                descend_until_best(self.flat, self.training, self.batches, epoch, self.held_out, self.state)
            else:
                descend(self.data, self.batches, step)

    def state(self) -> list[Tensor]:
        """Return all tensors that a step changes, which may be other ones after it: a forward may replace a buffer."""
        models = [self.flat] if self.parts is None else [self.flat, self.parts]
        return [*self.moments.values(), *(x for flat in models for x in (flat.vector, *flat.module.buffers()))]

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


def minibatches(flat: FlatNet, count: int, training: Training, generator: torch.Generator) -> list[Tensor]:
    """Draw all of a round's minibatches before the first step: S tensors of at most `batch` indices below `count`.

    If the net has a batch norm, a last batch of one example is left out, as it has no batch statistics.
    """
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    epochs = training.epochs if training.steps is None else math.ceil(training.steps / max(usable, 1))
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    batches = [batch for order in orders for batch in torch.split(order, training.batch) if len(batch) >= least]
    return batches[: training.steps]


def count_steps(flat: FlatNet, count: int, training: Training) -> int:
    """Return the number of minibatches that `minibatches` draws, S, or of those after which the model was kept."""
    if flat.kept:
        return flat.kept[0]
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    return usable * training.epochs if training.steps is None else training.steps * (usable > 0)


def least_batch(flat: FlatNet) -> int:
    """Return the fewest examples of a minibatch."""
    return 2 if any(isinstance(layer, _BatchNorm) for layer in flat.module.modules()) else 1


def descend(data: Data, batches: Sequence[Tensor], step: Step) -> None:
    """Take a step on each minibatch."""
    x, y = data.inputs(), data.y
    for index in batches:
        step(x.index_select(0, index), y.index_select(0, index))


def plain_step(
    flat: FlatNet, training: Training, steps: int, moments: Params | None = None, *,
    grad_hook: Callable[[], None] | None = None, pieces: Pieces = WHOLE, logit_grad: LogitGrad | None = None,
    batch_of: Callable[..., Batch] = Batch, update: Callable[[float], None] | None = None,
) -> Step:  # fmt: skip
    """Return the step that minimises the mean loss.

    moments: the optimiser's, updated by each step; an empty one is filled. grad_hook: changes `flat.gradient` before
    the optimiser uses it. pieces: parts of the vector with their own learning rates. logit_grad: of a loss that
    replaces `training.loss`. batch_of: makes the `Batch` for a loss of one's own. update: what updates the vector at a
    learning rate, if there is an optimiser already.
    """
    rates = iter(learning_rates(training, steps))
    at_logits = logit_grad or (own_gradient if training.loss == "ce" else None)
    module: Any = flat.module
    if type(module) is MLP and at_logits is not None and in_place(training, grad_hook, pieces):

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
    """Tell whether a step of an `MLP` adds the gradient to the parameters as it is computed."""
    plain = training.optimiser == "sgd" and training.momentum == 0 and training.clip is None
    return plain and grad_hook is None and len(pieces) == 1 and training.precision == "float32"


def descend_until_best(
    flat: FlatNet, training: Training, batches: Sequence[Tensor], descend: Callable[[Sequence[Tensor]], None],
    held_out: Data, state: Callable[[], Sequence[Tensor]],
) -> None:  # fmt: skip
    """Take a step on each minibatch; keep the model after the epoch with the least loss on held-out examples.

    After `training.patience` epochs without a lower loss no further one follows. descend: takes a step on each of some
    minibatches. state: returns all tensors that a step changes: the model, the optimiser's moments, a loss's parts.
    """
    epoch = len(batches) // training.epochs
    best, best_state, waited = math.inf, [tensor.clone() for tensor in state()], 0
    for first in range(0, len(batches), epoch):
        descend(batches[first : first + epoch])
        loss = own_loss(predict(flat.params(), flat.net, held_out.x), held_out.y).item()
        if not loss < best:
            waited += 1
        else:
            best, best_state, waited = loss, [tensor.clone() for tensor in state()], 0
            flat.kept[:] = [first + epoch]
        if waited == training.patience:
            break
    if best < math.inf:
        for tensor, value in zip(state(), best_state, strict=True):
            tensor.copy_(value)


def own_parts(
    flat: FlatNet, device: Device, step_id: StepId, training: Training, memory: Params, message: Message, prefix: str
) -> FlatNet | None:
    """Return the trainable parts of a loss of one's own, see :func:`fedcore.core.losses.with_parts`; None without."""
    if (make := parts_of(training.loss)) is None:
        return None
    net = Net(partial(make, flat.net))
    fresh = nets.init(net, replace(step_id, stage=0, round=0).generator("parts"))
    there = strip_prefix(parts_prefix(prefix), {**memory, **message.extra})
    return flatten_net(net, {name: there.get(name, tensor) for name, tensor in fresh.items()})


def parts_prefix(prefix: str) -> str:
    """Return the prefix of a loss's parts in memory, where that of the moments is `prefix`."""
    return PARTS + prefix.removeprefix(MOMENTS)


def both(step: Step, parts: FlatNet, training: Training, steps: int, moments: Params) -> Step:
    """Return a step that trains a loss's parts as well, at the same rates; a gradient's norm is clipped apart."""
    own = strip_prefix(PARTS, moments)
    update, rates = optimiser_step(parts, training, own), iter(learning_rates(training, steps))
    moments |= add_prefix(PARTS, own)

    def step_both(x: Tensor, y: Tensor) -> None:
        note_idle = parts.zero_gradient()
        step(x, y)
        note_idle()
        if training.clip is not None:
            clip_norm(parts.gradient, training.clip)
        update(next(rates))

    return step_both
