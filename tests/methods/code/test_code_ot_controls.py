"""CODE's controls: the best model, half of it, and the weighted mean without alignment."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import (
    ADAM,
    NET,
    NETS,
    SGD,
    bits,
    constant,
    disputed,
    federation,
    fused,
    last,
    model,
    shuffled,
    trained,
)
from torch import nn

from fedcore import Data, Net, Splits, Update, nets
from fedcore.core.training import accuracy
from fedcore.methods import method

best_local, half_best, no_alignment = (
    partial(method, name, nets=NETS, training=SGD, shared_init=False)
    for name in ("best_local", "half_best", "no_alignment")
)


def mislabelled(examples):
    return Data(examples.x, (examples.y + 1) % 3)


def test_best_local_sends_everyone_the_model_with_the_best_score():
    updates = {name: Update(model(name), score=score) for name, score in (("a", 0.3), ("b", 0.9), ("c", 0.5))}
    assert bits(fused(best_local(rank_by="validation"), updates)) == bits(model("b"))


@pytest.mark.parametrize("rank_by", ["validation", "test"])
@pytest.mark.slow
def test_best_local_is_the_best_of_the_models_that_were_trained(rank_by):
    fed = federation("abcdef")
    updates = trained(fed, ADAM, 1)
    scores = {name: update.score for name, update in updates.items()}
    if rank_by == "test":
        scores = {name: accuracy(update.params, NET, fed.test) for name, update in updates.items()}
    best = max(scores, key=scores.get)
    assert sorted(scores.values())[-1] > sorted(scores.values())[-2]
    one = last(best_local(training=ADAM, rank_by=rank_by), fed, 1)
    assert bits(one.state.messages["a"].params) == bits(updates[best].params)
    if rank_by == "test":
        assert one.scores["a"]["shared"]["accuracy"] == scores[best]


def test_best_local_of_one_device_is_that_device():
    alone = federation("a")
    for rank_by in ("validation", "test"):
        found = last(best_local(rank_by=rank_by), alone, 3).state.messages["a"].params
        assert bits(found) == bits(trained(alone, SGD, 3)["a"].params)


@pytest.mark.parametrize(("rank_by", "best"), [("validation", "c"), ("test", "b")])
def test_the_exam_decides_what_is_the_best(rank_by, best):
    updates, examples = disputed()
    assert bits(fused(best_local(rank_by=rank_by), updates, examples)) == bits(updates[best].params)


@pytest.mark.parametrize(("rank_by", "best"), [("validation", "b"), ("test", "a")])
@pytest.mark.slow
def test_exam_on_the_servers_test_set_ignores_reported_scores(rank_by, best):
    fed = federation("ab")
    a, b = (fed.devices[name].data for name in "ab")
    wrong = Splits(mislabelled(b.train), mislabelled(b.val), b.test)
    doubted = replace(a, val=mislabelled(a.val))
    splits = {"a": doubted, "b": wrong}
    devices = {name: replace(there, data=splits[name]) for name, there in fed.devices.items()}
    fed, long = replace(fed, devices=devices), replace(ADAM, epochs=40)
    found = last(best_local(training=long, rank_by=rank_by), fed, 0).state.messages["a"].params
    assert bits(found) == bits(trained(fed, long, 0)[best].params)


def test_equal_scores_are_settled_by_name():
    updates = {name: Update(model(name), score=0.5) for name in "cab"}
    assert bits(fused(best_local(rank_by="validation"), updates)) == bits(model("c"))
    assert not torch.equal(model("c")["fc1.bias"], model("b")["fc1.bias"])


def normed():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def halved(params):
    return {name: x / 2 for name, x in params.items()}


def test_half_best_sends_everyone_half_of_the_model_with_the_best_score():
    updates = {name: Update(model(name), score=score) for name, score in (("a", 0.3), ("b", 0.9), ("c", 0.5))}
    before = bits(updates)
    found = fused(half_best(rank_by="validation"), updates)
    assert bits(found) == bits(halved(model("b")))
    assert bits(updates) == before


@pytest.mark.parametrize("rank_by", ["validation", "test"])
@pytest.mark.slow
def test_half_best_is_half_of_best_local_to_the_bit(rank_by):
    fed = federation("abcd")
    whole = method("best_local", nets=NETS, training=ADAM, shared_init=False, rank_by=rank_by)
    best = last(whole, fed, 1).state.messages["a"].params
    half = last(half_best(training=ADAM, rank_by=rank_by), fed, 1).state.messages["a"].params
    assert bits(half) == bits(halved(best))
    torch.testing.assert_close({name: 2 * x for name, x in half.items()}, best, rtol=0, atol=0)


def test_half_best_of_one_device_is_half_of_it():
    alone = federation("a")
    found = last(half_best(rank_by="validation"), alone, 3).state.messages["a"].params
    assert bits(found) == bits(halved(trained(alone, SGD, 3)["a"].params))


@pytest.mark.parametrize(("rank_by", "best"), [("validation", "c"), ("test", "b")])
def test_the_exam_decides_what_is_halved(rank_by, best):
    updates, examples = disputed()
    assert bits(fused(half_best(rank_by=rank_by), updates, examples)) == bits(halved(updates[best].params))


def test_half_best_keeps_counters_and_halves_buffers():
    net = Net(normed)
    fed = federation("ab", net)
    updates = trained(fed, SGD, 0)
    best = max(updates, key=lambda name: (updates[name].score, name))
    found = last(half_best(nets=fed.public.nets, rank_by="validation"), fed, 0).state.messages["a"].params
    assert set(found) == set(nets.shapes(net))
    count = found["1.num_batches_tracked"]
    assert count.item() == updates[best].params["1.num_batches_tracked"].item() > 0
    assert count.dtype == torch.int64
    assert torch.equal(found["1.running_var"], updates[best].params["1.running_var"] / 2)


def geometric(models):
    """1/2 of the last, 1/4 of the one before, ..., the first two alike, in double precision."""
    shares = [0.5 ** max(1, len(models) - i - (i == 0)) for i in range(len(models))] if len(models) > 1 else [1.0]
    assert sum(shares) == 1
    return {
        name: sum(share * params[name].double() for share, params in zip(shares, models, strict=True)).float()
        for name in models[0]
    }


def test_weights_computed_by_hand():
    scores, numbers = {"a": 0.4, "b": 0.1, "c": 0.3, "d": 0.2}, {"a": 16.0, "b": 800.0, "c": 32.0, "d": 0.0}
    updates = {name: Update(constant(numbers[name]), score=scores[name]) for name in "abcd"}
    expected = 800 / 8 + 0 / 8 + 32 / 4 + 16 / 2
    assert bits(fused(no_alignment(rank_by="validation"), updates)) == bits(constant(expected))


@pytest.mark.parametrize("rank_by", ["validation", "test"])
@pytest.mark.slow
def test_no_alignment_ranks_and_folds_what_was_trained(rank_by):
    fed = federation("abcde")
    updates = trained(fed, ADAM, 1)
    scores = {name: update.score for name, update in updates.items()}
    if rank_by == "test":
        scores = {name: accuracy(update.params, NET, fed.test) for name, update in updates.items()}
    ranked = sorted(scores, key=lambda name: (scores[name], name))
    found = last(no_alignment(training=ADAM, rank_by=rank_by), fed, 1).state.messages["a"].params
    torch.testing.assert_close(found, geometric([updates[name].params for name in ranked]))
    assert not torch.allclose(found["fc1.weight"], geometric([u.params for u in updates.values()])["fc1.weight"])


def test_two_devices_are_averaged_and_one_is_left_alone():
    updates = {name: Update(model(name), score=0.5) for name in "ab"}
    evenly = method("fedavg", nets=NETS, training=SGD, shared_init=False, rounds=1, fraction=1.0, weights="even")
    built = no_alignment(rank_by="validation")
    torch.testing.assert_close(fused(built, updates), fused(evenly, updates))
    assert bits(fused(built, {"a": updates["a"]})) == bits(model("a"))


def test_equal_models_are_a_fixed_point_to_the_bit():
    updates = {name: Update(model(), score=k / 10) for k, name in enumerate("abcd")}
    assert bits(fused(no_alignment(rank_by="validation"), updates)) == bits(model())


@pytest.mark.parametrize(("rank_by", "order"), [("validation", "abc"), ("test", "cab")])
def test_the_exam_decides_the_order(rank_by, order):
    updates, examples = disputed()
    found = fused(no_alignment(rank_by=rank_by), updates, examples)
    torch.testing.assert_close(found, geometric([updates[name].params for name in order]))


def test_no_alignment_undoes_nothing():
    """The control's point: where the order of hidden units differs, the mean is not the network."""
    updates = {"a": Update(shuffled(model(), NET, 0), score=0.1), "b": Update(model(), score=0.2)}
    found = fused(no_alignment(rank_by="validation"), updates)
    assert (found["fc2.weight"] - model()["fc2.weight"]).abs().max() > 0.1
