"""Optimisers are PyTorch's; what they remember lasts through rounds, and parts may have rates of their own."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, NET, SGD, bits, device_of, model
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.flat_nets import flatten_net, to_params, to_vector
from fedcore.core.gradients import class_weights, gradient_step, proximal_grad_hook
from fedcore.core.losses import LOSSES
from fedcore.core.optimisers import MOMENTS, optimiser_step
from fedcore.core.prediction import accuracy, predict
from fedcore.core.training import cut_pieces, fit, minibatches, train
from fedcore.nets import init
from fedcore.nets.copies import load
from fedcore.nets.parts import names_up_to
from fedcore.types.federation import Data, Net, Splits
from fedcore.types.method import Message, StepId, generator

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
@pytest.mark.slow
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


# Gradients of a minibatch's loss: autograd's, a pull's, and those of weighted classes.


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def with_labels(net, *counts):
    """Device a with that many training examples of each class."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = torch.randn(len(y), 4, generator=generator("weights"))
    return replace(A, net=net, data=Splits(Data(x, y), A.data.val, A.data.test))


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_autograds(loss):
    params, x, y = model(), A.data.train.x, A.data.train.y
    flat, module = flatten_net(NET, params), NET.build()
    module.load_state_dict(params)
    gradient_step(flat, loss)(x, y)
    LOSSES[loss](module(x), y).backward()
    for name, tensor in module.named_parameters():
        torch.testing.assert_close(flat.gradients[name], tensor.grad, rtol=1e-4, atol=1e-6)


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
@pytest.mark.slow
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


def test_a_loss_that_clears_gradients_trains_as_in_pytorch():
    """`zero_grad()` takes a parameter's gradient away, and the backward pass makes a new one."""
    net = Net(partial(nn.Linear, 3, 2))
    params = init(net, torch.Generator())
    flat, module = flatten_net(net, params), nn.Linear(3, 2)
    module.load_state_dict(params)
    x, y = torch.eye(3), torch.tensor([0, 1, 1])

    def loss(batch):
        batch.logits.sum().backward(retain_graph=True)
        batch.module.zero_grad()
        return cross_entropy(batch.logits, batch.y)

    for _ in range(2):
        gradient_step(flat, loss)(x, y)
        assert flat.idle == []
        module.zero_grad()
        cross_entropy(module(x), y).backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(flat.gradients[name], parameter.grad)
    gradient_step(flat, lambda batch: batch.module.bias.square().sum())(x, y)
    assert flat.idle == ["weight"]
    assert not flat.gradients["weight"].any()
    gradient_step(flat, lambda batch: (batch.module.weight * 0).sum())(x, y)
    assert flat.idle == ["bias"], "a gradient of zeros is one"


# A model's predictions are those of its module.


def plain_prediction() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3))


def normed_prediction() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


NETS = {
    "by hand": nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5]),
    "autograd": Net(plain_prediction),
    "batch norm": Net(normed_prediction),
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_predictions_are_the_modules_own(net):
    rng = generator("prediction")
    params = {name: tensor + 1 if "running" in name else tensor for name, tensor in nets.init(net, rng).items()}
    x = torch.randint(0, 256, (11, 1, 6, 6), generator=rng).to(torch.uint8)
    examples = Data(x, torch.randint(0, 3, (11,), generator=rng))
    module = net.build().eval()
    module.load_state_dict(params)
    expected = module(x / 255).detach()
    for inputs, batch in ((x, 4), (examples.inputs(), 100)):
        torch.testing.assert_close(predict(params, net, inputs, batch), expected)
    right = (expected.argmax(1) == examples.y).double().mean().item()
    assert accuracy(params, net, examples) == right
    assert predict(params, net, x[:0], 4).shape == (0, 3)


# A net as one vector: laid out and taken back, without sharing memory.
BY_HAND = nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5])


def start(net, seed=5):
    return nets.init(net, torch.Generator().manual_seed(seed))


def test_modules_do_not_share_parameters():
    first, second = flatten_net(BY_HAND, start(BY_HAND, 1)), flatten_net(BY_HAND, start(BY_HAND, 2))
    first.vector.zero_()
    torch.testing.assert_close(second.params(), start(BY_HAND, 2), rtol=0, atol=0)
    assert first.params().keys() == second.params().keys()


def test_tensors_of_another_net_are_not_taken():
    with pytest.raises(RuntimeError, match=r"fc1\.bias"):
        load(BY_HAND, {**start(BY_HAND), "fc1.bias": torch.zeros(1)})


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20"])
@pytest.mark.slow
def test_numbers_by_name_are_laid_out_as_the_net_is_and_come_back(name):
    """Whatever the memory order of its tensors; zero where a tensor is missing."""
    net = nets.net(name, shape=(1, 28, 28), classes=3, **({"widths": [9]} if name == "mlp" else {}))
    params = start(net)
    flat = flatten_net(net, params)
    assert torch.equal(to_vector(flat, params), flat.vector)
    back = to_params(flat, flat.vector)
    assert set(back) == set(flat.parameters)
    for key, x in back.items():
        assert torch.equal(x, params[key])
        assert x.is_contiguous()
        x.zero_()
    assert flat.vector.any()
    last = list(flat.parameters)[-1]
    alone = to_vector(flat, {last: params[last]})
    assert torch.equal(to_params(flat, alone)[last], params[last])
    assert alone.count_nonzero() == params[last].count_nonzero()
