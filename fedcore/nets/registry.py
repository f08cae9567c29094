"""Architectures by name. A net is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature

from fedcore.types import InputError, Net

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
    "lstm": "fedcore.nets.sequences:lstm",
    "transformer": "fedcore.nets.sequences:transformer",
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


def net(
    name: str,
    *,
    shape: tuple[int, ...],
    classes: int,
    per_step: bool = False,
    weights: str | None = None,
    frozen: bool = False,
    rank: int = 0,
    **settings: object,
) -> Net:
    """Return the net of that name for examples of `shape`. Raises InputError for unknown names or settings.

    per_step: whether each step of an example has a label, so that the net has an output for each.
    weights, frozen, rank: see :func:`fedcore.nets.weights.with_weights`.
    """
    make = maker(name)
    context = {"shape": shape, "classes": classes, **each_step(make, name, per_step)}
    try:
        signature(make).bind(**context, **settings)
    except TypeError as error:
        raise InputError(f"net: {error}, for net.name {name}") from None
    made = make(**context, **settings)
    if weights is None:
        return made
    from fedcore.nets.weights import with_weights

    return with_weights(made, weights, frozen, rank)


def each_step(make: Callable[..., Net], name: str, per_step: bool) -> dict[str, bool]:
    """Return the argument by which a net has an output for each step, if it is to; refuses a net that cannot."""
    if per_step and "per_step" not in signature(make).parameters:
        raise InputError(
            f"net.name: {name} has one output for an example, and these data have a label for each step; use lstm, "
            "transformer or your own module that returns (B, steps, classes)"
        )
    return {"per_step": True} if per_step else {}
