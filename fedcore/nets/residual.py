"""Residual networks with batch norm for images of about 32 x 32: ResNet-20 and MobileNetV2."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import nn

from fedcore.nets.cnn import channels_first, image_shape, scale_widths
from fedcore.nets.tables import Images, Residual, with_table
from fedcore.nets.vgg import he
from fedcore.types.federation import Net
from fedcore.types.ranges import Positive


class Conv(NamedTuple):
    """One convolution."""

    maps: int
    kernel: int
    stride: int = 1
    groups: int = 1


def convolutions(before: int, *steps: Conv, relu: type[nn.Module] = nn.ReLU, linear: bool = False) -> nn.Sequential:
    """Return conv1, norm1, relu1, conv2, ..., reluL. linear: omit the last ReLU.

    A 1 x 1 convolution with a stride becomes a pool of single points and a convolution of stride 1. The result is the
    same, but oneDNN's gradient of the strided one writes beyond its buffer where channels are innermost and fewer than
    a vector holds (its issue 6035).
    """
    layers: dict[str, nn.Module] = {}
    for i, (after, kernel, stride, groups) in enumerate(steps, start=1):
        if kernel == 1 and stride > 1:
            layers[f"pool{i}"], stride = nn.AvgPool2d(1, stride), 1
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
        layers |= {f"norm{i}": nn.BatchNorm2d(after), f"relu{i}": relu(inplace=True)}
        before = after
    if linear:
        layers.popitem()
    return nn.Sequential(OrderedDict(layers))


def add_head(layers: dict[str, nn.Module], before: int, classes: int) -> nn.Module:
    """Return the layers followed by global average pooling and one fully connected layer."""
    head = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(before, classes)}
    return he(Images(OrderedDict(layers | head)))


def resnet(shape: Sequence[int], classes: int, widths: Sequence[int], bottleneck: bool) -> nn.Module:
    """Build a stem and three stages of residual blocks: x (B, *shape) -> logits (B, K)."""
    before = widths[0]
    layers: dict[str, nn.Module] = {"stem": convolutions(image_shape(shape)[0], Conv(before, 3))}
    depth = 2 if bottleneck else 3
    for i in range(3 * depth):
        inner, stride = widths[i // depth], 2 if i in (depth, 2 * depth) else 1
        steps = [Conv(inner, 3, stride), Conv(inner, 3)]
        if bottleneck:
            steps = [Conv(inner, 1), Conv(inner, 3, stride), Conv(4 * inner, 1)]
        after = steps[-1].maps
        keeps = before == after and stride == 1
        shortcut = nn.Identity() if keeps else convolutions(before, Conv(after, 1, stride), linear=True)
        layers[f"block{i + 1}"] = Residual(convolutions(before, *steps, linear=True), shortcut)
        layers[f"relu{i + 1}"] = nn.ReLU(inplace=True)
        before = after
    return add_head(layers, before, classes)


def mobilenet(shape: Sequence[int], classes: int, width: float) -> nn.Module:
    """Build the stem, 17 inverted residual blocks and the last convolution: x (B, *shape) -> logits (B, K)."""
    before, *maps, last = scale_widths([32, 16, 24, 32, 64, 96, 160, 320, 1280], width)
    layers: dict[str, nn.Module] = {"stem": convolutions(image_shape(shape)[0], Conv(before, 3), relu=nn.ReLU6)}
    rows = zip(maps, (1, 6, 6, 6, 6, 6, 6), (1, 2, 3, 4, 3, 3, 1), (1, 1, 2, 2, 1, 2, 1), strict=True)
    for after, factor, depth, first in rows:
        for stride in (first, *[1] * (depth - 1)):
            inner = factor * before
            widen = [Conv(inner, 1)] if factor > 1 else []
            steps = [*widen, Conv(inner, 3, stride, groups=inner), Conv(after, 1)]
            branch = convolutions(before, *steps, relu=nn.ReLU6, linear=True)
            keeps = before == after and stride == 1
            layers[f"block{len(layers)}"] = Residual(branch, nn.Identity()) if keeps else branch
            before = after
    layers["last"] = convolutions(before, Conv(last, 1), relu=nn.ReLU6)
    return add_head(layers, last, classes)


def resnet20(*, shape: Sequence[int], classes: int, width: Positive = 1.0, bottleneck: bool = False) -> Net:
    """Return ResNet-20 for 32 x 32 (He et al. 2016, Section 4.2): three stages of 16, 32 and 64 maps.

    At the start of a stage the shortcut is a 1 x 1 convolution (their option B): 272,474 parameters for 3 x 32 x 32 and
    ten classes. They use option A there, which pads with zero channels: the first maps of a stage would be those of the
    previous one, and the units of a stage could not be permuted separately.

    Args:
        width: factor of all widths, above 0.
        bottleneck: two blocks a stage of 1 x 1, 3 x 3 and 1 x 1 (four times as wide) convolutions, as many layers. This
            is DFL's (Table IV: 909.9 KB for CIFAR, and 257 numbers for each further class; 220,378 parameters).
    """
    return with_table(
        partial(resnet, channels_first(shape), classes, widths=scale_widths([16, 32, 64], width), bottleneck=bottleneck)
    )


def mobilenet_v2(*, shape: Sequence[int], classes: int, width: Positive = 1.0) -> Net:
    """Return MobileNetV2 (Sandler et al. 2018) for 32 x 32: stride 1 in the stem and the stage of 24 maps; no dropout.

    It has 2,236,682 parameters for 3 x 32 x 32 and ten classes.

    Args:
        width: factor of all widths, above 0.
    """
    return with_table(partial(mobilenet, channels_first(shape), classes, width))
