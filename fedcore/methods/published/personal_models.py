r"""Methods in which each device trains a model of its own beside a common one: Per-FedAvg, pFedMe, APFL and FedALA.

Models are averaged by examples. In all but FedALA a device takes the steps of its own loop over a round's minibatches.

Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, Algorithm 1): a start from which a step on own data is best.

    w~ = w - alpha grad f(w; D)          on one minibatch
    w <- w - beta grad f(w~; D')         on another one

This is the first-order version, Per-FedAvg (FO): the paper's factor (I - alpha Hessian) is left out. When the rounds
are over, every device trains the model on its own examples with rate alpha, and keeps it. Departures: a step takes two
of a round's minibatches, so that an epoch makes half the steps of other methods; where a device has one minibatch it is
both. beta is the rate of `training`, whose optimiser takes the second step. Evaluations between the rounds are of the
common model.

pFedMe (Dinh, Tran and Nguyen 2020, Algorithm 1): personal models near a global one, by Moreau envelopes. On each
minibatch a device takes K steps towards theta = argmin f(theta) + lambda/2 ||theta - w||^2, and then one of its copy of
the global model, w <- w - eta lambda (w - theta). It sends w and runs theta. Departures: theta begins a round at w and
each minibatch where the last one ended; the paper leaves the solver open. The mean of models is the global model (the
paper's beta is 1). Buffers are those of theta.

APFL (Deng, Kamani and Mahdavi 2020, Algorithm 1): each device runs a mixture of its own model and the global one. On
each minibatch, w the device's copy of the global model and v its own, from the values before the step:

    w <- w - eta grad f(w)
    v <- v - eta alpha grad f(vbar),    vbar = alpha v + (1 - alpha) w
    alpha <- alpha - eta_alpha <v - w, grad f(vbar)>    on the first minibatch of a round, within [0, 1]    (10)

It sends w and runs vbar, of the global model that it was last sent. Departures: v begins as the first model that the
device is sent. Buffers are mixed as parameters are. The optimiser is that of `training`, one for w and one for v; the
paper has SGD.

FedALA (Zhang et al. 2023, Algorithm 1): each device learns how much of the global model to take, number by number.

    theta_hat = theta_k + (theta - theta_k) o W,    W = 1 below the last p layers                              (4)
    W <- clip(W - eta_W grad_theta_hat f(theta_hat) o (theta - theta_k), 0, 1)                                 (5)

theta_k is the device's last model and theta the one that it is sent. W, 1 at first, is learnt by minibatches of a share
of the device's examples, drawn in each round. Then the device trains from theta_hat, and sends and keeps the result,
which it runs. In its first round a device has no model of its own and starts from the one that it was sent.

Departures. In a device's second round W learns for `first_epochs` epochs, in the paper until its loss settles; in later
rounds for one, as there. Buffers are the global model's, and a norm's statistics see the minibatches of W, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch
from fedcore.core.messages import initial_messages, local_model
from fedcore.core.training import (
    FlatNet,
    Training,
    at_round,
    balanced_grad,
    clip_norm,
    descend,
    fit,
    flatten_net,
    gradient_step,
    learning_rates,
    minibatches,
    optimiser_step,
    plain_step,
    proximal_grad_hook,
    refuse,
    starting_params,
    to_params,
    to_vector,
    train,
)
from fedcore.errors import InputError
from fedcore.nets import require_equal, use_generator
from fedcore.nets.parts import layers
from fedcore.types.federation import Data, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Model, Stage, StepId, Update
from fedcore.types.ranges import Amount, Count, Depth, Fraction, Positive, Share

__all__ = ["apfl", "fedala", "perfedavg", "pfedme"]

OWN, ALPHA = "own/", "alpha"
"""Names in a device's memory of APFL: the tensors of its own model, v; and the share of it in the mixture."""

LAST, WEIGHTS = "last/", "weights"
"""Names in a device's memory of FedALA: the tensors of its last model; W, in the layout of the parameters' vector."""


@training_defaults(shared_init=True)
def perfedavg(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    inner_lr: Positive = 0.01,
    tune_epochs: Depth = 1,
) -> Method:
    """Per-FedAvg, first order (Fallah et al. 2020): a start from which each device tunes its model.

    Args:
        inner_lr: alpha, learning rate of the step that is looked ahead, and of the tuning by plain SGD, above 0.
        tune_epochs: passes over a device's examples that tune its model after the last round, from 0 (the paper: one
            step); where `training.steps` counts minibatches, as many.

    Raises:
        InputError: for an optimiser whose state is kept.
    """
    require_equal(nets)
    refuse("perfedavg", training, "patience", "parts", "optimiser_state")
    local = partial(train_ahead, training=training, inner_lr=inner_lr)
    stages = [averaging.stage(local)]
    if tune_epochs:
        tuning = replace(
            training, optimiser="sgd", momentum=0.0, nesterov=False, lr=inner_lr, epochs=tune_epochs, round_decay=1.0
        )
        stages.append(Stage(partial(train, training=tuning), None))
    return Method(partial(initial_messages, shared_init=training.shared_init), tuple(stages), local_model)


