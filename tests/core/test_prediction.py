"""A model's predictions are those of its module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedcore import nets
from fedcore.core.prediction import accuracy, predict
from fedcore.types.federation import Data, Net
from fedcore.types.method import generator


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


NETS = {
    "by hand": nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5]),
    "autograd": Net(plain),
    "batch norm": Net(normed),
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_predictions_are_the_modules_own(net):
    rng = generator("prediction")
    params = {name: tensor + 1 if "running" in name else tensor for name, tensor in nets.init(net, rng).items()}
    x = torch.randint(0, 256, (11, 1, 6, 6), generator=rng).to(torch.uint8)
    examples = Data(x, torch.randint(0, 3, (11,), generator=rng))
    module = net.build().eval()
    module.load_state_dict(params)
    expected = module(x / 255).detach()
    for inputs, batch in ((x, 4), (examples.inputs(), 100)):
        torch.testing.assert_close(predict(params, net, inputs, batch), expected)
    right = (expected.argmax(1) == examples.y).double().mean().item()
    assert accuracy(params, net, examples) == right
    assert predict(params, net, x[:0], 4).shape == (0, 3)
