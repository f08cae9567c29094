"""Stacking: the ridge of scikit-learn on all examples together, whatever device holds them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last, trained
from sklearn.linear_model import Ridge

from fedcore import nets
from fedcore.core.evaluation import outputs
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot.stack import CROSS, GRAM, VOTERS, ridge, solve_head
from fedcore.types.federation import Data
from fedcore.types.method import RoundInfo, Update

stack = partial(method, "stack", nets=NETS, training=SGD, shared_init=False)
FED = federation()


def scores_by_scikit_learn(fed, training, seed, reg, split):
    """Return the ridge's scores of the shared test set, fitted on that split of all devices."""
    models = [update.params for update in trained(fed, training, seed).values()]

    def logits(x):
        return np.concatenate([predict(params, NET, x, 99).double().numpy() for params in models], 1)

    parts = [getattr(there.data, split) for there in fed.devices.values()]
    z = np.concatenate([logits(part.x) for part in parts])
    alpha = reg * np.square(z).sum(0).mean()
    y = np.eye(3)[np.concatenate([part.y.numpy() for part in parts])]
    return Ridge(alpha=alpha, solver="cholesky").fit(z, y).predict(logits(fed.test.x))


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize(("examples", "split"), [("validation", "val"), ("training", "train")])
def test_it_is_scikit_learns_ridge_on_all_examples_together(names, examples, split):
    fed, built = federation(names), stack(training=ADAM, examples=examples, reg=0.01)
    one = last(built, fed, 2)
    found = built.deploy(one.state.memories["a"], one.state.messages["a"])
    scores = torch.from_numpy(scores_by_scikit_learn(fed, ADAM, 2, 0.01, split))
    expected = scores.log_softmax(1)
    torch.testing.assert_close(outputs(found, NET, fed.test.x).double(), expected, rtol=1e-3, atol=1e-3)
    assert one.scores["a"]["shared"]["accuracy"] == (scores.argmax(1) == fed.test.y).double().mean()


def test_the_intercept_has_no_penalty():
    z = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.full((30, 1), 5.0, dtype=torch.float64)
    rows = torch.cat([z, torch.ones(30, 1)], 1)
    weight, bias = ridge(rows.T @ rows, rows.T @ y, 1e6)
    torch.testing.assert_close(weight, torch.zeros(2, 1, dtype=torch.float64), rtol=0, atol=1e-4)
    torch.testing.assert_close(bias, torch.tensor([5.0], dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_sums_of_another_shape_name_the_device():
    round_info, server = RoundInfo(0, 2, 0, ("a", "b"), ("a", "b")), {VOTERS: torch.tensor([2, 3])}
    whole = Update(extra={GRAM: torch.ones(28).double(), CROSS: torch.ones(7, 3).double()})
    for name, wrong, words in (
        (CROSS, torch.ones(6, 3), r"stack/cross has shape \(6, 3\), must be \(7, 3\)"),
        (GRAM, torch.ones(27), r"stack/gram has shape \(27,\), must be \(28,\)"),
    ):
        other = replace(whole, extra=whole.extra | {name: wrong})
        with pytest.raises(InputError, match=f"^update of b: {words}$"):
            solve_head(server, {"a": whole, "b": other}, round_info, examples="training", reg=1e-3)


def test_before_the_second_exchange_it_is_the_ensemble():
    voted = [*run(method("ensemble", nets=NETS, training=SGD, shared_init=False), FED, 1, Inline())]
    first, second, third = run(stack(), FED, 1, Inline())
    assert (first.scores, second.scores) == (voted[0].scores, voted[1].scores)
    assert second.up == voted[1].up
    half = 10 * 11 // 2
    assert third.up == dict.fromkeys("abc", 8 * (half + 10 * 3))
    assert third.down == dict.fromkeys("abc", 3 * NBYTES + 9 * 4 + 4 * (9 * 3 + 3))
    assert bits(third.state.memories["a"]) == bits(third.state.memories["b"])


def test_devices_without_examples_add_nothing():
    none = Data(FED.devices["b"].data.val.x[:0], FED.devices["b"].data.val.y[:0])
    blind = replace(FED.devices["b"], data=replace(FED.devices["b"].data, val=none))
    *_, one = run(stack(examples="validation"), replace(FED, devices=FED.devices | {"b": blind}), 1, Inline())
    assert one.scores["b"]["shared"] == one.scores["a"]["shared"]
    devices = {
        name: replace(there, data=replace(there.data, val=Data(there.data.val.x[:0], there.data.val.y[:0])))
        for name, there in FED.devices.items()
    }
    with pytest.raises(InputError, match=r"^stack\.examples = validation: no device has any$"):
        last(stack(examples="validation"), replace(FED, devices=devices))


def test_nets_that_differ_are_stacked_by_their_log_probabilities():
    wide = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = replace(FED, devices=FED.devices | {"b": replace(FED.devices["b"], net=wide)})
    one = last(stack(nets=fed.public.nets, training=ADAM, reg=0.01), fed, 2)
    parts = [(update.params, fed.devices[name].net) for name, update in trained(fed, ADAM, 2).items()]

    def said(x):
        found = [predict(params, net, x, 99).log_softmax(1).double().numpy() for params, net in parts]
        return np.concatenate(found, 1)

    z = np.concatenate([said(there.data.train.x) for there in fed.devices.values()])
    y = np.eye(3)[np.concatenate([there.data.train.y.numpy() for there in fed.devices.values()])]
    scores = Ridge(alpha=0.01 * np.square(z).sum(0).mean(), solver="cholesky").fit(z, y).predict(said(fed.test.x))
    accuracy = (scores.argmax(1) == fed.test.y.numpy()).mean()
    assert {score["shared"]["accuracy"] for score in one.scores.values()} == {accuracy}
