"""A fixed random layer or a given net, and a linear layer: the nets of :mod:`fedcore.methods.analytic`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import nn

from fedcore.types import Net


def random_features(inputs: int, features: int, classes: int) -> nn.Module:
    """Build flatten, features, ReLU, output: x (B, *shape) of `inputs` numbers -> logits (B, K)."""
    layers = {
        "flatten": nn.Flatten(), "features": nn.Linear(inputs, features, bias=False), "relu": nn.ReLU(inplace=True),
        "output": nn.Linear(features, classes),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers))


def net(inputs: int, features: int, classes: int) -> Net:
    """Return the net of these sizes."""
    return Net(partial(random_features, inputs, features, classes))


def on_top(build: Callable[[], nn.Module], features: int, classes: int) -> nn.Module:
    """Build features (the given module) and output: x (B, *shape) -> logits (B, K)."""
    return nn.Sequential(OrderedDict(features=build(), output=nn.Linear(features, classes)))


def extended(given: Net, features: int, classes: int) -> Net:
    """Return the net that has a linear layer on the outputs of another, of which there are `features`."""
    return Net(partial(on_top, given.build, features, classes))
