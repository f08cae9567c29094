"""Losses of one's own: what they see, and that training by them is training."""

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from math import e, exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import NET, SGD, bits, device_of, federation, last
from plain_loops import chain
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, cross_entropy, l1_loss, mse_loss
from torch.overrides import TorchFunctionMode

from fedcore import InputError, Message, StepId, Training, features, nets, train
from fedcore.config.methods import configure
from fedcore.core.losses import LOSSES, Batch, entropies, fedasa_eq12_loss, find_loss, loss_name, softmax_twice
from fedcore.data.task import LABEL_KINDS
from fedcore.methods import METHODS, method
from fedcore.nets import init
from fedcore.nets.copies import load
from fedcore.types.federation import Data, Net, Params, Splits

AT = StepId(3, 0, 1, "a")


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


renamed = wraps(ce)(lambda batch: -ce(batch))


def twice(batch: Batch) -> Tensor:
    return softmax_twice(batch.logits, batch.y)


def eq12(batch: Batch) -> Tensor:
    return fedasa_eq12_loss(batch.logits, batch.y)


def trained(net: Net, loss: object, **settings: object):
    """The model after training from one start, and what was kept."""
    training = replace(SGD, loss=loss, **settings)
    sent = Message(nets.init(net, torch.Generator().manual_seed(5)))
    before = bits(sent)
    memory, update = train({}, sent, device_of("a", net), AT, training=training)
    assert bits(sent) == before  # it is other devices' as well
    return bits(memory), bits(update.params)


KINDS = [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"}]


@pytest.mark.parametrize("settings", KINDS, ids=["sgd", "momentum", "adam"])
def test_cross_entropy_of_ones_own_is_the_built_in_one_to_the_bit(settings):
    assert trained(Net(chain), ce, **settings) == trained(Net(chain), "ce", **settings)


@pytest.mark.parametrize(("own", "name"), [(twice, "softmax_twice"), (eq12, "fedasa_eq12")])
@pytest.mark.parametrize("net", [NET, Net(chain)], ids=["mlp", "chain"])
@pytest.mark.slow
def test_a_loss_of_ones_own_is_the_same_one_by_name_to_the_bit(net, own, name):
    assert trained(net, own) == trained(net, name)


def test_an_mlp_by_hand_and_by_a_loss_of_ones_own_agree():
    """The built-in loss of an MLP does not use autograd."""
    sent = Message(nets.init(NET, torch.Generator().manual_seed(5)))
    own, known = (train({}, sent, device_of("a"), AT, training=replace(SGD, loss=loss))[1] for loss in (ce, "ce"))
    torch.testing.assert_close(own.params, known.params, rtol=0, atol=1e-6)


@pytest.mark.slow
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


def threefold(batch: Batch, *, in_place: bool) -> Tensor:
    """A loss of changed rows, by logits, features and another model's logits."""
    if in_place:
        batch.x.mul_(3)
        batch.x[:, 0] = 0
        batch.y.clamp_(max=1)
    else:
        kept = torch.arange(batch.x.shape[1]) > 0
        batch = replace(batch, x=batch.x * 3 * kept, y=batch.y.clamp(max=1))
    loss = ce(batch) + 0.1 * batch.features.square().mean()
    batch.x.add_(1)  # after the outputs were computed
    away = (batch.logits - replace(batch, x=batch.x - 1).with_params(batch.params).logits).square().mean()
    return loss + away


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "ditto", "fedala"])
def test_rows_that_a_loss_changes_in_place_are_those_that_its_logits_see(name):
    """Also where a method takes more steps on one minibatch."""
    found = []
    for in_place in (True, False):
        training = replace(SGD, loss=partial(threefold, in_place=in_place), shared_init=True)
        built = method(name, nets=dict.fromkeys("abc", Net(chain)), training=training, rounds=2)
        found.append(last(built, federation("abc", Net(chain))).state)
    assert bits(found[0]) == bits(found[1])


