"""FedBN (Li et al. 2021, Algorithm 1): all but the batch norms is averaged; these stay with each device.

A batch norm's scale, shift and running statistics are the device's own: they hold what its inputs look like. A net
without one is shared whole, which is FedAvg.

Departures. Averages are weighted by examples; the paper's are even.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging, exchange_sampled
from fedcore.core.messages import begin_with_memory, merge_models, require_shared_init
from fedcore.core.training import Training, fit, flatten_net, starting_params
from fedcore.nets import require_equal, shapes
from fedcore.nets.copies import template
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, StepId, Update


@training_defaults(shared_init=True)
def fedbn(*, nets: Mapping[str, Net], training: Training, averaging: Averaging) -> Method:
    """Build FedBN. A device that never took part runs the initial batch norms.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
    """
    require_equal(nets)
    require_shared_init("fedbn", training.shared_init)
    own = batch_norms(next(iter(nets.values())))
    local = partial(train_all, training=training, own=own)
    stage = averaging.stage(local, exchange_sampled)
    return Method(begin_with_memory, (stage,), merge_models)


def batch_norms(net: Net) -> tuple[str, ...]:
    """Return the names of the tensors of all batch norms, running statistics among them."""
    norms = {
        name for name, layer in template(net).named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    }
    return tuple(name for name in shapes(net) if name.rpartition(".")[0] in norms)


def train_all(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, own: tuple[str, ...]
) -> tuple[Params, Update]:
    """Train the averaged tensors and the device's own together; send all but its own.

    own: the names of the tensors that stay.
    """
    flat = flatten_net(device.net, starting_params({}, Message({**memory, **message.params}), device, step_id))
    moments = fit(flat, device, step_id, training, memory, message=message)
    params = flat.params()
    sent = {name: tensor for name, tensor in params.items() if name not in own}
    return params | moments, Update(sent, size=len(device.data.train))
