import math
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as sklearn
import torch
from federations import NET, data, device_of, federation, model
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, f1_score, log_loss

from fedcore import InputError, Message, Model, nets, received_model
from fedcore.core.evaluation import (
    BINS,
    MOST_CLASSES,
    calibration,
    confusion,
    cost,
    count_outcomes,
    drop_training_data,
    evaluate,
    metrics,
    outputs,
    score,
)
from fedcore.core.prediction import SCORING_BATCH
from fedcore.core.training import predict
from fedcore.errors import Diverged
from fedcore.nets.features import net as features_net
from fedcore.types.federation import Data, Scoring

Stored = namedtuple("Stored", "digest nbytes")
THREE = Model(tuple(model(i) for i in range(3)), (0.5, 0.3, 0.2))


def probabilities(members, x):
    """Class probabilities of each member (M, N, K), by numpy."""
    logits = np.stack([predict(member, NET, x, 7).double().numpy() for member in members])
    powers = np.exp(logits - logits.max(2, keepdims=True))
    return powers / powers.sum(2, keepdims=True)


@pytest.mark.slow
@settings(max_examples=50)
@given(count=st.integers(1, 30), classes=st.integers(2, 6), seen=st.integers(1, 6), seed=st.integers(0, 999))
def test_metrics_are_scikit_learns(count, classes, seen, seed):
    """Also where classes are missing from truth, prediction or both."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, dtype=torch.float64, generator=generator)
    y = torch.randint(0, min(seen, classes), (count,), generator=generator)
    guess = logits.argmax(1)
    assert metrics(logits.log_softmax(1), y) == pytest.approx({
        "accuracy": accuracy_score(y, guess),
        "balanced_accuracy": sklearn.recall_score(
            y, guess, labels=y.unique().tolist(), average="macro", zero_division=0
        ),
        "macro_f1": f1_score(y, guess, average="macro", zero_division=0),
        "loss": log_loss(y, logits.softmax(1), labels=range(classes)),
    })  # fmt: skip


def test_metrics_computed_by_hand():
    # Truth 0 0 1 2, said 0 1 1 1: F1 of class 0 is 2/3, of 1 is 2 * 1 / (1 + 3), of 2 is 0; class 3 does not occur.
    said = torch.tensor([0, 1, 1, 1])
    p = torch.full((4, 4), 0.1, dtype=torch.float64).index_put((torch.arange(4), said), torch.tensor(0.7).double())
    found = metrics(p.log(), torch.tensor([0, 0, 1, 2]))
    loss = -(2 * math.log(0.7) + 2 * math.log(0.1)) / 4
    expected = {"accuracy": 2 / 4, "balanced_accuracy": (1 / 2 + 1 + 0) / 3, "macro_f1": (2 / 3 + 1 / 2 + 0) / 3}
    assert found == pytest.approx({**expected, "loss": loss})


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_metrics_are_those_of_scikit_learn(classes: int, seed: int):
    """Scores are coarse, so that many are equal."""
    rng = torch.Generator().manual_seed(seed)
    log_p = torch.randn(40, classes, generator=rng).mul(2).round().double().log_softmax(1)
    y = torch.randint(classes, (40,), generator=rng)
    p, guess, positive = log_p.exp().numpy(), log_p.argmax(1).numpy(), (y == 1).numpy()
    costs = ((0.0, 5.0, 1.0, 1.0), (2.0, 0.0, 1.0, 1.0), (1.0, 1.0, 0.0, 1.0), (7.0, 1.0, 1.0, 0.0))
    costs = tuple(row[:classes] for row in costs[:classes])
    cheapest = (p @ np.array(costs)).argmin(1)
    expected = {
        "accuracy": sklearn.accuracy_score(y, guess), "balanced_accuracy": sklearn.balanced_accuracy_score(y, guess),
        "macro_f1": sklearn.f1_score(y, guess, average="macro"), "loss": sklearn.log_loss(y, p, labels=range(classes)),
        "f1": sklearn.f1_score(positive, guess == 1), "precision": sklearn.precision_score(positive, guess == 1),
        "recall": sklearn.recall_score(positive, guess == 1),
        "average_precision": sklearn.average_precision_score(positive, p[:, 1]),
        "roc_auc": sklearn.roc_auc_score(y, p[:, 1] if classes == 2 else p, multi_class="ovr"),
        "cost": (sklearn.confusion_matrix(y, cheapest, labels=range(classes)) * np.array(costs)).sum() / 40,
    }  # fmt: skip
    for name, value in expected.items():
        found = metrics(log_p, y, Scoring(name, 1, costs if name == "cost" else None))
        assert found[name] == pytest.approx(value, abs=1e-9)
    matrix = sklearn.confusion_matrix(y, cheapest, labels=range(classes))
    np.testing.assert_array_equal(confusion(log_p, y, costs).numpy(), matrix)
    assert metrics(log_p, y, Scoring("cost", costs=costs))["accuracy"] == np.trace(matrix) / 40


def test_what_is_not_defined_is_nan():
    """A label that does not occur has no recall, F1 or average precision, one class no area; precision is 0."""
    log_p, y = torch.tensor([[0.8, 0.2], [0.9, 0.1]]).log(), torch.zeros(2).long()
    for name in ("f1", "recall", "average_precision", "roc_auc"):
        assert math.isnan(metrics(log_p, y, Scoring(name, 1))[name])
    assert metrics(log_p, y, Scoring("precision", 1))["precision"] == 0
    assert math.isnan(metrics(log_p[:0], y[:0], Scoring("recall", 1))["recall"])


def test_without_examples_there_is_no_value():
    none = data(0)
    for found in (evaluate(Model((model(),)), NET, none), evaluate(THREE, NET, none)):
        assert list(found) == ["accuracy", "balanced_accuracy", "macro_f1", "loss"]
        assert all(math.isnan(value) for value in found.values())


def test_a_single_members_outputs_do_not_saturate():
    certain = {name: tensor * 100 for name, tensor in model().items()}
    x = data(9).x
    found = outputs(Model((certain,)), NET, x)
    torch.testing.assert_close(found, predict(certain, NET, x, 9).log_softmax(1))
    assert found.isfinite().all()
    assert found.min() < -1000


def test_members_probabilities_are_averaged_by_their_weights():
    x = data(40).x
    by_hand = np.tensordot(THREE.weights, probabilities(THREE.members, x), 1)
    found = outputs(THREE, NET, x).exp()
    torch.testing.assert_close(found.double().numpy(), by_hand, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.sum(1), torch.ones(40))


def test_the_mixture_is_what_is_scored():
    examples = data(40)
    by_hand = np.tensordot(THREE.weights, probabilities(THREE.members, examples.x), 1)
    found = evaluate(THREE, NET, examples)
    assert found["accuracy"] == (by_hand.argmax(1) == examples.y.numpy()).mean()
    assert found["loss"] == pytest.approx(log_loss(examples.y, by_hand), rel=1e-5)
    alone = [evaluate(Model((member,)), NET, examples)["loss"] for member in THREE.members]
    assert all(abs(found["loss"] - loss) > 0.01 for loss in alone)


def test_all_weight_on_one_member_is_that_member():
    examples = data(40)
    lone = evaluate(Model((model(1),)), NET, examples)
    assert evaluate(Model((model(0), model(1)), (0.0, 1.0)), NET, examples) == pytest.approx(lone)


def test_weights_by_class_and_a_power_are_normalised():
    x = data(40).x
    table = ((0.5, 0.0, 1.0), (0.25, 0.0, 2.0), (0.25, 1.0, 0.0))
    for power in (1.0, 2.0):
        by_hand = np.einsum("mk,mnk->nk", np.array(table), probabilities(THREE.members, x) ** power)
        found = outputs(Model(THREE.members, table, power), NET, x).exp()
        expected = by_hand / by_hand.sum(1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    sharp = outputs(Model((model(1),), power=2.0), NET, x)
    torch.testing.assert_close(sharp, (2 * outputs(Model((model(1),)), NET, x)).log_softmax(1))


def test_members_may_be_models():
    x, own = data(40).x, model(5)
    nested = Model((own, THREE), (0.4, 0.6))
    flat = Model((own, *THREE.members), (0.4, 0.3, 0.18, 0.12))
    torch.testing.assert_close(outputs(nested, NET, x), outputs(flat, NET, x))
    assert [*map(id, nested.params)] == [*map(id, flat.members)]


def test_a_head_takes_the_place_of_the_mean():
    x, weight = data(40).x, torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    z = torch.cat([predict(member, NET, x, 40) for member in THREE.members], 1)
    found = outputs(Model(THREE.members, THREE.weights, head={"weight": weight, "bias": torch.ones(3)}), NET, x)
    torch.testing.assert_close(found, (z @ weight.T + 1).log_softmax(1))


def test_images_are_scaled_before_they_are_scored():
    x = torch.randint(0, 256, (9, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(9) % 3
    scaled = evaluate(THREE, NET, Data(x.float() / 255, y))
    assert evaluate(THREE, NET, Data(x, y)) == pytest.approx(scaled)
    assert evaluate(THREE, NET, Data(x.float(), y))["loss"] != pytest.approx(scaled["loss"])


def test_more_examples_than_are_scored_at_a_time():
    examples = data(SCORING_BATCH + 3)
    halves = [Data(examples.x[part], examples.y[part]) for part in (slice(0, 500), slice(500, None))]
    found = [evaluate(THREE, NET, half)["accuracy"] * len(half) for half in halves]
    assert evaluate(THREE, NET, examples)["accuracy"] == pytest.approx(sum(found) / len(examples))


def test_a_model_is_scored_on_its_devices_own_splits_and_the_shared_set():
    fed = federation("ab")
    device = fed.devices["b"]
    devices = {"a": fed.devices["a"], "b": replace(device, data=replace(device.data, val=data(0)))}
    found = score(received_model, {}, Message(model()), devices, fed.test)
    assert list(found) == ["a", "b"]
    assert all(list(splits) == ["val", "test", "shared", "inference"] for splits in found.values())
    deployed = Model((model(),))
    assert found["a"]["val"] == evaluate(deployed, NET, devices["a"].data.val)
    assert found["b"]["test"] == evaluate(deployed, NET, devices["b"].data.test)
    assert found["a"]["shared"] == found["b"]["shared"] == evaluate(deployed, NET, fed.test)
    assert math.isnan(found["b"]["val"]["loss"])


def test_scores_need_no_training_examples():
    """So they are not transferred; a device whose data are a handle stays as it is."""
    fed = federation("ab")
    devices = {name: drop_training_data(device) for name, device in fed.devices.items()}
    assert all(len(device.data.train) == 0 for device in devices.values())
    assert all(len(device.data.train) > 0 for device in fed.devices.values())
    how = received_model, {}, Message(model())
    assert score(*how, devices, fed.test) == score(*how, fed.devices, fed.test)
    stored = replace(fed.devices["a"], data=Stored("digest", 8))
    assert drop_training_data(stored) is stored


def test_a_models_cost_is_that_of_all_nets_it_runs():
    weights = 4 * 5 + 5 * 4 + 4 * 3
    assert cost(Model((model(),)), NET, (4,)) == {"nets_run": 1.0, "macs": weights}
    assert cost(THREE, NET, (4,)) == {"nets_run": 3.0, "macs": 3 * weights}
    assert cost(Model((model(),), net=features_net(4, 7, 3)), NET, (4,)) == {"nets_run": 1.0, "macs": 4 * 7 + 7 * 3}
    assert math.isnan(cost(THREE, NET, None)["macs"])


def test_a_model_with_a_net_of_its_own_runs_on_it():
    net = features_net(4, 7, 3)
    params = nets.init(net, torch.Generator().manual_seed(1))
    x = data(6).x
    by_hand = (x @ params["features.weight"].T).relu() @ params["output.weight"].T + params["output.bias"]
    torch.testing.assert_close(outputs(Model((params,), net=net), NET, x), by_hand.log_softmax(1))


def test_costs_weigh_the_outputs_of_least_squares_themselves():
    """Estimates of 0 and 1 that sum to 1, cut at 0; a softmax of them would never fall below .2, and cost more."""
    net, costs = features_net(4, 7, 3), ((0.0, 1.0, 1.0), (12.0, 0.0, 12.0), (2.0, 9.0, 0.0))
    params = {name: 0.3 * x for name, x in nets.init(net, torch.Generator().manual_seed(1)).items()}
    params["output.weight"] -= params["output.weight"].mean(0)
    params["output.bias"] += (1 - params["output.bias"].sum()) / 3
    made = Data(data(200).x, torch.arange(200) % 3)
    z = (made.x @ params["features.weight"].T).relu() @ params["output.weight"].T + params["output.bias"]
    p = (p := z.double().clamp(min=0).numpy()) / p.sum(1, keepdims=True)
    cheapest = (p @ np.array(costs)).argmin(1)
    found = evaluate(Model((params,), net=net), NET, made, Scoring("cost", costs=costs))
    assert found["cost"] == pytest.approx(np.array(costs)[made.y.numpy(), cheapest].mean())
    assert found["accuracy"] == (cheapest == made.y.numpy()).mean()
    soft = (z.softmax(1).double().numpy() @ np.array(costs)).argmin(1)
    assert (soft != cheapest).any()
    assert evaluate(Model((params,), net=net), NET, made)["accuracy"] == (z.argmax(1) == made.y).double().mean().item()


@pytest.mark.parametrize("count", [1, 7, 300])
def test_outcomes_are_scikit_learns(count):
    """The calibration curve of "the prediction is right" against its probability, and the confusion matrix."""
    generator = torch.Generator().manual_seed(count)
    logits = (2 * torch.randn(count, 4, dtype=torch.float64, generator=generator)).log_softmax(1)
    y = torch.randint(0, 3, (count,), generator=generator)
    confidence, guess = logits.exp().max(1)
    expected = sklearn.confusion_matrix(y, guess, labels=range(4))
    np.testing.assert_array_equal(confusion(logits, y).numpy(), expected)
    number, sure, right = calibration(logits, y).numpy().T
    filled = number > 0
    # A curve of scikit-learn's needs both kinds of rows: one more of each, in bins of their own.
    true, said = calibration_curve(np.append(guess == y, [0, 1]), np.append(confidence, [0.0, 0.05]), n_bins=BINS)
    assert (true[0], said[0]) == (0.5, pytest.approx(0.025))
    np.testing.assert_allclose(right[filled] / number[filled], true[1:])
    np.testing.assert_allclose(sure[filled] / number[filled], said[1:])


def test_edges_of_bins_belong_to_the_bin_below():
    p = torch.tensor([[0.5, 0.5], [0.50001, 0.49999], [1.0, 0.0]], dtype=torch.float64)
    assert calibration(p.log(), torch.tensor([0, 0, 0]))[:, 0].nonzero().flatten().tolist() == [4, 5, 9]


def test_outcomes_of_devices_are_added():
    fed = federation()
    model_, devices = Model((model(),)), list(fed.devices.values())
    found = count_outcomes(model_, devices, fed.classes)
    tests = [(outputs(model_, NET, d.data.test.x), d.data.test.y) for d in devices]
    assert torch.equal(found["confusion"], sum(confusion(*part) for part in tests))
    torch.testing.assert_close(found["calibration"], sum(calibration(*part) for part in tests))
    none = [replace(d, data=replace(d.data, test=Data(d.data.test.x[:0], d.data.test.y[:0]))) for d in devices]
    assert not any(part.any() for part in count_outcomes(model_, none, fed.classes).values())
    assert count_outcomes(model_, none, MOST_CLASSES + 1)["confusion"].shape == (0, 0)


def test_a_model_without_a_tensor_is_refused_by_the_device():
    """As of a device with a personal layer that never took part."""
    part = {name: tensor for name, tensor in model().items() if name != "fc3.bias"}
    with pytest.raises(InputError, match=r"^the model of b has no tensor fc3.bias: a device that has not taken part"):
        score(received_model, {}, Message(part), {"b": device_of("b")}, federation().test)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_numbers_are_scikit_learns(seed):
    """Of labels in their own unit; those that are scored are standardised."""
    draws = torch.Generator().manual_seed(seed)
    y, predicted = (torch.randn(20, generator=draws, dtype=torch.float64) for _ in range(2))
    scoring = Scoring(label_scale=(100.0, 7.0), own=(("largest", lambda p, y: (p - y).abs().max()),))
    found = metrics(predicted[:, None], y, scoring)
    truth, said = (100 + 7 * values.numpy() for values in (y, predicted))
    assert found == pytest.approx({
        "mae": sklearn.mean_absolute_error(truth, said),
        "rmse": sklearn.root_mean_squared_error(truth, said),
        "r2": sklearn.r2_score(truth, said),
        "loss": sklearn.mean_squared_error(y, predicted),
        "largest": abs(truth - said).max(),
    })  # fmt: skip
    assert all(map(math.isnan, metrics(predicted[:0, None], y[:0], scoring).values()))
    assert math.isnan(metrics(predicted[:, None], y[:1].expand(20))["r2"])


def test_answers_that_are_no_numbers_are_no_class():
    """The greatest of nan would be class 0."""
    params = nets.init(NET, torch.Generator())
    x = torch.zeros(5, *data(1).x.shape[1:])
    x[3] = math.nan
    with pytest.raises(Diverged, match="answers to 1 of 5 examples are no numbers"):
        evaluate(Model((params,)), NET, Data(x, torch.zeros(5, dtype=torch.int64)))


def test_numbers_far_from_zero_keep_their_digits_in_scores():
    """Of labels near 1e9 float32 keeps multiples of 64."""
    scoring = Scoring(own=(("mine", lambda guess, y: (guess - y).abs().mean()),), label_scale=(1e9, 10.0))
    assert metrics(torch.tensor([[0.5], [1.0]]), torch.zeros(2), scoring)["mine"] == pytest.approx(7.5)
