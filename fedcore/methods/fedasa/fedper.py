"""FedPer (Arivazhagan et al. 2019): all layers except the last, the classifier, are shared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import MEAN, Aggregator, exchange
from fedcore.core.messages import initial_messages, merge_models
from fedcore.core.training import Training
from fedcore.methods.fedasa.sharing import train_shared
from fedcore.nets import require_equal
from fedcore.nets.parts import layers
from fedcore.types import Count, Device, InputError, Message, Method, Net, Params, Positive, Stage, StepId, Update


@training_defaults(shared_init=True)
def fedper(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 10,
    personal_lr: Positive | None = None,
    aggregator: Aggregator = MEAN,
) -> Method:
    """Build FedPer. All devices take part in every round.

    Args:
        rounds: communication rounds, from 1.
        personal_lr: learning rate of the last layer, above 0; None: training's.
        aggregator: how the server combines what devices send.

    Raises:
        InputError: for a net of one layer.
    """
    require_equal(nets)
    if any(len(layers(net)) < 2 for net in nets.values()):
        raise InputError("net: fedper keeps the last layer to each device, this net has no other to share")
    stage = Stage(
        partial(train_base, training=training, personal_lr=personal_lr),
        partial(exchange, aggregator=aggregator),
        rounds,
    )
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), merge_models)


def train_base(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, personal_lr: float | None
) -> tuple[Params, Update]:
    """Train all layers and send all except the last."""
    base = [name for layer in [*layers(device.net).values()][:-1] for name in layer]
    return train_shared(memory, message, device, step_id, shared=base, training=training, personal_lr=personal_lr)
