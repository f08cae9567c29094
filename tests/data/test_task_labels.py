"""Several labels of each example: from arrays and tables to models, against pooled solutions and scikit-learn."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sklearn

import fedcore as fc
from fedcore.core.evaluation import evaluate, metrics
from fedcore.data.task import MULTILABEL, TASKS, require_classes
from fedcore.errors import InputError
from fedcore.methods import METHODS
from fedcore.results.challenge import Paired, difference
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Data, Scoring


def labelled(count: int = 120, devices: int = 3) -> fc.Dataset:
    """Three labels by linear rules of four features, one of them rare; devices differ in how often."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(count, 4)), np.arange(count) % devices
    y = x @ rng.normal(size=(4, 3)) + 0.5 * who[:, None] > [0.5, 1.0, 3.0]
    frame = pd.DataFrame(y, columns=["leak", "heat", "wear"])
    return fc.from_arrays(x, frame, device=[f"d{i}" for i in who])


@pytest.fixture(scope="module")
def fed():
    return fc.federate(labelled(), fc.by_device(), net=fc.mlp(8))


def pooled(fed, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    held = [getattr(one.data, part) for one in fed.federation(0).devices.values()]
    return torch.cat([one.x for one in held]), torch.cat([one.y for one in held])


@pytest.mark.filterwarnings("ignore:No positive class found")
@pytest.mark.parametrize("rates", [(0.5, 0.3, 0.1), (0.5, 0.3, 0.0), (0.0, 0.0, 0.0)])
def test_metrics_are_scikit_learns(rates):
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


def test_without_examples_metrics_are_nan(fed):
    device = fed.federation(0).devices["d0"]
    params = fc.run(fc.majority(), fed).models["d0"].model
    none = Data(device.data.test.x[:0], device.data.test.y[:0])
    assert all(np.isnan(value) for value in evaluate(params, device.net, none).values())


def test_models_of_labels_are_combined_by_probability():
    one, other = torch.tensor([[2.0, -90.0], [0.5, 1.0]]), torch.tensor([[-1.0, -95.0], [3.0, -2.0]])
    combine = MULTILABEL.combine
    torch.testing.assert_close(combine([one], (1.0,), 1.0, None), one, rtol=0, atol=0)
    for weights in ((0.75, 0.25), ((0.75, 0.75), (0.25, 0.25))):
        mean = 0.75 * one.double().sigmoid() + 0.25 * other.double().sigmoid()
        found = combine([one.double(), other.double()], weights, 1.0, None).sigmoid()
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=0)
    p = one.double().sigmoid()
    torch.testing.assert_close(
        combine([one.double()], (1.0,), 2.0, None).sigmoid(), p**2 / (p**2 + (1 - p) ** 2), rtol=1e-12, atol=0
    )
    head = {"weight": torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, -1]]), "bias": torch.tensor([0.5, 0])}
    torch.testing.assert_close(combine([one, other], (0.5, 0.5), 1.0, head)[0], torch.tensor([0.5, 95.0]))


NAMES = ["analytic", "code_ot", "ensemble", "majority", "majority_per_device", "perfedavg", "regmean", "stack"]


@pytest.mark.parametrize("name", NAMES)
def test_methods_take_several_labels(fed, name):
    settings = {"rounds": 1} if name == "perfedavg" else {"features": 20} if name == "analytic" else {}
    result = fc.run(fc.method(name, training={"epochs": 1}, **settings), fed)
    model, x = result.models["d0"], np.random.default_rng(2).normal(size=(9, 4))
    assert model.predict(x).shape == (9, 3)
    np.testing.assert_array_equal(model.predict(x), model.probabilities(x) > 0.5)
    assert (
        result.table[(result.table["metric"] == "macro_f1") & (result.table["split"] == "test")]["value"].notna().all()
    )


def test_a_personal_ensemble_takes_several_labels():
    fed = fc.federate(labelled(), fc.by_device(), net=fc.mlp(8), val=0.2)
    result = fc.run(fc.ensemble(personal=True, training={"epochs": 1}), fed)
    assert result.models["d1"].probabilities(np.zeros((2, 4))).shape == (2, 3)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_that_need_classes_say_why(name):
    """Those that a number as label does not allow, several labels do not either."""
    refused = []
    for task in ("regression", "multilabel"):
        try:
            fc.method(name).require_task(task)
        except InputError as error:
            refused.append(str(error).replace(TASKS[task].words, "").replace(task, ""))
    assert len({*refused}) <= 1
    assert len(refused) in (0, 2)


