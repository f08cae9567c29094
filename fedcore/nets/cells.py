"""FedASA's network for signals (Deng et al. 2024, Fig. 7): two convolutions, residual cells, two linear layers."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import nn

from fedcore.errors import InputError
from fedcore.nets.cnn import scale_widths
from fedcore.nets.tables import Images, Residual, with_table
from fedcore.types.federation import Net
from fedcore.types.ranges import Count, Positive


def cellular(shape: Sequence[int], classes: int, cells: int, widths: Sequence[int]) -> nn.Module:
    """Build stem, cell1, ..., cellM, head: x (B, channels, n) -> logits (B, K).

    A signal becomes an image of one row, since 2-d convolutions are a quarter faster. A cell is
    x -> x + pool(ReLU(conv(x))); its max pooling of three neighbours keeps the length.
    """
    narrow, wide, hidden = widths
    length = (((shape[1] - 4) // 4 + 1) - 1) // 4 + 1
    stem = {
        "conv1": nn.Conv2d(shape[0], narrow, (1, 4), stride=(1, 4)), "relu1": nn.ReLU(inplace=True),
        "conv2": nn.Conv2d(narrow, wide, (1, 5), stride=(1, 4), padding=(0, 2)), "relu2": nn.ReLU(inplace=True),
    }  # fmt: skip
    layers: dict[str, nn.Module] = {"row": nn.Unflatten(1, (shape[0], 1)), "stem": nn.Sequential(OrderedDict(stem))}
    for i in range(1, cells + 1):
        branch = {
            "conv": nn.Conv2d(wide, wide, (1, 3), padding=(0, 1)), "relu": nn.ReLU(inplace=True),
            "pool": nn.MaxPool2d((1, 3), stride=1, padding=(0, 1)),
        }  # fmt: skip
        layers[f"cell{i}"] = Residual(nn.Sequential(OrderedDict(branch)), nn.Identity())
    head = {
        "flatten": nn.Flatten(), "fc1": nn.Linear(wide * length, hidden), "relu": nn.ReLU(inplace=True),
        "fc2": nn.Linear(hidden, classes),
    }  # fmt: skip
    layers["head"] = nn.Sequential(OrderedDict(head))
    return Images(OrderedDict(layers))


def net(*, shape: Sequence[int], classes: int, cells: Count = 4, width: Positive = 1.0) -> Net:
    """Return the network inferred from Table VI's parameter counts: 323,434 for signals of 512 and ten classes.

    The stem (10,464) has 32 and 64 maps, with kernels of 4 and 5 samples and strides of 4; each cell (12,352) has 64
    maps; the head has 128 units. The paper does not state kernels, strides, activations or the kind of pooling.

    Args:
        cells: M, from 1.
        width: factor of all widths, above 0.
    """
    if len(shape) != 2 or shape[1] < 4:
        raise InputError(f"net.name: cells takes signals (channels, length from 4), examples are {tuple(shape)}")
    return with_table(partial(cellular, tuple(shape), classes, cells=cells, widths=scale_widths([32, 64, 128], width)))
