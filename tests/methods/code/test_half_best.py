from functools import partial

import pytest
import torch
from federations import ADAM, NETS, SGD, bits, disputed, federation, fused, last, model, trained
from torch import nn

from fedcore import nets
from fedcore.methods import method
from fedcore.types import Net, Update

half_best = partial(method, "half_best", nets=NETS, training=SGD, common=False)


def normed():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def halved(params):
    return {leaf: x / 2 for leaf, x in params.items()}


def test_everyone_gets_half_of_the_model_with_the_best_score():
    updates = {name: Update(model(name), score=score) for name, score in (("a", 0.3), ("b", 0.9), ("c", 0.5))}
    before = bits(updates)
    found = fused(half_best(exam="validation"), updates)
    assert bits(found) == bits(halved(model("b")))
    assert bits(updates) == before


@pytest.mark.parametrize("exam", ["validation", "test"])
def test_it_is_half_of_best_local_to_the_bit(exam):
    fed = federation("abcd")
    whole = method("best_local", nets=NETS, training=ADAM, common=False, exam=exam)
    best = last(whole, fed, 1).state.messages["a"].params
    half = last(half_best(training=ADAM, exam=exam), fed, 1).state.messages["a"].params
    assert bits(half) == bits(halved(best))
    torch.testing.assert_close({leaf: 2 * x for leaf, x in half.items()}, best, rtol=0, atol=0)


def test_one_device_is_half_of_it():
    alone = federation("a")
    found = last(half_best(exam="validation"), alone, 3).state.messages["a"].params
    assert bits(found) == bits(halved(trained(alone, SGD, 3)["a"].params))


@pytest.mark.parametrize(("exam", "best"), [("validation", "c"), ("test", "b")])
def test_the_exam_decides(exam, best):
    updates, examples = disputed()
    assert bits(fused(half_best(exam=exam), updates, examples)) == bits(halved(updates[best].params))


def test_counters_are_kept_and_buffers_halved():
    net = Net(normed)
    fed = federation("ab", net)
    updates = trained(fed, SGD, 0)
    best = max(updates, key=lambda name: (updates[name].score, name))
    found = last(half_best(nets=fed.public.nets, exam="validation"), fed, 0).state.messages["a"].params
    assert set(found) == set(nets.shapes(net))
    count = found["1.num_batches_tracked"]
    assert count.item() == updates[best].params["1.num_batches_tracked"].item() > 0
    assert count.dtype == torch.int64
    assert torch.equal(found["1.running_var"], updates[best].params["1.running_var"] / 2)
