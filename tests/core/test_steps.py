"""A round's minibatches: each example comes back only after all others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from federations import NET, SGD, bits, device_of, model
from torch import nn

from fedcore.core.flat_nets import flatten_net
from fedcore.core.steps import minibatches
from fedcore.core.training import train
from fedcore.types.federation import Net
from fedcore.types.method import Message, StepId

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
