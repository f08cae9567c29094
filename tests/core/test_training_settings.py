"""What a method may ask of training: other losses, an optimiser that remembers, a pull, rates by part."""

from __future__ import annotations

from dataclasses import replace
from math import e, exp, log

import numpy as np
import pytest
import torch
from federations import ADAM, NET, SGD, bits, device_of, model
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore.core.losses import LOSSES, entropies
from fedcore.core.training import (
    MOMENTS,
    Training,
    class_weights,
    fit,
    flatten_net,
    gradient_step,
    optimiser_step,
    predict,
    proximal_grad_hook,
    train,
)
from fedcore.methods import method
from fedcore.methods.fedasa.sharing import cut_pieces
from fedcore.nets.parts import leaves_up_to
from fedcore.types import Data, InputError, Message, Net, Splits, StepId, generator

A = device_of("a")
MOMENTUM = replace(SGD, momentum=0.9)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def with_labels(net, *counts):
    """Device a with that many training examples of each class."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = torch.randn(len(y), 4, generator=generator("weights"))
    return replace(A, net=net, data=Splits(Data(x, y), A.data.val, A.data.test))


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
    assert {name: loss(logits, y).item() for name, loss in LOSSES.items()} == pytest.approx(expected, rel=1e-6)


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


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_autograds(loss):
    params, x, y = model(), A.data.train.x, A.data.train.y
    flat, module = flatten_net(NET, params), NET.build()
    module.load_state_dict(params)
    gradient_step(flat, loss)(x, y)
    LOSSES[loss](module(x), y).backward()
    for name, leaf in module.named_parameters():
        torch.testing.assert_close(flat.gradients[name], leaf.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("training", [ADAM, MOMENTUM], ids=["adam", "momentum"])
def test_kept_moments_are_one_optimiser_through_all_rounds(training):
    kept, module = replace(training, optimiser_state="keep"), NET.build()
    module.load_state_dict(model())
    optimiser = (
        torch.optim.Adam(module.parameters(), kept.lr)
        if kept.optimiser == "adam"
        else torch.optim.SGD(module.parameters(), kept.lr, kept.momentum)
    )
    memory, sent = {}, model()
    for number in range(3):
        step = StepId(1, 0, number, "a")
        before = bits(memory)
        memory, update = train(own_before := memory, Message(sent), A, step, training=kept)
        assert bits(own_before) == before
        sent = update.params
        draw = step.generator("batches")
        for _ in range(kept.epochs):
            for index in torch.randperm(len(A.data.train), generator=draw).split(kept.batch):
                optimiser.zero_grad()
                cross_entropy(module(A.data.train.x[index]), A.data.train.y[index]).backward()
                optimiser.step()
    torch.testing.assert_close(sent, dict(module.state_dict()), rtol=1e-4, atol=1e-5)
    assert memory
    assert all(name.startswith(MOMENTS) for name in memory)
    assert not update.extra


OPTIMISERS = {
    "adamw": (replace(ADAM, optimiser="adamw", weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    "nesterov": (
        replace(SGD, momentum=0.8, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "clipped sgd": (replace(SGD, clip=0.3), torch.optim.SGD, {}),
    "clipped adam": (replace(ADAM, clip=0.3), torch.optim.Adam, {}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_is_pytorchs(name):
    """With the learning rate of three rounds, by PyTorch's ExponentialLR."""
    training, kind, options = OPTIMISERS[name]
    training = replace(training, round_decay=0.5)
    module, data, params = NET.build(), A.data.train, model()
    module.load_state_dict(params)
    longest = 0.0
    for number in range(3):
        step_id = StepId(1, 0, number, "a")
        optimiser = kind(module.parameters(), training.lr * 0.5**number, **options)
        batches = step_id.generator("batches")
        for _ in range(training.epochs):
            for index in torch.randperm(len(data), generator=batches).split(training.batch):
                optimiser.zero_grad()
                cross_entropy(module(data.x[index]), data.y[index]).backward()
                if training.clip is not None:
                    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), training.clip)
                    longest = max(longest, norm.item())
                optimiser.step()
        _, update = train({}, Message(params), A, step_id, training=training)
        params = update.params
        torch.testing.assert_close(params, dict(module.state_dict()), rtol=1e-5, atol=1e-6)
    assert training.clip is None or longest > training.clip


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"optimiser": "sgd"}])
def test_nesterov_needs_a_momentum_of_sgd(settings):
    with pytest.raises(InputError, match=r"^training.nesterov = true: needs"):
        replace(SGD, nesterov=True, **settings)


