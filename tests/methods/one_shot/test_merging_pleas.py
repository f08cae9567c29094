"""Permutations and least squares, against least squares on all examples and against models that it must return."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import NBYTES, NET, SGD, bits, federation, last, model, shuffled, trained

from fedcore import Data, InputError, nets
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot import closed_form as closed
from fedcore.methods.one_shot.merging import CROSS, SUM, orders_of, reorder
from fedcore.types.method import RoundInfo, Update, generator

THREE = dict.fromkeys("abc", NET)
LINEAR = nets.net("mlp", shape=(4,), classes=3, widths=[])
IMAGES = nets.net("cnn", shape=(1, 6, 6), classes=3, maps=[2, 3], hidden=[4])
pleas = partial(method, "pleas", nets=THREE, training=SGD, shared_init=True)


def deployed(built, fed, seed=0):
    """The model that device a runs in the end."""
    state = last(built, fed, seed).state
    (params,) = built.deploy(state.memories["a"], state.messages["a"]).members
    return params


def with_net(fed, net):
    return replace(fed, devices={name: replace(there, net=net) for name, there in fed.devices.items()})


@pytest.mark.parametrize("damping", [0.0, 1e-3])
def test_a_linear_model_is_the_pooled_least_squares_of_all_devices_answers(damping):
    fed = with_net(federation(), LINEAR)
    found = deployed(pleas(nets=fed.public.nets, damping=damping), fed, 3)
    start = nets.init(LINEAR, generator(3, "init"))
    inputs, answers = [], []
    for name, update in trained(fed, SGD, 3, start).items():
        x = fed.devices[name].data.train.inputs()
        inputs.append(closed.append_one(x).double().numpy())
        answers.append(predict(update.params, LINEAR, x, 99).double().numpy())
    a, z = np.concatenate(inputs), np.concatenate(answers)
    shift = damping * np.square(a).sum() / a.shape[1]
    wanted = np.linalg.lstsq(
        np.concatenate([a, np.sqrt(shift) * np.eye(a.shape[1])]),
        np.concatenate([z, np.zeros((a.shape[1], 3))]),
        rcond=None,
    )[0]
    np.testing.assert_allclose(found["fc1.weight"].numpy(), wanted[:-1].T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["fc1.bias"].numpy(), wanted[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_each_layer_is_the_least_squares_fit_on_the_merged_net_below_it():
    """By NumPy, layer after layer, from the devices' own models."""
    fed = federation()
    found = deployed(pleas(damping=1e-6), fed, 5)
    sent = trained(fed, SGD, 5, nets.init(NET, generator(5, "init")))
    below = {name: there.data.train.inputs().double().numpy() for name, there in fed.devices.items()}
    own = dict(below)
    for layer in ("fc1", "fc2", "fc3"):
        outputs = {}
        for name, update in sent.items():
            weight, bias = (update.params[f"{layer}.{part}"].double().numpy() for part in ("weight", "bias"))
            outputs[name] = own[name] @ weight.T + bias
        a = np.concatenate([np.c_[below[name], np.ones(len(below[name]))] for name in fed.devices])
        shift = 1e-6 * np.square(a).sum() / a.shape[1]
        z = np.concatenate([outputs[name] for name in fed.devices])
        w = np.linalg.solve(a.T @ a + shift * np.eye(a.shape[1]), a.T @ z)
        np.testing.assert_allclose(found[f"{layer}.weight"].numpy(), w[:-1].T, rtol=2e-2, atol=2e-3)
        below = {name: np.maximum(x @ w[:-1] + w[-1], 0) for name, x in below.items()}
        own = {name: np.maximum(x, 0) for name, x in outputs.items()}


