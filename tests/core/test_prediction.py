"""Predictions of several devices' examples at once: the bits of one after another, and fewer passes."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fedcore import nets
from fedcore.core import prediction
from fedcore.core.prediction import predict, predict_all
from fedcore.execute.workers import one_thread
from fedcore.types.federation import Net
from fedcore.types.method import generator

SIZES = [*range(1, 13), 4, 8, 8, 8, 15, 16, 24, 31, 33, 40, 4, 70]


class AmongOthers(nn.Module):
    """A net of a user's own whose answer depends on what else is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x - x.mean(0))


class Pooled(nn.Module):
    """A user's net that takes maxima in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(3, 6, 3), nn.MaxPool2d(2), nn.Linear(96, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(max_pool2d(self.pool(self.conv(x)), 3, stride=2, padding=1, ceil_mode=True).view(len(x), -1))


def test_maxima_are_taken_with_channels_last_and_keep_their_bits(monkeypatch):
    net, x = Net(Pooled, content="own"), torch.randn(5, 3, 16, 16, generator=generator("x"))
    x[0, :, :4], x[1, 0, 0, 0], x[2, :, 3] = -0.0, float("nan"), float("-inf")
    params, layouts = nets.init(net, generator("params")), []
    real = torch.max_pool2d

    def watch(x: Tensor, *rest: Any) -> Tensor:
        layouts.append(x.is_contiguous(memory_format=torch.channels_last))
        return real(x, *rest)

    monkeypatch.setattr(torch, "max_pool2d", watch)
    found = predict(params, net, x, 32)
    assert layouts == [True, True]
    plain = Pooled()
    plain.load_state_dict(params)
    with torch.no_grad():
        expected = plain(x)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nets.net("mlp", shape=(8,), classes=3), (8,)),
        (nets.net("lenet", shape=(1, 28, 28), classes=10), (1, 28, 28)),
        (nets.net("dfl_cnn", shape=(1, 28, 28), classes=10), (1, 28, 28)),
        (Net(AmongOthers), (8,)),
    ],
    ids=["mlp", "lenet", "dfl_cnn", "own"],
)
def test_several_parts_have_the_bits_of_one_after_another(net: Net, shape: tuple[int, ...], monkeypatch):
    passes = []
    real = prediction._filled

    def count(batches: Sequence[Tensor], size: int) -> Tensor:
        passes.append(len(batches))
        return real(batches, size)

    monkeypatch.setattr(prediction, "_filled", count)
    monkeypatch.setattr(prediction, "WORTH", 4)
    params = nets.init(net, generator("params"))
    parts = [torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=generator(size)) for size in SIZES]
    with one_thread():
        alone = [predict(params, net, x, 1024) for x in parts]
        found = predict_all(params, net, parts, 1024)
    assert all(map(torch.equal, alone, found))
    assert (max(passes, default=0) > 1) == (net.build is not AmongOthers)
