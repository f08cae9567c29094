"""A fixed random layer and a linear one: the net of :mod:`fedcore.methods.one_shot.analytic`."""

from collections import OrderedDict
from functools import partial

from torch import nn

from fedcore.types.federation import Net


def random_features(inputs: int, features: int, classes: int) -> nn.Module:
    """Build flatten, features, ReLU, output: x (B, *shape) of `inputs` numbers -> logits (B, K)."""
    layers = {
        "flatten": nn.Flatten(), "features": nn.Linear(inputs, features, bias=False), "relu": nn.ReLU(inplace=True),
        "output": nn.Linear(features, classes),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers))


def net(inputs: int, features: int, classes: int) -> Net:
    """Return the net of these sizes."""
    return Net(partial(random_features, inputs, features, classes), copied=True)
