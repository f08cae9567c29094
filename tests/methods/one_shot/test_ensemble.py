"""The ensemble: its mixture by hand, one device, classes that nobody holds, and what a personal answer is made of."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, data, federation, last, model, trained
from sklearn.linear_model import Ridge

from fedcore import Data, InputError, Model, RoundInfo, Splits, Update, nets
from fedcore.core.evaluation import evaluate, outputs
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.data.task import MULTILABEL
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot.ensemble import CROSS, GRAM, VOTERS, ridge, solve_head
from fedcore.methods.one_shot.ensembles import COUNTS, best_share, elect, personal_model, prior_odds, voting_weights

ensemble = partial(method, "ensemble", nets=NETS, training=SGD, shared_init=False)
FED = federation()


def deployed(built, fed, one):
    return {name: built.deploy(one.state.memories.get(name) or {}, one.state.messages[name]) for name in fed.devices}


def only(device, *classes):
    """The device with the training examples of these classes alone."""
    train = device.data.train
    mine = torch.isin(train.y, torch.tensor(classes, dtype=torch.int64))
    return replace(device, data=replace(device.data, train=Data(train.x[mine], train.y[mine])))


def holding(**classes):
    return replace(FED, devices={name: only(FED.devices[name], *held) for name, held in classes.items()})


def softmax(params, x):
    logits = predict(params, NET, x, 99).double().numpy()
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def counts(fed):
    return np.array([np.bincount(there.data.train.y, minlength=3) for there in fed.devices.values()])


def test_votes_weighted_by_counts_of_labels_are_the_mixture_by_hand():
    fed = holding(a=(0, 1), b=(0, 1, 2), c=(2, 0))
    one, x = last(ensemble(), fed, 4), fed.test.x
    said = np.stack([softmax(update.params, x) for update in trained(fed, SGD, 4).values()])
    mixed = np.einsum("ik,ink->nk", counts(fed) / counts(fed).sum(0), said)
    mixed /= mixed.sum(1, keepdims=True)
    for found in deployed(ensemble(), fed, one).values():
        np.testing.assert_allclose(outputs(found, NET, x).exp(), mixed, rtol=1e-5, atol=1e-7)
    assert one.scores["a"]["shared"]["accuracy"] == (mixed.argmax(1) == fed.test.y.numpy()).mean()


@pytest.mark.parametrize("weights", ["counts", "size", "even", "entropy"])
def test_an_ensemble_of_one_device_is_that_device(weights):
    alone = federation("a")
    found = deployed(ensemble(weights=weights), alone, last(ensemble(weights=weights), alone, 2))["a"]
    mine = Model((trained(alone, SGD, 2)["a"].params,))
    assert [bits(params) for params in found.params] == [bits(mine.params[0])]
    torch.testing.assert_close(outputs(found, NET, alone.test.x), outputs(mine, NET, alone.test.x))


def test_the_schemes_weigh_as_they_say():
    n = torch.tensor([[8, 0, 0, 0], [2, 2, 0, 0], [0, 6, 6, 0], [0, 0, 0, 0]])
    by_class = [[0.8, 0, 0, 1 / 3], [0.2, 0.25, 0, 1 / 3], [0, 0.75, 1, 1 / 3], [0, 0, 0, 0]]
    expected = {
        "counts": by_class,  # nobody holds class 3: whoever has labels votes on it
        "size": [8 / 24, 4 / 24, 12 / 24, 0],
        "even": [1 / 3, 1 / 3, 1 / 3, 0],
        "entropy": [0, 0.5, 0.5, 0],  # one class, two in equal parts, two in equal parts
    }
    for voting, weights in expected.items():
        torch.testing.assert_close(voting_weights(n, voting), torch.tensor(weights, dtype=torch.float64))
    for voting in expected:
        nobody = voting_weights(torch.zeros(2, 3), voting)
        torch.testing.assert_close(nobody.float(), torch.full((2, 3) if voting == "counts" else (2,), 0.5))
        assert nobody.isfinite().all()
    single = voting_weights(torch.tensor([[5, 0], [0, 3]]), "entropy")
    torch.testing.assert_close(single.float(), torch.tensor([0.5, 0.5]))  # nobody knows two classes: all vote


def test_a_vote_by_size_counts_sequences_and_no_labelled_steps():
    """Four sequences on each device, of one labelled step and of three."""
    counts = {"a": torch.tensor([1, 3, 0]), "b": torch.tensor([4, 4, 4]), "c": torch.tensor([0, 0, 0])}
    updates = {name: Update({}, {COUNTS: of}, 4) for name, of in counts.items()}
    names, weights = elect(updates, "size")
    assert (names, weights.tolist()) == (["a", "b"], [0.5, 0.5])


def test_a_device_with_one_class_decides_on_it_alone():
    """Class 2 is held by c alone, so that the ensemble's odds of class 2 are c's; nobody holds class 1."""
    fed = holding(a=(0,), b=(0,), c=(0, 2))
    found = deployed(ensemble(), fed, last(ensemble(), fed, 1))["a"]
    assert [row[2] for row in found.weights] == [0, 0, 1]
    assert [row[1] for row in found.weights] == pytest.approx([1 / 3] * 3)
    assert outputs(found, NET, fed.test.x).isfinite().all()
    assert evaluate(found, NET, fed.test)["loss"] < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["counts", "size", "even", "entropy"])
def test_devices_without_labels_have_no_vote_but_get_the_ensemble(weights):
    there = FED.devices["b"]
    none = Data(there.data.train.x[:0], there.data.train.y[:0])
    blind = replace(there, data=Splits(none, none, there.data.test, replace(there.data.train)))
    fed = replace(FED, devices=FED.devices | {"b": blind})
    one = last(ensemble(weights=weights), fed, 1)
    found = deployed(ensemble(weights=weights), fed, one)
    assert len(found["b"].params) == 2
    assert bits(found["b"]) == bits(found["a"])
    own = last(ensemble(weights=weights, personal=True), fed, 1)
    assert own.scores["b"] == one.scores["b"]  # nothing to choose a share by


@pytest.mark.slow
def test_traffic_is_all_models_down_and_one_model_with_its_counts_up():
    first, one = run(ensemble(), FED, 0, Inline())
    assert first.up == first.down == dict.fromkeys("abc", 0)
    assert one.up == dict.fromkeys("abc", NBYTES + 3 * 8)
    assert one.down == dict.fromkeys("abc", 3 * NBYTES + 9 * 4)
    assert not one.state.memories
    *_, personal = run(ensemble(personal=True), FED, 0, Inline())
    assert personal.up == dict.fromkeys("abc", 0)
    assert personal.down == dict.fromkeys("abc", 3 * NBYTES + 9 * 4 + 3 * 8)
    assert len({id(message) for message in one.state.messages.values()}) == 1


@pytest.mark.slow
def test_nets_that_differ_vote_like_any_others():
    """Each member runs on its own net, on every device; traffic has a number more for each model."""
    wide = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = replace(FED, devices=FED.devices | {"b": replace(FED.devices["b"], net=wide)})
    built = ensemble(nets=fed.public.nets)
    one, x, n = last(built, fed, 4), fed.test.x, counts(fed)
    models = [update.params for update in trained(fed, SGD, 4).values()]
    said = np.stack([
        predict(params, there.net, x, 99).softmax(1).numpy()
        for params, there in zip(models, fed.devices.values(), strict=True)
    ])  # fmt: skip
    mixed = np.einsum("ik,ink->nk", n / n.sum(0), said)
    mixed /= mixed.sum(1, keepdims=True)
    for name, found in deployed(built, fed, one).items():
        np.testing.assert_allclose(outputs(found, fed.devices[name].net, x).exp(), mixed, rtol=1e-5, atol=1e-7)
    sizes = [4 * sum(tensor.numel() for tensor in params.values()) for params in models]
    assert one.down == dict.fromkeys("abc", sum(sizes) + 9 * 4 + 3 * 8)
    personal = last(ensemble(nets=fed.public.nets, personal=True), fed, 4)
    assert all(0 <= score["test"]["accuracy"] <= 1 for score in personal.scores.values())


# personal answers


def test_a_personal_answer_is_the_mixture_by_hand():
    fed = holding(a=(0, 1), b=(0, 1, 2), c=(2,))
    built = ensemble(training=ADAM, personal=True)
    *_, before, one = run(built, fed, 3, Inline())
    updates, n = trained(fed, ADAM, 3), counts(fed)
    common = deployed(ensemble(), fed, before)["a"]
    for i, (name, there) in enumerate(fed.devices.items()):
        p = outputs(common, NET, fed.test.x).double().exp().numpy()
        prior = (n[i] + 1) / (n[i].sum() + 3) / ((n.sum(0) + 1) / (n.sum() + 3))
        g = p**2 * prior
        g /= g.sum(1, keepdims=True)
        share = float(one.state.memories[name]["personal/share"])
        mixed = (1 - share) * softmax(updates[name].params, fed.test.x) + share * g
        found = deployed(built, fed, one)[name]
        np.testing.assert_allclose(outputs(found, NET, fed.test.x).exp(), mixed, rtol=1e-4, atol=1e-6)
        alone = evaluate(Model((updates[name].params,)), NET, there.data.val)["accuracy"]
        assert one.scores[name]["val"]["accuracy"] >= alone  # share 0 is its own model


def test_the_share_is_the_median_of_the_best():
    y = torch.tensor([0, 0, 0])
    sure, unsure, wrong = (torch.tensor([p, 1 - p]).log() for p in (0.99, 0.54, 0.05))
    assert best_share(torch.stack([sure] * 3), torch.stack([sure] * 3), y) == pytest.approx(0.5)
    assert best_share(torch.stack([wrong] * 3), torch.stack([sure] * 3), y) == pytest.approx(0.75)  # .5 to 1
    assert best_share(torch.stack([sure] * 3), torch.stack([wrong] * 3), y) == pytest.approx(0.25)  # 0 to .5
    assert best_share(torch.stack([unsure] * 3), torch.stack([wrong] * 3), y) == pytest.approx(0.0)


def test_equal_priors_leave_the_sharpened_answer():
    odds = prior_odds(torch.tensor([2, 4]), torch.tensor([2, 4]))
    torch.testing.assert_close(odds, torch.ones(2))
    torch.testing.assert_close(prior_odds(torch.tensor([9, 0]), torch.tensor([9, 9])), torch.tensor([20 / 11, 2 / 11]))
    common, x = Model((model("common"),)), data(9).x
    found = outputs(personal_model(model("own"), common, 1.0, torch.ones(3)), NET, x)
    torch.testing.assert_close(found, (2 * outputs(common, NET, x)).log_softmax(1))
    alone = outputs(personal_model(model("own"), common, 0.0, torch.ones(3)), NET, x)
    torch.testing.assert_close(alone, outputs(Model((model("own"),)), NET, x))


def test_each_of_several_labels_is_corrected_as_two_classes():
    """Labels that two devices' rows have 9, 0 and 4 times of 10, and 9, 9 and 12 times of 18."""
    ones, counts = torch.tensor([[9.0, 0, 4], [9, 9, 12]]), torch.tensor([10.0, 18])
    odds = prior_odds(*(torch.stack([one, n.expand(3)]) for one, n in zip(ones, counts, strict=True)))
    common, x = Model((model("common"),)), data(9).x
    found = outputs(personal_model(model("own"), common, 1.0, odds), NET, x, MULTILABEL).sigmoid()
    yes = outputs(common, NET, x, MULTILABEL).sigmoid()
    for k in range(3):
        no_yes = prior_odds(*(torch.stack([n - one[k], one[k]]) for one, n in zip(ones, counts, strict=True)))
        right = no_yes * torch.stack([1 - yes[:, k], yes[:, k]], 1).square()
        torch.testing.assert_close(found[:, k], right[:, 1] / right.sum(1))


# Stacking: the ridge of scikit-learn on all examples together, whatever device holds them.
stack = partial(method, "stack", nets=NETS, training=SGD, shared_init=False)


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
@pytest.mark.slow
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


@pytest.mark.slow
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