def test_analytic_is_pooled_ridge(fed):
    """Against numpy's solution on all training rows, with labels as -1 and 1, as scikit-learn's RidgeClassifier."""
    model = fc.run(fc.analytic(features=30, reg=1e-3), fed).models["d0"]
    weights = model.model.members[0]["features.weight"].double().numpy()

    def phi(x):
        return np.c_[np.maximum(x @ weights.T, 0), np.ones(len(x))]

    x, y = (part.double().numpy() for part in pooled(fed, "train"))
    gram = phi(x).T @ phi(x)
    penalised = gram + 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    of_labels, of_ones = (np.linalg.solve(penalised, phi(x).T @ side) for side in (y, np.ones_like(y)))
    new = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    logits = phi(new.astype(float)) @ (2 * of_labels - of_ones)
    np.testing.assert_allclose(model.probabilities(new), 1 / (1 + np.exp(-logits)), rtol=1e-4)


def test_fedavg_of_one_full_batch_is_pooled_descent(fed):
    """One step on all of a device's rows, averaged by their number: a step on the rows of all devices."""
    rounds, rate = 3, 0.5
    training = {"optimiser": "sgd", "lr": rate, "batch": 1000, "epochs": 1}
    found = fc.run(fc.fedavg(rounds=rounds, training=training), fed).models["d0"].model.members[0]
    x, y = pooled(fed, "train")
    module = fed.federation(0).devices["d0"].net.build()
    module.load_state_dict(
        fc.run(fc.fedavg(rounds=1, training={**training, "lr": 1e-30}), fed).models["d0"].model.members[0]
    )
    for _ in range(rounds):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(x), y)
        params = [*module.parameters()]
        with torch.no_grad():
            for tensor, slope in zip(params, torch.autograd.grad(loss, params), strict=True):
                tensor -= rate * slope
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


def test_devices_together_descend_as_one_by_one(fed):
    config = fc.fedavg(rounds=2, training={"epochs": 2})
    one, all_of_them = (fc.run(config, fed, together=count).table for count in (1, 3))
    np.testing.assert_allclose(one["value"], all_of_them["value"], rtol=1e-4)


@pytest.mark.parametrize("name", ["majority", "majority_per_device"])
def test_guess_is_each_labels_rate(fed, name):
    """(n + 1) / (N + 2) of all devices' training rows, or of the device's own."""
    result = fc.run(fc.method(name), fed)
    for who, model in result.models.items():
        _, y = pooled(fed, "train")
        y = y if name == "majority" else fed.federation(0).devices[who].data.train.y
        expected = (y.sum(0) + 1) / (len(y) + 2)
        np.testing.assert_allclose(model.probabilities(np.ones((1, 4)))[0], expected, rtol=1e-6)


@pytest.mark.slow
def test_answer_goes_by_macro_f1_and_claims_are_of_it(fed):
    found = fc.compare(
        [fc.local_only(), fc.fedavg(rounds=3)], fed, seeds=range(3), claims=["fedavg > 0.01"], least_test=0,
        metrics={"first": lambda p, y: ((p[:, 0] > 0.5) == (y[:, 0] > 0)).double().mean().item()},
    )  # fmt: skip
    assert "Decided by macro F1, since each example has several labels." in found.answer.sentences
    assert found.answer.criterion.guess == "rates"
    assert found.claims["verdict"].tolist() == ["holds"]
    assert found.table[found.table["metric"] == "first"]["value"].dropna().between(0, 1).all()
    other = fc.compare([fc.fedavg(rounds=1)], fed, metric="mean_average_precision", least_test=0)
    assert other.summary["metric"].unique().tolist() == ["mean_average_precision"]


def test_challenge_compares_means_of_labels():
    y = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
    right, wrong = 4 * y - 2, 2 - 4 * y
    rows = Paired(right, wrong, y, np.arange(4))
    assert difference(rows, None, Criterion().of_labels(), Scoring()) == 1.0


