"""Labels for each step of a sequence, against loops by hand, and against ordinary classification."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federations import SGD
from torch import nn
from torch.nn.functional import log_softmax

import fedcore as fc
from fedcore import nets
from fedcore.builders import settings_of
from fedcore.core.evaluation import count_outcomes, evaluate
from fedcore.core.losses import own_gradient, own_loss
from fedcore.core.training import accuracy, predict, train
from fedcore.data.task import NO_LABEL, TASKS, task_of
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.nets.tables import table
from fedcore.partition.tables import training_numbers
from fedcore.types.federation import Data, Device, Splits
from fedcore.types.method import Message, Model, StepId, generator

LENGTH, WORDS, CLASSES = 5, 7, 3
WITHOUT_LABELS = {
    "apfl", "best_local", "code_ot", "ditto", "ensemble", "fedala", "fedavg", "fedbabu", "fedbn", "feddyn", "fednova",
    "fedopt", "fedper", "fedprox", "fedrep", "fixed_depth", "half_best", "lmf", "local_only", "majority",
    "majority_per_device", "no_alignment", "perfedavg", "pfedme", "pleas", "regmean", "scaffold",
}  # fmt: skip
"""The methods that need parameters, or sums over layers, alone."""


def chain(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[1], 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, classes))


chain.axes = lambda **settings: table(chain(**settings))  # type: ignore[attr-defined]


def signals(count: int = 60) -> fc.Dataset:
    """Three numbers at each of five steps; every fifth sequence is shorter."""
    x = np.random.default_rng(0).normal(size=(count, LENGTH, 3))
    y = np.where(x.sum(2) > 0, np.where(x[..., 0] > 1, "high", "on"), "off")
    y[::5, 3:] = ""
    return fc.from_arrays(x, y, device=[f"d{i % 2}" for i in range(count)], task="sequence_labelling")


@pytest.fixture(scope="module")
def fed():
    return fc.federate(signals(), fc.by_device(), net=fc.net(chain))


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


def test_loss_is_the_mean_over_labelled_steps():
    outputs = torch.randn(4, LENGTH, CLASSES, generator=torch.Generator().manual_seed(0))
    y = drawn(4, LENGTH).y
    terms = [-log_softmax(outputs[i, t], 0)[y[i, t]] for i in range(4) for t in range(LENGTH) if y[i, t] != NO_LABEL]
    torch.testing.assert_close(own_loss(outputs, y), torch.stack(terms).mean())
    none = torch.full_like(y, NO_LABEL)
    assert own_loss(outputs, none) == 0
    assert torch.equal(own_gradient(outputs, none), torch.zeros_like(outputs))


@pytest.mark.parametrize("training", [{}, {"optimiser": "adam"}, {"patience": 1, "epochs": 4}])
def test_one_step_without_mask_is_classification(training):
    """To the bit: training, validation score and metrics."""
    data, net, plain = drawn(20, 1), words("lstm", 1), words("lstm", 1, per_step=False)
    data.y.clamp_(min=0)
    one = Data(data.x, data.y[:, 0])
    assert (task_of(data.y).name, task_of(one.y).name) == ("sequence_labelling", "classification")
    params, expected = trained(net, data, **training), trained(plain, one, **training)
    assert all(torch.equal(params[name], tensor) for name, tensor in expected.items())
    assert accuracy(params, net, data) == accuracy(expected, plain, one)
    assert evaluate(Model((params,)), net, data) == evaluate(Model((expected,)), plain, one)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
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


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_take_steps_or_say_why_not(fed, name):
    takes = settings_of(builder(name))
    config = fc.method(name, training={"epochs": 1}, **({"rounds": 1} if "rounds" in takes else {}))
    if name not in WITHOUT_LABELS:
        with pytest.raises(InputError, match=rf"^{name}: (it .*, which needs|the server has 0 examples)"):
            fc.run(config, fed, progress=False)
        return
    result = fc.run(config, fed, every=2, progress=False)
    (said,) = {model.predict(np.zeros((2, LENGTH, 3))).shape for model in result.models.values()}
    scores = result.table[(result.table["metric"] == "balanced_accuracy") & (result.table["split"] == "test")]["value"]
    assert said == (2, LENGTH)
    assert scores.between(0, 1).all()


@pytest.mark.parametrize(("weights", "power"), [((1.0,), 1.0), ((0.3, 0.7), 1.0), (((0.3, 1, 0), (0.7, 0, 1)), 2.0)])
def test_models_are_combined_step_by_step(weights, power):
    draws = torch.Generator().manual_seed(0)
    members = [torch.randn(4, LENGTH, CLASSES, generator=draws) for _ in weights]
    combine, of_one = (TASKS[name].combine for name in ("sequence_labelling", "classification"))
    found = combine(members, weights, power, None)
    for step in range(LENGTH):
        expected = of_one([one[:, step] for one in members], weights, power, None)
        torch.testing.assert_close(found[:, step], expected)


def test_the_guess_is_the_frequency_of_labelled_steps(fed):
    probabilities = fc.run(fc.majority(), fed, progress=False).models["d0"].probabilities(np.ones((1, LENGTH, 3)))
    y = torch.cat([device.data.train.y for device in fed.federation(0).devices.values()])
    counts = torch.bincount(y[y >= 0], minlength=CLASSES) + 1
    torch.testing.assert_close(torch.tensor(probabilities[0]), (counts / counts.sum()).expand(LENGTH, CLASSES))


def test_devices_together_descend_as_one_by_one(fed):
    config = fc.fedavg(rounds=1, training={"epochs": 1})
    one, both = (fc.run(config, fed, together=count, progress=False).table for count in (1, 2))
    assert one["value"].equals(both["value"])


def test_data_say_what_they_are(fed):
    assert repr(signals()).startswith("Dataset: 60 examples of shape (5, 3), float32; 3 classes of each of 5 steps (h")
    counts, devices = fed.counts(), fed.federation(0).devices
    for name, device in devices.items():
        y = device.data.train.y
        assert counts.loc[name, ["high", "off", "on"]].tolist() == torch.bincount(y[y >= 0], minlength=3).tolist()
        assert counts.loc[name, "n_train"] == len(y)
    numbers = training_numbers(fed.dataset, fed.partition())["d0"]
    held = counts.loc["d0", ["high", "off", "on"]]
    assert (numbers["examples"], numbers["classes"], numbers["test_classes"]) == (len(devices["d0"].data.train), 3, 3)
    assert numbers["largest_share"] == pytest.approx(held.max() / held.sum())


@pytest.mark.slow
def test_answer_goes_by_the_share_of_right_steps(fed):
    found = fc.compare([fc.local_only(), fc.fedavg(rounds=2)], fed, seeds=range(2))
    assert found.summary["metric"].unique().tolist() == ["accuracy"]
    assert "% right" in str(found.answer)


REFUSED = {
    "a net with one output": (lambda: fc.federate(signals(), net=fc.mlp(4)), "net.name: mlp has one output"),
    "a skew of labels": (
        lambda: fc.federate(signals(), fc.label_skew(), net=fc.net(chain)).federation(0),
        "federation.partition = 'label_skew'",
    ),
    "class weights": (
        lambda: run(fc.fedavg(training={"class_weights": "balanced"})),
        "fedavg: training.class_weights = 'balanced'",
    ),
    "a loss of classes": (
        lambda: run(fc.fedavg(training={"loss": "softmax_twice"})),
        "training.loss = 'softmax_twice'",
    ),
    "votes by entropy": (lambda: run(fc.ensemble(weights="entropy")), "ensemble.weights = 'entropy'"),
    "other steps": (lambda: steps(np.zeros((2, 3))), "from_arrays: x (2, 5) and y (2, 3) must have as many steps"),
    "one label": (lambda: steps(np.zeros(2)), "from_arrays: x (2, 5) and y (2,) must be (N, *shape) and (N, T)"),
    "a fraction": (lambda: steps(np.full((2, 5), 0.5)), "from_arrays: y[0, 0] = 0.5: the class of a step"),
    "a missing label": (lambda: steps([[None] * 5, ["a"] * 5]), "from_arrays: y[0, 0] = None: the class of a step"),
    "no label at all": (lambda: steps(np.full((2, 5), -1)), "from_arrays: y has no step with a label"),
    "several labels": (lambda: fc.from_arrays(np.zeros((2, 5)), [[2] * 5] * 2), "from_arrays: y[0, 0] = 2: each of"),
}


def run(config: Any) -> Any:
    return fc.run(config, fc.federate(signals(), fc.by_device(), net=fc.net(chain)), progress=False)


def steps(y: object) -> fc.Dataset:
    return fc.from_arrays(np.zeros((2, LENGTH)), y, task="sequence_labelling")


@pytest.mark.parametrize("case", REFUSED)
def test_what_steps_do_not_allow_is_refused(case):
    call, says = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value).startswith(says)
