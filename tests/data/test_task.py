"""Each kind of label, from arrays and tables to models, against pooled solutions, loops and other implementations."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from federations import SGD
from sklearn import metrics as sklearn
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, mse_loss

import fedcore as fc
from fedcore import nets
from fedcore.builders import parameters, settings_of
from fedcore.core.evaluation import count_outcomes, evaluate, metrics, outputs
from fedcore.core.losses import LOSSES, own_gradient, own_loss
from fedcore.core.training import accuracy, predict, train
from fedcore.data.dataset import Dataset
from fedcore.data.prepare import fit_labels
from fedcore.data.task import LABEL_KINDS, NO_LABEL, label_kind_of, require_classes
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.nets.tables import table
from fedcore.partition.tables import training_numbers
from fedcore.results.challenge import Paired, difference
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Data, Device, Scoring, Splits
from fedcore.types.method import Message, Model, StepId, generator

NUMBERS, LABELS, STEPS = "regression", "multilabel", "sequence_labelling"
LENGTH, WORDS, CLASSES = 5, 7, 3
NEED_CLASSES = {
    "avg_degree", "best_source", "dfl", "dfl_diagonal", "fada", "fd", "fedavg_alpha", "fedgen", "fedproto",
    "gaussian_distillation", "label_smoothing", "least_bound", "least_error", "most_similar", "personal_distillation",
    "psi_fada", "psi_fedavg", "rnd_alpha", "rnd_psi", "single_match", "st_lf",
}  # fmt: skip
NEED_ANOTHER_NET = {"fedasa", "fixed_depth"}
WITHOUT_LABELS = {
    "apfl", "best_local", "code_ot", "ditto", "ensemble", "fedala", "fedavg", "fedbabu", "fedbn", "feddyn", "fednova",
    "fedopt", "fedper", "fedprox", "fedrep", "fixed_depth", "half_best", "lmf", "local_only", "majority",
    "majority_per_device", "no_alignment", "perfedavg", "pfedme", "pleas", "regmean", "scaffold",
}  # fmt: skip
"""The methods that need parameters, or sums over layers, alone."""


def chain(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[1], 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, classes))


chain.axes = lambda **settings: table(chain(**settings))  # type: ignore[attr-defined]


def numbers(count: int = 120, devices: int = 3) -> fc.Dataset:
    """A quantity far from 0 that is nearly linear in four features; devices differ in its level."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(count, 4)), np.arange(count) % devices
    y = 1000 + 50 * (x @ [1, 2, 0, -1]) + 30 * who + rng.normal(size=count)
    return fc.from_arrays(x, y, device=[f"d{i}" for i in who])


def labelled(count: int = 120, devices: int = 3) -> fc.Dataset:
    """Three labels by linear rules of four features, one of them rare; devices differ in how often."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(count, 4)), np.arange(count) % devices
    y = x @ rng.normal(size=(4, 3)) + 0.5 * who[:, None] > [0.5, 1.0, 3.0]
    frame = pd.DataFrame(y, columns=["leak", "heat", "wear"])
    return fc.from_arrays(x, frame, device=[f"d{i}" for i in who])


def signals(count: int = 60) -> fc.Dataset:
    """Three numbers at each of five steps; every fifth sequence is shorter."""
    x = np.random.default_rng(0).normal(size=(count, LENGTH, 3))
    y = np.where(x.sum(2) > 0, np.where(x[..., 0] > 1, "high", "on"), "off")
    y[::5, 3:] = ""
    return fc.from_arrays(x, y, device=[f"d{i % 2}" for i in range(count)], task=STEPS)


MADE = {NUMBERS: numbers, LABELS: labelled, STEPS: signals}


@cache
def fed(kind: str) -> Any:
    return fc.federate(MADE[kind](), fc.by_device(), net=fc.net(chain) if kind == STEPS else fc.mlp(8))


def pooled(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training examples of all devices."""
    parts = [device.data.train for device in fed(kind).federation(0).devices.values()]
    return torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])


# losses, scores and answers


EXAMPLES = {
    "classification": ([0, 2, 1, 2], (4, 3)),
    NUMBERS: ([0.5, -1.0, 2.0, 0.0], (4, 1)),
    LABELS: ([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]], (4, 3)),
    STEPS: ([[0, 2], [-1, 1], [-1, -1], [1, 0]], (4, 2, 3)),
}


@pytest.mark.parametrize("task", LABEL_KINDS)
def test_gradient_is_that_of_the_loss(task):
    labels, shape = EXAMPLES[task]
    y, z = torch.tensor(labels), torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    tensor = z.clone().requires_grad_()
    (4 * own_loss(tensor, y)).backward()
    torch.testing.assert_close(own_gradient(z, y), tensor.grad)
    assert label_kind_of(y).name == task


SCORES = {
    "classification": ([[0.0, 1], [2, 1], [0, 3]], [1, 1, 1], 2 / 3),
    NUMBERS: ([[1.0], [3.0]], [0.0, 1.0], 1 / (1 + (1 + 4) / 2)),
    LABELS: ([[0.5, -2], [2, -0.5]], [[1.0, 0], [1, 1]], 3 / 4),
    STEPS: ([[[0.0, 1], [9, 0]], [[2, 1], [1, 2]]], [[1, -1], [0, 0]], 2 / 3),
}


