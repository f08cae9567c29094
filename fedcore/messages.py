"""What the server says first, and saying the same to everyone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from fedcore.mixing import changed, mean
from fedcore.nets import init, key
from fedcore.types import InputError, Message, Model, Params, Public, generator, named

MODEL = "model/"
"""What the names begin with under which the server remembers the model that it sent."""


def everyone(names: Iterable[str], message: Message) -> dict[str, Message]:
    """Address one message to every device."""
    return dict.fromkeys(names, message)


@named("begin")
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


def received(memory: Params, message: Message) -> Model:
    """Run the model that the server sent."""
    return Model((message.params,))


@named("begin")
def first_kept(public: Public, seed: int) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone one initial model and remember it: what devices send back is how it changed."""
    _, messages = first(public, seed, common=True)
    return kept(next(iter(messages.values())).params), messages


def kept(model: Params) -> Params:
    """Return the leaves under the names by which the server remembers them."""
    return {f"{MODEL}{name}": leaf for name, leaf in model.items()}


def remembered(server: Params) -> Params:
    """Return the model that the server remembers, or nothing."""
    return {name.removeprefix(MODEL): leaf for name, leaf in server.items() if name.startswith(MODEL)}


def apply_changes(server: Params, changes: Sequence[Params], weights: Tensor) -> Params:
    r"""Return the model that the server remembers, moved by the weighted mean of the changes.

    w <- w + sum_k p_k Delta_k
    """
    return changed(remembered(server), mean(changes, weights))


def one_start(name: str, common: bool) -> None:
    """Refuse a start from different models, which have no common change."""
    if not common:
        raise InputError(f"training.init = per_device: {name} averages changes to one model; use common")