def test_fresh_moments_are_not_remembered_nor_read():
    mine = {f"{MOMENTS}first": torch.ones(7)}
    memory, update = train(mine, Message(model()), A, StepId(1, 0, 0, "a"), training=ADAM)
    assert memory == mine
    _, without = train({}, Message(model()), A, StepId(1, 0, 0, "a"), training=ADAM)
    assert bits(update.params) == bits(without.params)
    _, first = train({}, Message(model()), A, StepId(1, 0, 0, "a"), training=replace(ADAM, optimiser_state="keep"))
    assert bits(first.params) == bits(without.params)


@pytest.mark.parametrize("training", [ADAM, SGD, MOMENTUM], ids=["adam", "sgd", "momentum"])
def test_rates_by_part_are_parameter_groups(training):
    params, x, y = model(), A.data.train.x, A.data.train.y
    flat, module = flatten_net(NET, params), NET.build()
    module.load_state_dict(params)
    base, personal = leaves_up_to(NET, 0), training.lr / 3
    leaves = dict(module.named_parameters())
    groups = [
        {"params": [leaves[name] for name in base]},
        {"params": [leaf for name, leaf in leaves.items() if name not in base], "lr": personal},
    ]
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(groups, training.lr, **({"momentum": training.momentum} if kind is torch.optim.SGD else {}))
    cut = cut_pieces(flat, base, training.lr, personal)
    assert len(cut) == 2
    moments = {}
    gradient, update = gradient_step(flat), optimiser_step(flat, training, moments, cut)
    for _ in range(4):
        gradient(x, y)
        update(training.lr)
        optimiser.zero_grad()
        cross_entropy(module(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(flat.params(), dict(module.state_dict()), rtol=1e-4, atol=1e-6)
    if training is ADAM:
        assert moments["steps"].item() == 4


def test_rates_by_part_for_all_or_none():
    flat = flatten_net(NET, model())
    assert (
        len(cut_pieces(flat, leaves_up_to(NET, 0), 0.1, None))
        == len(cut_pieces(flat, leaves_up_to(NET, 0), 0.1, 0.1))
        == 1
    )
    assert len(cut_pieces(flat, [*flat.leaves], 0.1, 0.3)) == 1
    (_, _), (everything, factor) = cut_pieces(flat, (), 0.1, 0.3)
    assert (everything, factor) == (slice(0, None), pytest.approx(3))


def test_a_pull_is_the_gradient_of_half_the_squared_distance():
    flat, anchor = flatten_net(NET, model("here")), flatten_net(NET, model("there")).vector
    flat.gradient.fill_(1.0)
    proximal_grad_hook(flat, anchor, 0.5)()
    torch.testing.assert_close(flat.gradient, 1 + 0.5 * (flat.vector - anchor))
    assert proximal_grad_hook(flat, anchor, 0) is None
    strong = flatten_net(NET, model("here"))
    fit(strong, A, StepId(0, 0, 0, "a"), replace(SGD, epochs=40), {}, grad_hook=proximal_grad_hook(strong, anchor, 9.0))
    assert (strong.vector - anchor).norm() < 0.1 * (flatten_net(NET, model("here")).vector - anchor).norm()


def test_class_weights_are_scikit_learns():
    y = torch.tensor([0, 0, 0, 3, 3, 1])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=y.numpy())
    torch.testing.assert_close(class_weights(y)[[0, 1, 3]].numpy(), expected.astype("float32"), rtol=0, atol=0)
    assert class_weights(y)[2] == 0


@pytest.mark.parametrize("net", [NET, Net(plain)], ids=["by hand", "autograd"])
@pytest.mark.parametrize("training", [ADAM, SGD, MOMENTUM], ids=["adam", "sgd", "momentum"])
def test_balanced_training_is_pytorchs_weighted_loss(training, net):
    device, params, step = with_labels(net, 9, 0, 2), model(net=net), StepId(1, 0, 0, "a")
    _, update = train({}, Message(params), device, step, training=replace(training, class_weights="balanced"))
    module, draw = net.build(), step.generator("batches")
    module.load_state_dict(params)
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.SGD
    options = {"momentum": training.momentum} if kind is torch.optim.SGD else {}
    optimiser = kind(module.parameters(), training.lr, **options)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([11 / (2 * 9), 1.0, 11 / (2 * 2)]))
    for _ in range(training.epochs):
        for index in torch.randperm(11, generator=draw).split(training.batch):
            optimiser.zero_grad()
            loss(module(device.data.train.x[index]), device.data.train.y[index]).backward()
            optimiser.step()
    torch.testing.assert_close(update.params, dict(module.state_dict()), rtol=1e-4, atol=1e-6)
    _, unweighted = train({}, Message(params), device, step, training=training)
    assert bits(unweighted.params) != bits(update.params)