@pytest.mark.parametrize("task", LABEL_KINDS)
def test_score_is_counted_by_hand(task):
    answers, y, expected = SCORES[task]
    assert LABEL_KINDS[task].score(torch.tensor(answers), torch.tensor(y)) == pytest.approx(expected)


def test_absolute_loss_has_the_median_as_best_guess():
    y = torch.tensor([0.0, 1.0, 10.0])
    losses = [LOSSES["absolute"](torch.full((3, 1), guess), y).item() for guess in (0.5, 1.0, 11 / 3)]
    assert min(losses) == losses[1]


def test_loss_is_the_mean_over_labelled_steps():
    z = torch.randn(4, LENGTH, CLASSES, generator=torch.Generator().manual_seed(0))
    y = drawn(4, LENGTH).y
    terms = [-log_softmax(z[i, t], 0)[y[i, t]] for i in range(4) for t in range(LENGTH) if y[i, t] != NO_LABEL]
    torch.testing.assert_close(own_loss(z, y), torch.stack(terms).mean())
    none = torch.full_like(y, NO_LABEL)
    assert own_loss(z, none) == 0
    assert torch.equal(own_gradient(z, none), torch.zeros_like(z))


def test_models_of_numbers_are_combined_as_means():
    members = [torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [6.0]])]
    combine = LABEL_KINDS[NUMBERS].combine
    for weights in ((0.75, 0.25), ((0.75,), (0.25,))):
        torch.testing.assert_close(combine(members, weights, 1.0, None), torch.tensor([[1.75], [3.0]]))
    head = {"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([0.5])}
    torch.testing.assert_close(combine(members, (0.5, 0.5), 1.0, head), torch.tensor([[-1.5], [-1.5]]))


def test_power_of_a_common_model_of_numbers_has_no_effect():
    """A personal ensemble raises the common answer to a power, which is of probabilities."""
    net = fed(NUMBERS).nets[0]
    params = {name: torch.ones(shape) for name, shape in nets.shapes(net).items()}
    x, task = torch.ones(2, 4), LABEL_KINDS[NUMBERS]
    once = outputs(Model((params,)), net, x, task)
    torch.testing.assert_close(outputs(Model((Model((params,)),), ((1.0,),), power=2.0), net, x, task), once)


def test_models_of_labels_are_combined_by_probability():
    one, other = torch.tensor([[2.0, -90.0], [0.5, 1.0]]), torch.tensor([[-1.0, -95.0], [3.0, -2.0]])
    combine = LABEL_KINDS[LABELS].combine
    torch.testing.assert_close(combine([one], (1.0,), 1.0, None), one, rtol=0, atol=0)
    for weights in ((0.75, 0.25), ((0.75, 0.75), (0.25, 0.25))):
        mean = 0.75 * one.double().sigmoid() + 0.25 * other.double().sigmoid()
        found = combine([one.double(), other.double()], weights, 1.0, None).sigmoid()
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=0)
    p = one.double().sigmoid()
    squared = combine([one.double()], (1.0,), 2.0, None).sigmoid()
    torch.testing.assert_close(squared, p**2 / (p**2 + (1 - p) ** 2), rtol=1e-12, atol=0)
    head = {"weight": torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, -1]]), "bias": torch.tensor([0.5, 0])}
    torch.testing.assert_close(combine([one, other], (0.5, 0.5), 1.0, head)[0], torch.tensor([0.5, 95.0]))


@pytest.mark.parametrize(("weights", "power"), [((1.0,), 1.0), ((0.3, 0.7), 1.0), (((0.3, 1, 0), (0.7, 0, 1)), 2.0)])
def test_models_of_steps_are_combined_step_by_step(weights, power):
    draws = torch.Generator().manual_seed(0)
    members = [torch.randn(4, LENGTH, CLASSES, generator=draws) for _ in weights]
    combine, of_one = (LABEL_KINDS[name].combine for name in (STEPS, "classification"))
    found = combine(members, weights, power, None)
    for step in range(LENGTH):
        expected = of_one([one[:, step] for one in members], weights, power, None)
        torch.testing.assert_close(found[:, step], expected)


# metrics


@pytest.mark.filterwarnings("ignore:No positive class found")
@pytest.mark.parametrize("rates", [(0.5, 0.3, 0.1), (0.5, 0.3, 0.0), (0.0, 0.0, 0.0)])
def test_metrics_of_labels_are_scikit_learns(rates):
    rng = np.random.default_rng(1)
    y = (rng.random((60, 3)) < rates).astype(float)
    logits = 3 * (y - 0.5) + rng.normal(0, 2, (60, 3)) - [0, 0, 9]
    found, guess = metrics(torch.tensor(logits), torch.tensor(y)), logits > 0
    p, occurs = 1 / (1 + np.exp(-logits)), y.any(0)
    expected = {
        "subset_accuracy": sklearn.accuracy_score(y, guess),
        "hamming_accuracy": 1 - sklearn.hamming_loss(y, guess),
        "macro_f1": sklearn.f1_score(y, guess, average="macro", zero_division=np.nan),
        "mean_average_precision": sklearn.average_precision_score(y[:, occurs], p[:, occurs])
        if occurs.any()
        else np.nan,
        "loss": np.mean([sklearn.log_loss(y[:, k], p[:, k], labels=[0, 1]) for k in range(3)]),
    }
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_without_examples_metrics_are_nan():
    device = fed(LABELS).federation(0).devices["d0"]
    model = fc.run(fc.majority(), fed(LABELS)).models["d0"].model
    none = Data(device.data.test.x[:0], device.data.test.y[:0])
    assert all(np.isnan(value) for value in evaluate(model, device.net, none).values())


