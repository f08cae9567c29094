r"""Methods in which each device trains a model of its own beside a common one: Per-FedAvg, pFedMe and APFL.

Of all three: models are averaged by examples. A device takes the steps of its own loop over a round's minibatches.

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
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch
from fedcore.core.messages import initial_messages, local_model
from fedcore.core.training import (
    Training,
    at_round,
    balanced_grad,
    clip_norm,
    descend,
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
    train,
)
from fedcore.errors import InputError
from fedcore.nets import require_equal, use_generator
from fedcore.types.federation import Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Model, Stage, StepId, Update
from fedcore.types.ranges import Amount, Count, Depth, Positive, Share

__all__ = ["apfl", "perfedavg", "pfedme"]

OWN, ALPHA = "own/", "alpha"
"""Names in a device's memory of APFL: the tensors of its own model, v; and the share of it in the mixture."""


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
        gradient = gradient_step(flat, training.loss, weighted, batch_of)
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
        gradient = gradient_step(mixed, training.loss, weighted, batch_of)
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
    return Model(
        (
            {
                name: share * memory[f"{OWN}{name}"] + (1 - share) * tensor if tensor.is_floating_point() else tensor
                for name, tensor in message.params.items()
            },
        )
    )