REFUSED = {
    "a metric of classes": (lambda fed: fc.compare([fc.fedavg()], fed, metric="roc_auc"), "compare.metric = 'roc_auc'"),
    "a metric of numbers": (lambda fed: fc.compare([fc.fedavg()], fed, metric="rmse"), "compare.metric = 'rmse'"),
    "a positive label": (lambda fed: fc.compare([fc.fedavg()], fed, positive="leak"), "compare.positive = 'leak'"),
    "class weights": (
        lambda fed: fc.run(fc.fedavg(training={"class_weights": "balanced"}), fed),
        "fedavg: training.class_weights = 'balanced'",
    ),
    "a loss of numbers": (
        lambda fed: fc.run(fc.fedavg(training={"loss": "squared"}), fed), "training.loss = 'squared'",
    ),
    "votes by entropy": (lambda fed: fc.run(fc.ensemble(weights="entropy"), fed), "ensemble.weights = 'entropy'"),
    "a skew of labels": (
        lambda fed: fc.federate(labelled(), fc.label_skew()).federation(0), "federation.partition = 'label_skew'",
    ),
    "hidden labels": (
        lambda fed: fc.federate(labelled(), fc.by_device(), hidden=0.5).federation(0), "federation.hidden = 0.5",
    ),
    "real devices": (lambda fed: require_classes("multilabel", "fedcore field:"), "fedcore field: needs classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_one_class_is_refused(fed, case):
    call, words = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call(fed)
    assert str(refused.value).startswith(words)
    assert "several labels" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_metrics_of_several_labels_are_refused_for_classes():
    fed = fc.federate(fc.from_arrays(np.arange(80.0).reshape(20, 4), [0, 1] * 10), devices=2, min_size=1)
    with pytest.raises(InputError, match=r"'hamming_accuracy': is of several labels; these data have classes"):
        fc.compare([fc.fedavg()], fed, metric="hamming_accuracy")


WRONG_ARRAYS = {
    "a missing label": ([[0, 1], [np.nan, 1], [0, 0]], "auto", r"y\[1, 0\] = nan: a label is missing"),
    "another number": ([[0, 1], [0, 2], [0, 0]], "auto", r"y\[1, 1\] = 2: each of several labels must be 0 or 1"),
    "texts": ([["a", "b"], ["a", "b"], ["a", "b"]], "auto", r"y\[0, 0\] = 'a': each of several labels must be 0 or 1"),
    "one column": ([0, 1, 0], "multilabel", r"must be \(N, \*shape\) and \(N, K\)"),
    "no column": (np.empty((3, 0)), "auto", "has no label"),
    "several as classes": ([[0, 1], [0, 1], [0, 0]], "classification", r"must be \(N, \*shape\) and \(N,\)"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_labels_of_arrays_are_refused(case):
    y, task, words = WRONG_ARRAYS[case]
    with pytest.raises(InputError, match=words):
        fc.from_arrays(np.zeros((3, 2)), y, task=task)


def test_partitions_without_labels_divide_them():
    data = labelled()
    for partitioner in (None, fc.iid(), fc.quantity_skew(2.0), fc.by_device()):
        fed = fc.federate(data, partitioner, devices=4, hold_out="stable", min_size=5)
        everyone = fed.federation(1)
        held = [part for one in everyone.devices.values() for part in vars(one.data).values()]
        assert sum(map(len, held)) + len(everyone.test) == len(data.train)
        count = sum(part.y.sum(0) for part in [*held, everyone.test] if len(part))
        torch.testing.assert_close(count, data.train.y.sum(0))


ROWS = "heat,load,leak,wear,site\n1,2,0,1,a\n2,1,1,0,a\n3,4,1,1,b\n4,3,0,0,b\n"


def read(tmp_path, text=ROWS, label=("leak", "wear"), **settings):
    (tmp_path / "rows.csv").write_text(text)
    return fc.load("table", path=tmp_path / "rows.csv", label=label, device="site", **settings)


def test_a_table_has_a_column_for_each_label(tmp_path):
    data = read(tmp_path)
    assert (data.classes, data.schema.task, data.schema.label) == (("leak", "wear"), "multilabel", None)
    assert data.train.y.tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]
    assert [column.name for column in data.schema.columns] == ["heat", "load"]
    assert data.notes == ("task: multilabel, 1 labels on average, 25.0% of the rows have none",)
    words = ROWS.replace(",0,1,", ",False,True,").replace(",1,0,", ",True,False,").replace(",1,1,", ",True,True,")
    same = read(tmp_path, words.replace(",0,0,", ",False,False,"))
    torch.testing.assert_close(same.train.y, data.train.y)
    alone = read(tmp_path, label="leak", ignore=["wear"], task="multilabel")
    assert alone.train.y.tolist() == [[0], [1], [1], [0]]
    assert [*fc.federate(data, fc.by_device()).dataset.classes] == ["leak", "wear"]


WRONG_TABLES = {
    "a missing cell": (ROWS.replace("2,1,1,0,a", "2,1,1,,a"), {}, "column 'wear', row 2: the cell is missing"),
    "another number": (ROWS.replace("2,1,1,0,a", "2,1,3,0,a"), {}, "'leak', row 2: '3' is not 1 or 0"),
    "a word": (ROWS.replace("2,1,1,0,a", "2,1,yes,0,a"), {}, "'leak', row 2: 'yes' is not 1 or 0"),
    "one value": (ROWS.replace(",1,1,b", ",1,0,b").replace(",0,1,a", ",0,0,a"), {}, "one value in column 'wear'"),
    "no column": (ROWS, {"label": []}, r"data\.label = \[\]: must name a column"),
    "a column twice": (ROWS, {"label": ["leak", "leak"]}, "must be different columns"),
    "an unknown column": (ROWS, {"label": ["leak", "rust"]}, "no column 'rust'"),
    "as classes": (ROWS, {"task": "classification"}, r"\['leak', 'wear'\]: several labels need data.task = multilabel"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_labels_of_tables_are_refused(tmp_path, case):
    text, settings, words = WRONG_TABLES[case]
    with pytest.raises(InputError, match=words):
        read(tmp_path, text, **settings)
