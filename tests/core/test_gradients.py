"""Gradients of a minibatch's loss: autograd's, a pull's, and those of weighted classes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, NET, SGD, bits, device_of, model
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore.core.flat_nets import flatten_net
from fedcore.core.gradients import class_weights, gradient_step, proximal_grad_hook
from fedcore.core.losses import LOSSES
from fedcore.core.training import fit, train
from fedcore.nets import init
from fedcore.types.federation import Data, Net, Splits
from fedcore.types.method import Message, StepId, generator

A = device_of("a")

MOMENTUM = replace(SGD, momentum=0.9)


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
