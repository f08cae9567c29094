"""FedProx (Li et al. 2020, Algorithm 2): FedAvg whose devices are held near the model that they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.cells import average
from fedcore.local import Training, fit, lay, starting, toward
from fedcore.messages import first, received
from fedcore.nets import require_equal
from fedcore.types import Amount, Count, Device, Fraction, Message, Method, Net, Params, Stage, StepId, Update


def fedprox(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    rounds: Count = 10,
    fraction: Fraction = 1.0,
    mu: Amount = 0.01,
) -> Method:
    """Build FedProx. rounds, fraction: as in fedavg. mu: weight of the proximal term; 0 is FedAvg weighted by size.

    Departure: a device does `training.epochs` epochs; the paper lets it stop at any inexact minimum.
    """
    require_equal(nets)
    stage = Stage(partial(train_near, training=training, mu=mu), average, rounds, fraction)
    return Method(partial(first, common=common), (stage,), received)


def train_near(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, mu: float
) -> tuple[Params, Update]:
    """Minimise F_k(w) + mu/2 ||w - w^t||^2, w^t being where the device begins."""
    laid = lay(device.net, starting({}, message, device, step_id))
    moments = fit(laid, device, step_id, training, memory, pull=toward(laid, laid.vector.clone(), mu))
    return moments, Update(laid.params(), size=len(device.data.train))
