"""FedBABU (Oh, Kim and Yun 2022, Algorithm 1): devices train all but the last layer, and tune the whole in the end.

The last layer, the head, stays as it was drawn until the rounds are over. Then every device trains the whole model on
its own examples, and keeps it.

Departures. With `tune_epochs` 0 devices run the averaged layers with the head as drawn. Evaluations between the rounds
are of these models. Averages are weighted by examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging, exchange_sampled
from fedcore.core.losses import PARTS
from fedcore.core.messages import begin_with_memory, require_shared_init
from fedcore.core.training import MOMENTS, Training, flatten_net, starting_params, train
from fedcore.methods.published.part_training import fit_part, head, parts, require_base
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, Stage, StepId, Update
from fedcore.types.ranges import Depth


@training_defaults(shared_init=True)
def fedbabu(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, tune_epochs: Depth = 5) -> Method:
    """Build FedBABU.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        tune_epochs: passes over a device's examples that tune its model after the last round, from 0 (the paper: 5);
            where `training.steps` counts minibatches, as many.

    Raises:
        InputError: for a net of one layer.
    """
    require_equal(nets)
    require_shared_init("fedbabu", training.shared_init)
    require_base("fedbabu", next(iter(nets.values())))
    local = partial(train_body, training=training)
    stages = [averaging.stage(local, exchange_sampled)]
    if tune_epochs:
        tuning = replace(training, epochs=tune_epochs, optimiser_state="fresh")
        stages.append(Stage(partial(train, training=tuning), None))
    return Method(begin_with_memory, tuple(stages), own_model)


def train_body(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train all but the head, which the device keeps as it was first sent; send the rest."""
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    moments = fit_part(flat, device, step_id, training, memory, message, parts(flat)[0], MOMENTS)
    params, stays = flat.params(), head(device.net)
    sent = {name: tensor for name, tensor in params.items() if name not in stays}
    return {name: params[name] for name in stays} | moments, Update(sent, size=len(device.data.train))


def own_model(memory: Params, message: Message) -> Model:
    """Run the device's own tensors, and those of the message where it has none."""
    own = {name: tensor for name, tensor in memory.items() if not name.startswith((MOMENTS, PARTS))}
    return Model((message.params | own,))
