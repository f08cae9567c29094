"""Nets for images: their sizes, their training and their export."""

from functools import partial
from typing import Any

import pytest
import torch
from narrow_nets import NARROW, images, narrow, seeded
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from fedcore import Data, Device, InputError, Message, Splits, StepId, nets
from fedcore.core.training import Training, flatten_net, plain_step, predict, train
from fedcore.execute.workers import Inline, Workers
from fedcore.nets.builders_by_path import net_at
from fedcore.nets.tables import Residual, table

SIZES = [
    ("lenet", (3, 32, 32), {}, 62_006), ("lenet", (1, 28, 28), {}, 61_706), ("dfl_cnn", (1, 28, 28), {}, 66_130),
    ("mcmahan_cnn", (1, 28, 28), {}, 1_663_370), ("stlf_cnn", (1, 28, 28), {}, 21_840),
    ("vgg11", (3, 32, 32), {}, 9_225_610), ("vgg11", (1, 28, 28), {"size": 224}, 9_471_370),
    ("vgg16", (3, 32, 32), {}, 14_719_818), ("resnet20", (3, 32, 32), {}, 272_474),
    ("resnet20", (3, 32, 32), {"bottleneck": True}, 220_378), ("mobilenet_v2", (3, 32, 32), {}, 2_236_682),
]  # fmt: skip


OF_SEQUENCES = {"lstm", "transformer"}
"""Tested in test_sequences.py."""


def test_every_registered_net_is_tested():
    assert {name for name, _, _ in NARROW.values()} == {*nets.NETS} - OF_SEQUENCES


@pytest.mark.parametrize(("name", "shape", "own", "count"), SIZES)
@pytest.mark.slow
def test_numbers_of_parameters(name, shape, own, count):
    with torch.device("meta"):
        module = nets.net(name, shape=shape, classes=10, **own).build()
    assert sum(tensor.numel() for tensor in module.parameters()) == count


def test_a_bottleneck_resnet_is_the_size_of_the_papers():
    """DFL, Table IV: 908.7, 909.9 and 962.2 KB for MNIST, CIFAR-10 and FEMNIST; a stored file adds the same to each."""
    sets = [((1, 28, 28), 10, 908.7), ((3, 32, 32), 10, 909.9), ((1, 28, 28), 62, 962.2)]
    added = []
    for shape, classes, kilobytes in sets:
        shapes = nets.shapes(nets.net("resnet20", shape=shape, classes=classes, bottleneck=True)).values()
        added.append(kilobytes - sum(torch.Size(size).numel() * 4 for size in shapes) / 1000)
    assert max(added) - min(added) < 0.2
    assert 0 < min(added) < 15


def test_vgg16_with_its_own_head_has_the_published_size():
    """138 million (Simonyan and Zisserman 2015, Table 2), to the unit as known; 134.6 MB in DFL's Table IV."""
    sizes = []
    for side, classes in ((224, 1000), (32, 10)):
        with torch.device("meta"):
            module = nets.net("vgg16", shape=(3, side, side), classes=classes, hidden=[4096, 4096]).build()
        sizes.append(sum(tensor.numel() for tensor in module.parameters()))
    assert sizes[0] == 138_357_544
    assert 4 * sizes[1] / 1e6 == pytest.approx(137830.4 / 1024, rel=0.005)  # Table IV prints tenths of a MB times 1024


def test_a_head_trains_with_dropout_and_predicts_without():
    net = nets.net("vgg11", shape=(3, 32, 32), classes=3, width=1 / 32, hidden=[8, 6])
    assert {key for key in net.table if key.startswith("fc")} == {
        f"{name}.{kind}" for name in ("fc1", "fc2", "fc") for kind in ("weight", "bias")
    }
    assert net.table["fc2.weight"] == ("fc2", "fc1")
    params, x = nets.init(net, seeded(0)), images((3, 32, 32), 6)
    flat = flatten_net(net, params)
    assert not torch.equal(flat.module(x), flat.module(x))
    torch.testing.assert_close(predict(params, net, x, 3), predict(params, net, x, 6), rtol=1e-3, atol=1e-4)


