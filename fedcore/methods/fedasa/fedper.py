"""FedPer (Arivazhagan et al. 2019): all layers except the last, the classifier, are shared."""

from collections.abc import Mapping
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging, exchange, exchange_sampled
from fedcore.core.messages import begin_with_memory, initial_messages, merge_models, require_shared_init
from fedcore.core.training import Training
from fedcore.errors import InputError
from fedcore.methods.fedasa.sharing import train_shared
from fedcore.nets import require_equal
from fedcore.nets.parts import layers
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, StepId, Update
from fedcore.types.ranges import Positive


@training_defaults(shared_init=True)
def fedper(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, personal_lr: Positive | None = None
) -> Method:
    """Build FedPer.

    If `fraction` is below 1, all devices start from one model; its last layer is sent until a device has taken part.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        personal_lr: learning rate of the last layer, above 0; None: training's.

    Raises:
        InputError: for a net of one layer, and for different initial models with a fraction below 1.
    """
    require_equal(nets)
    if any(len(layers(net)) < 2 for net in nets.values()):
        raise InputError("net: fedper keeps the last layer to each device, this net has no other to share")
    local = partial(train_base, training=training, personal_lr=personal_lr)
    if averaging.fraction < 1:
        require_shared_init("fedper with fraction below 1", training.shared_init)
        stage = averaging.stage(local, exchange_sampled)
        return Method(begin_with_memory, (stage,), merge_models)
    stage = averaging.stage(local, exchange)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), merge_models)


def train_base(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, personal_lr: float | None
) -> tuple[Params, Update]:
    """Train all layers and send all except the last."""
    base = [name for layer in [*layers(device.net).values()][:-1] for name in layer]
    return train_shared(memory, message, device, step_id, shared=base, training=training, personal_lr=personal_lr)
