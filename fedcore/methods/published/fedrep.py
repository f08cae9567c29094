"""FedRep (Collins et al. 2021, Algorithm 1): first the device's own head is trained, then the shared representation.

The head is the net's last layer, which stays on the device; all others are the representation, which is sent and
averaged. In a round a device first trains its head with the representation as sent, then the representation with that
head. It runs the averaged representation with its last head.

Departures. Averages are weighted by examples; the paper's devices have equally many. The head, too, is trained on
minibatches by `training`'s optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging, exchange_sampled
from fedcore.core.messages import begin_with_memory, merge_models, require_shared_init
from fedcore.core.training import MOMENTS, Training, flatten_net, starting_params
from fedcore.methods.published.part_training import fit_part, head, parts, require_base
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, StepId, Update
from fedcore.types.ranges import Count


@training_defaults(shared_init=True)
def fedrep(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, head_epochs: Count = 10) -> Method:
    """Build FedRep. A device that never took part runs the initial head.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        head_epochs: passes over a device's examples that train the head, from 1 (the paper: 10), before the
            `training.epochs` that train the rest. Where `training.steps` counts minibatches, both take as many.

    Raises:
        InputError: for a net of one layer.
    """
    require_equal(nets)
    require_shared_init("fedrep", training.shared_init)
    require_base("fedrep", next(iter(nets.values())))
    local = partial(train_in_turn, training=training, head_epochs=head_epochs)
    stage = averaging.stage(local, exchange_sampled)
    return Method(begin_with_memory, (stage,), merge_models)


def train_in_turn(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, head_epochs: int
) -> tuple[Params, Update]:
    """Train the head, then the representation, on minibatches of one order; send the representation."""
    flat = flatten_net(device.net, starting_params({}, Message({**memory, **message.params}), device, step_id))
    base, own = parts(flat)
    first = replace(training, epochs=head_epochs)
    moments = fit_part(flat, device, step_id, first, memory, message, own, f"{MOMENTS}head/")
    moments |= fit_part(flat, device, step_id, training, memory, message, base, f"{MOMENTS}base/")
    params = flat.params()
    stays = head(device.net)
    sent = {name: tensor for name, tensor in params.items() if name not in stays}
    return params | moments, Update(sent, size=len(device.data.train))
