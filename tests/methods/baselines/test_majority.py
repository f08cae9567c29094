"""The control that always guesses the commonest label, against counts by NumPy, on every net."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import NET, NETS, SGD, federation, last

from fedcore import Data, InputError, Splits, nets
from fedcore.core.evaluation import evaluate
from fedcore.methods import method
from fedcore.types.federation import Scoring

majority = partial(method, "majority", nets=NETS, training=SGD, shared_init=False)

COSTS = Scoring("cost", costs=((0.0, 1.0, 9.0), (1.0, 0.0, 9.0), (30.0, 40.0, 0.0)))
IMAGES = {
    **dict.fromkeys(("mlp", "cnn", "dfl_cnn", "mcmahan_cnn", "stlf_cnn", "auto"), (1, 28, 28)),
    **dict.fromkeys(("lenet", "vgg11", "vgg16", "resnet20", "mobilenet_v2"), (3, 32, 32)),
    "cells": (1, 512),
    "lstm": (8,),
    "transformer": (8,),
}
"""net -> the shape of its examples, all nets of the library."""


def test_accuracy_is_the_share_of_the_commonest_label_of_all_devices():
    fed = federation("abcdef")
    labels = np.concatenate([device.data.train.y.numpy() for device in fed.devices.values()])
    commonest = np.bincount(labels, minlength=3).argmax()
    one = last(majority(), fed)
    for name, device in fed.devices.items():
        for split, data in (("val", device.data.val), ("test", device.data.test), ("shared", fed.test)):
            assert one.scores[name][split]["accuracy"] == pytest.approx((data.y.numpy() == commonest).mean())


@pytest.mark.parametrize("name", ["majority", "majority_per_device"])
def test_with_costs_it_costs_what_the_cheapest_class_does(name: str):
    """By the frequencies (n_k + 1) / (N + K)."""
    costs, fed = np.array(COSTS.costs), federation("abc")
    one = last(majority() if name == "majority" else method(name, nets=NETS, training=SGD), replace(fed, scoring=COSTS))
    counts = {device: 1 + np.bincount(of.data.train.y, minlength=3) for device, of in fed.devices.items()}
    for device, of in fed.devices.items():
        guess = ((sum(counts.values()) - 2 if name == "majority" else counts[device]) @ costs).argmin()
        assert one.scores[device]["test"]["cost"] == pytest.approx(costs[of.data.test.y, guess].mean())


def test_its_loss_is_that_of_the_labels_frequencies():
    """Of (n_k + 1) / (N + K), so that a class that no device has costs a finite loss."""
    fed = federation("abc")
    labels = np.concatenate([device.data.train.y.numpy() for device in fed.devices.values()])
    frequencies = (np.bincount(labels, minlength=3) + 1) / (len(labels) + 3)
    loss = -np.log(frequencies[fed.test.y.numpy()]).mean()
    assert last(majority(), fed).scores["a"]["shared"]["loss"] == pytest.approx(loss, rel=1e-6)


def test_only_labelled_training_examples_count():
    fed = federation("ab")
    hidden = fed.devices["b"].data
    empty = Data(hidden.train.x[:0], hidden.train.y[:0])
    unlabelled = Data(hidden.train.x, torch.full_like(hidden.train.y, -1))
    half = replace(fed.devices["b"], data=Splits(empty, empty, hidden.test, unlabelled))
    both = last(majority(), replace(fed, devices={**fed.devices, "b": half}))
    alone = last(majority(), federation("a"))
    assert both.scores["a"] == alone.scores["a"]


def test_a_device_sends_one_count_for_each_class():
    assert set(last(majority(), federation("abc")).up.values()) == {3 * 8}


def test_the_nets_below_are_all_that_there_are():
    assert set(IMAGES) == set(nets.NETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGES)
def test_every_net_guesses_the_commonest_label_whatever_it_sees(name):
    net = nets.net(name, shape=IMAGES[name], classes=4)
    x = torch.rand(6, *IMAGES[name], generator=torch.Generator().manual_seed(0))
    x, other = (x.mul(4).long(), x.mul(2).long()) if IMAGES[name] == (8,) else (x, -3 * x)  # of letters, or pictures
    data = Data(x, torch.tensor([2, 2, 2, 2, 1, 0]))
    there = replace(federation("a").devices["a"], net=net, data=Splits(data, data, data))
    fed = replace(federation("a"), devices={"a": there}, test=data, classes=4)
    method_ = majority(nets={"a": net})
    one = last(method_, fed)
    assert one.scores["a"]["shared"]["accuracy"] == pytest.approx(4 / 6)
    deployed = method_.deploy({}, one.state.messages["a"])
    assert evaluate(deployed, net, Data(other, data.y)) == one.scores["a"]["shared"]


def test_devices_may_have_different_nets():
    other = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = federation("ab")
    mixed = replace(fed, devices={**fed.devices, "b": replace(fed.devices["b"], net=other)})
    guesses, same = (
        last(method, there).scores
        for method, there in ((majority(nets={"a": NET, "b": other}), mixed), (majority(), fed))
    )
    for name in "ab":
        assert {**guesses[name], "inference": {}} == {**same[name], "inference": {}}


class Unbiased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.out(x)


class Shuffled(torch.nn.Module):
    """Its last tensor is a bias, but not that of the output."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)
        self.hidden = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.hidden(x))


@pytest.mark.parametrize("build", [Unbiased, Shuffled])
def test_a_net_that_does_not_end_in_a_bias_is_refused(build):
    net = replace(NET, build=build, axes=None)
    with pytest.raises(InputError, match="majority: this net does not end in the bias"):
        last(majority(nets={"a": net}), federation("a", net))
