"""Methods that share all of a net but a part, which stays with each device: FedRep, FedBABU and FedBN.

FedRep (Collins et al. 2021, Algorithm 1): first the device's own head is trained, then the shared representation. The
head is the net's last layer, which stays on the device; all others are the representation, which is sent and averaged.
In a round a device first trains its head with the representation as sent, then the representation with that head. It
runs the averaged representation with its last head. Departure: the head, too, is trained on minibatches by `training`'s
optimiser.

FedBABU (Oh, Kim and Yun 2022, Algorithm 1): devices train all but the last layer, and tune the whole in the end. The
head stays as it was drawn until the rounds are over. Then every device trains the whole model on its own examples, and
keeps it. Departures: with `tune_epochs` 0 devices run the averaged layers with the head as drawn. Evaluations between
the rounds are of these models.

FedBN (Li et al. 2021, Algorithm 1): all but the batch norms is averaged; these stay with each device. A batch norm's
scale, shift and running statistics are the device's own: they hold what its inputs look like. A net without one is
shared whole, which is FedAvg.

Departure of all: averages are weighted by examples. The devices of FedRep's paper have equally many, FedBN's averages
are even.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging, exchange_sampled
from fedcore.core.messages import begin_with_memory, merge_models, require_shared_init
from fedcore.core.training import MOMENTS, FlatNet, Training, fit, flatten_net, starting_params, train, train_shared
from fedcore.errors import InputError
from fedcore.nets import require_equal, shapes
from fedcore.nets.copies import template
from fedcore.nets.parts import layers
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Stage, StepId, Update
from fedcore.types.ranges import Count, Depth

__all__ = ["fedbabu", "fedbn", "fedrep"]


def head(net: Net) -> tuple[str, ...]:
    """Return the tensors of the net's last layer, which classifies."""
    return [*layers(net).values()][-1]


def require_base(name: str, net: Net) -> None:
    """Refuse a net of one layer, which has nothing before its head."""
    if len(layers(net)) < 2:
        raise InputError(f"net: {name} shares all but the last layer, this net has no other")


def parts(flat: FlatNet) -> tuple[slice, slice]:
    """Return where the vector holds the layers before the head, and the head."""
    cut = min(flat.parameters[name].storage_offset() for name in head(flat.net) if name in flat.parameters)
    return slice(cut), slice(cut, None)


def fit_part(
    flat: FlatNet, device: Device, step_id: StepId, training: Training, memory: Params, message: Message, part: slice,
    prefix: str,
) -> Params:  # fmt: skip
    """Train a part of the vector; the rest stays as it is."""
    others, pieces = torch.ones_like(flat.vector, dtype=torch.bool), ((part, 1.0),)
    others[part] = False

    def hold_others() -> None:
        flat.gradient.masked_fill_(others, 0)

    return fit(
        flat, device, step_id, training, memory, message=message, prefix=prefix, grad_hook=hold_others, pieces=pieces
    )


@training_defaults(shared_init=True)
def fedrep(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, head_epochs: Count = 10) -> Method:
    """FedRep (Collins et al. 2021): each device keeps a head of its own; at first the initial one.

    Args:
        head_epochs: passes over a device's examples that train the head, from 1 (the paper: 10), before the
            `training.epochs` that train the rest. Where `training.steps` counts minibatches, both take as many.

    Raises:
        InputError: for a net of one layer.
    """
    require_base("fedrep", require_equal(nets))
    require_shared_init("fedrep", training.shared_init)
    local = partial(train_in_turn, training=training, head_epochs=head_epochs)
    stage = averaging.stage(local, exchange_sampled)
    return Method(begin_with_memory, (stage,), merge_models)


def train_in_turn(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, head_epochs: int
) -> tuple[Params, Update]:
    """Train the head, then the representation, on minibatches of one order; send the representation."""
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    base, own = parts(flat)
    first = replace(training, epochs=head_epochs)
    moments = fit_part(flat, device, step_id, first, memory, message, own, f"{MOMENTS}head/")
    moments |= fit_part(flat, device, step_id, training, memory, message, base, f"{MOMENTS}base/")
    params, stays = flat.params(), head(device.net)
    sent = {name: tensor for name, tensor in params.items() if name not in stays}
    return {name: params[name] for name in stays} | moments, Update(sent, size=len(device.data.train))


@training_defaults(shared_init=True)
def fedbabu(*, nets: Mapping[str, Net], training: Training, averaging: Averaging, tune_epochs: Depth = 5) -> Method:
    """FedBABU (Oh et al. 2022): the last layer stays as drawn; in the end each device tunes its model.

    Args:
        tune_epochs: passes over a device's examples that tune its model after the last round, from 0 (the paper: 5);
            where `training.steps` counts minibatches, as many.

    Raises:
        InputError: for a net of one layer.
    """
    require_base("fedbabu", require_equal(nets))
    require_shared_init("fedbabu", training.shared_init)
    local = partial(train_body, training=training)
    stages = [averaging.stage(local, exchange_sampled)]
    if tune_epochs:
        tuning = replace(training, epochs=tune_epochs, optimiser_state="fresh")
        stages.append(Stage(partial(train, training=tuning), None))
    return Method(begin_with_memory, tuple(stages), merge_models)


def train_body(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train all but the head, which the device keeps as it was first sent; send the rest."""
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    moments = fit_part(flat, device, step_id, training, memory, message, parts(flat)[0], MOMENTS)
    params, stays = flat.params(), head(device.net)
    sent = {name: tensor for name, tensor in params.items() if name not in stays}
    return {name: params[name] for name in stays} | moments, Update(sent, size=len(device.data.train))


@training_defaults(shared_init=True)
def fedbn(*, nets: Mapping[str, Net], training: Training, averaging: Averaging) -> Method:
    """FedBN (Li et al. 2021): each device keeps its batch norms; at first the initial ones."""
    net = require_equal(nets)
    require_shared_init("fedbn", training.shared_init)
    own = batch_norms(net)
    shared = tuple(name for name in shapes(net) if name not in own)
    stage = averaging.stage(partial(train_shared, shared=shared, training=training), exchange_sampled)
    return Method(begin_with_memory, (stage,), merge_models)


def batch_norms(net: Net) -> tuple[str, ...]:
    """Return the names of the tensors of all batch norms, running statistics among them."""
    norms = {
        name for name, layer in template(net).named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    }
    return tuple(name for name in shapes(net) if name.rpartition(".")[0] in norms)
