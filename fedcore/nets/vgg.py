"""VGG (Simonyan and Zisserman 2015): 3 x 3 convolutions in five blocks, then one fully connected layer or several."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from fedcore.errors import InputError
from fedcore.nets.cnn import channels_first, pad_images, scale_widths
from fedcore.nets.tables import Images, with_table
from fedcore.types.federation import Net
from fedcore.types.ranges import Count, Positive

WIDTHS = (64, 128, 256, 512, 512)


class Gray(nn.Module):
    """Repeats the channel of gray images three times: (B, 1, H, W) -> (B, 3, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def vgg(
    shape: Sequence[int], classes: int, widths: Sequence[int], depths: Sequence[int], size: int, norm: bool,
    hidden: Sequence[int],
) -> nn.Module:  # fmt: skip
    """Build blocks of `depths` convolutions of `widths` maps, each followed by pooling, and fully connected layers.

    hidden: units of the fully connected layers before the last, each followed by ReLU and dropout of a half. The
    convolutions start as in He et al. 2015: with PyTorch's default no signal reaches the end of a net without norms.
    """
    frame, (channels, height, width) = pad_images(shape, size)
    layers: dict[str, nn.Module] = {"frame": frame, "color": Gray() if channels == 1 else nn.Identity()}
    if min(height, width) < 32:
        raise InputError(f"net.size: {size} is too small, five poolings need images of 32 pixels a side")
    before, i = 3 if channels == 1 else channels, 0
    for block, (after, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        for _ in range(depth):
            i += 1
            layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1, bias=not norm)
            if norm:
                layers[f"norm{i}"] = nn.BatchNorm2d(after)
            layers[f"relu{i}"] = nn.ReLU(inplace=True)
            before = after
        layers[f"pool{block}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    features = before * (height // 32) * (width // 32)
    for k, units in enumerate(hidden, start=1):
        layers |= {f"fc{k}": nn.Linear(features, units), f"fc{k}_relu": nn.ReLU(inplace=True)}
        layers[f"fc{k}_drop"] = nn.Dropout(0.5)
        features = units
    layers["fc"] = nn.Linear(features, classes)
    return he(Images(OrderedDict(layers)))


def he(module: nn.Module) -> nn.Module:
    """Initialise convolutions so that gradients keep their variance, with zero biases (He et al. 2015).

    A module without memory (on the meta device) is left alone: to draw nothing, PyTorch would import its compiler.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and not part.weight.is_meta:
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def vgg11(
    *, shape: Sequence[int], classes: int, width: Positive = 1.0, size: Count = 32, norm: bool = False,
    hidden: Sequence[Count] = (),
) -> Net:  # fmt: skip
    """Return VGG-11 with one fully connected layer, CODE's CNN (Section VI): 8 convolutions, 9.2 million parameters.

    Gray images are repeated in three channels.

    Args:
        width: factor of the convolutions' widths, above 0.
        size: side to which images are padded with zeros, pixels, as in the paper (whose 224 costs 49 times the work of
            32, all but 2 % of it on zeros for MNIST). Unlike resizing, padding keeps the pixels.
        norm: batch norm after every convolution.
        hidden: units of fully connected layers before the last, each followed by dropout of a half; [4096, 4096] are
            those of the original, which has 138 million parameters with 16 layers on images of 224 x 224 (Simonyan and
            Zisserman 2015, Section 2, Table 2).
    """
    return _net(shape, classes, width, size, norm, hidden, (1, 1, 2, 2, 2))


def vgg16(
    *, shape: Sequence[int], classes: int, width: Positive = 1.0, size: Count = 32, norm: bool = False,
    hidden: Sequence[Count] = (),
) -> Net:  # fmt: skip
    """Return VGG-16 with one fully connected layer: 13 convolutions, 14.7 million parameters.

    Args:
        width: factor of the convolutions' widths, above 0.
        size: side to which images are padded with zeros, pixels.
        norm: batch norm after every convolution.
        hidden: units of fully connected layers before the last, as for `vgg11`.
    """
    return _net(shape, classes, width, size, norm, hidden, (2, 2, 3, 3, 3))


def _net(
    shape: Sequence[int], classes: int, width: float, size: int, norm: bool, hidden: Sequence[int],
    depths: tuple[int, ...],
) -> Net:  # fmt: skip
    return with_table(
        partial(vgg, channels_first(shape), classes, scale_widths(WIDTHS, width), depths, size, norm, tuple(hidden))
    )
