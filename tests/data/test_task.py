"""Labels that are numbers: from arrays and tables to models, against pooled solutions and other implementations."""

from inspect import signature

import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.core.evaluation import outputs
from fedcore.core.losses import LOSSES, own_gradient, own_loss
from fedcore.data.task import TASKS, task_of
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.nets import shapes
from fedcore.types.method import Model

NEED_CLASSES = {
    "avg_degree", "best_source", "dfl", "dfl_diagonal", "fada", "fd", "fedavg_alpha", "fedgen", "fedproto",
    "gaussian_distillation", "label_smoothing", "least_error", "most_similar", "personal_distillation", "psi_fada",
    "psi_fedavg", "rnd_alpha", "rnd_psi", "single_match", "st_lf",
}  # fmt: skip
NEED_ANOTHER_NET = {"fedasa", "fixed_depth"}


def numbers(count: int = 120, devices: int = 3) -> fc.Dataset:
    """A quantity far from 0 that is nearly linear in four features; devices differ in its level."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(count, 4)), np.arange(count) % devices
    y = 1000 + 50 * (x @ [1, 2, 0, -1]) + 30 * who + rng.normal(size=count)
    return fc.from_arrays(x, y, device=[f"d{i}" for i in who])


@pytest.fixture(scope="module")
def fed():
    return fc.federate(numbers(), fc.by_device(), net=fc.mlp(8))


@pytest.mark.parametrize("task", TASKS)
def test_gradient_is_that_of_the_loss(task):
    y = {
        "classification": torch.tensor([0, 2, 1, 2]),
        "regression": torch.tensor([0.5, -1.0, 2.0, 0.0]),
        "multilabel": torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]]),
        "sequence_labelling": torch.tensor([[0, 2], [-1, 1], [-1, -1], [1, 0]]),
    }[task]
    shape = {"regression": (4, 1), "sequence_labelling": (4, 2, 3)}.get(task, (4, 3))
    outputs = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    tensor = outputs.clone().requires_grad_()
    (4 * own_loss(tensor, y)).backward()
    torch.testing.assert_close(own_gradient(outputs, y), tensor.grad)
    assert task_of(y).name == task


def test_absolute_loss_has_the_median_as_best_guess():
    y = torch.tensor([0.0, 1.0, 10.0])
    losses = [LOSSES["absolute"](torch.full((3, 1), guess), y).item() for guess in (0.5, 1.0, 11 / 3)]
    assert min(losses) == losses[1]


def test_models_of_numbers_are_combined_as_means():
    outputs = [torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [6.0]])]
    combine = TASKS["regression"].combine
    for weights in ((0.75, 0.25), ((0.75,), (0.25,))):
        torch.testing.assert_close(combine(outputs, weights, 1.0, None), torch.tensor([[1.75], [3.0]]))
    head = {"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([0.5])}
    torch.testing.assert_close(combine(outputs, (0.5, 0.5), 1.0, head), torch.tensor([[-1.5], [-1.5]]))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_take_numbers_or_say_why_not(fed, name):
    takes = signature(builder(name)).parameters
    config = fc.method(
        name, training={"epochs": 1}, **({"rounds": 2} if "rounds" in takes else {}),
        **({"features": 20} if name == "analytic" else {}),
    )  # fmt: skip
    if name in NEED_CLASSES:
        with pytest.raises(InputError, match=f"^{name}: it .*, which needs classes; the label .* a number"):
            fc.run(config, fed)
    elif name in NEED_ANOTHER_NET:
        with pytest.raises(InputError, match=name):
            fc.run(config, fed)
    else:
        result = fc.run(config, fed, every=2)
        (predicted,) = {model.predict(np.zeros((1, 4))).shape for model in result.models.values()}
        errors = result.table[(result.table["metric"] == "rmse") & (result.table["split"] == "test")]["value"]
        assert predicted == (1,)
        assert errors.notna().all()


def test_analytic_is_pooled_ridge(fed):
    """Against numpy's solution on all training rows together, of the same random features."""
    result = fc.run(fc.analytic(features=30, reg=1e-3), fed)
    model = result.models["d0"]
    weights = model.model.members[0]["features.weight"].double().numpy()

    def phi(x):
        return np.c_[np.maximum(x @ weights.T, 0), np.ones(len(x))]

    devices = fed.federation(0).devices.values()
    x = np.concatenate([one.data.train.x.double().numpy() for one in devices])
    y = np.concatenate([one.data.train.y.double().numpy() for one in devices])
    gram = phi(x).T @ phi(x)
    ridge = np.linalg.solve(gram + 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram)), phi(x).T @ y)
    mean, std = fed.federation(0).scoring.label_scale
    new = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(model.predict(new), mean + std * (phi(new.astype(float)) @ ridge), rtol=1e-5)


