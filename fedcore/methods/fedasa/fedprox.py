"""FedProx (Li et al. 2020, Algorithm 2): FedAvg with a proximal term that keeps devices near the global model."""

from collections.abc import Mapping
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import Training, fit, flatten_net, proximal_grad_hook, starting_params
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, StepId, Update
from fedcore.types.ranges import Amount


@training_defaults(shared_init=True)
def fedprox(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, mu: Amount = 0.01) -> Method:
    """Build FedProx.

    Departure: a device does `training.epochs` epochs; the paper lets it stop at any inexact minimum.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
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
    moments = fit(
        flat,
        device,
        step_id,
        training,
        memory,
        message=message,
        grad_hook=proximal_grad_hook(flat, flat.vector.clone(), mu),
    )
    return moments, Update(flat.params(), size=len(device.data.train))
