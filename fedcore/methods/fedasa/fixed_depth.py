"""G-sharing (Deng et al. 2024, Fig. 3b): all devices share the stem and the same number of cells, alpha_0 to alpha_M.

With depth null nobody shares anything: local training, in rounds. With depth random it is FedASA's control: does it
matter which depth a device is given?

FedPer (Arivazhagan et al. 2019): all layers except the last, the classifier, are shared.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

import torch

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Aggregator, Averaging, exchange, exchange_parts
from fedcore.core.messages import begin_sampled, merge_models
from fedcore.core.training import Training, train_shared
from fedcore.errors import InputError
from fedcore.nets import require_equal
from fedcore.nets.parts import layers, max_depth, names_up_to
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, StepId, Update, generator
from fedcore.types.ranges import Depth, Positive

__all__ = ["fedper", "fixed_depth"]

Choice: TypeAlias = Depth | Literal["random"] | None

Shared: TypeAlias = Choice | Literal["base"]
"""What devices share: the stem and so many cells, or ("base") all layers but the last."""


@training_defaults(shared_init=True)
def fixed_depth(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    depth: Choice = 1,
    personal_lr: Positive | None = None,
) -> Method:
    """G-sharing: all devices share the stem and as many cells.

    If `fraction` is below 1, all devices start from one model; its personal part is sent until a device has taken part.

    Args:
        depth: cells that are shared besides the stem, 0 to M (of nets without cells: layers after the first, the last
            one never); None: nothing; "random": drawn for each device, evenly from 0 to M.
        personal_lr: learning rate of the personal part, above 0; None: training's.

    Raises:
        InputError: for a depth that the net does not have, and for different initial models with a fraction below 1.
    """
    for net in nets.values():
        if depth is not None and not 0 <= (0 if depth == "random" else depth) <= max_depth(net):
            raise InputError(
                f"fixed_depth.depth = {depth!r}: this net's depths are 0 to {max_depth(net)}, random and null"
            )
    return _share("fixed_depth", nets, training, averaging, depth, personal_lr)


@training_defaults(shared_init=True)
def fedper(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, personal_lr: Positive | None = None
) -> Method:
    """FedPer (Arivazhagan et al. 2019): all but the last layer is shared.

    If `fraction` is below 1, all devices start from one model; its last layer is sent until a device has taken part.

    Args:
        personal_lr: learning rate of the last layer, above 0; None: training's.

    Raises:
        InputError: for a net of one layer, and for different initial models with a fraction below 1.
    """
    if any(len(layers(net)) < 2 for net in nets.values()):
        raise InputError("net: fedper keeps the last layer to each device, this net has no other to share")
    return _share("fedper", nets, training, averaging, "base", personal_lr)


def _share(
    name: str, nets: Mapping[str, Net], training: Training, averaging: Averaging, part: Shared, rate: float | None
) -> Method:
    net = require_equal(nets)
    local = partial(train_part, training=training, part=part, personal_lr=rate)
    begin = begin_sampled(name, nets, training.shared_init, averaging.fraction)
    combine = exchange if averaging.fraction == 1 else partial(exchange_part, net=net, part=part)
    return Method(begin, (averaging.stage(local, combine),), merge_models)


def train_part(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, part: Shared,
    personal_lr: float | None,
) -> tuple[Params, Update]:  # fmt: skip
    """Train the whole model; send what the device shares."""
    shared = shared_names(device.net, part, step_id.seed, device.name)
    return train_shared(memory, message, device, step_id, shared=shared, training=training, personal_lr=personal_lr)


def exchange_part(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, part: Shared,
    aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Aggregate what the sampled devices sent, and send every device what it shares."""
    shared = {name: shared_names(net, part, round_info.seed, name) for name in round_info.names}
    return exchange_parts(server, updates, shared, aggregator)


def shared_names(net: Net, part: Shared, seed: int, name: str) -> tuple[str, ...]:
    """Return the tensors that a device shares."""
    if part == "base":
        return tuple(name for layer in [*layers(net).values()][:-1] for name in layer)
    here = draw_depth(net, seed, name) if part == "random" else part
    return () if here is None else names_up_to(net, here)


def draw_depth(net: Net, seed: int, name: str) -> int:
    """Return a depth from 0 to M that depends on the seed and the device's name alone."""
    return int(torch.randint(max_depth(net) + 1, (), generator=generator(seed, name, "depth")))