def test_fedavg_of_one_full_batch_is_pooled_descent(fed):
    """One step on all of a device's rows, averaged by their number: a step on the rows of all devices."""
    rounds, rate = 3, 0.1
    training = {"optimiser": "sgd", "lr": rate, "batch": 1000, "epochs": 1}
    result = fc.run(fc.fedavg(rounds=rounds, training=training), fed)
    devices = fed.federation(0).devices
    x = torch.cat([one.data.train.x for one in devices.values()])
    y = torch.cat([one.data.train.y for one in devices.values()])
    module = devices["d0"].net.build()
    begun = fc.run(fc.fedavg(rounds=1, training={**training, "lr": 1e-30}), fed).models["d0"].model.members[0]
    module.load_state_dict(begun)
    optimiser = torch.optim.SGD(module.parameters(), rate)
    for _ in range(rounds):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(module(x)[:, 0], y).backward()
        optimiser.step()
    found = result.models["d0"].model.members[0]
    assert found.keys() == shapes(devices["d0"].net).keys()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


def test_devices_together_descend_as_one_by_one(fed):
    config = fc.fedavg(rounds=2, training={"epochs": 2})
    one, all_of_them = (fc.run(config, fed, together=count).table for count in (1, 3))
    np.testing.assert_allclose(one["value"], all_of_them["value"], rtol=1e-4)


@pytest.mark.parametrize("name", ["majority", "majority_per_device"])
def test_guess_is_the_mean(fed, name):
    result, everyone = fc.run(fc.method(name), fed), fed.federation(0)
    mean, std = everyone.scoring.label_scale
    own = {who: one.data.train.y.double().mean().item() * std + mean for who, one in everyone.devices.items()}
    for who, model in result.models.items():
        expected = mean if name == "majority" else own[who]
        assert model.predict(np.ones((2, 4))) == pytest.approx([expected] * 2, rel=1e-6)


def test_labels_are_standardised_by_all_training_rows(fed):
    y = torch.cat([one.data.train.y for one in fed.federation(0).devices.values()]).double()
    assert y.mean().item() == pytest.approx(0, abs=1e-6)
    assert y.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    _, std = fed.federation(0).scoring.label_scale
    assert 80 < std < 200
    rest, left_out = fed.left_out("d2")
    assert rest.scoring.label_scale != fed.federation(0).scoring.label_scale
    mean, std = rest.scoring.label_scale
    labels = numbers().train.y.numpy()[2::3]
    np.testing.assert_allclose(np.sort(left_out.y.numpy() * std + mean), np.sort(labels), rtol=1e-5)


def test_errors_are_in_the_labels_unit(fed):
    result = fc.run(fc.fedavg(rounds=2), fed, metrics={"bias": lambda p, y: (p[:, 0] - y).mean().item()})
    test = result.table[(result.table["split"] == "test") & (result.table["device"] == "d1")]
    last = test[test["round"] == 2].set_index("metric")["value"]
    device, (mean, std) = fed.federation(0).devices["d1"], fed.federation(0).scoring.label_scale
    y = device.data.test.y.double().numpy() * std + mean
    error = result.models["d1"].predict(device.data.test.x.numpy()) - y
    assert last["mae"] == pytest.approx(abs(error).mean(), rel=1e-4)
    assert last["rmse"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-4)
    assert last["bias"] == pytest.approx(error.mean(), rel=1e-3)


@pytest.mark.slow
def test_answer_goes_by_the_error(fed):
    found = fc.compare([fc.local_only(), fc.fedavg(rounds=3)], fed, seeds=range(2))
    assert found.summary["metric"].unique().tolist() == ["rmse"]
    assert "Decided by root mean squared error, since the label is a number." in found.answer.sentences
    assert "(in the label's unit, less is better)" in str(found.answer)
    assert found.answer.min_effect == pytest.approx(0.01 * found.answer.criterion.label_std)
    assert "NaN" not in repr(found)