def test_a_lone_device_keeps_its_function():
    fed = federation("a")
    (alone,) = trained(fed, SGD, 0, nets.init(NET, generator(0, "init"))).values()
    found = deployed(pleas(nets={"a": NET}, damping=1e-9), fed)
    x = fed.devices["a"].data.train.inputs()
    torch.testing.assert_close(predict(found, NET, x, 99), predict(alone.params, NET, x, 99), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("net", [NET, IMAGES], ids=["mlp", "cnn"])
def test_units_are_put_in_the_order_of_the_target(net):
    params = model("one", net=net)
    mixed = shuffled(params, net, 3)
    torch.testing.assert_close(reorder(mixed, orders_of(mixed, params, net.table), net.table), params)


def test_each_device_gets_the_order_of_the_one_with_most_examples():
    built, params, names = pleas(align="exact"), model("one"), ("a", "b", "c")
    mixed = {name: shuffled(params, NET, k) for k, name in enumerate(names)}
    updates = {name: Update(one, size=9 + (name == "b")) for name, one in mixed.items()}
    _, messages = built.stages[1].combine({}, updates, RoundInfo(0, 1, 0, names, names))
    for name, message in messages.items():
        orders = {key.removeprefix("order/"): x for key, x in message.extra.items()}
        torch.testing.assert_close(reorder(mixed[name], orders, NET.table), mixed["b"])


@pytest.mark.parametrize("align", ["none", "exact"])
@pytest.mark.slow
def test_an_exchange_for_each_layer_and_models_only_to_align(align):
    turns = [*run(pleas(align=align), federation(), 0, Inline())]
    layers = [NET.build().get_submodule(name) for name in ("fc1", "fc2", "fc3")]
    sums = [4 * ((n + 1) * (n + 2) // 2 + (n + 1) * m) for m, n in (layer.weight.shape for layer in layers)]
    sizes = [4 * (layer.weight.numel() + layer.bias.numel()) for layer in layers]
    orders = 8 * (layers[0].out_features + layers[1].out_features)
    up, down = ([set(getattr(round_info, way).values()) for round_info in turns] for way in ("up", "down"))
    first = [] if align == "none" else [{NBYTES}]
    assert up == [{0}, *first, *({count} for count in sums)]
    assert down[0] == {NBYTES}
    assert sum(map(max, down)) == NBYTES + sum(sizes) + (0 if align == "none" else orders)


@pytest.mark.slow
def test_before_the_net_is_whole_each_device_runs_its_own():
    alone = last(method("local_only", nets=THREE, training=SGD, shared_init=True), federation(), 2)
    *early, end = run(pleas(), federation(), 2, Inline())
    assert all(round_info.scores == alone.scores for round_info in early)
    assert end.scores["a"]["shared"] == end.scores["b"]["shared"] != alone.scores["a"]["shared"]


@pytest.mark.slow
def test_convolutions_are_merged_too():
    fed = federation()
    shaped = replace(fed, devices={
        name: replace(there, net=IMAGES, data=replace(there.data, **{
            part: replace(getattr(there.data, part), x=images(getattr(there.data, part).x))
            for part in ("train", "val", "test")
        }))
        for name, there in fed.devices.items()
    }, test=replace(fed.test, x=images(fed.test.x)))  # fmt: skip
    one = last(pleas(nets=shaped.public.nets, align="exact"), shaped)
    assert set(one.scores["a"]["shared"]) == {"accuracy", "balanced_accuracy", "loss", "macro_f1"}
    assert {score["shared"]["loss"] for score in one.scores.values()} == {one.scores["a"]["shared"]["loss"]}


def images(x):
    """(N, 4) -> (N, 1, 6, 6)"""
    return (x @ torch.randn(4, 36, generator=generator("images"))).reshape(-1, 1, 6, 6)


@pytest.mark.slow
def test_devices_without_examples_add_nothing():
    fed = federation()
    data = fed.devices["b"].data
    blind = replace(fed.devices["b"], data=replace(data, train=Data(data.train.x[:0], data.train.y[:0])))
    few = replace(fed, devices={name: there for name, there in fed.devices.items() if name != "b"})
    with_blind = replace(fed, devices=fed.devices | {"b": blind})
    assert bits(deployed(pleas(), with_blind)) == bits(deployed(pleas(nets=few.public.nets), few))


@pytest.mark.slow
def test_what_cannot_be_merged_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"^training.shared_init = false: pleas .*; use true, or pleas.align: exact$"):
        pleas(shared_init=False)
    residual = nets.net("resnet20", shape=(1, 8, 8), classes=3)
    with pytest.raises(
        InputError, match=r"^pleas: the net must consist of linear and convolutional layers with biases$"
    ):
        pleas(nets={"a": residual})
    built = pleas()
    whole = Update(extra={SUM: torch.zeros(15), CROSS: torch.zeros(5, 5)})
    wrong = replace(whole, extra=whole.extra | {CROSS: torch.zeros(5, 4)})
    round_info = RoundInfo(0, 1, 0, ("a", "b"), ("a", "b"))
    with pytest.raises(InputError, match=r"^update of b: cross has shape \(5, 4\), must be \(5, 5\)$"):
        built.stages[1].combine({}, {"a": whole, "b": wrong}, round_info)
    with pytest.raises(
        InputError, match=r"^pleas.damping = 0.001: the inputs of layer fc1 do not determine its weights"
    ):
        built.stages[1].combine({}, {"a": whole, "b": whole}, round_info)
