"""The inputs of layers: rows times weights must be what the layer computes."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedcore import nets
from fedcore.nets.inputs import layer_inputs, linear_layers, multiplications, patches

CONVOLUTIONS = {
    "plain": (nn.Conv2d(3, 5, 3), (2, 3, 8, 9)),
    "strided": (nn.Conv2d(3, 5, (3, 2), stride=(2, 3), padding=(2, 1)), (2, 3, 8, 9)),
    "dilated": (nn.Conv2d(3, 5, 3, dilation=2, padding=1), (2, 3, 8, 9)),
    "same": (nn.Conv2d(3, 5, (4, 3), padding="same"), (2, 3, 8, 9)),
    "valid": (nn.Conv2d(3, 5, 4, padding="valid"), (2, 3, 8, 9)),
    "signal": (nn.Conv1d(3, 5, 4, stride=2, padding=3), (2, 3, 11)),
    "signal same": (nn.Conv1d(3, 5, 4, padding="same", dilation=2), (2, 3, 11)),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_patches_times_weights_are_the_convolution(kind):
    layer, shape = CONVOLUTIONS[kind]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows = patches(layer, x) @ layer.weight.flatten(1).T + layer.bias
        expected = layer(x).flatten(2).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 8, 8)), ("cnn", (1, 8, 8)), ("cells", (1, 64))])
def test_every_layer_is_found_and_its_inputs_give_the_last_layers_outputs(name, shape):
    net = nets.net(name, shape=shape, classes=3)
    module = net.build().eval()
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    seen = {}
    layer_inputs(module, x, lambda layer, rows: seen.update({layer: rows.clone()}))
    assert list(seen) == list(linear_layers(module))
    assert {f"{layer}.weight" for layer in seen} == {key for key in nets.shapes(net) if key.endswith("weight")}
    last = linear_layers(module)[list(seen)[-1]]
    with torch.no_grad():
        torch.testing.assert_close(last(seen[list(seen)[-1]]), module(x))
    assert all(rows.shape[1] == linear_layers(module)[layer].weight[0].numel() for layer, rows in seen.items())


def test_convolutions_in_groups_and_with_other_borders_are_left_out():
    module = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 3, padding_mode="circular", padding=1))
    assert linear_layers(module) == {}


def test_frozen_layers_are_left_out():
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    assert list(linear_layers(module)) == ["1"]


SHAPES = {"resnet20": (3, 32, 32), "mobilenet_v2": (3, 32, 32), "mcmahan_cnn": (1, 28, 28), "cells": (1, 512)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", *SHAPES])
def test_multiplications_are_those_that_pytorch_counts(name):
    """Also of a depthwise convolution, in MobileNet. PyTorch counts two operations for each."""
    shape = SHAPES.get(name, (1, 28, 28))
    net = nets.net(name, shape=shape, classes=10)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        net.build().eval()(torch.zeros(1, *shape))
    assert multiplications(net, shape) == counter.get_total_flops() / 2


def test_multiplications_of_a_perceptron_are_its_weights():
    net = nets.net("mlp", shape=(4,), classes=3, widths=[5, 4])
    assert multiplications(net, (4,)) == 4 * 5 + 5 * 4 + 4 * 3