@pytest.mark.parametrize("training", [ADAM, SGD], ids=["adam", "sgd"])
def test_weights_of_equally_common_classes_change_no_bit(training):
    """Of a net with a chain rule of its own; autograd takes the softmax in another order, which costs the last bits."""
    step = StepId(1, 0, 0, "a")
    for net, same in ((NET, {"rtol": 0.0, "atol": 0.0}), (Net(plain), {"rtol": 1e-5, "atol": 1e-6})):
        device, params = with_labels(net, 4, 4, 4), model(net=net)
        found = [
            train({}, Message(params), device, step, training=replace(training, class_weights=weights))[1].params
            for weights in ("none", "balanced")
        ]
        torch.testing.assert_close(*found, **same)


def test_patience_keeps_the_epoch_of_the_least_validation_loss():
    """An epoch at a time, by separate calls that keep Adam's moments: the best of them, and no more than are needed."""
    rng = generator("patience")
    x, y = torch.randn(90, 4, generator=rng), torch.randint(0, 3, (90,), generator=rng)
    parts = [Data(x[part], y[part]) for part in (slice(60), slice(60, 80), slice(80, 90))]
    device = replace(A, data=Splits(*parts))
    step, start = StepId(0, 0, 0, "a"), Message(model("a"))
    training = replace(ADAM, lr=0.05, batch=60, epochs=30)

    def loss_after(epochs):
        params = train({}, start, device, step, training=replace(training, epochs=epochs))[1].params
        return cross_entropy(predict(params, device.net, device.data.val.x, 99), device.data.val.y).item(), params

    losses = [loss_after(epochs)[0] for epochs in range(1, 31)]
    first = next(i for i in range(30) if i and losses[i] >= min(losses[:i]))
    for patience in (1, 4, 40):
        best, waited = 0, 0
        for number in range(1, 30):
            best, waited = (number, 0) if losses[number] < losses[best] else (best, waited + 1)
            if waited == patience:
                break
        found = train({}, start, device, step, training=replace(training, patience=patience))[1].params
        assert bits(found) == bits(loss_after(best + 1)[1])
    assert 0 < first < 29  # else nothing was stopped


def test_patience_without_validation_examples_takes_all_epochs():
    none = Data(A.data.val.x[:0], A.data.val.y[:0])
    device, step = replace(A, data=Splits(A.data.train, none, none)), StepId(0, 0, 0, "a")
    one, other = (train({}, Message(), device, step, training=replace(ADAM, patience=p))[1].params for p in (1, None))
    assert bits(one) == bits(other)


def test_patience_is_refused_where_epochs_are_not_counted_or_all_needed():
    with pytest.raises(InputError, match=r"^training.patience = 2: counts epochs, which training.steps = 5 replaces"):
        replace(SGD, patience=2, steps=5)
    for name in ("scaffold", "fednova", "perfedavg", "pfedme"):
        with pytest.raises(InputError, match=f"^training.patience = 2: {name} needs all steps of a round"):
            method(name, nets={"a": A.net}, training=replace(SGD, patience=2, shared_init=True))


def test_a_final_fit_keeps_the_validation_rows_that_stop_it():
    assert method("fedavg", nets={"a": A.net}, training=replace(SGD, patience=2)).held_out == ("val",)
    assert method("fedavg", nets={"a": A.net}, training=SGD).held_out == ()


@pytest.mark.parametrize("loss", sorted({*LOSSES} - {"ce"}))
def test_class_weights_of_another_loss_are_refused(loss):
    line = f"^training.class_weights = 'balanced': is for training.loss = 'ce', not '{loss}'$"
    with pytest.raises(InputError, match=line):
        Training(loss=loss, class_weights="balanced")
