"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and on each device a personal model held near the global one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.cells import average
from fedcore.local import Training, fit, lay, starting, toward
from fedcore.messages import first
from fedcore.types import Amount, At, Count, Device, Fraction, Message, Method, Model, Net, Params, Stage, Update
from fedcore.unequal import alike

GLOBAL = "global/"
"""What the names begin with under which a device keeps the memory of the global model's optimiser."""


def ditto(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    rounds: Count,
    fraction: Fraction,
    strength: Amount,
) -> Method:
    """Build Ditto. rounds, fraction: as in fedavg. strength: lambda; 0 is local training.

    Both models are trained in each round as `training` says, on the same minibatches: twice FedAvg's work.
    """
    alike(nets)
    stage = Stage(partial(train_both, training=training, strength=strength), average, rounds, fraction)
    return Method(partial(first, common=common), (stage,), personal)


def train_both(
    own: Params, message: Message, device: Device, at: At, *, training: Training, strength: float
) -> tuple[Params, Update]:
    """Train the global model w^t that was sent, and send it; minimise F_k(v) + lambda/2 ||v - w^t||^2 for oneself."""
    sent = lay(device.net, starting({}, message, device, at))
    anchor = sent.vector.clone()
    shared = fit(sent, device, at, training, own, memory=GLOBAL)
    mine = lay(device.net, starting(own, message, device, at))
    moments = fit(mine, device, at, training, own, pull=toward(mine, anchor, strength))
    return {**mine.params(), **moments, **shared}, Update(sent.params(), size=len(device.data.train))


def personal(own: Params, message: Message) -> Model:
    """Run the personal model; before a device's first round, the global one."""
    return Model(({leaf: own.get(leaf, x) for leaf, x in message.params.items()},))