def counts_in(batch: Batch, *, how: str) -> Tensor:
    """Count calls in what a loss is given to read."""
    given = batch.message.extra if how == "extra" else batch.memory if how != "params" else batch.message.params
    if how == "in place":
        next(iter(batch.message.params.values())).add_(1)
    elif how == "update":
        given.update(n=torch.ones(()))
    elif how == "read":
        assert [*deepcopy(given)] == [*given.copy()] == [*{**given}]
    else:
        given["n"] = given.get("n", torch.zeros(())) + 1
    return ce(batch)


@pytest.mark.parametrize("how", ["memory", "params", "extra", "update", "in place", "read"])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme"])
def test_a_loss_only_reads_the_memory_and_the_message(name, how):
    """What it puts there would be dropped after the round, and the trial's calls would count."""
    training = replace(SGD, loss=partial(counts_in, how=how), shared_init=True)
    built = method(name, nets=dict.fromkeys("abc", Net(chain)), training=training, rounds=2)
    in_place = r"changes batch.message.params\['.*'\] in place"
    says = in_place if how == "in place" else "may only read; keep it in a buffer"
    with nullcontext() if how == "read" else pytest.raises(InputError, match=f"^training.loss: .*{says}"):
        last(built, federation("abc", Net(chain)))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.slow
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
    assert (first.round, {*first.memory}, {*first.message.extra}) == (1, {"note"}, {"table"})
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
    with pytest.raises(InputError, match=r"^training.loss = '.*:renamed': has the name of .*:ce, another"):
        configure("fedavg", {}, {"loss": f"{__name__}:renamed"})
    with pytest.raises(InputError, match=r"^training.loss: 'no_such:loss' cannot be imported"):
        Training(loss="no_such:loss")
    with pytest.raises(InputError, match=f"^training.loss = {place}: dfl has its own loss"):
        method("dfl", nets={"a": NET}, training=replace(SGD, loss=ce, shared_init=True))