def train_ahead(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, inner_lr: float
) -> tuple[Params, Update]:
    """Take steps along the gradients that the model would have after a step of its own; send the model."""
    training = at_round(training, step_id.round)
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    before = flat.vector.clone()
    x, y = device.data.train.inputs(), device.data.train.y
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)

    def go_back() -> None:
        flat.vector.copy_(before)

    with use_generator(step_id.generator("noise")):
        batches = minibatches(flat, len(y), training, step_id.generator("batches"))
        pairs = [*zip(batches[::2], batches[1::2] or batches, strict=False)]
        weighted = balanced_grad(training, device.data.train)
        gradient = gradient_step(flat, training.loss, weighted, batch_of, training.precision)
        step = plain_step(flat, training, len(pairs), grad_hook=go_back, logit_grad=weighted, batch_of=batch_of)
        for first, second in pairs:
            before.copy_(flat.vector)
            gradient(x[first], y[first])
            flat.vector.sub_(flat.gradient, alpha=inner_lr)
            step(x[second], y[second])
    return {}, Update(flat.params(), size=len(y))


@training_defaults(shared_init=True)
def pfedme(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    strength: Amount = 1.0,
    inner_steps: Count = 5,
    outer_lr: Positive = 0.1,
) -> Method:
    """pFedMe (Dinh et al. 2020): a personal model near each device's copy, by K times the steps of other methods.

    Args:
        strength: lambda, which holds theta near w, from 0 (the paper: 15, with small rates); 0 leaves w as it is, and
            theta is trained from it alone. Times the learning rate of sgd it must be below 2, else theta diverges.
        inner_steps: K, steps of theta on a minibatch, from 1 (the paper: 5).
        outer_lr: eta, learning rate of w, above 0; eta lambda is the share of the way to theta that w goes.

    Raises:
        InputError: for an optimiser whose state is kept, and for a w that would leap beyond theta.
    """
    require_equal(nets)
    refuse("pfedme", training, "patience", "parts", "optimiser_state")
    if outer_lr * strength > 1:
        raise InputError(f"pfedme.outer_lr = {outer_lr}: times pfedme.strength = {strength} must be at most 1")
    local = partial(
        train_envelope, training=training, strength=strength, inner_steps=inner_steps, share=outer_lr * strength
    )
    stage = averaging.stage(local)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), local_model)


def train_envelope(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, strength: float,
    inner_steps: int, share: float,
) -> tuple[Params, Update]:  # fmt: skip
    """Train theta, which the device keeps, and w, which it sends.

    share: eta lambda.
    """
    training = at_round(training, step_id.round)
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    w = flat.vector.clone()
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)
    with use_generator(step_id.generator("noise")):
        batches = minibatches(flat, len(device.data.train), training, step_id.generator("batches"))
        step = plain_step(
            flat, training, inner_steps * len(batches), grad_hook=proximal_grad_hook(flat, w, strength),
            logit_grad=balanced_grad(training, device.data.train), batch_of=batch_of,
        )  # fmt: skip

        def move(x: Tensor, y: Tensor) -> None:
            for _ in range(inner_steps):
                step(x, y)
            w.add_(flat.vector - w, alpha=share)

        descend(device.data.train, batches, move)
    theta = flat.params()
    return theta, Update(theta | to_params(flat, w), size=len(device.data.train))


@training_defaults(shared_init=True)
def apfl(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, alpha: Share = 0.5, alpha_lr: Amount = 0.0
) -> Method:
    """APFL (Deng et al. 2020): each device mixes its own model with the global one, at twice FedAvg's work.

    Args:
        alpha: share of the device's own model in the mixture, from 0 to 1, at first; 0 is FedAvg.
        alpha_lr: eta_alpha, learning rate of that share, from 0; 0: it stays.

    Raises:
        InputError: for an optimiser whose state is kept.
    """
    require_equal(nets)
    refuse("apfl", training, "patience", "optimiser_state")
    local = partial(train_mixture, training=training, alpha=alpha, alpha_lr=alpha_lr)
    stage = averaging.stage(local)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), mixture)


