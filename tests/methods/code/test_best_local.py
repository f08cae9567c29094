from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NET, NETS, SGD, bits, disputed, federation, fused, last, model, trained

from fedcore.core.training import accuracy
from fedcore.methods import method
from fedcore.types import Data, Splits, Update

best_local = partial(method, "best_local", nets=NETS, training=SGD, common=False)


def mislabelled(examples):
    return Data(examples.x, (examples.y + 1) % 3)


def test_everyone_gets_the_model_with_the_best_score():
    updates = {name: Update(model(name), score=score) for name, score in (("a", 0.3), ("b", 0.9), ("c", 0.5))}
    assert bits(fused(best_local(exam="validation"), updates)) == bits(model("b"))


@pytest.mark.parametrize("exam", ["validation", "test"])
def test_it_is_the_best_of_the_models_that_were_trained(exam):
    fed = federation("abcdef")
    updates = trained(fed, ADAM, 1)
    scores = {name: update.score for name, update in updates.items()}
    if exam == "test":
        scores = {name: accuracy(update.params, NET, fed.test) for name, update in updates.items()}
    best = max(scores, key=scores.get)
    assert sorted(scores.values())[-1] > sorted(scores.values())[-2]
    one = last(best_local(training=ADAM, exam=exam), fed, 1)
    assert bits(one.state.messages["a"].params) == bits(updates[best].params)
    if exam == "test":
        assert one.scores["a"]["shared"]["accuracy"] == scores[best]


def test_one_device_is_that_device():
    alone = federation("a")
    for exam in ("validation", "test"):
        found = last(best_local(exam=exam), alone, 3).state.messages["a"].params
        assert bits(found) == bits(trained(alone, SGD, 3)["a"].params)


@pytest.mark.parametrize(("exam", "best"), [("validation", "c"), ("test", "b")])
def test_the_exam_decides(exam, best):
    updates, examples = disputed()
    assert bits(fused(best_local(exam=exam), updates, examples)) == bits(updates[best].params)


@pytest.mark.parametrize(("exam", "best"), [("validation", "b"), ("test", "a")])
def test_exam_on_the_servers_test_set_ignores_reported_scores(exam, best):
    fed = federation("ab")
    a, b = (fed.devices[name].data for name in "ab")
    wrong = Splits(mislabelled(b.train), mislabelled(b.val), b.test)
    doubted = replace(a, val=mislabelled(a.val))
    splits = {"a": doubted, "b": wrong}
    devices = {name: replace(there, data=splits[name]) for name, there in fed.devices.items()}
    fed, long = replace(fed, devices=devices), replace(ADAM, epochs=40)
    found = last(best_local(training=long, exam=exam), fed, 0).state.messages["a"].params
    assert bits(found) == bits(trained(fed, long, 0)[best].params)


def test_equal_scores_are_settled_by_name():
    updates = {name: Update(model(name), score=0.5) for name in "cab"}
    assert bits(fused(best_local(exam="validation"), updates)) == bits(model("c"))
    assert not torch.equal(model("c")["fc1.bias"], model("b")["fc1.bias"])