# The losses that have a name, by hand and against the examples that FedASA prints.
def test_the_losses_computed_by_hand():
    # One example: softmax(log 3, log 1) = (3/4, 1/4), class 0. Another: even, class 1.
    logits, y = torch.tensor([[log(3.0), 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    entropy = [-0.75 * log(0.75) - 0.25 * log(0.25), log(2)]
    plain = [-log(0.75), log(2)]
    twice = [-log(exp(0.75) / (exp(0.75) + exp(0.25))), log(2)]
    torch.testing.assert_close(entropies(logits), torch.tensor(entropy))
    expected = {
        "ce": sum(plain) / 2,
        "fedasa_table3": (sum(twice) + sum(entropy) / log(2)) / 2,
        "fedasa_eq12": (sum(twice) + sum(map(exp, entropy))) / 2,
        "softmax_twice": sum(twice) / 2,
    }
    of_numbers = {*LABEL_KINDS["regression"].losses} - {"ce"}
    found = {name: loss(logits, y).item() for name, loss in LOSSES.items() if name not in of_numbers}
    assert found == pytest.approx(expected, rel=1e-6)


class OneType(TorchFunctionMode):
    """Refuses labels of a number that are of another type than the outputs, as some versions of PyTorch do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (mse_loss, l1_loss, binary_cross_entropy_with_logits):
            assert args[0].dtype == args[1].dtype, func
        return func(*args, **(kwargs or {}))


def test_a_loss_of_numbers_takes_labels_of_every_type():
    outputs, y = torch.tensor([[0.5], [2.0]]), torch.tensor([0, 4])
    with OneType():
        found = {name: [LOSSES[name](outputs, of).item() for of in (y, y.float())] for name in ("squared", "absolute")}
    assert found == {"squared": [2.125, 2.125], "absolute": [1.25, 1.25]}


EXAMPLES = {
    "hard label 0, truth 1": ([0.54, 0.43, 0.02, 0.01], 1, 1.23, 2.42),
    "hard label 3, truth 3": ([0.0, 0.0, 0.138, 0.862], 3, 0.85, 1.42),
}


"""FedASA's Table III: soft labels that meet it (the paper shows them as pictures), truth, cross-entropy, loss."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_table_iii_is_met_to_its_two_digits(example):
    soft, truth, cross, total = EXAMPLES[example]
    logits, y = torch.tensor([soft]).clamp(min=1e-30).log(), torch.tensor([truth])
    assert round(cross_entropy(logits.softmax(1), y).item(), 2) == cross
    assert round(LOSSES["fedasa_table3"](logits, y).item(), 2) == total


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_one_reading_of_table_iii_meets_both_examples(example):
    """Soft labels of four classes in steps of .25 %: the cross-entropy as printed, then the nearest loss."""
    _, truth, cross, total = EXAMPLES[example]
    first, second = np.divmod(np.arange(401 * 401), 401)
    ordered = (first >= second) & (first + second <= 400) & (3 * second >= 400 - first)
    pairs = np.stack([first, second], 1)[ordered]
    rest = [(np.arange((400 - a - b + 1) // 2, min(b, 400 - a - b) + 1), a, b) for a, b in pairs.tolist()]
    s = np.concatenate([np.stack([a + 0 * c, b + 0 * c, c, 400 - a - b - c], 1) for c, a, b in rest]) / 400
    right = s[:, 0] if truth == 3 else s[:, 1]  # example 2's hard label is right, example 1's is not
    nats = -(s * np.log(np.where(s > 0, s, 1))).sum(1)
    crosses = {"once": -np.log(np.where(right > 0, right, 1e-9)), "twice": np.log(np.exp(s).sum(1)) - right}
    entropy = {"nats": nats, "bits": nats / log(2), "exp": np.exp(nats)}
    near = {
        (softmax, unit): abs(ce + of - total)[abs(ce - cross) <= 0.005].min()
        for softmax, ce in crosses.items()
        for unit, of in entropy.items()
    }
    assert near["twice", "bits"] < 0.005
    missed = {reading for reading, distance in near.items() if distance > 0.03}
    assert missed >= ({("once", "nats"), ("once", "bits")} if truth == 3 else {("twice", "nats")})
    assert missed >= {("once", "exp"), ("twice", "exp")}


def test_the_printed_loss_cannot_be_sure():
    """After softmax twice the right one of ten classes has e / (e + 9) at most."""
    sure = torch.tensor([[100.0] + 9 * [0.0]])
    assert LOSSES["fedasa_eq12"](sure, torch.tensor([0])).item() == pytest.approx(1 - log(e / (e + 9)))
    assert LOSSES["ce"](sure, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)


# Published methods by a loss of one's own equal loops written by hand.
OWN_LOSSES = Path(__file__).parents[2] / "examples"


ROUNDS, RATE = 3, 0.1


FED = federation("abc", Net(chain))


def module_of(params: Params) -> nn.Module:
    module = chain()
    module.load_state_dict(params)
    return module


def step_through(name: str, number: int, start: Params, loss: Callable[..., Tensor]) -> Params:
    """Train one device in one round, by PyTorch's own SGD."""
    data, module = FED.devices[name].data.train, module_of(start)
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    draws = StepId(0, 0, number, name).generator("batches")
    for _ in range(SGD.epochs):
        for batch in torch.randperm(len(data), generator=draws).split(SGD.batch):
            optimiser.zero_grad()
            loss(module, data.x[batch], data.y[batch]).backward()
            optimiser.step()
    return {key: x.clone() for key, x in module.state_dict().items()}


def mean(models: dict[str, Params]) -> Params:
    sizes = {name: len(FED.devices[name].data.train) for name in models}
    total = sum(sizes.values())
    return {key: sum(sizes[name] / total * model[key] for name, model in models.items()) for key in models["a"]}


def by_file(monkeypatch: pytest.MonkeyPatch, name: str, **settings: Any):
    """The last state of the method in an example, and the first model."""
    monkeypatch.syspath_prepend(str(OWN_LOSSES))
    build = getattr(importlib.import_module(name), name)
    training = replace(SGD, lr=RATE, shared_init=True)
    nets = {one: device.net for one, device in FED.devices.items()}
    built = method(build, nets=nets, training=training, rounds=ROUNDS, **settings)
    return last(built, FED).state, built.begin(FED.public, 0)[1]["a"].params


def close(found: Params, expected: Params) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_fedprox(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "prox", mu=0.3)
    for number in range(ROUNDS):
        sent = module_of(model)

        def loss(module: nn.Module, x: Tensor, y: Tensor, sent: nn.Module = sent) -> Tensor:
            apart = [
                (w - v.detach()).square().sum() for w, v in zip(module.parameters(), sent.parameters(), strict=True)
            ]
            return cross_entropy(module(x), y) + 0.15 * sum(apart)

        model = mean({name: step_through(name, number, model, loss) for name in FED.devices})
    close(state.messages["a"].params, model)


@pytest.mark.slow
def test_fedprox_is_the_librarys_too(monkeypatch: pytest.MonkeyPatch):
    state, _ = by_file(monkeypatch, "prox", mu=0.3)
    training = replace(SGD, lr=RATE, shared_init=True)
    nets = {name: device.net for name, device in FED.devices.items()}
    ours = last(method("fedprox", nets=nets, training=training, rounds=ROUNDS, mu=0.3), FED).state
    close(state.messages["a"].params, ours.messages["a"].params)


@pytest.mark.slow
def test_moon(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "moon", mu=2.0, tau=0.4)
    before = dict.fromkeys(FED.devices, model)
    for number in range(ROUNDS):
        trained = {}
        for name in FED.devices:
            near, far = module_of(model)[:-1], module_of(before[name])[:-1]

            def loss(module: nn.Module, x: Tensor, y: Tensor, near: nn.Module = near, far: nn.Module = far) -> Tensor:
                z = module[:-1](x)
                with torch.no_grad():
                    good, bad = near(x), far(x)
                same, other = (cosine_similarity(z, of).div(0.4).exp() for of in (good, bad))
                return cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()

            trained[name] = step_through(name, number, model, loss)
        before, model = trained, mean(trained)
    close(state.messages["a"].params, model)


@pytest.mark.slow
def test_moon_with_its_projection(monkeypatch: pytest.MonkeyPatch):
    """The head is trained beside the net by the same optimiser, stays on its device and is not counted."""
    fed = federation("abc", Net(chain))
    state, model = by_file(monkeypatch, "moon_projection", mu=2.0, tau=0.4)
    make = importlib.import_module("moon_projection").projection
    heads = {name: make(Net(chain)) for name in FED.devices}
    for name, head in heads.items():
        head.load_state_dict(init(Net(partial(make, Net(chain))), StepId(0, 0, 0, name).generator("parts")))
    before = dict.fromkeys(FED.devices, model)
    for number in range(ROUNDS):
        trained = {}
        for name in FED.devices:
            near, far, head = module_of(model)[:-1], module_of(before[name])[:-1], heads[name]
            data, module = fed.devices[name].data.train, module_of(model)
            optimiser = torch.optim.SGD([*module.parameters(), *head.parameters()], RATE)
            draws = StepId(0, 0, number, name).generator("batches")
            for _ in range(SGD.epochs):
                for batch in torch.randperm(len(data), generator=draws).split(SGD.batch):
                    optimiser.zero_grad()
                    x, y = data.x[batch], data.y[batch]
                    z = module[:-1](x)
                    with torch.no_grad():
                        good, bad = head(near(x)), head(far(x))
                    same, other = (cosine_similarity(head(z), of).div(0.4).exp() for of in (good, bad))
                    (cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()).backward()
                    optimiser.step()
            trained[name] = {key: x.clone() for key, x in module.state_dict().items()}
        before, model = trained, mean(trained)
    close(state.messages["a"].params, model)
    for name, head in heads.items():
        found = {key.removeprefix("parts/"): x for key, x in state.memories[name].items() if key.startswith("parts/")}
        close(found, {key: x.detach() for key, x in head.state_dict().items()})


@pytest.mark.slow
def test_feddyn(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "dyn", alpha=0.3)
    zero = {key: torch.zeros_like(x) for key, x in model.items()}
    h, gradients = zero, dict.fromkeys(FED.devices, zero)
    for number in range(ROUNDS):
        models = {}
        for name, g in gradients.items():

            def loss(module: nn.Module, x: Tensor, y: Tensor, g: Params = g, sent: Params = model) -> Tensor:
                found = cross_entropy(module(x), y)
                for key, w in module.named_parameters():
                    found = found - g[key].flatten() @ w.flatten() + 0.15 * ((w - sent[key]) ** 2).sum()
                return found

            models[name] = step_through(name, number, model, loss)
        gradients = {n: {key: g[key] - 0.3 * (models[n][key] - model[key]) for key in g} for n, g in gradients.items()}
        h = {key: h[key] - 0.3 / 3 * sum(one[key] - model[key] for one in models.values()) for key in h}
        model = {key: sum(one[key] for one in models.values()) / 3 - h[key] / 0.3 for key in h}
    close(state.messages["a"].params, model)
    for name, g in gradients.items():
        close({key: state.memories[name][f"g/{key}"] for key in g}, g)


@pytest.mark.slow
def test_feddyn_is_the_librarys_too(monkeypatch: pytest.MonkeyPatch):
    state, _ = by_file(monkeypatch, "dyn", alpha=0.3, fraction=0.67)
    given = {"nets": FED.public.nets, "training": replace(SGD, lr=RATE), "shared_init": True, "rounds": ROUNDS}
    close(
        state.messages["a"].params,
        last(method("feddyn", **given, alpha=0.3, fraction=0.67), FED).state.messages["a"].params,
    )


@pytest.mark.slow
def test_fedproto(monkeypatch: pytest.MonkeyPatch):
    state, first = by_file(monkeypatch, "proto", weight=0.7)
    models, prototypes = dict.fromkeys(FED.devices, first), None
    for number in range(ROUNDS):
        for name in FED.devices:

            def loss(module: nn.Module, x: Tensor, y: Tensor, prototypes: Any = prototypes) -> Tensor:
                z = module[:-1](x)
                if prototypes is None:
                    return cross_entropy(module[-1](z), y)
                apart = [
                    ((z[i] - prototypes[k]) ** 2).sum() if k in prototypes else 0 * z.sum()
                    for i, k in enumerate(y.tolist())
                ]
                return cross_entropy(module[-1](z), y) + 0.7 * sum(apart) / z.numel()

            models[name] = step_through(name, number, models[name], loss)
        seen: dict[int, list[Tensor]] = {}
        for name, model in models.items():
            data = FED.devices[name].data.train
            for x, k in zip(data.x, data.y.tolist(), strict=True):
                seen.setdefault(k, []).append(module_of(model)[:-1](x[None])[0].detach())
        prototypes = {k: torch.stack(rows).mean(0) for k, rows in seen.items()}
    for name, model in models.items():
        close(state.memories[name], model)
    close(dict(enumerate(state.messages["a"].extra["prototypes"])), prototypes)


@pytest.mark.parametrize("name", ["prox", "moon", "moon_projection", "proto", "dyn"])
def test_a_method_of_the_field_fits_into_forty_lines(name: str):
    assert len((OWN_LOSSES / f"{name}.py").read_text().splitlines()) <= 40
