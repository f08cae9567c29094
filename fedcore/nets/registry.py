"""Architectures by name. A net is imported on first use."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from fedcore.builders import group_settings, import_builder
from fedcore.data.inputs import Input
from fedcore.errors import InputError
from fedcore.types.federation import Net
from fedcore.types.ranges import Count

NETS = {
    "mlp": "fedcore.nets.mlp:net", "cnn": "fedcore.nets.cnn:net", "lenet": "fedcore.nets.cnn:lenet",
    "dfl_cnn": "fedcore.nets.cnn:dfl_cnn", "mcmahan_cnn": "fedcore.nets.cnn:mcmahan_cnn",
    "stlf_cnn": "fedcore.nets.cnn:stlf_cnn", "vgg11": "fedcore.nets.vgg:vgg11", "vgg16": "fedcore.nets.vgg:vgg16",
    "resnet20": "fedcore.nets.residual:resnet20", "mobilenet_v2": "fedcore.nets.residual:mobilenet_v2",
    "cells": "fedcore.nets.cells:net", "lstm": "fedcore.nets.sequences:lstm",
    "transformer": "fedcore.nets.sequences:transformer", "auto": "fedcore.nets.registry:auto",
}  # fmt: skip
"""name -> "module:function" of a (*, shape, classes, **settings) -> Net. Names with a colon are a user's nets."""

SIGNAL, IMAGE = 64, 8
"""The least length of a signal and the least side of an image that are worth convolutions."""


def maker(name: str) -> Callable[..., Net]:
    """Return the function (*, shape, classes, **settings) -> Net of that name."""
    if ":" in name:
        from fedcore.nets.custom import custom

        return custom(name)
    if name not in NETS:
        raise InputError(f"net.name: {name!r} is not one of {', '.join(NETS)}, nor package.module:Class")
    return import_builder(NETS[name], "net.name")


def net(
    name: str, *, shape: tuple[int, ...], classes: int, per_step: bool = False, several: tuple[Input, ...] = (),
    weights: str | None = None, frozen: bool = False, rank: int = 0, **settings: object,
) -> Net:  # fmt: skip
    """Return the net of that name for examples of `shape`. Raises InputError for unknown names or settings.

    per_step: whether each step of an example has a label, so that the net has an output for each. several: the inputs
    that stand side by side in an example.
    weights, frozen, rank: see :func:`fedcore.nets.weights.with_weights`.
    """
    make = maker(name)
    context = {"shape": shape, "classes": classes, **as_data_need(make, name, per_step, several)}
    settings = group_settings(make, settings)
    try:
        signature(make).bind(**context, **settings)
    except TypeError as error:
        raise InputError(f"net: {error}, for net.name {name}") from None
    built = make(**context, **settings)
    if weights is None:
        return built
    from fedcore.nets.weights import with_weights

    return with_weights(built, weights, frozen, rank, shape=shape)


def as_data_need(
    make: Callable[..., Net], name: str, per_step: bool = False, several: tuple[Input, ...] = ()
) -> dict[str, Any]:
    """Return further arguments of a net for data with a label for each step, or several inputs; refuses other nets."""
    takes = signature(make).parameters
    if per_step and "per_step" not in takes:
        raise InputError(
            f"net.name: {name} has one output for an example, and these data have a label for each step; use lstm, "
            "transformer or your own module that returns (B, steps, classes)"
        )
    if several and "several" not in takes:
        names = ", ".join(entry.name for entry in several)
        raise InputError(
            f"net.name: {name} takes one input, and these data have several; use your own module whose forward takes "
            f"{names} (`fedcore docs nets`)"
        )
    return {**({"per_step": True} if per_step else {}), **({"several": several} if several else {})}


def chosen(shape: Sequence[int]) -> str:
    """Return the name of the net that `auto` takes for examples of a shape."""
    if len(shape) == 2 and shape[1] >= SIGNAL:
        return "cells"
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= IMAGE else "mlp"


def auto(*, shape: Sequence[int], classes: int, widths: Sequence[Count] = (64, 32)) -> Net:
    """Return `cells` for signals (channels, length), `cnn` for images (channels, height, width), else `mlp`.

    Signals shorter than SIGNAL and images smaller than IMAGE get an `mlp` too.

    Args:
        widths: units of each hidden layer of the `mlp`; the other nets have their own defaults.
    """
    name = chosen(shape)
    return maker(name)(shape=shape, classes=classes, **({"widths": widths} if name == "mlp" else {}))
