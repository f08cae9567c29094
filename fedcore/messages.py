"""What the server says first, and saying the same to everyone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedcore.nets import init, key
from fedcore.types import Message, Model, Params, Public, generator


def everyone(names: Iterable[str], message: Message) -> dict[str, Message]:
    """Address one message to every device."""
    return dict.fromkeys(names, message)


def first(public: Public, seed: int, *, common: bool) -> tuple[Params, Mapping[str, Message]]:
    """Begin with an empty server memory and the initial models.

    common: the server draws one initial model and sends it to everyone (devices with different nets get one per net,
    drawn alike). Otherwise it sends nothing and each device initialises itself.
    """
    if not common:
        return {}, everyone(public.names, Message())
    nets = {key(net): net for net in public.nets.values()}
    drawn = {k: Message(init(net, generator(seed, "init"))) for k, net in nets.items()}
    return {}, {name: drawn[key(net)] for name, net in public.nets.items()}


def received(own: Params, message: Message) -> Model:
    """Run the model that the server sent."""
    return Model((message.params,))
