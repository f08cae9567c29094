"""Architectures by name. A net is imported on first use."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature

import torch

from fedcore.nets.randomness import use_generator as use_generator
from fedcore.pickling import dumps
from fedcore.types import InputError, Net, Params

NETS = {
    "mlp": "fedcore.nets.mlp:net",
    "cnn": "fedcore.nets.cnn:net",
    "lenet": "fedcore.nets.cnn:lenet",
    "dfl_cnn": "fedcore.nets.cnn:dfl_cnn",
    "mcmahan_cnn": "fedcore.nets.cnn:mcmahan_cnn",
    "stlf_cnn": "fedcore.nets.cnn:stlf_cnn",
    "vgg11": "fedcore.nets.vgg:vgg11",
    "vgg16": "fedcore.nets.vgg:vgg16",
    "resnet20": "fedcore.nets.residual:resnet20",
    "mobilenet_v2": "fedcore.nets.residual:mobilenet_v2",
    "cells": "fedcore.nets.cells:net",
    "auto": "fedcore.nets.auto:net",
}
"""name -> "module:function" of a (*, shape, classes, **settings) -> Net. Names with a colon are a user's nets."""


def maker(name: str) -> Callable[..., Net]:
    """Return the function (*, shape, classes, **settings) -> Net of that name."""
    if ":" in name:
        from fedcore.nets.custom import custom

        return custom(name)
    if name not in NETS:
        raise InputError(f"net.name: {name!r} is not one of {', '.join(NETS)}, nor package.module:Class")
    module, _, function = NETS[name].partition(":")
    make: Callable[..., Net] = getattr(import_module(module), function)
    return make


def net(name: str, *, shape: tuple[int, ...], classes: int, **settings: object) -> Net:
    """Return the net of that name for examples of `shape`. Raises InputError for unknown names or settings."""
    make = maker(name)
    try:
        signature(make).bind(shape=shape, classes=classes, **settings)
    except TypeError as error:
        raise InputError(f"net: {error}, for net.name {name}") from None
    return make(shape=shape, classes=classes, **settings)


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
