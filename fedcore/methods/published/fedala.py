r"""FedALA (Zhang et al. 2023, Algorithm 1): each device learns how much of the global model to take, number by number.

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
from fedcore.core.messages import initial_messages
from fedcore.core.training import (
    FlatNet,
    Training,
    balanced_grad,
    descend,
    fit,
    flatten_net,
    gradient_step,
    minibatches,
    starting_params,
    to_vector,
)
from fedcore.nets import require_equal, use_generator
from fedcore.nets.parts import layers
from fedcore.types.federation import Data, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Model, StepId, Update
from fedcore.types.ranges import Amount, Count, Fraction

LAST, WEIGHTS = "last/", "weights"
"""Names in a device's memory: the tensors of its last model; W, in the layout of the parameters' vector."""


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
    gradient = gradient_step(flat, training.loss, balanced_grad(training, data), partial(batch_of, round=step_id.round))
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
