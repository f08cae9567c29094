"""Optimisers are PyTorch's; what they remember lasts through rounds, and parts may have rates of their own."""

from dataclasses import replace

import pytest
import torch
from federations import ADAM, NET, SGD, bits, device_of, model
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore.core.flat_nets import flatten_net
from fedcore.core.gradients import gradient_step
from fedcore.core.optimisers import MOMENTS, optimiser_step
from fedcore.core.training import minibatches, train
from fedcore.methods.fedasa.sharing import cut_pieces
from fedcore.nets.parts import names_up_to
from fedcore.types.federation import Net
from fedcore.types.method import Message, StepId

A = device_of("a")

MOMENTUM = replace(SGD, momentum=0.9)


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
    base, personal = names_up_to(NET, 0), training.lr / 3
    parameters = dict(module.named_parameters())
    groups = [
        {"params": [parameters[name] for name in base]},
        {"params": [tensor for name, tensor in parameters.items() if name not in base], "lr": personal},
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
        len(cut_pieces(flat, names_up_to(NET, 0), 0.1, None))
        == len(cut_pieces(flat, names_up_to(NET, 0), 0.1, 0.1))
        == 1
    )
    assert len(cut_pieces(flat, [*flat.parameters], 0.1, 0.3)) == 1
    (_, _), (everything, factor) = cut_pieces(flat, (), 0.1, 0.3)
    assert (everything, factor) == (slice(0, None), pytest.approx(3))


# A round's minibatches: each example comes back only after all others.
AT = StepId(seed=3, stage=0, round=0, unit="b")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def drawn(count, training, net=NET):
    """The minibatches of a round, as lists."""
    flat = flatten_net(net, model(net=net))
    return [batch.tolist() for batch in minibatches(flat, count, training, AT.generator("batches"))]


def test_as_many_steps_as_epochs_have_are_the_same_bits():
    """Nine examples by four, twice: six minibatches."""
    same, fewer = replace(SGD, steps=6, epochs=1), replace(SGD, steps=5, epochs=1)
    assert drawn(9, same) == drawn(9, SGD)
    assert drawn(9, fewer) == drawn(9, SGD)[:5]
    one, other = (train({}, Message(), device_of("b"), AT, training=training)[1] for training in (same, SGD))
    assert one.size == 9
    assert bits(one.params) == bits(other.params)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 100])
def test_every_device_takes_its_steps_however_many_examples_it_has(count):
    """Until an example comes back, all have been there once."""
    batches = drawn(count, replace(SGD, steps=7))
    assert len(batches) == 7
    order = [k for batch in batches for k in batch]
    for k in range(0, len(order) - count + 1, count):
        assert sorted(order[k : k + count]) == list(range(count))


def test_steps_without_a_usable_minibatch_are_none():
    assert drawn(0, replace(SGD, steps=3)) == []
    assert drawn(1, replace(SGD, steps=3), Net(normed)) == []
    assert len(drawn(5, replace(SGD, steps=3), Net(normed))) == 3
