"""Losses of one's own: what they see, and that training by them is training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import NET, SGD, bits, device_of, federation, last, workers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.config.methods import configure
from fedcore.core.losses import Batch, fedasa_eq12_loss, find_loss, loss_name, softmax_twice, with_parts
from fedcore.core.rounds import run
from fedcore.core.training import Training, features, train
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, method
from fedcore.nets.copies import load
from fedcore.types import Data, InputError, Message, Net, Splits, StepId

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


def leaves(net: Net, loss: object, **settings: object):
    """The model after training from one start, and what was kept."""
    training = replace(SGD, loss=loss, **settings)
    sent = Message(nets.init(net, torch.Generator().manual_seed(5)))
    memory, update = train({}, sent, device_of("a", net), AT, training=training)
    return bits(memory), bits(update.params)


KINDS = [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"}]


@pytest.mark.parametrize("settings", KINDS, ids=["sgd", "momentum", "adam"])
def test_cross_entropy_of_ones_own_is_the_built_in_one_to_the_bit(settings):
    assert leaves(Net(chain), ce, **settings) == leaves(Net(chain), "ce", **settings)


@pytest.mark.parametrize(("own", "name"), [(twice, "softmax_twice"), (eq12, "fedasa_eq12")])
@pytest.mark.parametrize("net", [NET, Net(chain)], ids=["mlp", "chain"])
def test_a_loss_of_ones_own_is_the_same_one_by_name_to_the_bit(net, own, name):
    assert leaves(net, own) == leaves(net, name)


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


def table(net: Net) -> nn.Module:
    """Prototypes of three classes, among features of five numbers."""
    return nn.Embedding(3, 5)


@with_parts(table)
def near_prototypes(batch: Batch, weight: float = 0.5) -> Tensor:
    apart = (batch.features - batch.parts(batch.y)).square().sum(1).mean()
    return cross_entropy(batch.logits, batch.y) + weight * apart


@pytest.mark.parametrize("settings", KINDS, ids=["sgd", "momentum", "adam"])
def test_a_losss_parts_are_trained_as_leaves_of_the_net_would_be(settings):
    """Against PyTorch's optimiser over both, in two rounds; what Adam keeps is kept for both."""
    device, training = device_of("a", Net(chain)), replace(SGD, loss=near_prototypes, epochs=1, **settings)
    module, parts = chain(), table(Net(chain))
    module.load_state_dict(nets.init(Net(chain), replace(AT, round=0).generator("init")))
    parts.load_state_dict(nets.init(Net(partial(table, Net(chain))), replace(AT, round=0).generator("parts")))
    kept = training.optimiser_state == "keep"
    memory, params, optimiser = {}, {}, None
    for number in range(2):
        step = replace(AT, stage=0, round=number)
        memory, update = train(memory, Message(params), device, step, training=training)
        params = update.params
        if optimiser is None or not kept:
            both = [*module.parameters(), *parts.parameters()]
            extra = {"momentum": training.momentum} if training.optimiser == "sgd" else {}
            kind = torch.optim.SGD if training.optimiser == "sgd" else torch.optim.Adam
            optimiser = kind(both, training.lr, weight_decay=training.weight_decay, **extra)
        data = device.data.train
        for index in torch.randperm(len(data), generator=step.generator("batches")).split(training.batch):
            optimiser.zero_grad()
            x, y = data.x[index], data.y[index]
            z = module[:-1](x)
            loss = cross_entropy(module[-1](z), y) + 0.5 * (z - parts(y)).square().sum(1).mean()
            loss.backward()
            optimiser.step()
    found = {name.removeprefix("parts/"): leaf for name, leaf in memory.items() if name.startswith("parts/")}
    torch.testing.assert_close(found, dict(parts.state_dict()), rtol=0, atol=1e-6)
    torch.testing.assert_close(params, dict(module.state_dict()), rtol=0, atol=1e-6)


def test_parts_that_the_server_sends_come_first():
    device, sent = device_of("a", Net(chain)), {"parts/weight": torch.full((3, 5), 2.0)}
    still = replace(SGD, loss=near_prototypes, lr=1e-12)
    memory, update = train({}, Message(extra=sent), device, AT, training=still)
    torch.testing.assert_close(memory["parts/weight"], sent["parts/weight"])
    assert update.extra == {}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "fedrep", "fedbabu", "fedprox"])
def test_methods_send_and_deploy_models_without_a_losss_parts(name):
    fed = federation("abc", Net(chain))
    training = replace(SGD, shared_init=True, epochs=1)
    turns = [
        last(configure(name, {"rounds": 2}, vars(replace(training, loss=loss))).build(fed.public.nets), fed)
        for loss in (near_prototypes, ce)
    ]
    assert turns[0].up == turns[1].up
    kept = any(leaf.startswith("parts/") for leaf in turns[0].state.memories.get("a", {}))
    assert kept == (name != "fedbabu")  # at last it trains heads alone, in a stage without a server


@pytest.mark.parametrize("name", ["scaffold", "perfedavg", "pfedme", "fedasa"])
def test_a_losss_parts_are_refused_where_they_are_not_trained(name: str):
    with pytest.raises(
        InputError, match=f"^training.loss = .*near_prototypes: {name} does not train a loss's own parts"
    ):
        method(name, nets={"a": Net(chain)}, training=replace(SGD, loss=near_prototypes, shared_init=True))


def test_a_losss_parts_are_kept_by_fednova():
    fed = federation("ab", Net(chain))
    training = replace(SGD, loss=near_prototypes)
    built = method("fednova", nets=fed.public.nets, training=training, shared_init=True, rounds=2)
    first, second = (turn.state.memories["a"]["parts/weight"] for turn in run(built, fed, 0, Inline()))
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_a_losss_parts_reach_worker_processes():
    fed = federation("ab", Net(chain))
    loss = with_parts(lambda net: nn.Embedding(3, 5))(lambda batch: near_prototypes(batch))
    built = method("fedavg", nets=fed.public.nets, training=replace(SGD, loss=loss), shared_init=True, rounds=2)
    one, two = (list(run(built, fed, 0, execute)) for execute in (Inline(), workers(1)))
    assert [bits(turn) for turn in one] == [bits(turn) for turn in two]
