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

from fedcore.core.training import accuracy
from fedcore.methods import method
from fedcore.types import Update

no_alignment = partial(method, "no_alignment", nets=NETS, training=SGD, common=False)


def geometric(models):
    """1/2 of the last, 1/4 of the one before, ..., the first two alike, in double precision."""
    shares = [0.5 ** max(1, len(models) - i - (i == 0)) for i in range(len(models))] if len(models) > 1 else [1.0]
    assert sum(shares) == 1
    return {
        leaf: sum(share * params[leaf].double() for share, params in zip(shares, models, strict=True)).float()
        for leaf in models[0]
    }


def test_weights_computed_by_hand():
    scores, numbers = {"a": 0.4, "b": 0.1, "c": 0.3, "d": 0.2}, {"a": 16.0, "b": 800.0, "c": 32.0, "d": 0.0}
    updates = {name: Update(constant(numbers[name]), score=scores[name]) for name in "abcd"}
    expected = 800 / 8 + 0 / 8 + 32 / 4 + 16 / 2
    assert bits(fused(no_alignment(exam="validation"), updates)) == bits(constant(expected))


@pytest.mark.parametrize("exam", ["validation", "test"])
def test_what_was_trained_is_ranked_and_folded(exam):
    fed = federation("abcde")
    updates = trained(fed, ADAM, 1)
    scores = {name: update.score for name, update in updates.items()}
    if exam == "test":
        scores = {name: accuracy(update.params, NET, fed.test) for name, update in updates.items()}
    ranked = sorted(scores, key=lambda name: (scores[name], name))
    found = last(no_alignment(training=ADAM, exam=exam), fed, 1).state.messages["a"].params
    torch.testing.assert_close(found, geometric([updates[name].params for name in ranked]))
    assert not torch.allclose(found["fc1.weight"], geometric([u.params for u in updates.values()])["fc1.weight"])


def test_two_devices_are_averaged_and_one_is_left_alone():
    updates = {name: Update(model(name), score=0.5) for name in "ab"}
    evenly = method("fedavg", nets=NETS, training=SGD, common=False, rounds=1, fraction=1.0, weights="even")
    built = no_alignment(exam="validation")
    torch.testing.assert_close(fused(built, updates), fused(evenly, updates))
    assert bits(fused(built, {"a": updates["a"]})) == bits(model("a"))


def test_equal_models_are_a_fixed_point_to_the_bit():
    updates = {name: Update(model(), score=k / 10) for k, name in enumerate("abcd")}
    assert bits(fused(no_alignment(exam="validation"), updates)) == bits(model())


@pytest.mark.parametrize(("exam", "order"), [("validation", "abc"), ("test", "cab")])
def test_the_exam_decides(exam, order):
    updates, examples = disputed()
    found = fused(no_alignment(exam=exam), updates, examples)
    torch.testing.assert_close(found, geometric([updates[name].params for name in order]))


def test_nothing_is_undone():
    """The control's point: where the order of hidden units differs, the mean is not the network."""
    updates = {"a": Update(shuffled(model(), NET, 0), score=0.1), "b": Update(model(), score=0.2)}
    found = fused(no_alignment(exam="validation"), updates)
    assert (found["fc2.weight"] - model()["fc2.weight"]).abs().max() > 0.1