REFUSED = {
    "a metric of classes": (lambda fed: fc.compare([fc.fedavg()], fed, metric="roc_auc"), "compare.metric = 'roc_auc'"),
    "a positive label": (lambda fed: fc.compare([fc.fedavg()], fed, positive="a"), "compare.positive = 'a'"),
    "class weights": (
        lambda fed: fc.run(fc.fedavg(training={"class_weights": "balanced"}), fed),
        "fedavg: training.class_weights = 'balanced'",
    ),
    "a loss of classes": (
        lambda fed: fc.run(fc.fedavg(training={"loss": "softmax_twice"}), fed),
        "training.loss = 'softmax_twice'",
    ),
    "votes by entropy": (lambda fed: fc.run(fc.ensemble(weights="entropy"), fed), "ensemble.weights = 'entropy'"),
    "a skew of labels": (
        lambda fed: fc.federate(numbers(), fc.label_skew()).federation(0),
        "federation.partition = 'label_skew'",
    ),
    "hidden labels": (
        lambda fed: fc.federate(numbers(), fc.by_device(), hidden=0.5).federation(0),
        "federation.hidden = 0.5",
    ),
    "probabilities": (lambda fed: fc.run(fc.majority(), fed).models["d0"].probabilities([[0] * 4]), "probabilities"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_classes_is_refused(fed, case):
    call, words = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call(fed)
    assert str(refused.value).startswith(words)
    assert "number" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_losses_and_metrics_of_numbers_are_refused_for_classes():
    fed = fc.federate(fc.from_arrays(np.arange(80.0).reshape(20, 4), [0, 1] * 10), devices=2, min_size=1)
    with pytest.raises(InputError, match=r"training\.loss = 'absolute': is not for these data, whose label is classes"):
        fc.run(fc.fedavg(training={"loss": "absolute"}), fed)
    with pytest.raises(InputError, match=r"compare\.metric = 'rmse': is of a number as label; these data have classes"):
        fc.compare([fc.fedavg()], fed, metric="rmse")


ARRAYS = {
    "fractions": ([0.5, 1.0, 2.0], "auto", "regression"),
    "whole numbers": ([0, 1, 7], "auto", "classification"),
    "whole numbers as quantities": ([0, -1, 7], "regression", "regression"),
    "whole floats": ([0.0, 1.0, 7.0], "auto", "classification"),
    "words": (["a", "b", "b"], "auto", "classification"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_task_of_arrays(case):
    y, task, found = ARRAYS[case]
    assert fc.from_arrays(np.zeros((3, 2)), y, task=task).task.name == found


WRONG_ARRAYS = {
    "a missing number": ([0.5, float("nan"), 1.0], "auto", r"y\[1\] = nan: a label is missing"),
    "a missing class": ([0.0, float("nan"), 1.0], "auto", r"y\[1\] = nan: a label is missing"),
    "an infinite number": ([0.5, float("inf"), 1.0], "auto", r"y\[1\] = inf: is not a finite number"),
    "words as numbers": (["a", "b", "c"], "regression", r"y\[0\] = 'a': is not a finite number"),
    "fractions as classes": ([0.5, 1.5, 1.0], "classification", r"y\[0\] = 0.5: classes must be whole"),
    "an unknown task": ([0, 1, 2], "counts", "from_arrays.task = 'counts'"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_labels_of_arrays_are_refused(case):
    y, task, words = WRONG_ARRAYS[case]
    with pytest.raises(InputError, match=words):
        fc.from_arrays(np.zeros((3, 2)), y, task=task)


def test_partitions_without_labels_divide_numbers():
    data = numbers()
    for partitioner in (None, fc.iid(), fc.quantity_skew(2.0)):
        fed = fc.federate(data, partitioner, devices=4, hold_out="stable", min_size=5)
        held = [part for one in fed.federation(1).devices.values() for part in vars(one.data).values()]
        assert sum(map(len, held)) + len(fed.federation(1).test) == len(data.train)


def test_power_of_a_common_model_has_no_effect():
    """A personal ensemble raises the common answer to a power, which is of probabilities."""
    net = fc.federate(numbers(), fc.by_device(), net=fc.mlp(8)).nets[0]
    params = {name: torch.ones(shape) for name, shape in shapes(net).items()}
    x, task = torch.ones(2, 4), TASKS["regression"]
    once = outputs(Model((params,)), net, x, task)
    torch.testing.assert_close(outputs(Model((Model((params,)),), ((1.0,),), power=2.0), net, x, task), once)