def test_st_lfs_cnn_with_dropout_is_the_layers_of_its_authors():
    """There whole maps are dropped before the pooling, here after it: the same, with one draw for each map."""
    plain, dropping = (nets.net("stlf_cnn", shape=(1, 28, 28), classes=10, dropout=share) for share in (0.0, 0.5))
    params, x = nets.init(plain, seeded(0)), images((1, 28, 28), 6)
    assert plain.table == dropping.table
    assert torch.equal(predict(params, plain, x, 6), predict(params, dropping, x, 6))
    module = dropping.build()
    module.load_state_dict(params)
    torch.manual_seed(3)
    found = module(x)
    torch.manual_seed(3)
    maps = F.relu(F.max_pool2d(F.conv2d(x, params["conv1.weight"], params["conv1.bias"]), 2))
    maps = F.dropout2d(F.conv2d(maps, params["conv2.weight"], params["conv2.bias"]), 0.5)
    maps = F.relu(F.max_pool2d(maps, 2)).flatten(1)
    units = F.dropout(F.relu(F.linear(maps, params["fc1.weight"], params["fc1.bias"])), 0.5)
    torch.testing.assert_close(found, F.linear(units, params["fc2.weight"], params["fc2.bias"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", NARROW)
@pytest.mark.slow
def test_a_table_names_every_axis(case):
    net, shape = narrow(case)
    shapes = nets.shapes(net)
    assert {name: len(axes) for name, axes in net.table.items()} == {n: len(s) for n, s in shapes.items() if s}
    assert net.build()(images(shape)).shape == (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", NARROW)
def test_steps_lower_the_loss(case):
    net, shape = narrow(case)
    training = Training("adam", lr=0.01, momentum=0.0, weight_decay=0.0, schedule="constant", batch=12, epochs=1)
    flat = flatten_net(net, nets.init(net, seeded(0)))
    step, x, y = plain_step(flat, training, 12), images(shape, 12), torch.arange(12) % 3
    before = cross_entropy(flat.module(x), y).item()
    for _ in range(12):
        step(x, y)
    assert cross_entropy(flat.module(x), y).item() < before - 0.02


@pytest.mark.parametrize("case", NARROW)
@pytest.mark.slow
def test_no_single_point_kernel_has_a_stride(case):
    # oneDNN's gradient of one writes beyond its buffer where channels are innermost and few
    net, _ = narrow(case)
    kernels = [layer for layer in net.build().modules() if isinstance(layer, torch.nn.Conv2d)]
    assert all(layer.stride == (1, 1) for layer in kernels if layer.kernel_size == (1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("case", NARROW)
def test_channels_innermost_are_a_matter_of_speed_alone(case):
    net, shape = narrow(case)
    start, x = nets.init(net, seeded(0)), images(shape, 6)
    flat, other = flatten_net(net, start), net.build()
    other.load_state_dict(start)
    torch.testing.assert_close(flat.params(), start, rtol=0, atol=0)
    assert all(tensor.is_contiguous() for tensor in flat.params().values())
    torch.testing.assert_close(flat.module(x), other(x), rtol=1e-3, atol=1e-4)
    cross_entropy(flat.module(x), torch.arange(6) % 3).backward()
    cross_entropy(other(x), torch.arange(6) % 3).backward()
    for name, tensor in other.named_parameters():
        scale = tensor.grad.abs().max().clamp_min(1e-3)
        torch.testing.assert_close(flat.gradients[name] / scale, tensor.grad / scale, rtol=0, atol=5e-3, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", NARROW)
def test_predictions_do_not_depend_on_how_many_are_made_at_a_time(case):
    net, shape = narrow(case)
    params, x = nets.init(net, seeded(0)), images(shape, 70)
    module = net.build().eval()
    module.load_state_dict(params)
    with torch.no_grad():
        expected = module(x)
    for batch in (1024, 7):
        torch.testing.assert_close(predict(params, net, x, batch), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_training_gives_the_same_bits_in_every_process():
    examples = Data(torch.rand(20, 1, 28, 28, generator=seeded(1)), torch.arange(20) % 3)
    training = Training("adam", lr=0.01, momentum=0.0, weight_decay=0.0, schedule="constant", batch=8, epochs=2)
    calls = {}
    for case in ("lenet", "dfl_cnn", "vgg11", "resnet20 with bottlenecks"):
        name, _, own = NARROW[case]
        device = Device("a", nets.net(name, shape=(1, 28, 28), classes=3, **own), Splits(examples, examples, examples))
        calls[case] = {}, Message(), device, StepId(0, 0, 0, "a")
    step = partial(train, training=training)
    here = Inline().map(step, calls)
    with Workers(1) as workers:
        there = workers.map(step, calls)
    for case in calls:
        torch.testing.assert_close(here[case][1].params, there[case][1].params, rtol=0, atol=0)


def test_small_images_are_framed_with_zeros():
    net = nets.net("vgg11", shape=(1, 28, 20), classes=3, width=1 / 32)
    framed = net.build()[:2](images((1, 28, 20)))
    expected = torch.zeros(4, 3, 32, 32)
    expected[:, :, 2:30, 6:26] = images((1, 28, 20))
    torch.testing.assert_close(framed, expected, rtol=0, atol=0)
    same, larger = (nets.net("lenet", shape=(3, side, side), classes=3).build() for side in (32, 40))
    torch.testing.assert_close(same[0](images((3, 32, 32))), images((3, 32, 32)), rtol=0, atol=0)
    assert larger(images((3, 40, 40))).shape == (4, 3)


@pytest.mark.parametrize("name", sorted({*nets.NETS} - {"auto", "mlp", "cnn", "cells", *OF_SEQUENCES}))
def test_rows_of_a_table_are_refused(name):
    with pytest.raises(InputError, match=r"takes images \(channels, height, width\), examples are \(9,\)"):
        nets.net(name, shape=(9,), classes=3)


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("dfl_cnn", {}, "images of 8 x 8 are too small"),
        ("vgg11", {"size": 16}, "16 is too small"),
        ("lenet", {"widht": 2.0}, "widht"),
        ("cnn", {"maps": [], "kernel": 3, "padding": "same", "hidden": []}, "must not be empty"),
    ],
)
def test_unusable_settings_are_refused(name, own, words):
    with pytest.raises(InputError, match=words):
        nets.net(name, shape=(1, 8, 8), classes=3, **own)


def test_the_table_of_a_residual_net():
    """A stream keeps its label through sums, a projection makes a new one, and what flattens carries blocks."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        Residual(nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 4, 1, bias=False)), nn.Identity()),
        Residual(nn.Conv2d(4, 6, 1, bias=False), nn.Conv2d(4, 6, 1, bias=False)),
        nn.Flatten(),
        nn.Linear(24, 2),
    )
    assert table(net) == {
        "0.weight": ("0", None, None, None), "0.bias": ("0",),
        "1.branch.0.weight": ("0", None, None, None), "1.branch.0.bias": ("0",),
        "1.branch.1.weight": ("0", "0", None, None),
        "2.branch.weight": ("2.shortcut", "0", None, None), "2.shortcut.weight": ("2.shortcut", "0", None, None),
        "4.weight": (None, "2.shortcut"), "4.bias": (None,),
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"1: the axes of GRU"):
        table(nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("cnn", {"maps": [100_000, 100_000]}), ("cnn", {"hidden": [10**7, 10**7]}), ("lenet", {"width": 1000.0}),
     ("cnn", {"maps": [10**12, 10**12]}), ("resnet20", {"width": 1000.0})],
)  # fmt: skip
def test_a_net_that_is_too_large_is_refused_in_a_line(name: str, settings: dict[str, Any]):
    """Before any of its weights exists."""
    with pytest.raises(InputError, match="parameters") as refused:
        nets.net(name, shape=(3, 32, 32), classes=10, **settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["cnn", "lenet", "vgg11", "resnet20", "mobilenet_v2"])
@pytest.mark.parametrize("shape", [(16, 16, 3), (28, 28, 1), (9, 9, 4)])
def test_square_pictures_with_channels_last_are_refused(name, shape):
    with pytest.raises(InputError, match=r"channels last; channels come first: give x\.transpose\(0, 3, 1, 2\)"):
        nets.net(name, shape=shape, classes=2)


def test_a_stored_net_of_square_pictures_with_channels_last_is_built():
    """As for a champion of an earlier version."""
    net = net_at("fedcore.nets.cnn:cnn", (((16, 16, 3), 2, (4,), 3, "same", (), 16), {}))
    assert net.build()(images((16, 16, 3))).shape == (4, 2)


@pytest.mark.parametrize("shape", [(9, 128, 3), (64, 40, 4), (16, 16, 2), (3, 3, 3), (200, 5, 5)])
def test_few_columns_of_many_channels_are_no_pictures_turned_round(shape):
    """Such as sensors by time by axis, and patches of many bands."""
    assert nets.net("lenet", shape=shape, classes=2).build()(images(shape)).shape == (4, 2)
