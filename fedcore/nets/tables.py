"""Tables of axes, read off a module: which axis of which leaf carries which units (see `fedcore.types.Axes`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcore.types import Axes, Net


class Images(nn.Sequential):
    """Layers on images, each of which works in any memory order: channels may stand innermost, see `local.view_of`."""

    channels_last = True


class Residual(nn.Module):
    """x -> branch(x) + shortcut(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        summed: Tensor = self.branch(x) + self.shortcut(x)
        return summed


def table(module: nn.Module) -> Axes:
    """Return the axes of a module made of Sequential, Residual, Linear, Conv2d, norms and layers without leaves.

    Units are called after the layer that makes them. A depthwise convolution and a norm keep the units that enter; a
    sum has one kind of units, so that what a branch makes bears the shortcut's name; what flattens leaves k entries
    of each unit in a row. What enters and what leaves the module (inputs, classes) carries none.
    """
    axes, last = _follow(module, "", None)
    return _rename(axes, last, None)


def with_table(build: Callable[[], nn.Module]) -> Net:
    """Return the net that is built so, with its table."""
    with torch.device("meta"):
        module = build()
    return Net(build, table(module))


def _follow(module: nn.Module, name: str, units: str | None) -> tuple[Axes, str | None]:
    """Return the axes of a part which `units` enter, and the units that leave it."""
    axes: Axes = {}
    match module:
        case nn.Sequential():
            for child, part in module.named_children():
                more, units = _follow(part, f"{name}.{child}" if name else child, units)
                axes |= more
            return axes, units
        case Residual():
            branch, end = _follow(module.branch, f"{name}.branch", units)
            shortcut, stream = _follow(module.shortcut, f"{name}.shortcut", units)
            return _rename(branch | shortcut, end, stream), stream
        case nn.Linear() | nn.Conv2d(groups=1):
            made: str | None = name
            before = [units]
        case nn.Conv2d() if module.groups == module.in_channels == module.out_channels:
            made, before = units, [None]
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            made, before = units, []
        case _ if not module.state_dict():
            return {}, units
        case _:
            raise TypeError(f"{name}: the axes of {type(module).__name__} are not known")
    for leaf, x in module.state_dict().items():
        if x.dim():  # a counter has no axis
            axes[f"{name}.{leaf}"] = (made, *[*before, None, None][: x.dim() - 1])
    return axes, made


def _rename(axes: Axes, old: str | None, new: str | None) -> Axes:
    return {leaf: tuple(new if label == old else label for label in labels) for leaf, labels in axes.items()}
