"""RegMean, against least squares on all examples and against models that it must return."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import NBYTES, NET, NETS, SGD, data, federation, last, model, shuffled, trained

from fedcore import Data, Device, Federation, InputError, Splits, nets
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot import closed_form as closed
from fedcore.methods.one_shot.merging import GRAM, input_grams, move
from fedcore.nets.copies import load
from fedcore.nets.inputs import layer_inputs, linear_layers
from fedcore.types.method import RoundInfo, Update, generator

regmean = partial(method, "regmean", nets=NETS, training=SGD, shared_init=True)
fedavg = partial(method, "fedavg", nets=NETS, training=SGD, shared_init=True)
LINEAR = nets.net("mlp", shape=(4,), classes=3, widths=[])
IMAGES = nets.net("cnn", shape=(1, 6, 6), classes=3, maps=[2, 3], hidden=[4])


def device(name, net=NET, count=8):
    shape = (4,) if net in (NET, LINEAR) else (1, 6, 6)
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(ord(name)))
    examples = Data(x, torch.arange(count) % 3)
    return Device(name, net, Splits(examples, examples, examples))


def update(name, params, net=NET, count=8):
    grams = input_grams(device(name, net, count), params)
    return Update(params, {f"{GRAM}{layer}": closed.triangle(g).float() for layer, g in grams.items()}, count)


def merged(built, given):
    """What the server sends after these updates."""
    names = tuple(given)
    _, messages = built.stages[0].combine({}, given, RoundInfo(0, 0, 0, names, names))
    return messages[names[0]].params


@pytest.mark.parametrize("net", [NET, IMAGES], ids=["mlp", "cnn"])
@pytest.mark.parametrize("align", ["none", "exact"])
def test_equal_models_are_a_fixed_point(net, align):
    params = model(net=net)
    given = {name: update(name, params, net, 8 + 3 * ord(name) % 7) for name in "abc"}
    found = merged(regmean(nets=dict.fromkeys("abc", net), align=align), given)
    torch.testing.assert_close(found, params, rtol=1e-4, atol=1e-5)


def test_linear_models_fitted_by_least_squares_merge_into_the_pooled_fit():
    """No damping, all of G: the merged layer is NumPy's least squares on the examples of all devices."""
    given, inputs, targets = {}, [], []
    for name, count in (("a", 9), ("b", 14), ("c", 40)):
        x = device(name, LINEAR, count).data.train.x
        y = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
        a = closed.append_one(x).double()
        whole = torch.linalg.lstsq(a, y.double()).solution
        params = {"fc1.weight": whole[:-1].T.float().contiguous(), "fc1.bias": whole[-1].float()}
        given[name] = update(name, params, LINEAR, count)
        inputs.append(a)
        targets.append(y)
    found = merged(regmean(nets=dict.fromkeys("abc", LINEAR), share=1.0, damping=0.0), given)
    pooled = np.linalg.lstsq(torch.cat(inputs).numpy(), torch.cat(targets).numpy(), rcond=None)[0]
    np.testing.assert_allclose(found["fc1.weight"].numpy(), pooled[:-1].T, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(found["fc1.bias"].numpy(), pooled[-1], rtol=2e-3, atol=2e-4)


def test_a_lone_device_keeps_its_model():
    fed = federation("a")
    alone = last(fedavg(), fed).state.messages["a"].params
    torch.testing.assert_close(last(regmean(), fed).state.messages["a"].params, alone, rtol=1e-4, atol=1e-5)


def test_with_equal_inputs_it_is_the_even_mean():
    """All devices see the same examples and the layer's inputs are the same: the mean of the layers."""
    models = [model(k, net=LINEAR) for k in range(3)]
    one = update("a", models[0], LINEAR)
    given = {name: replace(one, params=params) for name, params in zip("abc", models, strict=True)}
    found = merged(regmean(nets=dict.fromkeys("abc", LINEAR)), given)
    for key, x in found.items():
        torch.testing.assert_close(x, torch.stack([params[key] for params in models]).mean(0), rtol=1e-4, atol=1e-5)


def test_share_0_weighs_each_input_by_its_own_sum_of_squares():
    given = {name: update(name, model(name, net=LINEAR), LINEAR) for name in "ab"}
    found = merged(regmean(nets=dict.fromkeys("ab", LINEAR), share=0.0, damping=0.0), given)
    squares = [device(name, LINEAR).data.train.x.square().sum(0) for name in "ab"]
    weights = [given[name].params["fc1.weight"] for name in "ab"]
    by_hand = (weights[0] * squares[0] + weights[1] * squares[1]) / (squares[0] + squares[1])
    torch.testing.assert_close(found["fc1.weight"], by_hand, rtol=1e-4, atol=1e-5)


def test_an_input_that_one_device_never_sees_comes_from_the_other():
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    given = {}
    for name, blind in {"a": 0, "b": 1}.items():
        masked = x.clone()
        masked[:, blind] = 0
        there = replace(device(name, LINEAR), data=Splits(Data(masked, torch.zeros(20).long()), data(0), data(0)))
        params = model(name, net=LINEAR)
        grams = input_grams(there, params)
        given[name] = Update(params, {f"{GRAM}{k}": closed.triangle(g).float() for k, g in grams.items()}, 20)
    found = merged(regmean(nets=dict.fromkeys("ab", LINEAR), share=0.0, damping=1e-6), given)["fc1.weight"]
    torch.testing.assert_close(found[:, 0], given["b"].params["fc1.weight"][:, 0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[:, 1], given["a"].params["fc1.weight"][:, 1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("net", [NET, IMAGES], ids=["mlp", "cnn"])
def test_a_moved_gram_matrix_is_that_of_the_moved_model(net):
    params = model("one", net=net)
    there, mixed = device("a", net), shuffled(params, net, 3)
    moved, grams = move(mixed, input_grams(there, mixed), params, net.table)
    torch.testing.assert_close(moved, params, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grams, input_grams(there, params), rtol=1e-4, atol=1e-4)


def test_aligned_shuffled_models_merge_into_the_function_that_they_share():
    params = model("one")
    given = {name: update(name, shuffled(params, NET, k), NET, 8 + k) for k, name in enumerate("abc")}
    found = merged(regmean(shared_init=False, align="exact"), given)
    torch.testing.assert_close(found, given["c"].params, rtol=1e-3, atol=1e-4)


def test_the_sums_travel_with_the_model():
    one = last(regmean(), federation("ab"))
    triangles = sum(size * (size + 1) // 2 for size in (5, 6, 5))
    assert set(one.up.values()) == {NBYTES + 4 * triangles}
    assert set(one.down.values()) == {2 * NBYTES}


def test_without_examples_a_device_has_no_weight_a_layer_its_mean():
    given = {name: update(name, model(name)) for name in "ab"}
    empty = update("c", model("c"), NET, 0)
    torch.testing.assert_close(merged(regmean(), {**given, "c": empty}), merged(regmean(), given))
    nobody = {name: update(name, model(name), NET, 0) for name in "ab"}
    torch.testing.assert_close(merged(regmean(), nobody), merged(fedavg(), nobody))


class Mixed(torch.nn.Module):
    """A linear layer without a bias, a norm, and a convolution in groups."""

    def __init__(self):
        super().__init__()
        self.grouped = torch.nn.Conv1d(4, 4, 1, groups=2)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.grouped(x.unsqueeze(2)).squeeze(2)))


def test_tensors_of_other_layers_are_averaged_by_size():
    net = replace(NET, build=Mixed, axes=None)
    given = {}
    for name, count in (("a", 6), ("b", 18)):
        there = replace(device(name, NET, count), net=net)
        params = model(name, net=net)
        grams = input_grams(there, params)
        assert list(grams) == ["out"]
        assert grams["out"].shape == (4, 4)
        given[name] = Update(params, {f"{GRAM}{k}": closed.triangle(g).float() for k, g in grams.items()}, count)
    found = merged(regmean(nets=dict.fromkeys("ab", net)), given)
    plain = merged(fedavg(nets=dict.fromkeys("ab", net)), given)
    assert {name for name in found if torch.equal(found[name], plain[name])} == set(found) - {"out.weight"}
    assert list(linear_layers(Mixed())) == ["out"]


def outputs_of(params, net, x):
    """The outputs of each hidden layer before its activation, a row for each place of a kernel, by hooks."""
    found = {}
    layer_inputs(load(net, params).eval(), x, lambda name, rows: found.__setitem__(name, rows))
    return {
        name: rows @ params[f"{name}.weight"].flatten(1).T + params[f"{name}.bias"]
        for name, rows in [*found.items()][:-1]
    }


@pytest.mark.parametrize("net", [NET, IMAGES], ids=["mlp", "cnn"])
@pytest.mark.slow
def test_repaired_units_have_the_moments_of_all_devices_own_units(net):
    devices = {name: device(name, net, 8 + 5 * k) for k, name in enumerate("abc")}
    fed = Federation(devices, device("d", net).data.test, 3)
    nets_of = dict.fromkeys("abc", net)
    last_turn = last(regmean(nets=nets_of, repair=True), fed, 4)
    start = nets.init(net, generator(4, "init"))
    sent = {name: update.params for name, update in trained(fed, SGD, 4, start).items()}
    own = [outputs_of(sent[name], net, there.data.train.x) for name, there in devices.items()]
    deployed = regmean(nets=nets_of, repair=True).deploy(last_turn.state.memories["b"], last_turn.state.messages["b"])
    (params,) = deployed.members
    now = outputs_of(params, net, torch.cat([there.data.train.x for there in devices.values()]))
    assert len(now) > 1
    for layer, z in now.items():
        goal = torch.cat([one[layer] for one in own])
        for k in range(z.shape[1]):
            if z[:, k].std() > 1e-6:
                torch.testing.assert_close(z[:, k].std(), goal[:, k].std(), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(z[:, k].mean(), goal[:, k].mean(), rtol=1e-3, atol=1e-3)


def test_repair_leaves_a_lone_device_its_model():
    fed = federation("a")
    alone = last(fedavg(nets={"a": NET}), fed).state.messages["a"].params
    built = regmean(nets={"a": NET}, repair=True)
    state = last(built, fed).state
    torch.testing.assert_close(
        built.deploy(state.memories["a"], state.messages["a"]).members[0], alone, rtol=1e-3, atol=1e-4
    )


def test_units_that_never_vary_keep_their_scale_as_do_empty_layers():
    weights = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).double()
    a = closed.append_one(torch.randn(9, 3, generator=torch.Generator().manual_seed(1))).double()
    weights[0, :3] = 0
    sums = closed.output_sums(weights, a.T @ a)
    torch.testing.assert_close(sums, torch.stack([(a @ weights.T).sum(0), (a @ weights.T).square().sum(0), sums[2]]))
    goal = closed.output_sums(weights + 1, a.T @ a)
    found = closed.rescale(weights, sums, goal)
    assert torch.equal(found[0, :3], weights[0, :3])
    torch.testing.assert_close(closed.output_sums(found, a.T @ a)[0], goal[0])
    torch.testing.assert_close(closed.output_sums(found, a.T @ a)[1, 1], goal[1, 1])
    assert torch.equal(closed.rescale(weights, torch.zeros(3, 2), torch.zeros(3, 2)), weights)


def test_repair_takes_three_numbers_of_each_unit_above_the_first_layer():
    built = regmean(repair=True)
    first, second = run(built, federation(), 0, Inline())
    hidden = NET.build().fc2.out_features
    assert set(second.up.values()) == {8 * 3 * hidden}
    layer = 4 * sum(tensor.numel() for name, tensor in NET.build().state_dict().items() if name.startswith("fc2"))
    assert set(first.down.values()) == {NBYTES}
    assert set(second.down.values()) == {NBYTES + layer}
    assert [*second.state.server] == ["goal/fc2", "fc2.weight", "fc2.bias"]
    wrong = {name: Update(extra={"outputs": torch.zeros(2, hidden)}) for name in "abc"}
    with pytest.raises(InputError, match=rf"^update of a: outputs has shape \(2, {hidden}\), must be \(3, {hidden}\)$"):
        built.stages[1].combine(first.state.server, wrong, RoundInfo(0, 1, 0, tuple("abc"), tuple("abc")))


@pytest.mark.slow
def test_what_cannot_be_merged_is_refused_in_one_line():
    with pytest.raises(
        InputError, match=r"^training.shared_init = false: regmean .*; use true, or regmean.align: exact$"
    ):
        regmean(shared_init=False)
    one = update("a", model())
    wrong = replace(one, extra={**one.extra, f"{GRAM}fc2": torch.zeros(3)})
    with pytest.raises(InputError, match=r"^update of b: gram/fc2 has shape \(3,\), must be \(21,\)$"):
        merged(regmean(), {"a": one, "b": wrong})
    few = {"a": update("a", model(net=LINEAR), LINEAR, 2)}
    with pytest.raises(InputError, match=r"^regmean.damping = 0.0: the inputs of layer fc1 do not determine"):
        merged(regmean(nets={"a": LINEAR}, share=1.0, damping=0.0), few)
    with pytest.raises(InputError, match=r"^regmean.repair = true: the net must consist of linear and conv.* biases$"):
        regmean(nets={"a": replace(NET, build=Mixed, axes=None)}, repair=True)
    with pytest.raises(InputError, match="no table of axes"):
        regmean(nets={"a": replace(NET, axes=None)}, align="exact")
