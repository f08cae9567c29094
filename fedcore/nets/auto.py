"""A net chosen by the shape of an example."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.nets import cells, cnn, mlp
from fedcore.types.federation import Net
from fedcore.types.ranges import Count

SIGNAL, IMAGE = 64, 8
"""The least length of a signal and the least side of an image that are worth convolutions."""


def net(*, shape: Sequence[int], classes: int, widths: Sequence[Count] = (64, 32)) -> Net:
    """Return `cells` for signals (channels, length), `cnn` for images (channels, height, width), else `mlp`.

    Signals shorter than SIGNAL and images smaller than IMAGE get an `mlp` too.

    Args:
        widths: units of each hidden layer of the `mlp`; the other nets have their own defaults.
    """
    if len(shape) == 2 and shape[1] >= SIGNAL:
        return cells.net(shape=shape, classes=classes)
    if len(shape) == 3 and min(shape[1:]) >= IMAGE:
        return cnn.net(shape=shape, classes=classes)
    return mlp.net(shape=shape, classes=classes, widths=widths)
