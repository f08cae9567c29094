"""Architectures by name. A net is imported when it is first asked for."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature

import torch

from fedcore.types import Net, Params, Refused

NETS = {"mlp": "fedcore.nets.mlp:net"}
"""Where each net's function stands: (*, shape, classes, **settings) -> Net."""

_GLOBAL_RANDOMNESS = threading.RLock()


def net(name: str, *, shape: tuple[int, ...], classes: int, **settings: object) -> Net:
    """Return the net of that name for examples of `shape` and that many classes."""
    if name not in NETS:
        raise Refused(f"net.name: {name!r} is not one of {', '.join(NETS)}")
    module, _, function = NETS[name].partition(":")
    make = getattr(import_module(module), function)
    try:
        signature(make).bind(shape=shape, classes=classes, **settings)
    except TypeError as error:
        raise Refused(f"net: {error}, for net.name {name}") from None
    made: Net = make(shape=shape, classes=classes, **settings)
    return made


def shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """Return the shape of every leaf, parameters and buffers, in the order of the state_dict."""
    return dict(_shapes(key(net)))


def init(net: Net, generator: torch.Generator) -> Params:
    """Return fresh leaves by PyTorch's default initialisation, drawn from `generator`."""
    with drawn_from(generator):
        return leaves(net.build())


def leaves(module: torch.nn.Module) -> Params:
    """Return a copy of a module's parameters and buffers."""
    return {name: leaf.detach().clone() for name, leaf in module.state_dict().items()}


def key(net: Net) -> bytes:
    """Return what tells architectures apart within one process (a net itself cannot be hashed)."""
    return pickle.dumps(net.build)


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Let what PyTorch draws from its global generator (initial weights, dropout) come from `generator` instead.

    The global generator is given back as it was; threads that need it take turns.
    """
    everyones = torch.default_generator
    with _GLOBAL_RANDOMNESS:
        before = everyones.get_state()
        everyones.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(everyones.get_state())
            everyones.set_state(before)


@functools.lru_cache(maxsize=256)
def _shapes(key: bytes) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module = pickle.loads(key)()
    return {name: tuple(leaf.shape) for name, leaf in module.state_dict().items()}