def test_metrics_are_those_of_the_labelled_steps():
    data, net = drawn(12, LENGTH), words("lstm", LENGTH)
    params = trained(net, data)
    guess, found = predict(params, net, data.x, 12).argmax(2), evaluate(Model((params,)), net, data)
    pairs = [(t, g) for t, g in zip(data.y.flatten().tolist(), guess.flatten().tolist(), strict=True) if t >= 0]
    truth = [t for t, _ in pairs]
    assert found["accuracy"] == pytest.approx(np.mean([t == g for t, g in pairs]))
    recall = [np.mean([g == k for t, g in pairs if t == k]) for k in sorted(set(truth))]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recall))
    assert accuracy(params, net, data) == pytest.approx(found["accuracy"])
    counted = count_outcomes(Model((params,)), [Device("a", net, Splits(data, data, data))], CLASSES)
    assert counted["confusion"].sum(1).tolist() == [truth.count(k) for k in range(CLASSES)]
    nothing = Data(data.x[:2], torch.full_like(data.y[:2], NO_LABEL))
    assert all(np.isnan(value) for value in evaluate(Model((params,)), net, nothing).values())


@pytest.mark.slow
def test_errors_are_in_the_labels_unit():
    result = fc.run(fc.fedavg(rounds=2), fed(NUMBERS), metrics={"bias": lambda p, y: (p - y).mean().item()})
    test = result.table[(result.table["split"] == "test") & (result.table["device"] == "d1")]
    last = test[test["round"] == 2].set_index("metric")["value"]
    everyone = fed(NUMBERS).federation(0)
    device, (mean, std) = everyone.devices["d1"], everyone.scoring.label_scale
    y = device.data.test.y.double().numpy() * std + mean
    error = result.models["d1"].predict(device.data.test.x.numpy()) - y
    assert last["mae"] == pytest.approx(abs(error).mean(), rel=1e-4)
    assert last["rmse"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-4)
    assert last["bias"] == pytest.approx(error.mean(), rel=1e-3)


def test_equal_answers_have_equal_probabilities_wherever_they_stand():
    """PyTorch's sigmoid of float32 rounds the last of a batch otherwise."""
    for value in torch.randn(500, generator=torch.Generator().manual_seed(0)).tolist():
        found = LABEL_KINDS["multilabel"].probabilities(torch.full((1, 37), value))
        assert found.dtype == torch.float32
        assert (found == found[0, 0]).all()


def test_a_label_that_would_round_the_others_is_refused():
    y = np.random.default_rng(0).normal(20, 5, 400)
    index = {"a": np.arange(200), "b": np.arange(200, 400)}
    for far in (1e6, 999999999.0, -5e8):
        made = Dataset(Data(torch.zeros(400, 1), torch.from_numpy(np.append(y[:-1], far))), None, ("y",))
        if far == 1e6:
            assert fit_labels(made, index)[0] == pytest.approx(np.append(y[:-1], far).mean())
            continue
        with pytest.raises(InputError, match=rf"^data.label: {far:.9g} is so far from the others \(half of them betwe"):
            fit_labels(made, index)


def test_levels_of_devices_that_would_round_the_labels_are_refused():
    y, apart = np.random.default_rng(0).normal(0, 5, 400), np.arange(400) >= 200
    index = {"a": np.arange(200), "b": np.arange(200, 400)}
    for level, spread in ((1e4, 1), (1e9, 0), (1e7, 1)):
        made = Dataset(Data(torch.zeros(400, 1), torch.from_numpy(y * spread + level * apart)), None, ("y",))
        if level < 1e7 or not spread:
            assert fit_labels(made, index)[0] == pytest.approx(level / 2, rel=1e-3)
            continue
        with pytest.raises(InputError, match=r"^data.label: its mean on [ab] is .*; subtract each device's mean$"):
            fit_labels(made, index)


def test_labels_are_standardised_by_all_training_rows():
    y, everyone = pooled(NUMBERS)[1].double(), fed(NUMBERS).federation(0)
    assert y.mean().item() == pytest.approx(0, abs=1e-6)
    assert y.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    _, std = everyone.scoring.label_scale
    assert 80 < std < 200
    rest, left_out = fed(NUMBERS).left_out("d2")
    assert rest.scoring.label_scale != everyone.scoring.label_scale
    mean, std = rest.scoring.label_scale
    labels = numbers().train.y.numpy()[2::3]
    np.testing.assert_allclose(np.sort(left_out.y.numpy() * std + mean), np.sort(labels), rtol=1e-5)


def test_challenge_compares_means_of_labels():
    y = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
    right, wrong = 4 * y - 2, 2 - 4 * y
    rows = Paired(right, wrong, y, np.arange(4))
    assert difference(rows, None, Criterion().of_labels(), Scoring()) == 1.0


# methods


