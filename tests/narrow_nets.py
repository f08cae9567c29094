"""The registered nets for images, narrow enough for tests, and random images for them."""

from collections.abc import Sequence
from typing import Any

import torch

from fedcore import nets
from fedcore.types.federation import Net

NARROW: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "mlp": ("mlp", (1, 4, 4), {"widths": [7, 5]}),
    "cnn": ("cnn", (2, 9, 7), {"maps": [4, 6], "kernel": 3, "padding": "same", "hidden": [8]}),
    "lenet": ("lenet", (1, 28, 28), {"width": 0.5}), "dfl_cnn": ("dfl_cnn", (1, 28, 28), {"width": 0.2}),
    "mcmahan_cnn": ("mcmahan_cnn", (1, 12, 12), {"width": 1 / 16}),
    "stlf_cnn": ("stlf_cnn", (1, 28, 28), {"width": 0.2}), "vgg11": ("vgg11", (1, 28, 28), {"width": 1 / 32}),
    "vgg11 with norms": ("vgg11", (3, 32, 32), {"width": 1 / 32, "norm": True}),
    "vgg16": ("vgg16", (3, 32, 32), {"width": 1 / 32}), "resnet20": ("resnet20", (3, 16, 16), {"width": 0.25}),
    "resnet20 with bottlenecks": ("resnet20", (1, 16, 16), {"width": 0.25, "bottleneck": True}),
    "mobilenet_v2": ("mobilenet_v2", (1, 16, 16), {"width": 0.125}),
    "cells": ("cells", (1, 64), {"width": 0.125, "cells": 2}), "auto": ("auto", (1, 4, 4), {"widths": [7, 5]}),
}  # fmt: skip
"""Every registered net, made narrow so that tests are fast."""


def narrow(case: str, factor: int = 1) -> tuple[Net, tuple[int, ...]]:
    """The net of a case with its hidden widths times a factor, and the shape of its examples."""
    name, shape, own = NARROW[case]
    wider = {key: value * factor if key == "width" else value for key, value in own.items()}
    wider |= {key: [factor * each for each in own[key]] for key in ("widths", "maps", "hidden") if key in own}
    return nets.net(name, shape=shape, classes=3, **wider), shape


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(shape: Sequence[int], count: int = 4) -> torch.Tensor:
    return torch.rand(count, *shape, generator=seeded(9))
