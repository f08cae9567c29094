"""A net's leaves: their shapes, fresh ones, and those of a module."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping

import torch

from fedcore.nets.randomness import use_generator
from fedcore.pickling import dumps
from fedcore.types import InputError, Net, Params


def shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """Return the shape of every leaf, parameters and buffers, in the order of the state_dict."""
    return dict(_shapes(key(net)))


def init(net: Net, generator: torch.Generator) -> Params:
    """Return fresh leaves by PyTorch's default initialisation, drawn from `generator`."""
    with use_generator(generator):
        return leaves(net.build())


def leaves(module: torch.nn.Module) -> Params:
    """Return a copy of a module's parameters and buffers."""
    return {
        name: leaf.detach().clone(memory_format=torch.contiguous_format) for name, leaf in module.state_dict().items()
    }


def key(net: Net) -> bytes:
    """Return a key that is equal for equal architectures within one process (nets are not hashable)."""
    return dumps(net.build)


@functools.lru_cache(maxsize=256)
def _shapes(key: bytes) -> dict[str, tuple[int, ...]]:
    with use_generator(torch.Generator()):
        module = pickle.loads(key)()
    return {name: tuple(leaf.shape) for name, leaf in module.state_dict().items()}


def require_equal(nets: Mapping[str, Net]) -> None:
    """Raise InputError if the nets differ."""
    if len({key(net) for net in nets.values()}) > 1:
        raise InputError(
            "net.variants: this method combines models leaf by leaf and needs equal nets; drop variants or this row"
        )
