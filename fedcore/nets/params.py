"""A net's parameters and buffers: their shapes, fresh ones, and those of a module.

A frozen parameter (`requires_grad` False) is none of them: it belongs to the architecture, as `build` makes it. It is
the same on every device, is neither trained nor sent, and counts as no traffic. The same holds for the buffers of a
layer whose parameters are all frozen, such as a norm's, which stays in evaluation mode, and of a marked one (STAYS).
"""

import copyreg
import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedcore.errors import InputError
from fedcore.nets.randomness import construct_with
from fedcore.pickling import dumps
from fedcore.types.federation import Axes, Net, Params

STAYS = "_stays"
"""The attribute of a layer that is frozen although it may have no parameters, such as a norm without them."""

KEY = "_key"
"""The attribute of a net that holds its key."""


def shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """Return the shape of every trainable parameter and buffer, in the order of the state_dict."""
    return dict(_shapes(key(net)))


def parameters(net: Net) -> tuple[str, ...]:
    """Return the names of the trainable parameters, without the buffers."""
    with construct_with(torch.Generator()):
        module = net.build()
    return tuple(name for name, tensor in module.named_parameters() if tensor.requires_grad)


def init(net: Net, generator: torch.Generator) -> Params:
    """Return fresh parameters and buffers by PyTorch's default initialisation, drawn from `generator`."""
    with construct_with(generator):
        return params_of(net.build())


def params_of(module: torch.nn.Module) -> Params:
    """Return a copy of a module's trainable parameters and buffers."""
    parts = _trainable(module).items()
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in parts}


def frozen(module: torch.nn.Module) -> Params:
    """Return a module's frozen parameters and the buffers of frozen layers by name, not copied."""
    fixed = {name for name, tensor in module.named_parameters() if not tensor.requires_grad}
    if not fixed and not is_frozen(module):
        return {}
    for prefix, layer in module.named_modules():
        if is_frozen(layer):
            fixed |= {f"{prefix}.{name}" if prefix else name for name, _ in layer.named_buffers(recurse=False)}
    return {name: tensor.detach() for name, tensor in module.state_dict().items() if name in fixed}


def is_frozen(layer: torch.nn.Module) -> bool:
    """Tell whether a layer is marked, or has parameters of its own, which like those of its parts are all frozen."""
    if getattr(layer, STAYS, False):
        return True
    own = any(True for _ in layer.parameters(recurse=False))
    return own and not any(parameter.requires_grad for parameter in layer.parameters())


def _trainable(module: torch.nn.Module) -> Params:
    fixed = frozen(module)
    return {name: tensor for name, tensor in module.state_dict().items() if name not in fixed}


def key(net: Net) -> bytes:
    """Return a key that is equal for equal architectures within one process (nets are not hashable).

    It is made once for each net: to pickle a class of a script takes milliseconds.
    """
    cached: bytes | None = vars(net).get(KEY)
    if cached is None:
        cached = vars(net)[KEY] = dumps((net.build, net.content, net.copied))
        _MADE[cached] = {"build": net.build, "content": net.content, "copied": net.copied}
        if len(_MADE) > MOST_MADE:
            del _MADE[next(iter(_MADE))]
    return cached


AGAIN = "_again"
"""The attribute of a user's net that holds a function that returns it; another net if its module now is another."""


def renew(net: Net) -> Net:
    """Return a net as its constructor makes it now: globals that it reads may have changed. Another net if it differs.

    Models of the net before stay what they are.
    """
    if again := vars(net).get(AGAIN):
        return again()  # type: ignore[no-any-return]
    vars(net).pop(KEY, None)  # it may hold a script's globals as they were
    return net


MOST_MADE = 256
_MADE: dict[bytes, dict[str, Any]] = {}
"""Parts of nets by their keys: a script's class is not read from its own pickle, which would replace its methods
by ones that see globals as they were."""


def _reduce(net: Net) -> tuple[Callable[..., Net], tuple[bytes, Axes | None]]:
    """Pickle a net by its key, which another process then need not make again."""
    return net_of, (key(net), net.axes)


def net_of(of: bytes, axes: Axes | None = None) -> Net:
    """Return the net with that key."""
    net = Net(axes=axes, **(_MADE.get(of) or _unpickled(of)))
    vars(net)[KEY] = of
    return net


@functools.lru_cache(maxsize=64)
def _unpickled(of: bytes) -> dict[str, Any]:
    return dict(zip(("build", "content", "copied"), pickle.loads(of), strict=True))


copyreg.pickle(Net, _reduce)


@functools.lru_cache(maxsize=256)
def _shapes(key: bytes) -> dict[str, tuple[int, ...]]:
    with construct_with(torch.Generator()):
        module = net_of(key).build()
    return {name: tuple(tensor.shape) for name, tensor in _trainable(module).items()}


def require_equal(nets: Mapping[str, Net]) -> Net:
    """Return the net that all devices have; raises InputError if they differ."""
    if len({key(net) for net in nets.values()}) > 1:
        raise InputError(
            "net.variants: this method combines models tensor by tensor and needs equal nets; drop variants or this row"
        )
    return next(iter(nets.values()))
