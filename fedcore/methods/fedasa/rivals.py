"""FedASA's rivals: G-sharing and FedPer, which share a part of the net, and FedProx and Ditto, which hold models near.

G-sharing (Deng et al. 2024, Fig. 3b): all devices share the stem and the same number of cells, alpha_0 to alpha_M.

With depth null nobody shares anything: local training, in rounds. With depth random it is FedASA's control: does it
matter which depth a device is given?

FedPer (Arivazhagan et al. 2019): all layers except the last, the classifier, are shared.

FedProx (Li et al. 2020, Algorithm 2): FedAvg whose devices stay near the global model.

Ditto (Li et al. 2021, Algorithm 1): FedAvg, and on each device a personal model held near the global one.
Departures. A personal model begins as the first model that the device is sent, the global one of its first round; in
the paper all begin before the first round. Models are averaged by examples.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

import torch

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Aggregator, Averaging, exchange_parts
from fedcore.core.messages import begin_sampled, begin_with_memory, initial_messages, merge_models, received_model
from fedcore.core.training import Training, fit, flatten_net, proximal_grad_hook, starting_params, train_shared
from fedcore.errors import InputError
from fedcore.nets import require_equal
from fedcore.nets.parts import layers, max_depth, names_up_to
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, RoundInfo, StepId, Update, generator
from fedcore.types.ranges import Amount, Depth, Positive

__all__ = ["ditto", "fedper", "fedprox", "fixed_depth"]

Choice: TypeAlias = Depth | Literal["random"] | None

Shared: TypeAlias = Choice | Literal["base"]
"""What devices share: the stem and so many cells, or ("base") all layers but the last."""

GLOBAL = "global/"
"""Prefix of the entries in a device's memory of Ditto that hold the moments of the global model's optimiser."""


@training_defaults(shared_init=True)
def fixed_depth(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    depth: Choice = 1,
    personal_lr: Positive | None = None,
) -> Method:
    """G-sharing: all devices share the stem and as many cells.

    If `fraction` is below 1, all devices start from one model; its personal part is sent until a device has taken part.

    Args:
        depth: cells that are shared besides the stem, 0 to M (of nets without cells: layers after the first, the last
            one never); None: nothing; "random": drawn for each device, evenly from 0 to M.
        personal_lr: learning rate of the personal part, above 0; None: training's.

    Raises:
        InputError: for a depth that the net does not have, and for different initial models with a fraction below 1.
    """
    for net in nets.values():
        if depth is not None and not 0 <= (0 if depth == "random" else depth) <= max_depth(net):
            raise InputError(
                f"fixed_depth.depth = {depth!r}: this net's depths are 0 to {max_depth(net)}, random and null"
            )
    return _share("fixed_depth", nets, training, averaging, depth, personal_lr)


@training_defaults(shared_init=True)
def fedper(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, personal_lr: Positive | None = None
) -> Method:
    """FedPer (Arivazhagan et al. 2019): all but the last layer is shared.

    If `fraction` is below 1, all devices start from one model; its last layer is sent until a device has taken part.

    Args:
        personal_lr: learning rate of the last layer, above 0; None: training's.

    Raises:
        InputError: for a net of one layer, and for different initial models with a fraction below 1.
    """
    if any(len(layers(net)) < 2 for net in nets.values()):
        raise InputError("net: fedper keeps the last layer to each device, this net has no other to share")
    return _share("fedper", nets, training, averaging, "base", personal_lr)


def _share(
    name: str, nets: Mapping[str, Net], training: Training, averaging: Averaging, part: Shared, rate: float | None
) -> Method:
    net = require_equal(nets)
    local = partial(train_part, training=training, part=part, personal_lr=rate)
    begin = begin_with_memory if training.shared_init else begin_sampled(name, nets, False, averaging.fraction)
    return Method(begin, (averaging.stage(local, partial(exchange_part, net=net, part=part)),), merge_models)


def train_part(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, part: Shared,
    personal_lr: float | None,
) -> tuple[Params, Update]:  # fmt: skip
    """Train the whole model; send what the device shares."""
    shared = shared_names(device.net, part, step_id.seed, device.name)
    return train_shared(memory, message, device, step_id, shared=shared, training=training, personal_lr=personal_lr)


def exchange_part(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, part: Shared,
    aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Aggregate what the sampled devices sent, and send every device what it shares."""
    shared = {name: shared_names(net, part, round_info.seed, name) for name in round_info.names}
    return exchange_parts(server, updates, shared, aggregator)


def shared_names(net: Net, part: Shared, seed: int, name: str) -> tuple[str, ...]:
    """Return the tensors that a device shares."""
    if part == "base":
        return tuple(name for layer in [*layers(net).values()][:-1] for name in layer)
    here = draw_depth(net, seed, name) if part == "random" else part
    return () if here is None else names_up_to(net, here)


def draw_depth(net: Net, seed: int, name: str) -> int:
    """Return a depth from 0 to M that depends on the seed and the device's name alone."""
    return int(torch.randint(max_depth(net) + 1, (), generator=generator(seed, name, "depth")))


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
