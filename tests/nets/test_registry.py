import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedcore as fc
from fedcore import InputError, Net, nets
from fedcore.nets.inputs import layer_inputs, linear_layers, multiplications, patches
from fedcore.nets.mlp import MLP, mlp
from fedcore.nets.randomness import construct_with
from fedcore.pickling import dumps
from fedcore.types.method import seed_all

WIDTHS = [[], [5], [7, 3], [4, 4, 4]]


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def perceptron(widths, shape=(2, 3), classes=4) -> Net:
    return nets.net("mlp", shape=shape, classes=classes, widths=widths)


def test_unknown_names_and_unusable_settings_are_refused():
    with pytest.raises(InputError, match=r"net.name: 'mpl' is not one of mlp"):
        nets.net("mpl", shape=(4,), classes=2)
    for wrong in ({"depth": 2}, {"widths": [3], "depth": 2}):
        with pytest.raises(InputError, match=r"net: .* argument"):
            nets.net("mlp", shape=(4,), classes=2, **wrong)
    for widths in ([0], [3.5], [True], ["9"]):
        with pytest.raises(InputError, match=r"mlp.widths"):
            fc.net("mlp", widths=widths)


@pytest.mark.parametrize("widths", WIDTHS)
def test_the_perceptron_is_the_usual_stack_of_layers(widths):
    net = perceptron(widths)
    sizes = [6, *widths, 4]
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    stack = nn.Sequential(nn.Flatten(), *[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    module = net.build()
    module.load_state_dict(dict(zip(module.state_dict(), stack.state_dict().values(), strict=True)))
    x = torch.randn(5, 2, 3, generator=seeded(0))
    torch.testing.assert_close(module(x), stack(x))


@pytest.mark.parametrize("net", [*map(perceptron, WIDTHS), Net(normed)])
def test_shapes_are_those_of_the_state_dict(net):
    assert nets.shapes(net) == {name: tuple(tensor.shape) for name, tensor in net.build().state_dict().items()}


def test_names_and_axes_of_tensors():
    net = perceptron([5, 7])
    assert net.axes == {
        "fc1.weight": ("h1", None), "fc1.bias": ("h1",),
        "fc2.weight": ("h2", "h1"), "fc2.bias": ("h2",),
        "fc3.weight": (None, "h2"), "fc3.bias": (None,),
    }  # fmt: skip
    assert list(net.axes) == list(nets.shapes(net))


@settings(max_examples=20)
@given(widths=st.lists(st.integers(1, 6), max_size=3), seed=st.integers(0, 9))
@pytest.mark.slow
def test_permuting_hidden_units_along_the_axes_keeps_the_function(widths, seed):
    net = perceptron(widths)
    params = nets.init(net, seeded(seed))
    orders = {f"h{i + 1}": torch.randperm(width, generator=seeded(seed + i)) for i, width in enumerate(widths)}
    shuffled = {}
    for name, tensor in params.items():
        for axis, label in enumerate(net.axes[name]):
            tensor = tensor if label is None else tensor.index_select(axis, orders[label])
        shuffled[name] = tensor
    x = torch.randn(4, 2, 3, generator=seeded(1))
    torch.testing.assert_close(torch.func.functional_call(net.build(), shuffled, x),
                               torch.func.functional_call(net.build(), params, x))  # fmt: skip


@settings(max_examples=40)
@given(
    widths=st.lists(st.integers(1, 6), max_size=3), batch=st.integers(1, 5), keep=st.sampled_from([0.0, 0.5, 1.0]),
    scale=st.sampled_from([1.0, -0.1]), seed=st.integers(0, 99),
)  # fmt: skip
@pytest.mark.slow
def test_the_chain_rule_by_hand_is_autograds(widths, batch, keep, scale, seed):
    module = mlp((6,), widths, 4).double()
    params = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    x = torch.randn(batch, 6, dtype=torch.float64, generator=seeded(seed))
    logit_grad = torch.randn(batch, 4, dtype=torch.float64, generator=seeded(seed + 1))
    gradients = torch.autograd.grad(module(x), list(module.parameters()), logit_grad)
    expected = [keep * tensor + scale * g for tensor, g in zip(params.values(), gradients, strict=True)]
    assert isinstance(module, MLP)
    module.backward(
        params, module.activations(params, x), logit_grad, params, keep=keep, scale=scale
    )  # onto the tensors
    torch.testing.assert_close(list(params.values()), expected)


def test_large_products_are_the_small_ones_together():
    module, x = mlp((300,), [200], 100), torch.randn(200, 300, generator=seeded(0))
    with torch.no_grad():
        torch.testing.assert_close(module(x), torch.cat([module(part) for part in x.split(5)]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module(x), module.double()(x.double()).float(), rtol=1e-4, atol=1e-5)


def test_nothing_is_kept_of_what_was_there():
    module = MLP([3, 2])
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}
    into = {name: torch.full_like(tensor, torch.nan) for name, tensor in params.items()}
    module.backward(params, module.activations(params, torch.ones(1, 3)), torch.ones(1, 2), into, keep=0.0, scale=1.0)
    assert all(bool(tensor.isfinite().all()) for tensor in into.values())


@pytest.mark.parametrize("net", [perceptron([5]), Net(normed)])
def test_init_is_pytorchs_own_and_disturbs_nobody(net):
    torch.manual_seed(7)
    expected = net.build().state_dict()
    torch.manual_seed(8)
    before = torch.get_rng_state()
    drawn = nets.init(net, seeded(7))
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: torch.equal(x, expected[name]) for name, x in drawn.items()} == dict.fromkeys(expected, True)


def test_init_goes_on_where_the_generator_stands():
    generator = seeded(7)
    first, second = (nets.init(perceptron([5]), generator) for _ in range(2))
    assert not torch.equal(first["fc1.weight"], second["fc1.weight"])


def test_init_is_the_same_from_many_threads():
    net = perceptron([50, 50])
    expected = [nets.init(net, seeded(seed)) for seed in range(40)]
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda seed: nets.init(net, seeded(seed)), range(40)))
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0)