def train_mixture(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, alpha: float,
    alpha_lr: float,
) -> tuple[Params, Update]:  # fmt: skip
    """Train w, which the device sends, and v with its share, which it keeps."""
    training = at_round(training, step_id.round)
    sent = starting_params({}, message, device, step_id)
    before = strip_prefix(OWN, memory) or sent
    w, v, mixed = (flatten_net(device.net, params) for params in (sent, before, before))
    share = memory.get(ALPHA, torch.tensor(alpha, dtype=torch.float64)).item()
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)
    weighted = balanced_grad(training, device.data.train)
    with use_generator(step_id.generator("noise")):
        batches = minibatches(w, len(device.data.train), training, step_id.generator("batches"))
        step = plain_step(w, training, len(batches), logit_grad=weighted, batch_of=batch_of)
        gradient = gradient_step(mixed, training.loss, weighted, batch_of, training.precision)
        update, rates = optimiser_step(v, training), iter(learning_rates(training, len(batches)))

        first = True

        def move(x: Tensor, y: Tensor) -> None:
            nonlocal share, first
            torch.add(share * v.vector, w.vector, alpha=1 - share, out=mixed.vector)
            gradient(x, y)
            torch.mul(mixed.gradient, share, out=v.gradient)
            v.idle[:] = mixed.idle
            if first and alpha_lr:
                share_grad = (v.vector - w.vector).dot(mixed.gradient).item()
                share = min(max(share - alpha_lr * share_grad, 0.0), 1.0)
            first = False
            step(x, y)
            if training.clip is not None:
                clip_norm(v.gradient, training.clip)
            update(next(rates))

        descend(device.data.train, batches, move)
    own = add_prefix(OWN, mixed.params() | to_params(v, v.vector))  # buffers are those of vbar
    return own | {ALPHA: torch.tensor(share, dtype=torch.float64)}, Update(w.params(), size=len(device.data.train))


def mixture(memory: Params, message: Message) -> Model:
    """Run vbar; before a device's first round, the global model."""
    share = memory[ALPHA].item() if memory else 0.0
    if share == 0:
        return Model((message.params,))
    mixed = {
        name: share * memory[f"{OWN}{name}"] + (1 - share) * tensor if tensor.is_floating_point() else tensor
        for name, tensor in message.params.items()
    }
    return Model((mixed,))


@training_defaults(shared_init=True)
def fedala(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    top: Count = 1,
    share: Fraction = 0.8,
    weights_lr: Amount = 1.0,
    first_epochs: Count = 10,
) -> Method:
    """FedALA (Zhang et al. 2023): each device learns how much of the global model to take; FedAvg's traffic.

    Args:
        top: p, the last layers whose numbers are weighed, from 1; the others are the global model's.
        share: of a device's examples, those that W learns from, above 0, at most 1 (the paper: .8).
        weights_lr: eta_W, learning rate of W, from 0 (the paper: 1); 0 is FedAvg's training.
        first_epochs: epochs of W in a device's second round, from 1; later ones have one.
    """
    require_equal(nets)
    local = partial(
        train_adapted, training=training, top=top, share=share, weights_lr=weights_lr, first_epochs=first_epochs
    )
    stage = averaging.stage(local)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), personal)


def train_adapted(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, top: int, share: float,
    weights_lr: float, first_epochs: int,
) -> tuple[Params, Update]:  # fmt: skip
    """Mix the last model and the one that was sent, train from there, send and keep the result."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    last = strip_prefix(LAST, memory)
    weights = memory.get(WEIGHTS)
    if last and len(device.data.train):
        epochs = first_epochs if weights is None else 1
        names = [name for layer in [*layers(device.net).values()][-top:] for name in layer]
        weights = learn_weights(
            flat, last, weights, names, device, step_id, training,
            share=share, rate=weights_lr, epochs=epochs, batch_of=partial(Batch, message=message, memory=memory),
        )  # fmt: skip
    moments = fit(flat, device, step_id, training, memory, message=message)
    params = flat.params()
    remembered = {} if weights is None else {WEIGHTS: weights}
    return add_prefix(LAST, params) | remembered | moments, Update(params, size=len(device.data.train))


def learn_weights(
    flat: FlatNet, last: Params, weights: Tensor | None, names: list[str], device: Device, step_id: StepId,
    training: Training, *, share: float, rate: float, epochs: int, batch_of: Callable[..., Batch],
) -> Tensor:  # fmt: skip
    """Return W, (P,), and leave theta_hat in `flat`, which held theta.

    last: theta_k. weights: W so far; None: ones. names: the tensors of the last p layers.
    """
    sent, own = flat.vector.clone(), to_vector(flat, last)
    learnt = torch.ones_like(sent) if weights is None else weights.clone()
    away = (sent - own) * to_vector(flat, {name: torch.ones_like(last[name]) for name in names})
    draws, data = step_id.generator("weights"), device.data.train
    chosen = torch.randperm(len(data), generator=draws)[: max(1, round(share * len(data)))]
    weighted, batch_of = balanced_grad(training, data), partial(batch_of, round=step_id.round)
    gradient = gradient_step(flat, training.loss, weighted, batch_of, training.precision)
    torch.lerp(own, sent, learnt, out=flat.vector)

    def move(x: Tensor, y: Tensor) -> None:
        gradient(x, y)
        learnt.sub_(flat.gradient * away, alpha=rate).clamp_(0, 1)
        torch.lerp(own, sent, learnt, out=flat.vector)

    with use_generator(step_id.generator("noise of weights")):
        batches = minibatches(flat, len(chosen), replace(training, epochs=epochs, steps=None), draws)
        descend(Data(data.x[chosen], data.y[chosen]), batches, move)
    return learnt


def personal(memory: Params, message: Message) -> Model:
    """Run the device's last model; before its first round, the one that it was sent."""
    return Model((strip_prefix(LAST, memory) or message.params,))
