"""Initial messages, messages to all devices, and the model in the server's memory."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from fedcore.core.training import SENT
from fedcore.errors import InputError
from fedcore.nets import init, key, require_equal
from fedcore.types.federation import Net, Params, Public, add_prefix, strip_prefix
from fedcore.types.method import Begin, Message, Model, Weights, generator, step_word

MODEL = "model/"
"""Prefix of the tensors in the server's memory that hold the model it sent."""

CHOSEN = "chosen/"
"""Prefix of the names of devices that took part, in the server's memory: they have personal tensors of their own."""

WEIGHTS = "weights"
"""The tensor of a message of several models that holds their weights, (M,) or (M, K)."""


def to_everyone(names: Iterable[str], message: Message) -> dict[str, Message]:
    """Send one message to every device."""
    return dict.fromkeys(names, message)


@step_word("begin")
def initial_messages(public: Public, seed: int, *, shared_init: bool) -> tuple[Params, Mapping[str, Message]]:
    """Begin with an empty server memory and the initial models.

    Args:
        public: the devices' nets, and the classes.
        seed: what the models are drawn from.
        shared_init: the server draws one initial model and sends it to everyone (devices with different nets get one
            per net, drawn alike). Otherwise it sends nothing and each device initialises itself.
    """
    if not shared_init:
        return {}, to_everyone(public.names, Message())
    nets = {key(net): net for net in public.nets.values()}
    drawn = {k: Message(init(net, generator(seed, "init"))) for k, net in nets.items()}
    return {}, {name: drawn[key(net)] for name, net in public.nets.items()}


def received_model(memory: Params, message: Message) -> Model:
    """Run the model that the server sent."""
    return Model((message.params,))


def local_model(memory: Params, message: Message) -> Model:
    """Run the model in the device's memory; before it has one, the model that the server sent."""
    return Model((memory or message.params,))


def own_params(memory: Params) -> Params:
    """Return the model in a device's memory: the entries without a slash, which no parameter of a net has."""
    return {name: tensor for name, tensor in memory.items() if "/" not in name}


def pack_models(models: Sequence[Params], weights: Tensor) -> Params:
    """Return the tensors of several models and their weights, to be sent in one message."""
    params = {f"{k}/{name}": tensor for k, model in enumerate(models) for name, tensor in model.items()}
    return params | {WEIGHTS: weights}


def unpack_models(params: Params) -> Model:
    """Undo `pack_models`."""
    weights = params[WEIGHTS]
    return Model(tuple(strip_prefix(f"{k}/", params) for k in range(len(weights))), to_weights(weights))


def to_weights(weights: Tensor) -> Weights:
    """Return a tensor of weights, (M,) or (M, K), as plain numbers."""
    return tuple(tuple(row) if isinstance(row, list) else row for row in weights.tolist())


@step_word("begin")
def begin_with_memory(public: Public, seed: int) -> tuple[Params, Mapping[str, Message]]:
    """Send every device one initial model, and keep it in the server's memory."""
    _, messages = initial_messages(public, seed, shared_init=True)
    return to_memory(next(iter(messages.values())).params), messages


def to_memory(model: Params) -> Params:
    """Return a model's tensors under their names in the server's memory."""
    return add_prefix(MODEL, model)


def from_memory(server: Params) -> Params:
    """Return the model in the server's memory, or nothing."""
    return strip_prefix(MODEL, server)


def to_sampled(
    server: Params, present: Iterable[str], names: Iterable[str], message: Message
) -> tuple[Params, dict[str, Message]]:
    """Send one message to every device; to those that never took part also what it lacks of the initial model.

    Args:
        server: the server's memory, which holds that model.
        present: the devices that took part in this round.
        names: all devices.
        message: what everyone gets.
    """
    server = server | to_chosen(present)
    first = Message(from_memory(server) | message.params, message.extra)
    return server, {name: message if took_part(server, name) else first for name in names}


def to_chosen(present: Iterable[str]) -> Params:
    """Return what the server remembers of devices that took part."""
    return {f"{CHOSEN}{name}": torch.tensor(True) for name in present}


def took_part(server: Params, name: str) -> bool:
    """Tell whether the server remembers that a device took part."""
    return f"{CHOSEN}{name}" in server


def begin_sampled(name: str, nets: Mapping[str, Net], shared_init: bool, fraction: float) -> Begin:
    """Return how a method begins whose devices keep tensors that the server does not send them again.

    Where a fraction of them takes part in a round, one initial model stays with the server, for those to come. Then
    raises InputError for different nets, or initial models.
    """
    if fraction == 1:
        return partial(initial_messages, shared_init=shared_init)
    require_equal(nets)
    require_shared_init(f"{name} with fraction below 1", shared_init)
    return begin_with_memory


def require_shared_init(
    name: str, shared_init: bool, why: str = "averages changes to one model", instead: str = ""
) -> None:
    """Refuse different initial models. why: what the method does with models. instead: what else helps."""
    if not shared_init:
        raise InputError(f"training.shared_init = false: {name} {why}; use true{instead and f', or {instead}'}")


def merge_models(memory: Params, message: Message) -> Model:
    """Run the device's own tensors, and those of the message where it has none; what neither has as it last sent it."""
    return Model((strip_prefix(SENT, memory) | message.params | own_params(memory),))
