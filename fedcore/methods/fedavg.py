"""FedAvg (McMahan et al. 2017, Algorithm 1): average the devices' models, round after round.

FedAvg-1 with a different initialisation on each device is the CODE paper's vanilla averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from torch import Tensor

from fedcore.local import Training, train
from fedcore.messages import (
    apply_changes,
    begin_with_memory,
    initial_messages,
    received_model,
    require_common_start,
    to_everyone,
    to_memory,
)
from fedcore.mixing import by_size, evenly, subtract
from fedcore.nets import require_equal
from fedcore.robust import MEAN, Mixing
from fedcore.types import (
    Count,
    Device,
    Fraction,
    Message,
    Method,
    Net,
    Params,
    Sends,
    Stage,
    StepId,
    Turn,
    Update,
    step_word,
)

Weights: TypeAlias = Literal["size", "even"]


def fedavg(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    weights: Weights = "size",
    sends: Sends = "model",
    robust: Mixing = MEAN,
) -> Method:
    """Build FedAvg.

    rounds: communication rounds. fraction: share of devices per round. weights: "size" (by training examples) or
    "even". sends: a device's "model", or its "change", what training added to the model that it was sent: equal
    but for rounding, and as many bytes. Methods that send changes (DFL) are compared with the latter, bit by bit.
    robust: what stands in the mean's place to bear hostile devices, see :class:`fedcore.robust.Mixing`.
    """
    require_equal(nets)
    if sends == "model":
        combine = partial(average, weights=weights, mixing=robust)
        stage = Stage(partial(train, training=training), combine, rounds, fraction)
        return Method(partial(initial_messages, common=common), (stage,), received_model)
    require_common_start("fedavg.sends = change", common)
    combine = partial(follow, weights=weights, mixing=robust)
    stage = Stage(partial(train_change, training=training), combine, rounds, fraction, sends=sends)
    return Method(begin_with_memory, (stage,), received_model)


def average(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, weights: Weights, mixing: Mixing
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the weighted mean of the updates, or what stands in its place."""
    model = mixing([update.params for update in updates.values()], shares(updates, weights))
    return server, to_everyone(turn.names, Message(model))


def train_change(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train; send how the model changed."""
    moments, update = train(memory, message, device, step_id, training=training)
    return moments, replace(update, params=subtract(update.params, message.params))


@step_word("average")
def follow(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, weights: Weights, mixing: Mixing
) -> tuple[Params, Mapping[str, Message]]:
    """Move the model by the weighted mean of the changes."""
    model = apply_changes(server, [update.params for update in updates.values()], shares(updates, weights), mixing)
    return to_memory(model), to_everyone(turn.names, Message(model))


def shares(updates: Mapping[str, Update], weights: Weights) -> Tensor:
    """Return the weight of each update, (C,) on the simplex."""
    return by_size([update.size for update in updates.values()]) if weights == "size" else evenly(len(updates))
