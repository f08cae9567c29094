"""Losses of one's own: what they see, and that training by them is training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import NET, SGD, bits, device_of, federation, last
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.config.methods import configure
from fedcore.core.losses import Batch, fedasa_eq12_loss, find_loss, loss_name, softmax_twice
from fedcore.core.prediction import features
from fedcore.core.training import train
from fedcore.core.training_settings import Training
from fedcore.errors import InputError
from fedcore.methods import METHODS, method
from fedcore.nets.copies import load
from fedcore.types.federation import Data, Net, Splits
from fedcore.types.method import Message, StepId

AT = StepId(3, 0, 1, "a")


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Bare(nn.Module):
    """A net that multiplies by its last layer's weights without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.fc.weight.T + self.fc.bias


NETS = {"mlp": NET, "chain": Net(chain), "cells": nets.net("cells", shape=(1, 32), classes=3, cells=1, width=0.25)}


def ce(batch: Batch) -> Tensor:
    return cross_entropy(batch.logits, batch.y)


def twice(batch: Batch) -> Tensor:
    return softmax_twice(batch.logits, batch.y)


def eq12(batch: Batch) -> Tensor:
    return fedasa_eq12_loss(batch.logits, batch.y)


def trained(net: Net, loss: object, **settings: object):
    """The model after training from one start, and what was kept."""
    training = replace(SGD, loss=loss, **settings)
    sent = Message(nets.init(net, torch.Generator().manual_seed(5)))
    memory, update = train({}, sent, device_of("a", net), AT, training=training)
    return bits(memory), bits(update.params)


KINDS = [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"}]


@pytest.mark.parametrize("settings", KINDS, ids=["sgd", "momentum", "adam"])
def test_cross_entropy_of_ones_own_is_the_built_in_one_to_the_bit(settings):
    assert trained(Net(chain), ce, **settings) == trained(Net(chain), "ce", **settings)


@pytest.mark.parametrize(("own", "name"), [(twice, "softmax_twice"), (eq12, "fedasa_eq12")])
@pytest.mark.parametrize("net", [NET, Net(chain)], ids=["mlp", "chain"])
def test_a_loss_of_ones_own_is_the_same_one_by_name_to_the_bit(net, own, name):
    assert trained(net, own) == trained(net, name)


def test_an_mlp_by_hand_and_by_a_loss_of_ones_own_agree():
    """The built-in loss of an MLP does not use autograd."""
    sent = Message(nets.init(NET, torch.Generator().manual_seed(5)))
    own, known = (train({}, sent, device_of("a"), AT, training=replace(SGD, loss=loss))[1] for loss in (ce, "ce"))
    torch.testing.assert_close(own.params, known.params, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name in ("fedavg", "fedprox", "fedper", "ditto", "scaffold")]
)
def test_a_loss_goes_through_methods(name):
    """Twice the loss at half the rate is the same training, but for a pull, which halves as well."""
    pull = {"fedprox": ("mu", 0.5), "ditto": ("strength", 0.5)}.get(name)
    found = []
    for factor in (1.0, 2.0):
        training = replace(SGD, loss=partial(scaled, factor=factor), lr=0.1 / factor, shared_init=True)
        settings = {} if pull is None else {pull[0]: pull[1] * factor}
        built = method(name, nets=dict.fromkeys("abc", Net(chain)), training=training, rounds=2, **settings)
        state = last(built, federation("abc", Net(chain))).state
        found.append({name: message.params for name, message in state.messages.items()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def scaled(batch: Batch, *, factor: float) -> Tensor:
    return factor * ce(batch)


@pytest.mark.parametrize("name", NETS)
def test_features_are_the_last_layers_input(name):
    """The last layer maps them to the logits."""
    net, seen = NETS[name], []

    def look(batch: Batch) -> Tensor:
        if not seen:
            layer = [*nets.shapes(net)][-1].rpartition(".")[0]
            last_layer = batch.module.get_submodule(layer)
            torch.testing.assert_close(last_layer(batch.features), batch.logits)
            assert set(batch.params) == set(nets.shapes(net))
        seen.append(batch)
        return ce(batch)

    device = device_of("a", net)
    if name == "cells":
        x = torch.randn(6, 1, 32, generator=torch.Generator().manual_seed(1))
        none = Data(x[:0], device.data.train.y[:0])
        device = replace(device, data=Splits(Data(x, device.data.train.y), none, none))
    model, memory = nets.init(net, torch.Generator().manual_seed(5)), {"note": torch.ones(2)}
    kept, update = train(memory, Message(model, {"table": torch.zeros(1)}), device, AT, training=SGD, loss=look)
    assert kept == memory
    first = seen[0]
    assert (first.round, first.memory, set(first.message.extra)) == (1, memory, {"table"})
    other = first.with_params(update.params)
    module = load(net, update.params).eval()
    torch.testing.assert_close(other.logits, module(first.x).detach())
    torch.testing.assert_close(other.features, features(update.params, net, first.x))
    assert not other.features.requires_grad


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda batch: batch.logits,
            r"training.loss: .* must return a scalar tensor, returned a tensor of shape \(4, 3\)",
        ),
        (lambda batch: 1.0, "must return a scalar tensor, returned float"),
        (lambda batch: batch.x.sum(), "one that depends on no parameter"),
        (lambda batch: batch.features.sum(), "its last layer is not called as a module"),
    ],
)
def test_what_is_no_loss_is_refused(loss, words):
    with pytest.raises(InputError, match=words):
        train({}, Message(), device_of("a", Net(Bare)), AT, training=SGD, loss=loss)


def test_a_loss_is_found_by_its_place():
    place = f"{__name__}:ce"
    assert find_loss(place) is ce
    assert Training(loss=place).settings()["loss"] == place == loss_name(partial(ce))
    assert configure("fedavg", {}, {"loss": place}).training.loss is ce
    assert configure("fedavg", {}, {"loss": place}).flat()["training.loss"] == place
    with pytest.raises(InputError, match=r"^dfl.training.loss = 'mse': allowed: ce, .*, package.module:function"):
        configure("dfl", {}, {"loss": "mse"}, training_key="dfl.training")
    with pytest.raises(InputError, match=r"^training.loss: 'no_such:loss' cannot be imported"):
        Training(loss="no_such:loss")
    with pytest.raises(InputError, match=f"^training.loss = {place}: dfl has its own loss"):
        method("dfl", nets={"a": NET}, training=replace(SGD, loss=ce, shared_init=True))