TAKEN = {
    NUMBERS: {*METHODS} - NEED_CLASSES - NEED_ANOTHER_NET,
    LABELS: {"code_ot", "ensemble", "majority", "majority_per_device", "perfedavg", "regmean", "stack"}
    | {"analytic", "analytic_local"},
    STEPS: WITHOUT_LABELS,
}
ANSWERED = {NUMBERS: ((4,), (), "rmse"), LABELS: ((4,), (3,), "macro_f1"), STEPS: ((5, 3), (5,), "balanced_accuracy")}
"""Kind -> shape of an example, of its answer, and a metric."""
WHY = {
    NUMBERS: "it .*, which needs classes; the label .* a number",
    STEPS: "(it .*, which needs|the server has 0 examples)",
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in MADE for name in sorted(TAKEN[kind] if kind == LABELS else METHODS)]
)
@pytest.mark.slow
def test_methods_take_these_labels_or_say_why_not(kind, name):
    takes = settings_of(builder(name))
    own = {"rounds": 2 if kind == NUMBERS else 1, "features": 20}
    how = {"training": {"epochs": 1}} if "training" in parameters(builder(name)) else {}
    config = fc.method(name, **how, **{key: own[key] for key in own.keys() & takes})
    if name not in TAKEN[kind]:
        by_name = kind == NUMBERS and name in NEED_ANOTHER_NET
        with pytest.raises(InputError, match=name if by_name else f"^{name}: {WHY[kind]}"):
            fc.run(config, fed(kind))
        return
    result, (shape, width, metric) = fc.run(config, fed(kind), every=2), ANSWERED[kind]
    x = np.random.default_rng(2).normal(size=(9, *shape))
    assert {model.predict(x).shape for model in result.models.values()} == {(9, *width)}
    assert result.table.query(f"metric == '{metric}' and split == 'test'")["value"].notna().all()
    if kind == LABELS:
        model = result.models["d0"]
        np.testing.assert_array_equal(model.predict(x), model.probabilities(x) > 0.5)


def test_a_personal_ensemble_takes_several_labels():
    validated = fc.federate(labelled(), fc.by_device(), net=fc.mlp(8), val=0.2)
    result = fc.run(fc.ensemble(personal=True, training={"epochs": 1}), validated)
    assert result.models["d1"].probabilities(np.zeros((2, 4))).shape == (2, 3)
    labels = {name: one.data.train.y for name, one in validated.federation(0).devices.items()}
    own, every = ((y.sum(0) + 1) / (len(y) + 2) for y in (labels["d1"], torch.cat([*labels.values()])))
    odds = torch.stack([own / every, (1 - own) / (1 - every)])
    torch.testing.assert_close(result.state.memories["d1"]["personal/odds"], odds)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.slow
def test_methods_that_need_classes_say_why(name):
    """Those that a number as label does not allow, several labels do not either."""
    refused = []
    for task in (NUMBERS, LABELS):
        try:
            fc.method(name).require_task(task)
        except InputError as error:
            refused.append(str(error).replace(LABEL_KINDS[task].words, "").replace(task, ""))
    assert len({*refused}) <= 1
    assert len(refused) in (0, 2)


def test_noise_that_hides_labels_needs_labels_of_bounded_size():
    noised = fc.analytic(clip=1.0, epsilon=1.0)
    noised.require_task(LABELS)
    fc.analytic(clip=1.0).require_task(NUMBERS)
    with pytest.raises(InputError, match=r"^analytic\.epsilon = 1\.0: it adds noise that hides labels up to a size"):
        noised.require_task(NUMBERS)


@pytest.mark.parametrize("kind", [NUMBERS, LABELS])
def test_analytic_is_pooled_ridge(kind):
    """Against numpy's solution on all training rows together, of the same random features.

    Several labels are -1 and 1, as in scikit-learn's RidgeClassifier.
    """
    model = fc.run(fc.analytic(features=30, reg=1e-3), fed(kind)).models["d0"]
    weights = model.model.members[0]["features.weight"].double().numpy()

    def phi(x):
        return np.c_[np.maximum(x @ weights.T, 0), np.ones(len(x))]

    x, y = (part.double().numpy() for part in pooled(kind))
    gram = phi(x).T @ phi(x)
    penalised = gram + 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    ridge = np.linalg.solve(penalised, phi(x).T @ (y if kind == NUMBERS else 2 * y - 1))
    new = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    answers = phi(new.astype(float)) @ ridge
    if kind == LABELS:
        np.testing.assert_allclose(model.probabilities(new), 1 / (1 + np.exp(-answers)), rtol=1e-4)
    else:
        mean, std = fed(kind).federation(0).scoring.label_scale
        np.testing.assert_allclose(model.predict(new), mean + std * answers, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "rate", "loss"),
    [(NUMBERS, 0.1, lambda z, y: mse_loss(z[:, 0], y)), (LABELS, 0.5, binary_cross_entropy_with_logits)],
)
@pytest.mark.slow
def test_fedavg_of_one_full_batch_is_pooled_descent(kind, rate, loss):
    """One step on all of a device's rows, averaged by their number: a step on the rows of all devices."""
    training = {"optimiser": "sgd", "lr": rate, "batch": 1000, "epochs": 1}
    found, begun = (
        fc.run(fc.fedavg(rounds=rounds, training={**training, "lr": lr}), fed(kind)).models["d0"].model.members[0]
        for rounds, lr in ((3, rate), (1, 1e-30))
    )
    (x, y), net = pooled(kind), fed(kind).federation(0).devices["d0"].net
    module = net.build()
    module.load_state_dict(begun)
    optimiser = torch.optim.SGD(module.parameters(), rate)
    for _ in range(3):
        optimiser.zero_grad()
        loss(module(x), y).backward()
        optimiser.step()
    assert found.keys() == nets.shapes(net).keys()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "together", "rtol"), [(NUMBERS, 3, 1e-4), (LABELS, 3, 1e-4), (STEPS, 2, 0)])
