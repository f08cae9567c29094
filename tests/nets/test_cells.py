"""FedASA's network: its numbers of parameters are those of Table VI, and its function the one that Fig. 7 draws."""

import math

import pytest
import torch
from federations import NET as MLP
from signals import WHOLE
from torch.nn.functional import conv1d, linear, max_pool1d

from fedcore import nets
from fedcore.errors import InputError
from fedcore.nets.copies import load
from fedcore.nets.parts import depth_of, features, layers, max_depth, names_up_to, parts
from fedcore.types.federation import Net


def count(names):
    return sum(math.prod(nets.shapes(WHOLE)[name]) for name in names)


def test_parameters_are_those_of_table_vi():
    shared = [count(names_up_to(WHOLE, m)) for m in range(max_depth(WHOLE) + 1)]
    assert shared == [10_464, 22_816, 35_168, 47_520, 59_872]
    assert {part: count(names) for part, names in parts(WHOLE).items()} == {
        "stem": 10_464, **{f"cell{m}": 12_352 for m in (1, 2, 3, 4)}, "head": 263_562
    }  # fmt: skip
    whole = count(nets.shapes(WHOLE))
    assert whole == 323_434
    assert whole - count([*layers(WHOLE).values()][-1]) == 322_144  # FedPer
    assert round(100 * (1 - shared[-1] / whole), 2) == 81.49


def seeded():
    return torch.Generator().manual_seed(0)


def test_the_function_written_out():
    params, x = nets.init(WHOLE, seeded()), torch.rand(2, 1, 512, generator=seeded())
    flat = {name: number.squeeze(2) if number.dim() == 4 else number for name, number in params.items()}

    def conv(at, signal, **how):
        return conv1d(signal, flat[f"{at}.weight"], flat[f"{at}.bias"], **how)

    stem = conv("stem.conv2", conv("stem.conv1", x, stride=4).relu(), stride=4, padding=2).relu()
    assert stem.shape == (2, 64, 32)
    found = [stem]
    for m in (1, 2, 3, 4):
        found.append(found[-1] + max_pool1d(conv(f"cell{m}.branch.conv", found[-1], padding=1).relu(), 3, 1, 1))
    hidden = linear(found[-1].flatten(1), params["head.fc1.weight"], params["head.fc1.bias"]).relu()
    module = load(WHOLE, params)
    torch.testing.assert_close(module(x), linear(hidden, params["head.fc2.weight"], params["head.fc2.bias"]))
    torch.testing.assert_close([feature.squeeze(2) for feature in features(WHOLE, module, x)], found)


def test_settings():
    small = nets.net("cells", shape=(2, 40), classes=3, cells=1, width=0.25)
    assert [*parts(small)] == ["stem", "cell1", "head"]
    assert nets.shapes(small)["head.fc1.weight"] == (32, 16 * 3)
    assert small.build()(torch.zeros(2, 2, 40)).shape == (2, 3)
    with pytest.raises(InputError, match=r"signals \(channels, length from 4\), examples are \(1, 28, 28\)"):
        nets.net("cells", shape=(1, 28, 28), classes=3)
    with pytest.raises(InputError, match=r"net.cells: 0"):
        nets.net("cells", shape=(1, 40), classes=3, cells=0)


def nested() -> torch.nn.Module:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    return torch.nn.ModuleDict({"body": inner})


@pytest.mark.parametrize(
    ("net", "names"),
    [
        (MLP, ["fc1", "fc2", "fc3"]),
        (nets.net("mlp", shape=(4,), classes=3, widths=[]), ["fc1"]),
        (nets.net("lenet", shape=(1, 28, 28), classes=3), ["conv1", "conv2", "fc1", "fc2", "fc3"]),
        (nets.net("vgg11", shape=(3, 32, 32), classes=3, width=1 / 32, norm=True),
         [*(f"conv{i}" for i in range(1, 9)), "fc"]),
        (nets.net("resnet20", shape=(3, 16, 16), classes=3, width=0.25),
         ["stem", *(f"block{i}" for i in range(1, 10)), "fc"]),
        (Net(nested), ["body.0", "body.2"]),
    ],
    ids=["mlp", "linear", "lenet", "norms", "resnet", "a user's own"],
)  # fmt: skip
def test_parts_of_other_nets(net, names):
    assert [*parts(net)] == names
    assert [name for names in parts(net).values() for name in names] == [*nets.shapes(net)]
    assert [name for names in layers(net).values() for name in names] == [*nets.shapes(net)]
    for depth in range(max_depth(net) + 1):
        assert depth_of(net, names_up_to(net, depth)) == depth
        assert depth_of(net, names_up_to(net, depth)[1:]) == -1
    assert depth_of(net, nets.shapes(net)) == max_depth(net)
    module = net.build().eval()
    if not isinstance(module, torch.nn.ModuleDict):
        shape = next(iter(nets.shapes(net).values()))[1:]
        x = torch.rand(2, *(shape if len(shape) == 1 else {1: (1, 28, 28), 3: (3, 32, 32)}[shape[0]]))
        assert len(features(net, module, x)) == len(names) - 1
