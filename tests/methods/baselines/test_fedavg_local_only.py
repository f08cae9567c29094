from dataclasses import replace
from functools import partial

import pytest
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last, model, trained

from fedcore import nets
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import Message, Model, generator

local_only = partial(method, "local_only", nets=NETS, training=SGD)


@pytest.mark.parametrize("shared_init", [True, False])
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_every_device_runs_what_it_trained(shared_init, training):
    fed, built = federation(), local_only(training=training, shared_init=shared_init)
    one = last(built, fed, 3)
    updates = trained(fed, training, 3, nets.init(NET, generator(3, "init")) if shared_init else None)
    for name, device in fed.devices.items():
        deployed = built.deploy(one.state.memories[name], one.state.messages[name])
        assert bits(deployed) == bits(Model((updates[name].params,)))
        assert one.scores[name]["val"]["accuracy"] == updates[name].score
        for split, examples in (("val", device.data.val), ("test", device.data.test), ("shared", fed.test)):
            assert one.scores[name][split] == evaluate(deployed, NET, examples)
    assert one.scores["a"]["shared"] != one.scores["b"]["shared"]


@pytest.mark.parametrize("shared_init", [True, False])
def test_nothing_is_sent(shared_init):
    (one,) = run(local_only(shared_init=shared_init), federation(), 0, Inline())
    assert one.up == dict.fromkeys("abc", 0)
    assert one.down == dict.fromkeys("abc", NBYTES if shared_init else 0)
    assert one.state.server == {}


@pytest.mark.parametrize("shared_init", [True, False])
def test_one_device_is_fedavg(shared_init):
    averaged = method(
        "fedavg", nets=NETS, training=SGD, shared_init=shared_init, rounds=1, fraction=1.0, weights="size"
    )
    alone = last(local_only(shared_init=shared_init), federation("b"), 5)
    assert alone.scores == last(averaged, federation("b"), 5).scores


def test_others_do_not_matter():
    few, many = (last(local_only(shared_init=False), federation(names), 2) for names in ("ab", "abcd"))
    assert {name: many.scores[name] for name in "ab"} == few.scores
    longer = last(local_only(shared_init=False, training=replace(SGD, epochs=3)), federation("ab"), 2)
    assert longer.scores != few.scores


def test_before_training_a_device_runs_what_it_was_sent():
    assert bits(local_only(shared_init=True).deploy({}, Message(model()))) == bits(Model((model(),)))
