"""Convolutional networks: convolutions with pooling, then fully connected layers."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Lt
from torch import nn

from fedcore.errors import InputError
from fedcore.nets.tables import Images, with_table
from fedcore.types.federation import Net
from fedcore.types.ranges import Count, Positive

Dropout: TypeAlias = Annotated[float, Ge(0), Lt(1)]


def cnn(
    shape: Sequence[int], classes: int, maps: Sequence[int], kernel: int, padding: str, hidden: Sequence[int],
    size: int, dropout: float = 0.0,
) -> nn.Module:  # fmt: skip
    """Build conv1, pool, ReLU, conv2, ..., flatten, fc1, ReLU, ..., fcL: x (B, *shape) -> logits (B, K).

    Max pooling over 2 x 2 pixels before the ReLU gives the same result at a quarter of the work. dropout: of the last
    maps, whole ones, and of the hidden units.
    """
    frame, (channels, *sides) = pad_images(shape, size)
    layers: dict[str, nn.Module] = {"frame": frame}
    for i, (before, after) in enumerate(pairwise([channels, *maps]), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel, padding=padding)
        layers |= {f"pool{i}": nn.MaxPool2d(2), f"relu{i}": nn.ReLU(inplace=True)}
        sides = [(side - (kernel - 1 if padding == "valid" else 0)) // 2 for side in sides]
    if min(sides) < 1:
        raise InputError(
            f"net: images of {shape[1]} x {shape[2]} are too small for {len(maps)} layers of kernel {kernel}"
            + ("; channels come first: give x.transpose(0, 3, 1, 2)" if shape[0] > 4 >= shape[2] else "")
        )
    if dropout:
        layers["drop"] = nn.Dropout2d(dropout)
    layers["flatten"] = nn.Flatten()
    *widths, last = maps[-1] * math.prod(sides), *hidden
    for i, (before, after) in enumerate(pairwise([*widths, last]), start=1):
        layers |= {f"fc{i}": nn.Linear(before, after), f"out{i}": nn.ReLU(inplace=True)}
        if dropout:
            layers[f"out{i}_drop"] = nn.Dropout(dropout)
    layers[f"fc{len(hidden) + 1}"] = nn.Linear(last, classes)
    return Images(OrderedDict(layers))


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return channels, height and width. Raises InputError for examples that are not images."""
    if len(shape) != 3:
        raise InputError(f"net.name: this net takes images (channels, height, width), examples are {tuple(shape)}")
    return shape[0], shape[1], shape[2]


def channels_first(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a new net's examples. Raises InputError for square images whose channels come last.

    Nets that are stored are built without it: models of earlier versions are read, and rounds in the cache are used.
    """
    if len(shape) == 3 and shape[0] == shape[1] > 4 >= shape[2] != 2:
        raise InputError(
            f"net.name: images {tuple(shape)} have channels last; channels come first: give x.transpose(0, 3, 1, 2)"
        )
    return tuple(shape)


def pad_images(shape: Sequence[int], size: int) -> tuple[nn.Module, tuple[int, int, int]]:
    """Return a layer that pads images with zeros to size x size (larger ones are unchanged), and its output shape."""
    channels, height, width = image_shape(shape)
    lacking = [max(size - side, 0) for side in (width, height)]
    left, right, top, bottom = (edge for lack in lacking for edge in (lack // 2, lack - lack // 2))
    frame = nn.ZeroPad2d((left, right, top, bottom)) if any(lacking) else nn.Identity()
    return frame, (channels, max(height, size), max(width, size))


def scale_widths(widths: Sequence[int], width: float) -> tuple[int, ...]:
    """Return the widths times a factor, rounded, at least 1."""
    return tuple(max(round(width * each), 1) for each in widths)


def net(
    *, shape: Sequence[int], classes: int, maps: Sequence[Count] = (8, 16), kernel: Count = 3,
    padding: Literal["valid", "same"] = "same", hidden: Sequence[Count] = (32,), size: int = 0,
) -> Net:  # fmt: skip
    """Return a CNN.

    Args:
        maps: feature maps of each convolution, from 1.
        kernel: side of the convolutions' kernels, pixels.
        padding: "same" keeps the sides, "valid" shortens them by kernel - 1.
        hidden: units of each hidden layer after the convolutions, from 1.
        size: side to which smaller images are padded with zeros, pixels; 0: none are.
    """
    if not maps:
        raise InputError("net.maps: must not be empty")
    return with_table(partial(cnn, channels_first(shape), classes, tuple(maps), kernel, padding, tuple(hidden), size))


def _preset(
    shape: Sequence[int], classes: int, width: float, maps: Sequence[int], hidden: Sequence[int], padding: str,
    size: int = 0, dropout: float = 0.0,
) -> Net:  # fmt: skip
    maps, hidden = scale_widths(maps, width), scale_widths(hidden, width)
    more = (dropout,) if dropout else ()  # as without the argument: what is stored stays valid
    return with_table(partial(cnn, channels_first(shape), classes, maps, 5, padding, hidden, size, *more))


def lenet(*, shape: Sequence[int], classes: int, width: Positive = 1.0) -> Net:
    """Return LeNet-5 (LeCun et al. 1998) as used today: images padded to 32 x 32, 6 and 16 maps, 120 and 84 units.

    It has 62,006 parameters for 3 x 32 x 32 and ten classes: DFL's CNN for CIFAR.

    Args:
        width: factor of all widths, above 0.
    """
    return _preset(shape, classes, width, [6, 16], [120, 84], "valid", size=32)


def dfl_cnn(*, shape: Sequence[int], classes: int, width: Positive = 1.0) -> Net:
    """Return DFL's CNN for MNIST, by its size in Table IV: 20 and 50 maps, 50 units; 66,130 parameters at 28 x 28.

    Args:
        width: factor of all widths, above 0.
    """
    return _preset(shape, classes, width, [20, 50], [50], "valid")


def mcmahan_cnn(*, shape: Sequence[int], classes: int, width: Positive = 1.0) -> Net:
    """Return the CNN of McMahan et al. 2017: 32 and 64 maps, 512 units; 1,663,370 parameters at 28 x 28.

    Args:
        width: factor of all widths, above 0.
    """
    return _preset(shape, classes, width, [32, 64], [512], "same")


def stlf_cnn(*, shape: Sequence[int], classes: int, width: Positive = 1.0, dropout: Dropout = 0.0) -> Net:
    """Return ST-LF's CNN: 10 and 20 maps, two fully connected layers, the first of 50 units (not in the paper).

    Args:
        width: factor of all widths, above 0.
        dropout: of whole maps of the second convolution and of the 50 units, from 0, below 1; .5 in the public code of
            ST-LF's authors.
    """
    return _preset(shape, classes, width, [10, 20], [50], "valid", dropout=dropout)
