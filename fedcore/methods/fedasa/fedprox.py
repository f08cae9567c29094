"""Methods with a proximal term, which keeps what a device trains near the global model: FedProx and Ditto.

FedProx (Li et al. 2020, Algorithm 2): FedAvg whose devices stay near the global model.

Ditto (Li et al. 2021, Algorithm 1): FedAvg, and on each device a personal model held near the global one.
Departures. A personal model begins as the first model that the device is sent, the global one of its first round; in
the paper all begin before the first round. Models are averaged by examples.
"""

from collections.abc import Mapping
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import Training, fit, flatten_net, proximal_grad_hook, starting_params
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, StepId, Update
from fedcore.types.ranges import Amount

__all__ = ["ditto", "fedprox"]

GLOBAL = "global/"
"""Prefix of the entries in a device's memory that hold the moments of the global model's optimiser."""


@training_defaults(shared_init=True)
def fedprox(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, mu: Amount = 0.01) -> Method:
    """FedProx (Li et al. 2020): FedAvg with a penalty on the distance from the model that was sent.

    Departure: a device does `training.epochs` epochs; the paper lets it stop at any inexact minimum.

    Args:
        mu: weight of the proximal term, from 0; 0 is FedAvg by size.
    """
    require_equal(nets)
    stage = averaging.stage(partial(train_near, training=training, mu=mu))
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), received_model)


def train_near(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, mu: float
) -> tuple[Params, Update]:
    """Minimise F_k(w) + mu/2 ||w - w^t||^2, from the global model w^t."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    near = proximal_grad_hook(flat, flat.vector.clone(), mu)
    moments = fit(flat, device, step_id, training, memory, message=message, grad_hook=near)
    return moments, Update(flat.params(), size=len(device.data.train))


@training_defaults(shared_init=True)
def ditto(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, strength: Amount = 0.01) -> Method:
    """Ditto (Li et al. 2021): FedAvg's model, and a personal one near it on each device.

    Both models are trained in each round as `training` says, on the same minibatches: twice FedAvg's work.

    Args:
        strength: lambda, which holds the personal model near the global one, from 0; 0 is local training.
    """
    require_equal(nets)
    stage = averaging.stage(partial(train_both, training=training, strength=strength))
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), personal)


def train_both(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, strength: float
) -> tuple[Params, Update]:
    """Train and send the global model w^t; minimise F_k(v) + lambda/2 ||v - w^t||^2 for the personal model v."""
    sent = flatten_net(device.net, starting_params({}, message, device, step_id))
    anchor = sent.vector.clone()
    shared = fit(sent, device, step_id, training, memory, message=message, prefix=GLOBAL)
    own = flatten_net(device.net, starting_params(memory, message, device, step_id))
    near = proximal_grad_hook(own, anchor, strength)
    moments = fit(own, device, step_id, training, memory, message=message, grad_hook=near)
    return {**own.params(), **moments, **shared}, Update(sent.params(), size=len(device.data.train))


def personal(memory: Params, message: Message) -> Model:
    """Run the personal model; before a device's first round, the global one."""
    return Model(({name: memory.get(name, x) for name, x in message.params.items()},))