@pytest.mark.slow
def test_devices_together_descend_as_one_by_one(kind, together, rtol):
    config = fc.fedavg(rounds=2, training={"epochs": 2})
    one, all_of_them = (fc.run(config, fed(kind), together=count).table for count in (1, together))
    np.testing.assert_allclose(one["value"], all_of_them["value"], rtol=rtol)


@pytest.mark.parametrize("name", ["majority", "majority_per_device"])
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.slow
def test_guess_is_that_of_the_training_labels(kind, name):
    """Of all devices, or of the device's own: the mean, each label's (n + 1) / (N + 2), or the steps' frequencies."""
    result, everyone = fc.run(fc.method(name), fed(kind)), fed(kind).federation(0)
    x = np.ones((2, *ANSWERED[kind][0]))
    for who, model in result.models.items():
        y = pooled(kind)[1] if name == "majority" else everyone.devices[who].data.train.y
        if kind == NUMBERS:
            mean, std = everyone.scoring.label_scale
            assert model.predict(x) == pytest.approx([y.double().mean().item() * std + mean] * 2, rel=1e-6)
        elif kind == LABELS:
            expected = (y.sum(0) + 1) / (len(y) + 2)
            np.testing.assert_allclose(model.probabilities(x)[0], expected, rtol=1e-6)
        else:
            counts = torch.bincount(y[y >= 0], minlength=CLASSES) + 1
            expected = (counts / counts.sum()).expand(LENGTH, CLASSES)
            torch.testing.assert_close(torch.tensor(model.probabilities(x)[0]), expected)


# steps as classes, and padding


