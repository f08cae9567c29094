"""FedAvg (McMahan et al. 2017, Algorithm 1): average the devices' models, round after round.

FedAvg-1 with a different initialisation on each device is the CODE paper's vanilla averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

from fedcore.local import Training, train
from fedcore.messages import everyone, first, received
from fedcore.mixing import by_size, evenly, mean
from fedcore.types import Count, Fraction, Message, Method, Net, Params, Stage, Turn, Update
from fedcore.unequal import alike

Weights: TypeAlias = Literal["size", "even"]


def fedavg(
    *, nets: Mapping[str, Net], training: Training, common: bool, rounds: Count, fraction: Fraction, weights: Weights
) -> Method:
    """Build FedAvg.

    rounds: communication rounds. fraction: share of devices per round. weights: "size" (by training examples) or
    "even".
    """
    alike(nets)
    stage = Stage(partial(train, training=training), partial(average, weights=weights), rounds, fraction)
    return Method(partial(first, common=common), (stage,), received)


def average(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, weights: Weights
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the weighted mean of what was sent."""
    members = list(updates.values())
    share = by_size([update.size for update in members]) if weights == "size" else evenly(len(members))
    return server, everyone(turn.names, Message(mean([update.params for update in members], share)))
