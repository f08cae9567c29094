"""FedAvg (McMahan et al. 2017, Algorithm 1): average the devices' models, round after round; and no round at all.

FedAvg-1 with a different initialisation on each device is the CODE paper's vanilla averaging. `local_only` is
local training: the baseline that any combination must beat on the device's own data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.builders import sums_alone, training_defaults
from fedcore.core.aggregation import MEAN, Aggregator, apply_changes, by_size, evenly, subtract
from fedcore.core.messages import (
    begin_with_memory,
    initial_messages,
    local_model,
    received_model,
    require_shared_init,
    to_everyone,
    to_memory,
)
from fedcore.core.secure_sum import from_integers, mask, require_everyone, to_integers
from fedcore.core.training import Training, train
from fedcore.errors import InputError
from fedcore.nets import init, require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Count, Fraction

__all__ = ["fedavg", "local_only"]

Weights: TypeAlias = Literal["size", "even"]
Upload: TypeAlias = Literal["model", "delta"]


@sums_alone(secure_aggregation=True)
@training_defaults(shared_init=True)
def fedavg(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    weights: Weights = "size",
    upload: Upload = "model",
    aggregator: Aggregator = MEAN,
    secure_aggregation: bool = False,
) -> Method:
    """FedAvg (McMahan et al. 2017): devices train, and the server averages their models.

    Args:
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        weights: of the mean, "size" (training examples) or "even".
        upload: what a device sends, its "model", or the "delta", what training added to the model that it was sent:
            equal but for rounding, and as many bytes. Methods that send changes (DFL) equal the latter bit by bit.
        aggregator: how the server combines what devices send.
        secure_aggregation: whether models are masked, so that the server sees their sum alone
            (:mod:`fedcore.core.secure_sum`), in 8 bytes a number, of every device in every round.

    Raises:
        InputError: for masked sums with a fraction, changes or another aggregator than the mean.
    """
    net, begin = require_equal(nets), partial(initial_messages, shared_init=training.shared_init)
    if secure_aggregation:
        given = {"fraction": fraction, "upload": upload, "aggregation": aggregator.aggregation}
        needed = {"fraction": 1.0, "upload": "model", "aggregation": "mean"}
        for key, value in given.items():
            if value != needed[key]:
                raise InputError(
                    f"fedavg.{key} = {value}: masked sums are of all devices' models; leave it out, or "
                    "secure_aggregation"
                )
        hide = partial(mask_model, partners=tuple(sorted(nets)), weights=weights)
        combine = partial(average_masked, net=net, weights=weights)
        stage = Stage(partial(train, training=training), combine, rounds, attach=hide, sends="masked")
        return Method(begin, (stage,), received_model)
    if upload == "model":
        combine = partial(average_updates, weights=weights, aggregator=aggregator)
        stage = Stage(partial(train, training=training), combine, rounds, fraction)
        return Method(begin, (stage,), received_model)
    require_shared_init("fedavg.upload = delta", training.shared_init)
    combine = partial(follow, weights=weights, aggregator=aggregator)
    stage = Stage(partial(train_change, training=training), combine, rounds, fraction, sends="change")
    return Method(begin_with_memory, (stage,), received_model)


def average_updates(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, weights: Weights, aggregator: Aggregator
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the weighted mean of the updates, or what stands in its place."""
    model = aggregator([update.params for update in updates.values()], shares(updates, weights))
    return server, to_everyone(round_info.names, Message(model))


@step_word("mask")
def mask_model(update: Update, device: Device, step_id: StepId, *, partners: Sequence[str], weights: Weights) -> Update:
    """Replace the model by its tensors times the device's weight, n_i or 1, as masked integers."""
    factor = update.size if weights == "size" else 1
    round_label = f"{step_id.stage}/{step_id.round}"  # a mask that is used twice hides nothing of the difference
    masked = {}
    for name, tensor in update.params.items():
        numbers = to_integers(factor * tensor.double(), device.name, len(partners))
        masked[name] = mask(numbers, f"{round_label}/{name}", device.name, partners, step_id.seed)
    return replace(update, params={}, extra=masked)


@step_word("average")
def average_masked(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, weights: Weights
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the weighted mean of the models, of which only the sum is known."""
    require_everyone(updates, round_info.names)
    total = sum(update.size if weights == "size" else 1 for update in updates.values())
    model = {}
    for name, x in init(net, round_info.generator("types")).items():
        summed = torch.stack([update.extra[name] for update in updates.values()]).sum(0)
        model[name] = (from_integers(summed) / total).to(x.dtype)
    return server, to_everyone(round_info.names, Message(model))


def train_change(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train; send how the model changed."""
    moments, update = train(memory, message, device, step_id, training=training)
    return moments, replace(update, params=subtract(update.params, message.params))


@step_word("average")
def follow(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, weights: Weights, aggregator: Aggregator
) -> tuple[Params, Mapping[str, Message]]:
    """Move the model by the weighted mean of the changes."""
    model = apply_changes(server, [update.params for update in updates.values()], shares(updates, weights), aggregator)
    return to_memory(model), to_everyone(round_info.names, Message(model))


def shares(updates: Mapping[str, Update], weights: Weights) -> Tensor:
    """Return the weight of each update, (C,) on the simplex."""
    return by_size([update.size for update in updates.values()]) if weights == "size" else evenly(len(updates))


def local_only(*, nets: Mapping[str, Net], training: Training) -> Method:
    """Local training: each device trains once on its own rows and sends nothing."""
    stage = Stage(partial(train, training=training), None)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), local_model)