def test_nets_with_equal_settings_have_equal_keys():
    assert nets.key(perceptron([5])) == nets.key(perceptron([5])) != nets.key(perceptron([6]))
    assert nets.key(Net(partial(normed))) != nets.key(Net(normed))


@pytest.mark.parametrize(
    ("shape", "name", "settings"),
    [
        ((12,), "mlp", {"widths": [7, 5]}), ((3, 16, 20), "cnn", {}), ((2, 256), "cells", {}),
        ((1, 4, 4), "mlp", {"widths": [7, 5]}), ((2, 20), "mlp", {"widths": [7, 5]}),
    ],
)  # fmt: skip
def test_a_net_is_chosen_by_the_shape_of_an_example(shape, name, settings):
    """The very same net, so that it shares the cached steps of the one that is named."""
    found = nets.net("auto", shape=shape, classes=3, widths=[7, 5])
    named = nets.net(name, shape=shape, classes=3, **settings)
    assert nets.key(found) == nets.key(named)
    assert found.axes == named.axes


def test_parameters_are_the_tensors_without_buffers():
    net = Net(partial(nn.Sequential, nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3).requires_grad_(False)))
    assert nets.parameters(net) == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_a_key_is_made_once_and_travels_with_its_net(monkeypatch: pytest.MonkeyPatch):
    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)

    made = []
    monkeypatch.setattr(sys.modules["fedcore.nets.params"], "dumps", lambda build: made.append(build) or dumps(build))
    net = Net(partial(Own), {"weight": (None, None), "bias": (None,)})
    keys = {nets.key(net) for _ in range(5)} | {nets.key(pickle.loads(dumps(net))) for _ in range(2)}
    assert (len(keys), len(made)) == (1, 1)
    again = pickle.loads(dumps(net))
    assert again.axes == net.axes
    assert type(again.build()) is type(pickle.loads(dumps(net)).build())
    assert nets.shapes(again) == {"weight": (3, 2), "bias": (3,)}
    assert dumps(Net(partial(normed))) == dumps(Net(partial(normed)))


@pytest.mark.slow
def test_no_step_is_seeded_while_another_thread_builds_a_module():
    with construct_with(torch.Generator()):
        before, other = torch.get_rng_state(), Thread(target=seed_all, args=(7,))
        other.start()
        other.join(0.1)
        assert other.is_alive()
        assert torch.equal(torch.get_rng_state(), before)
    other.join()


# The inputs of layers: rows times weights must be what the layer computes.
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


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Conv3d(1, 4, 3), nn.Flatten(), nn.Linear(32, 3)], (1, 4, 4, 4)),
        ([nn.ConvTranspose2d(2, 4, 3, stride=2), nn.Flatten(), nn.Linear(4 * 81, 3)], (2, 4, 4)),
        ([nn.ConvTranspose1d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)], (4, 4)),
    ],
)
def test_multiplications_of_any_convolution_are_pytorchs(layers, shape):
    def build():
        return nn.Sequential(*layers)

    with FlopCounterMode(display=False) as counter:
        build()(torch.zeros(1, *shape))
    assert multiplications(Net(build), shape) == counter.get_total_flops() / 2


def test_multiplications_of_a_perceptron_are_its_weights():
    net = nets.net("mlp", shape=(4,), classes=3, widths=[5, 4])
    assert multiplications(net, (4,)) == 4 * 5 + 5 * 4 + 4 * 3
