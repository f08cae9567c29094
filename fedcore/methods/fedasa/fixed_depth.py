"""G-sharing (Deng et al. 2024, Fig. 3b): all devices share the stem and the same number of cells, alpha_0 to alpha_M.

With depth null nobody shares anything: local training, in rounds. With depth random it is FedASA's control: does it
matter which depth a device is given?
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

import torch

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Aggregator, Averaging, exchange, exchange_parts
from fedcore.core.messages import begin_with_memory, initial_messages, merge_models, require_shared_init
from fedcore.core.training import Training
from fedcore.errors import InputError
from fedcore.methods.fedasa.sharing import train_shared
from fedcore.nets import require_equal
from fedcore.nets.parts import max_depth, names_up_to
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, StepId, Update, generator
from fedcore.types.ranges import Depth, Positive

Choice: TypeAlias = Depth | Literal["random"] | None


@training_defaults(shared_init=True)
def fixed_depth(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    depth: Choice = 1,
    personal_lr: Positive | None = None,
) -> Method:
    """Build G-sharing.

    If `fraction` is below 1, all devices start from one model; its personal part is sent until a device has taken part.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        depth: cells that are shared besides the stem, 0 to M (of nets without cells: layers after the first, the last
            one never); None: nothing; "random": drawn for each device, evenly from 0 to M.
        personal_lr: learning rate of the personal part, above 0; None: training's.

    Raises:
        InputError: for a depth that the net does not have, and for different initial models with a fraction below 1.
    """
    require_equal(nets)
    for net in nets.values():
        if depth is not None and not 0 <= (0 if depth == "random" else depth) <= max_depth(net):
            raise InputError(
                f"fixed_depth.depth = {depth!r}: this net's depths are 0 to {max_depth(net)}, random and null"
            )
    local = partial(train_upto, training=training, depth=depth, personal_lr=personal_lr)
    if averaging.fraction < 1:
        require_shared_init("fixed_depth with fraction below 1", training.shared_init)
        combine = partial(exchange_upto, net=next(iter(nets.values())), depth=depth)
        return Method(begin_with_memory, (averaging.stage(local, combine),), merge_models)
    stage = averaging.stage(local, exchange)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), merge_models)


def train_upto(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    depth: Choice,
    personal_lr: float | None,
) -> tuple[Params, Update]:
    """Train the whole model; send the stem and the cells up to the device's depth."""
    shared = shared_names(device.net, depth, step_id.seed, device.name)
    return train_shared(memory, message, device, step_id, shared=shared, training=training, personal_lr=personal_lr)


def exchange_upto(
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
    *,
    net: Net,
    depth: Choice,
    aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message]]:
    """Aggregate what the sampled devices sent, and send every device what it shares."""
    shared = {name: shared_names(net, depth, round_info.seed, name) for name in round_info.names}
    return exchange_parts(server, updates, shared, aggregator)


def shared_names(net: Net, depth: Choice, seed: int, name: str) -> tuple[str, ...]:
    """Return the tensors that a device shares."""
    here = draw_depth(net, seed, name) if depth == "random" else depth
    return () if here is None else names_up_to(net, here)


def draw_depth(net: Net, seed: int, name: str) -> int:
    """Return a depth from 0 to M that depends on the seed and the device's name alone."""
    return int(torch.randint(max_depth(net) + 1, (), generator=generator(seed, name, "depth")))