def drawn(count: int, length: int, seed: int = 0) -> Data:
    """Words, and for each a class; the last steps of every second sequence have none."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(WORDS, (count, length), generator=draws)
    y = x % CLASSES
    y[::2, max(length - 2, 1) :] = NO_LABEL
    return Data(x.float(), y)


def words(name: str, length: int, per_step: bool = True) -> fc.Net:
    return nets.net(name, shape=(length,), classes=CLASSES, per_step=per_step, vocabulary=WORDS, embedding=8)


def trained(net: fc.Net, data: Data, **settings: object) -> dict[str, torch.Tensor]:
    device = Device("a", net, Splits(data, data, data))
    start = Message(nets.init(net, generator(1)))
    _, update = train({}, start, device, StepId(0, 0, 0, "a"), training=replace(SGD, **settings))
    return update.params


@pytest.mark.parametrize("training", [{}, {"optimiser": "adam"}, {"patience": 1, "epochs": 4}])
@pytest.mark.slow
def test_one_step_without_mask_is_classification(training):
    """To the bit: training, validation score and metrics."""
    data, net, plain = drawn(20, 1), words("lstm", 1), words("lstm", 1, per_step=False)
    data.y.clamp_(min=0)
    one = Data(data.x, data.y[:, 0])
    assert (label_kind_of(data.y).name, label_kind_of(one.y).name) == (STEPS, "classification")
    params, expected = trained(net, data, **training), trained(plain, one, **training)
    assert all(torch.equal(params[name], tensor) for name, tensor in expected.items())
    assert accuracy(params, net, data) == accuracy(expected, plain, one)
    assert evaluate(Model((params,)), net, data) == evaluate(Model((expected,)), plain, one)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.slow
def test_padding_changes_nothing(name):
    """What stands at the end, behind the last label, has no part in training and scores, and may be longer."""
    data = drawn(12, LENGTH)
    data.y[:, 3:] = NO_LABEL
    other = Data(data.x.clone(), data.y)
    other.x[:, 3:] = 0
    net, short = words(name, LENGTH), words(name, 3)
    params = trained(net, data, epochs=2)
    assert all(torch.equal(tensor, params[key]) for key, tensor in trained(net, other, epochs=2).items())
    assert evaluate(Model((params,)), net, data) == evaluate(Model((params,)), net, other)
    if name == "lstm":  # without a vector for each place
        cut = Data(data.x[:, :3], data.y[:, :3])
        torch.testing.assert_close(trained(short, cut, epochs=2), params)
        assert evaluate(Model((params,)), short, cut) == pytest.approx(evaluate(Model((params,)), net, data))


def test_data_say_what_they_are():
    assert repr(signals()).startswith("Dataset: 60 examples of shape (5, 3), float64; 3 classes of each of 5 steps (h")
    everyone = fed(STEPS)
    counts, devices = everyone.counts(), everyone.federation(0).devices
    for name, device in devices.items():
        y = device.data.train.y
        assert counts.loc[name, ["high", "off", "on"]].tolist() == torch.bincount(y[y >= 0], minlength=3).tolist()
        assert counts.loc[name, "n_train"] == len(y)
    numbers = training_numbers(everyone.dataset, everyone.partition())["d0"]
    held = counts.loc["d0", ["high", "off", "on"]]
    assert (numbers["examples"], numbers["classes"], numbers["test_classes"]) == (len(devices["d0"].data.train), 3, 3)
    assert numbers["largest_share"] == pytest.approx(held.max() / held.sum())


# answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "metric", "words"),
    [
        (
            NUMBERS,
            "rmse",
            ("Decided by root mean squared error, since the label is a number.", "the label's unit, less"),
        ),
        (LABELS, "macro_f1", ("Decided by macro F1, since each example has several labels.",)),
        (STEPS, "accuracy", ("% right",)),
    ],
)
def test_answer_goes_by_the_metric_of_these_labels(kind, metric, words):
    found = fc.compare([fc.local_only(), fc.fedavg(rounds=3)], fed(kind), seeds=range(2))
    assert found.summary["metric"].unique().tolist() == [metric]
    assert all(part in str(found.answer) for part in words)
    if kind == NUMBERS:
        assert found.answer.min_effect == pytest.approx(0.01 * found.answer.criterion.label_std)
        assert "NaN" not in repr(found)


@pytest.mark.slow
def test_claims_are_of_macro_f1_and_other_metrics_can_decide():
    found = fc.compare(
        [fc.local_only(), fc.fedavg(rounds=3)], fed(LABELS), seeds=range(3), claims=["fedavg > 0.01"], least_test=0,
        metrics={"first": lambda p, y: ((p[:, 0] > 0.5) == (y[:, 0] > 0)).double().mean().item()},
    )  # fmt: skip
    assert found.answer.criterion.guess == "rates"
    assert found.claims["verdict"].tolist() == ["holds"]
    assert found.table[found.table["metric"] == "first"]["value"].dropna().between(0, 1).all()
    other = fc.compare([fc.fedavg(rounds=1)], fed(LABELS), metric="mean_average_precision", least_test=0)
    assert other.summary["metric"].unique().tolist() == ["mean_average_precision"]


# arrays and tables


ARRAYS = {
    "fractions": ([0.5, 1.0, 2.0], "auto", NUMBERS), "whole numbers": ([0, 1, 7], "auto", "classification"),
    "whole numbers as quantities": ([0, -1, 7], NUMBERS, NUMBERS),
    "whole floats": ([0.0, 1.0, 7.0], "auto", "classification"), "words": (["a", "b", "b"], "auto", "classification"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_task_of_arrays(case):
    y, task, found = ARRAYS[case]
    assert fc.from_arrays(np.zeros((3, 2)), y, task=task).task.name == found


@pytest.mark.parametrize("kind", ["int64", "Int64", "float", "object", "mixed"])
def test_a_step_without_a_label_has_none_in_any_type_of_integers(kind):
    y: Any = [[0, 1, -1], [1, -1, -1]]
    y = np.array([[0, 1.0, -1], [1, -1.0, -1]], object) if kind == "mixed" else pd.DataFrame(y).astype(kind)
    data = fc.from_arrays(np.zeros((2, 3)), y, task=STEPS)
    names = ("0.0", "1.0") if kind in ("float", "mixed") else ("0", "1")
    assert (data.classes, data.train.y.tolist()) == (names, [[0, 1, -1], [1, -1, -1]])


@pytest.mark.parametrize("kind", [float, Decimal, Fraction])
def test_quantities_of_any_type_are_numbers(kind):
    y = [*map(kind, (0.5, 1.0, 2.0))]
    assert fc.from_arrays(np.zeros((3, 2)), y).train.y.tolist() == [0.5, 1.0, 2.0]
    assert fc.from_arrays(np.zeros((2, 2)), y[1:], task=NUMBERS).train.y.tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match="classes must be whole"):
        fc.from_arrays(np.zeros((3, 2)), y, task="classification")


WRONG_ARRAYS = {
    "a missing number": ([0.5, np.nan, 1.0], "auto", "y[1] = nan: a label is missing"),
    "a missing class": ([0.0, np.nan, 1.0], "auto", "y[1] = nan: a label is missing"),
    "an empty class": (["a", "", "b"], "auto", "y[1] = '': a label is missing"),
    "PyTorch's mark": (np.full((2, 5), -100), STEPS, "y has -100, as PyTorch marks a step without a label; write -1"),
    "that mark as objects": (pd.DataFrame(np.full((2, 5), -100)).astype("Int64"), STEPS, "y has -100, as PyTorch"),
    "no class as an object": (np.array([0, 1.0, -1], object), "auto", "y[2] = -1: a label is missing"),
    "an infinite number": ([0.5, np.inf, 1.0], "auto", "y[1] = inf: is not a finite number"),
    "words as numbers": (["a", "b", "c"], NUMBERS, "y[0] = 'a': is not a finite number"),
    "fractions as classes": ([0.5, 1.5, 1.0], "classification", "y[0] = 0.5: classes must be whole"),
    "an unknown task": ([0, 1, 2], "counts", "from_arrays.task = 'counts'"),
    "a missing one of several": ([[0, 1], [np.nan, 1], [0, 0]], "auto", "y[1, 0] = nan: a label is missing"),
    "another number": ([[0, 1], [0, 2], [0, 0]], "auto", "y[1, 1] = 2: each of several labels must be 0 or 1"),
    "texts": ([["a", "b"]] * 3, "auto", "y[0, 0] = 'a': each of several labels must be 0 or 1"),
    "one column": ([0, 1, 0], LABELS, "must be (N, *shape) and (N, K)"),
    "no column": (np.empty((3, 0)), "auto", "has no label"),
    "several as classes": ([[0, 1], [0, 1], [0, 0]], "classification", "must be (N, *shape) and (N,)"),
    "steps as several": ([[2] * 5] * 2, "auto", "from_arrays: y[0, 0] = 2: each of"),
    "other steps": (np.zeros((2, 3)), STEPS, "from_arrays: x (2, 5) and y (2, 3) must have as many steps"),
    "one label": (np.zeros(2), STEPS, "from_arrays: x (2, 5) and y (2,) must be (N, *shape) and (N, T)"),
    "a fraction": (np.full((2, 5), 0.5), STEPS, "from_arrays: y[0, 0] = 0.5: the class of a step"),
    "a missing label": ([[None] * 5, ["a"] * 5], STEPS, "from_arrays: y[0, 0] = None: the class of a step"),
    "a missing step": ([["a", "", np.nan, "b", ""]] * 2, STEPS, "from_arrays: y[0, 2] = nan: the class of a step"),
    "a missing number among steps": (np.array([[1, 0, np.nan, 0, -1]] * 2, object), STEPS, "y[0, 2] = nan: the class"),
    "a frame of words": (pd.DataFrame([["a", "", np.nan, "b", ""]] * 2, dtype="str"), STEPS, "y[0, 2] = nan: the"),
    "words beside numbers": (np.array([["a", 1, "", -1, 0]] * 2, object), STEPS, "several types, int and str; give"),
    "one name twice": (pd.DataFrame([[0, 1], [1, 1]], columns=[1, "1"]), "auto", "y has two columns '1'; give them"),
    "True beside 1": (np.array([True, 1, 0], object), "auto", "y has labels of several types, bool and int; give one"),
    "rounded": ([2**63 + 1, 2**63 + 2, 5], "auto", "y[0] = 9.223372036854776e+18: so large labels would be rounded"),
    "no label at all": (np.full((2, 5), -1), STEPS, "from_arrays: y has no step with a label"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_labels_of_arrays_are_refused(case):
    y, task, says = WRONG_ARRAYS[case]
    with pytest.raises(InputError) as refused:
        fc.from_arrays(np.zeros((len(y), 5)), y, task=task)
    assert says in str(refused.value)


def test_labels_that_a_test_set_would_round_are_refused():
    x, y = np.zeros((2, 5)), np.array([2**60, 2**60 + 1])
    assert fc.from_arrays(x, y, test=(x, y)).classes == ("1152921504606846976", "1152921504606846977")
    with pytest.raises(InputError, match="so large labels would be rounded to one class"):
        fc.from_arrays(x, y, test=(x, y.astype(np.uint64)))


@pytest.mark.parametrize("text", ["nan", "None", "<NA>"])
def test_what_was_missing_before_it_became_a_text_is_refused(text: str):
    for given in ({"y": ["a", text]}, {"y": [0, 1], "device": ["a", text]}):
        with pytest.raises(InputError, match=rf"\[1\] = '{text}': a (label|device) is missing"):
            fc.from_arrays(np.zeros((2, 5)), **given)


@pytest.mark.parametrize("device", [["a", ""], np.ma.array(["a", "b"], mask=[False, True])])
def test_a_device_without_a_name_is_refused(device: Any):
    with pytest.raises(InputError, match=r"device\[1\] = '': a device is missing|= masked: a device is missing"):
        fc.from_arrays(np.zeros((2, 5)), [0, 1], device=device)


ROWS = "heat,load,leak,wear,site\n1,2,0,1,a\n2,1,1,0,a\n3,4,1,1,b\n4,3,0,0,b\n"


def read(tmp_path, text=ROWS, label=("leak", "wear"), **settings):
    (tmp_path / "rows.csv").write_text(text)
    return fc.load("table", path=tmp_path / "rows.csv", label=label, device="site", **settings)


def test_a_table_has_a_column_for_each_label(tmp_path):
    data = read(tmp_path)
    assert (data.classes, data.schema.task, data.schema.label) == (("leak", "wear"), LABELS, None)
    assert data.train.y.tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]
    assert [column.name for column in data.schema.columns] == ["heat", "load"]
    assert data.notes == ("task: multilabel, 1 labels on average, 25.0% of the rows have none",)
    words = ROWS.replace(",0,1,", ",False,True,").replace(",1,0,", ",True,False,").replace(",1,1,", ",True,True,")
    same = read(tmp_path, words.replace(",0,0,", ",False,False,"))
    torch.testing.assert_close(same.train.y, data.train.y)
    alone = read(tmp_path, label="leak", ignore=["wear"], task=LABELS)
    assert alone.train.y.tolist() == [[0], [1], [1], [0]]
    assert [*fc.federate(data, fc.by_device()).dataset.classes] == ["leak", "wear"]


WRONG_TABLES = {
    "a missing cell": (ROWS.replace("2,1,1,0,a", "2,1,1,,a"), {}, "column 'wear', row 2: the cell is missing"),
    "another number": (ROWS.replace("2,1,1,0,a", "2,1,3,0,a"), {}, "'leak', row 2: '3' is not 1 or 0"),
    "a word": (ROWS.replace("2,1,1,0,a", "2,1,yes,0,a"), {}, "'leak', row 2: 'yes' is not 1 or 0"),
    "one value": (ROWS.replace(",1,1,b", ",1,0,b").replace(",0,1,a", ",0,0,a"), {}, "one value in column 'wear'"),
    "no column": (ROWS, {"label": []}, r"^label = \[\]: must name a column"),
    "a column twice": (ROWS, {"label": ["leak", "leak"]}, "must be different columns"),
    "an unknown column": (ROWS, {"label": ["leak", "rust"]}, "^label = 'rust': no column of"),
    "as classes": (ROWS, {"task": "classification"}, r"\['leak', 'wear'\]: several labels need task = multilabel"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
@pytest.mark.slow
def test_labels_of_tables_are_refused(tmp_path, case):
    text, settings, words = WRONG_TABLES[case]
    with pytest.raises(InputError, match=words):
        read(tmp_path, text, **settings)


@pytest.mark.parametrize("kind", [NUMBERS, LABELS])
def test_partitions_without_labels_divide_these(kind):
    data = MADE[kind]()
    for partitioner in (None, fc.iid(), fc.quantity_skew(2.0), fc.by_device()):
        everyone = fc.federate(data, partitioner, devices=4, hold_out="stable", min_size=5).federation(1)
        held = [part for one in everyone.devices.values() for part in vars(one.data).values()]
        assert sum(map(len, held)) + len(everyone.test) == len(data.train)
        if kind == LABELS:
            count = sum(part.y.sum(0) for part in [*held, everyone.test] if len(part))
            torch.testing.assert_close(count, data.train.y.sum(0))


# refusals


def compare(**settings: object) -> Any:
    return lambda kind: fc.compare([fc.fedavg()], fed(kind), **settings)


def train_with(**training: object) -> Any:
    return lambda kind: fc.run(fc.fedavg(training=training), fed(kind))


def divide(partitioner: Any, **settings: Any) -> Any:
    net = fc.net(chain)
    return lambda kind: fc.federate(
        MADE[kind](), partitioner, net=net if kind == STEPS else None, **settings
    ).federation(0)


BOTH = (NUMBERS, LABELS)
REFUSED = {
    "a metric of classes": (compare(metric="roc_auc"), "compare.metric = 'roc_auc'", BOTH),
    "costs": (compare(costs={"a": {"b": 1.0}}), "compare.costs: needs classes", BOTH),
    "costs of a final fit": (
        lambda kind: fc.final_fit(fc.majority(), fed(kind), costs={"a": {"b": 1.0}}), "final_fit.costs: needs classes",
        BOTH,
    ),
    "a metric of numbers": (compare(metric="rmse"), "compare.metric = 'rmse'", [LABELS]),
    "a positive label": (compare(positive="leak"), "compare.positive = 'leak'", BOTH),
    "class weights": (train_with(class_weights="balanced"), "fedavg: training.class_weights = 'balanced'", MADE),
    "a loss of classes": (train_with(loss="softmax_twice"), "training.loss = 'softmax_twice'", [NUMBERS, STEPS]),
    "a loss of numbers": (train_with(loss="squared"), "training.loss = 'squared'", [LABELS]),
    "a skew of labels": (divide(fc.label_skew()), "federation.partition = 'label_skew'", MADE),
    "hidden labels": (divide(fc.by_device(), hidden=0.5), "hidden = 0.5", BOTH),
    "real devices": (lambda kind: require_classes(kind, "fedcore field:"), "fedcore field: needs classes", [LABELS]),
    "one output": (lambda kind: fc.federate(MADE[kind](), net=fc.mlp(4)), "net.name: mlp has one output", [STEPS]),
    "votes by entropy": (
        lambda kind: fc.run(fc.ensemble(weights="entropy"), fed(kind)), "ensemble.weights = 'entropy'", MADE,
    ),
    "probabilities": (
        lambda kind: fc.run(fc.majority(), fed(kind)).models["d0"].probabilities([[0] * 4]), "probabilities", [NUMBERS],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "kind"), [(case, kind) for case, (_, _, kinds) in REFUSED.items() for kind in kinds])
@pytest.mark.slow
def test_what_these_labels_do_not_allow_is_refused(case, kind):
    call, says, _ = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call(kind)
    assert str(refused.value).startswith(says)
    assert {NUMBERS: "number", LABELS: "several labels", STEPS: ""}[kind] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"training": {"loss": "absolute"}},
            "training.loss = 'absolute': is not for these data, whose label is classes",
        ),
        ({"metric": "rmse"}, "compare.metric = 'rmse': is for a number as label; these data have classes"),
        ({"metric": "hamming_accuracy"}, "'hamming_accuracy': is for several labels; these data have classes"),
    ],
)
def test_what_classes_do_not_allow_is_refused(settings, says):
    classes = fc.federate(fc.from_arrays(np.arange(80.0).reshape(20, 4), [0, 1] * 10), devices=2, min_size=1)
    with pytest.raises(InputError) as refused:
        fc.compare([fc.fedavg(training=settings.pop("training", {}))], classes, **settings)
    assert says in str(refused.value)
