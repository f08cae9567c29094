"""`import fedcore as fc`: the same numbers as by hand, every name, clear refusals, and little that is imported."""

import ast
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from federations import federation
from scipy.sparse import csr_array

import fedcore as fc
from fedcore import nets
from fedcore.api.serving import ServedModels
from fedcore.builders import CONTEXT, settings_of
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run as rounds
from fedcore.data import schema_of
from fedcore.data.encoding import from_json, to_json
from fedcore.execute.workers import Inline, Workers, one_thread
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.partition import PARTITIONS, partition, splits
from fedcore.report.phrases import AnswerInWords
from fedcore.results.answer import answer
from fedcore.results.criterion import Criterion
from fedcore.results.summary import last_round
from fedcore.results.tidy import COLUMNS

ROOT = Path(__file__).parents[1]
QUICK = {"epochs": 2, "shared_init": True}


@pytest.fixture(scope="module")
def digits() -> fc.Dataset:
    return fc.load("digits")


@pytest.fixture(scope="module")
def fed(digits: fc.Dataset) -> Any:
    return fc.federate(digits, fc.dirichlet(0.5), devices=4, net=fc.mlp(12))


def accuracies(table: pd.DataFrame, split: str) -> dict[str, float]:
    """Return what devices score after the last round."""
    rows = table[(table["split"] == split) & (table["metric"] == "accuracy")]
    last = rows[rows["round"] == rows["round"].max()]
    return dict(zip(last["device"], last["value"], strict=True))


# a final fit


@pytest.fixture(scope="module")
def houses(digits: fc.Dataset) -> fc.Dataset:
    """Return the digits as the rows of three houses, which take turns but for the rarest site's."""
    names = ["north" if i % 7 == 0 else "east" if i % 2 else "west" for i in range(len(digits.train))]
    return fc.from_arrays(digits.train.x.numpy(), digits.train.y.numpy(), device=names)


def by_site(houses: fc.Dataset, **settings: Any) -> Any:
    return fc.federate(houses, fc.by_device(), net=fc.mlp(12), **settings)


def models_of(result: Any) -> dict[str, dict[str, torch.Tensor]]:
    return {f"{name}/{i}": params for name, one in result.models.items() for i, params in enumerate(one.model.params)}


@pytest.mark.slow
def test_a_final_fit_of_local_only_is_training_on_every_row_of_the_site(houses: fc.Dataset):
    result = fc.final_fit(fc.local_only(training={"epochs": 2}), by_site(houses), 3, progress=False)
    made = nets.net("mlp", shape=(1, 8, 8), classes=10, widths=[12])
    assert houses.device is not None
    for site, deployed in result.models.items():
        mine = torch.tensor([name == site for name in houses.device])
        own = fc.Data(houses.train.x[mine], houses.train.y[mine])
        none = fc.Data(own.x[:0], own.y[:0])
        device = fc.Device(site, made, fc.Splits(own, none, none))
        with one_thread():
            memory, update = fc.train(
                {}, fc.Message(), device, fc.StepId(3, 0, 0, site), training=fc.Training(epochs=2)
            )
        (params,) = deployed.model.params
        assert all(torch.equal(tensor, (memory or update.params)[name]) for name, tensor in params.items())


@pytest.mark.slow
def test_a_final_fit_of_analytic_is_the_solution_on_all_rows_together(houses: fc.Dataset):
    """Sums of sites are sums of all rows: a single site that holds every row gets the same model."""
    few = fc.analytic(features=64)
    result = fc.final_fit(few, by_site(houses), 0, progress=False)
    everything = fc.from_arrays(houses.train.x.numpy(), houses.train.y.numpy(), device=["one"] * len(houses.train))
    whole = fc.run(few, by_site(everything, val=0, test=0, shared_test=0), 0, progress=False)
    x = houses.train.x.numpy()[:200]
    expected = whole.models["one"].probabilities(x)
    for deployed in result.models.values():
        np.testing.assert_allclose(deployed.probabilities(x), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "ensemble", "analytic", "stack"])
def test_a_final_fit_is_a_run_that_holds_nothing_out(houses: fc.Dataset, name: str):
    config = fc.method(name, **({"features": 64} if name == "analytic" else {"training": {"epochs": 1}}))
    result = fc.final_fit(config, by_site(houses), 1, progress=False)
    plain = fc.run(config, by_site(houses, val=0, test=0, shared_test=0), 1, progress=False)
    ours, theirs = models_of(result), models_of(plain)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[key][name]) for key, params in ours.items() for name, x in params.items())


@pytest.mark.slow
def test_a_final_fit_has_no_scores_and_keeps_what_its_method_ranks_by(houses: fc.Dataset):
    fed = by_site(houses)
    result = fc.final_fit(fc.code_ot(training=QUICK), fed, 0, progress=False)
    assert not {"val", "test", "shared"} & {*result.table["split"]}
    assert repr(result) == "Result of code_ot, seed 0, rounds: 1"
    for name, device in result.fed.federation(0).devices.items():
        own = fed.partition(0).devices[name]
        assert len(device.data.val) == len(own["val"]) > 0
        assert len(device.data.train) == sum(n == name for n in houses.device or ()) - len(own["val"])


def test_a_final_fit_of_a_scripts_own_devices_trains_on_all_that_they_have():
    own = federation("ab")
    result = fc.final_fit(fc.fedavg(training={"epochs": 1}), own, 0, progress=False)
    sizes = {name: len(device.data.train) for name, device in result.fed.devices.items()}
    assert sizes == {
        name: sum(map(len, (there.data.train, there.data.val, there.data.test))) for name, there in own.devices.items()
    }


# the same numbers


@pytest.mark.slow
def test_a_run_is_what_one_builds_by_hand(digits: fc.Dataset, fed: Any):
    made = partition(
        digits, name="dirichlet", alpha=0.5, devices=4, min_size=10, val=0.2, test=0.2, shared_test=0.2, seed=3
    )
    held, shared = splits(digits, made)
    net = nets.net("mlp", shape=(1, 8, 8), classes=10, widths=[12])
    devices = {name: fc.Device(name, net, own) for name, own in held.items()}
    training = fc.Training(epochs=2, shared_init=True)
    method = builder("fedavg")(
        nets=dict.fromkeys(devices, net), training=training, rounds=3, fraction=0.5, weights="even"
    )
    by_hand = list(rounds(method, fc.Federation(devices, shared, 10), 3, Inline()))
    result = fc.run(fc.fedavg(rounds=3, fraction=0.5, weights="even", training=QUICK), fed, seed=3)
    assert [one.scores for one in result.rounds] == [one.scores for one in by_hand]
    assert [(one.up, one.down) for one in result.rounds] == [(one.up, one.down) for one in by_hand]


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(fed: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    config = fc.method("own_method:median", rounds=2, training=QUICK)
    here, there = (fc.run(config, fed, workers=workers) for workers in (None, 2))
    pd.testing.assert_frame_equal(here.table, there.table, check_exact=True)
    assert config.label == "median"


@pytest.mark.parametrize("scale", ["none", "device", "common"])
@pytest.mark.slow
def test_models_predict_as_they_were_scored(digits: fc.Dataset, scale: Any):
    fed = fc.federate(digits, devices=4, scale=scale, net=fc.mlp(12))
    result = fc.run(fc.local_only(training=QUICK), fed, seed=1)
    tested = {}
    for name, own in fed.partition(1).devices.items():
        examples = digits.train.x[own["test"]]
        guess = result.models[name].predict(examples)
        likely = result.models[name].probabilities(examples.numpy())
        assert likely.shape == (len(examples), 10)
        np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-5)
        tested[name] = float((guess == digits.train.y[own["test"]].numpy()).mean())
    assert tested == accuracies(result.table, "test")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> fc.Dataset:
    """Four sites of which 10 to 90 % are ill, as the level of one column tells; the other says nothing."""
    rng, site = np.random.default_rng(0), np.repeat(np.arange(4), 100)
    ill = rng.random(400) < np.array([0.1, 0.35, 0.65, 0.9])[site]
    rows = pd.DataFrame({"site": site, "heat": rng.normal(50, 8, 400) + 14 * ill, "k": rng.normal(0, 0.3, 400)})
    path = tmp_path_factory.mktemp("sites") / "t.csv"
    rows.assign(state=np.where(ill, "ill", "well")).to_csv(path, index=False)
    return fc.load("table", path=path, label="state", device="site")


@pytest.mark.slow
def test_a_common_scale_keeps_the_levels_that_tell_the_label(sites: fc.Dataset):
    """On shared test rows fedavg is better by points with the scale of all sites than with each site's own."""
    found = {}
    for scale in ("device", "common"):
        fed = fc.federate(sites, fc.by_device(), scale=scale, net=fc.mlp(16))
        rounds = fc.fedavg(rounds=8, training={"epochs": 2, "shared_init": True, "lr": 0.02})
        found[scale] = fc.compare([fc.local_only(training=QUICK), rounds], fed, seeds=range(2))
    shared = {scale: one.summary.set_index("method")["shared_mean"]["fedavg"] for scale, one in found.items()}
    assert shared["common"] > shared["device"] + 0.03
    summary = found["common"].summary.set_index("method")
    assert summary["prepare_up"].tolist() == [4 * (8 + 16 * 2)] * 4  # two means, two variances and a count each
    assert summary["prepare_down"].tolist() == [4 * 16 * 2] * 4
    assert summary["bytes_up"]["local_only"] == 0
    assert "prepare_up" not in set(found["device"].table["metric"])


@pytest.mark.slow
def test_a_new_site_is_served_with_the_common_scale(sites: fc.Dataset):
    """A row of a site that nobody knew gets what the model of any site says of it, also if it lacks a cell."""
    schema = replace(schema_of(sites), missing="common_median")
    fed = fc.federate(replace(sites, schema=schema), fc.by_device(), scale="common", net=fc.mlp(8))
    model = fc.run(fc.fedavg(rounds=2, training=QUICK), fed).models["0"]
    written = from_json(to_json(fed.schema()))
    served = ServedModels(written, ((model.model, model.net),), dict.fromkeys(written.devices, 0))
    rows = pd.DataFrame({"site": ["elsewhere", "2", None], "heat": [48.0, 70.0, None], "k": [0.1, None, 0.2]})
    said = served.predict(rows)
    assert np.array_equal(said["probability"], model.probabilities(rows).max(1))
    with pytest.raises(fc.InputError, match="device = 'elsewhere': no such device"):
        served.predict(rows, "elsewhere")


@pytest.mark.slow
def test_worker_processes_give_the_same_bits_with_a_common_scale(sites: fc.Dataset):
    fed = fc.federate(sites, fc.by_device(), scale="common", net=fc.mlp(8))
    here, there = (fc.run(fc.fedavg(rounds=2, training=QUICK), fed, workers=workers) for workers in (None, 2))
    pd.testing.assert_frame_equal(here.table, there.table, check_exact=True)


@pytest.mark.slow
def test_models_predict_the_rows_of_a_frame_by_the_names_of_its_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Texts and gaps included; scored on the very rows that the partition held out."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=120), "kind": rng.choice(["x", "y"], 120), "who": np.arange(120) % 3})
    rows["y"] = np.where((rows["a"] > 0) & (rows["kind"] == "x"), "yes", "no")
    rows.loc[::11, "a"] = np.nan
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = fc.load("table", path=tmp_path / "t.csv", label="y", device="who", missing="median")
    fed = fc.federate(data, fc.by_device(), scale="device", net=fc.auto(widths=[8]))
    result = fc.run(fc.fedavg(training=QUICK), fed)
    scored = accuracies(result.table, "test")
    for name, own in fed.partition().devices.items():
        held = rows.iloc[own["test"]]
        guess = np.array(data.classes)[result.models[name].predict(held[["kind", "a"]])]
        assert (guess == held["y"]).mean() == scored[name]
    with pytest.raises(fc.InputError, match="column 'kind' is not there"):
        result.models["0"].predict(rows[["a"]])
    capsys.readouterr()
    result.models["0"].predict(held.assign(kind="strange").head(2))
    assert capsys.readouterr().err == "column 'kind': 2 rows have 'strange', unknown in training\n"


@pytest.mark.slow
def test_models_of_a_federation_of_ones_own_predict():
    fed = federation()
    result = fc.run(fc.fedavg(rounds=2), fed, seed=1)
    for name, device in fed.devices.items():
        deployed = result.models[name]
        expected = evaluate(deployed.model, device.net, device.data.test)["accuracy"]
        assert (deployed.predict(device.data.test.x) == device.data.test.y.numpy()).mean() == expected


@pytest.mark.slow
def test_each_seed_divides_and_trains_anew(fed: Any):
    alone = fc.local_only(training={**QUICK, "class_weights": "balanced"})
    found = fc.compare([alone], fed, seeds=[0, 1])
    assert found.answer.weighted == {"local_only"}
    one = fc.run(alone, fed, seed=1)
    table = found.table[(found.table["seed"] == 1) & (found.table["method"] == "local_only")].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, one.table, check_exact=True)
    assert list(one.table.columns) == COLUMNS
    assert not fed.counts(0).equals(fed.counts(1))


# tables


@pytest.mark.slow
def test_a_comparison_ranks_methods_and_judges_claims(fed: Any):
    rows = [fc.local_only(training=QUICK), fc.fedavg(rounds=2, label="avg", training=QUICK), fc.best_local()]
    found = fc.compare(rows, fed, seeds=range(3), claims=["avg > local_only", fc.Claim("?", "avg > 2")])
    summary = found.summary.set_index("method")
    controls = {"best_local", "majority", "majority_per_device"}  # the last two are in every comparison
    assert summary["control"].to_dict() == {"avg": False, "local_only": False, **dict.fromkeys(controls, True)}
    assert found.claims["rule"].tolist() == ["avg > local_only", "avg > 2"]
    assert found.claims["verdict"].iloc[1] == "contradicted"
    said = replace(answer(found.table, frozenset(controls), Criterion(least_test=20)), weighted=frozenset())
    assert found.answer == AnswerInWords.of(said)
    assert str(found.answer).splitlines() == found.answer.sentences
    labels = [*(row.label for row in rows), "majority", "majority_per_device"]
    assert [(one.config.label, one.seed) for one in found.results] == [(label, s) for s in range(3) for label in labels]


@pytest.mark.slow
def test_a_claim_on_own_test_data_is_about_the_devices_that_count(fed: Any):
    """Of the two larger devices alone, as of all four, its means are those of the summary."""
    rows = [fc.local_only(training=QUICK), fc.fedavg(label="avg", rounds=1, training=QUICK)]
    claim, counted, least = fc.Claim("?", "local_only > avg", metric="test.accuracy"), 4, 0.0
    for _ in range(2):
        found = fc.compare(rows, fed, seeds=range(3), claims=[claim], least_test=int(least))
        summary = found.summary.set_index("method").loc[["local_only", "avg"]]
        assert summary["n_measured"].tolist() == [counted] * 2
        assert found.claims.loc[0, ["a", "b"]].tolist() == pytest.approx(summary["test_mean"].tolist())
        sizes = found.table.query("split == 'data' and metric == 'test_examples'").groupby("device")["value"].mean()
        counted, least = 2, sizes.median()


@pytest.mark.slow
def test_a_row_that_diverges_is_left_out_by_name(fed: Any):
    wild = fc.fedavg(label="wild", rounds=2, training={"optimiser": "sgd", "lr": 1e30, "epochs": 1})
    found = fc.compare([fc.local_only(training=QUICK), wild], fed, seeds=range(2))
    assert "lower the learning rate" in found.left_out["wild"]
    assert "wild" not in found.summary["method"].tolist()
    assert "wild is left out: " in repr(found)
    with pytest.raises(fc.InputError, match="lower the learning rate"):
        fc.run(wild, fed)


@pytest.mark.slow
def test_a_comparison_goes_by_the_metric_that_is_asked_for(fed: Any):
    """The costs of a row are recomputed from the models' own predictions, those of least expected cost."""
    label = fed.dataset.classes[0]
    costs = {label: dict.fromkeys(fed.dataset.classes[1:], 3.0)}
    rows = [fc.local_only(training=QUICK), fc.fedavg(rounds=2, training=QUICK)]
    found = fc.compare(rows, fed, seeds=[0], metric="cost", costs=costs, least_test=0)
    assert f"compare.costs: not listed, so it costs nothing: {fed.dataset.classes[1]} taken for" in str(found.answer)
    one = found.results[1]
    device = fed.federation(0).devices["device-00"]
    model = one.models["device-00"]
    truth, guess = device.data.test.y.numpy(), model.predict(x := device.data.test.x.numpy())
    matrix = np.zeros((10, 10))
    matrix[0, 1:] = 3.0
    np.testing.assert_array_equal(guess, (model.probabilities(x).astype(float) @ matrix).argmin(1))
    final = fc.final_fit(rows[1], fed, costs=costs).models["device-00"]
    np.testing.assert_array_equal(final.predict(x), (final.probabilities(x).astype(float) @ matrix).argmin(1))
    expected = 3.0 * np.mean((truth == 0) & (guess != 0))
    table = last_round(one.table)
    value = table[(table["device"] == "device-00") & (table["split"] == "test") & (table["metric"] == "cost")]["value"]
    assert value.item() == pytest.approx(expected)
    assert found.summary["metric"].unique().tolist() == ["cost"]
    with pytest.raises(fc.InputError, match=r"compare.metric = 'recall': needs compare.positive"):
        fc.compare(rows, fed, metric="recall")


@pytest.mark.slow
def test_a_comparison_of_models_at_chance_tests_no_claim(fed: Any):
    """With next to no learning rate, training moves nothing; with one that learns, the same gate is open."""
    gate = fc.Gate("local_only - majority > 0.1", "local models are at chance")
    for lr, word in ((1e-12, {"not tested"}), (0.01, {"holds", "not shown", "contradicted"})):
        quick = {"epochs": 10, "lr": lr}
        rows = [fc.local_only(training=quick), fc.fedavg(label="avg", training=quick), fc.majority()]
        found = fc.compare(rows, fed, range(3), claims=["avg > local_only", "local_only > 0.2"], valid=[gate])
        assert {*found.claims["verdict"]} <= word
        assert ("the label in the columns: try metric=roc_auc, as accuracy may hide" in str(found.answer)) is (
            "not tested" in word
        )
        if "not tested" in word:
            assert found.claims["numbers"].str.startswith("local models are at chance (local_only - majority = ").all()


@pytest.mark.slow
def test_progress_is_shown_where_it_is_asked_for(fed: Any, capsys: pytest.CaptureFixture[str]):
    config = fc.fedavg(rounds=2, training=QUICK)
    fc.run(config, fed)
    assert capsys.readouterr().out == ""
    fc.run(config, fed, progress=True)
    assert "fedavg, seed 0" in capsys.readouterr().out


# what a notebook shows


@pytest.mark.slow
def test_data_and_a_federation_are_shown_in_a_few_words(digits: fc.Dataset):
    data = "Dataset: 1,797 examples of shape (1, 8, 8), float32; 10 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    assert repr(digits) == data
    fed = fc.federate(digits, fc.dirichlet(0.5), devices=8, net=[fc.mlp(6), fc.cnn()], name="digits", hostile=0.2)
    nets = "mlp(widths=(6,)) and cnn(maps=(8, 16), kernel=3, padding='same', hidden=(32,), size=0)"
    assert repr(fed) == f"digits: 8 devices by dirichlet(alpha=0.5), {nets}\n{data}\nThreats(hostile=0.2)"
    own = fc.from_arrays(np.zeros((40, 3)), np.arange(40) % 20, device=["a", "b"] * 20)
    shown = "Dataset: 40 examples of shape (3,), float64; 20 classes (0, 1, 2, ..., 19); 2 devices"
    assert repr(own) == shown
    divided = fc.federate(own, fc.by_device(), net=fc.net(Linear))
    assert repr(divided) == f"data: by_device(), Linear()\n{shown}"


@pytest.mark.slow
def test_results_are_shown_by_their_accuracies():
    fed = federation()
    found = fc.compare([fc.local_only(), fc.fedavg(rounds=2), fc.ensemble(), fc.majority()], fed)
    last = {split: [*accuracies(found.results[1].table, split).values()] for split in ("test", "shared")}
    own, shared = (f"{np.mean(each):.1%} right, worst device {min(each):.1%}" for each in last.values())
    shown = f"Result of fedavg, seed 0, rounds: 2; own test {own}; shared test {shared}"
    assert repr(found.results[1]) == shown
    lines = repr(found).splitlines()
    assert lines[:-6] == str(found.answer).splitlines()
    assert lines[-6].endswith("all send all receive")
    assert [line.split()[0] for line in lines[-5:]] == found.summary["method"].tolist()
    assert found.summary["method"].tolist()[-2:].count("majority_per_device") == 1  # nobody asked for it
    one, _, several, *_ = (result.models["a"] for result in found.results)
    assert repr(one) == "DeployedModel: mlp(widths=(5, 4)), 64 parameters"
    assert repr(several) == "DeployedModel: 3 nets like mlp(widths=(5, 4)), 192 parameters"


# names


@pytest.mark.parametrize("name", [*METHODS, *PARTITIONS, *sorted(set(NETS))])
@pytest.mark.slow
def test_every_method_way_and_net_is_a_function_of_the_package(name: str):
    made = getattr(fc, name)
    assert made.__name__ == name
    assert name in dir(fc)
    assert made.__doc__
    made()
    settings = inspect.signature(made).parameters
    if name in METHODS:
        assert list(settings) == [*settings_of(builder(name), CONTEXT), "training", "label"]
        assert made().settings == {key: setting.default for key, setting in list(settings.items())[:-2]}


def test_names_are_imported_from_where_editors_look_for_them():
    tree = ast.parse((ROOT / "fedcore" / "__init__.py").read_text())
    (checking,) = (node for node in tree.body if isinstance(node, ast.If))
    assert all(isinstance(node, ast.ImportFrom) for node in checking.body)
    seen = {one.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for one in node.names}
    assert seen == fc._PLACE
    assert all(getattr(fc, name) is not None for name in fc.__all__)


@pytest.mark.parametrize("name", fc._CALLED)
def test_functions_of_the_package_can_go_to_another_process(name: str):
    function = getattr(fc, name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.slow
def test_nets_learn_their_shape_from_the_data_and_take_turns(digits: fc.Dataset):
    fed = fc.federate(digits, devices=4, net=[fc.mlp(6), fc.net(Linear)])
    shapes = [nets.shapes(device.net) for device in fed.federation().devices.values()]
    assert shapes[0] == shapes[2] != shapes[1] == shapes[3]
    assert shapes[1] == {"1.weight": (10, 64), "1.bias": (10,)}


class Linear(torch.nn.Sequential):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), classes))


@pytest.mark.slow
def test_own_arrays_become_a_dataset():
    rng = np.random.default_rng(0)
    labels = rng.choice(["low", "high"], 60)
    data = fc.from_arrays(rng.normal(size=(60, 3)), labels, device=[f"site {i % 3}" for i in range(60)])
    assert data.classes == ("high", "low")
    assert (data.train.y.numpy() == (labels == "low")).all()
    result = fc.run(fc.fedavg(), fc.federate(data, fc.by_device(), net=fc.mlp(4)))
    assert sorted(result.models) == ["site 0", "site 1", "site 2"]
    for wrong in ({"y": labels[:5]}, {"x": np.full((60, 3), np.nan)}, {"device": ["a"]}):
        with pytest.raises(fc.InputError, match="from_arrays: "):
            fc.from_arrays(**{"x": np.zeros((60, 3)), "y": labels, **wrong})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0.0, np.nan, 1.0], r"y\[1\] = nan: a label is missing"),
        ([0, 1, -1], r"y\[2\] = -1: a label is missing"),
        (np.array(["a", None, "b"], object), r"y\[1\] = None: a label is missing"),
    ],
)
def test_what_is_no_class_is_refused_by_its_place(labels: Any, words: str):
    with pytest.raises(fc.InputError, match=f"^from_arrays: {words}"):
        fc.from_arrays(np.zeros((3, 2)), labels)


def test_equal_numbers_of_other_types_name_one_device():
    assert fc.from_arrays(np.zeros((3, 2)), [0, 1, 0], device=[5, 7, 5.0]).device == ("5", "7", "5")
    given = [SimpleNamespace(a=1), True, 1]  # the first cannot be hashed
    assert fc.from_arrays(np.zeros((3, 2)), [0, 1, 0], device=given).device == ("namespace(a=1)", "True", "1")


def test_whole_numbers_of_any_kind_are_classes():
    assert fc.from_arrays(np.zeros((3, 2)), [1.0, 3.0, 1.0]).classes == ("1.0", "3.0")
    x = torch.arange(6.0).view(3, 2)
    for given in (x.clone().requires_grad_(), x.bfloat16(), x.to_sparse(), x.half()):
        assert torch.equal(fc.from_arrays(given, torch.tensor([1, 3, 1])).train.x, x)
    assert fc.from_arrays(x, [1, 3, 1], device=torch.tensor([5, 7, 5])).device == ("5", "7", "5")
    short = torch.tensor([0, 2], dtype=torch.int32)
    assert fc.Data(torch.zeros(2, 4), short).y.dtype == torch.int64


@pytest.mark.parametrize("several", [False, True])
def test_a_test_set_and_parts_of_ones_own_are_kept(several: bool):
    x, y = np.arange(40.0).reshape(20, 2), [*"ab"] * 10
    kind = (lambda of: {"one": of, "two": of[:, :1]}) if several else (lambda of: of)
    data = fc.from_arrays(
        kind(x[:16]), y[:16], test=(kind(x[16:]), y[16:]), device=[*"uv"] * 8, split=["train"] * 10 + ["test"] * 6
    )
    assert (len(data.train), data.split[9:11], data.classes) == (16, ("train", "test"), ("a", "b"))
    assert data.test.x[:, :2].tolist() == x[16:].tolist()
    assert data.test.y.tolist() == [0, 1, 0, 1]


def test_places_of_ones_own_divide_any_dataset(digits: fc.Dataset):
    held = {"a": {"train": range(40), "test": [40, 41, 42]}, "b": {"train": [50, 44], "val": [45], "test": [46]}}
    fed = fc.federate(fc.with_devices(digits, held), fc.by_device(), min_size=1, shared_test=0.3, net=fc.mlp(4))
    own = fed.federation().devices["b"].data
    assert own.train.x.flatten(1).tolist() == digits.train.x[[50, 44]].flatten(1).tolist()
    assert own.val.y.tolist() == digits.train.y[[45]].tolist()
    plain = fc.federate(fc.with_devices(digits, {"a": range(30), "b": range(30, 70)}), fc.by_device(), min_size=1)
    assert plain.counts().filter(like="n_").sum(axis=1).sum() + len(plain.federation().test) == 70


class Words(torch.nn.Module):
    """A bag of words: the class is the word that all places of an example have."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.words, self.out = torch.nn.Embedding(256, 8), torch.nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.int64
        return self.out(self.words(x).mean(1))


@pytest.mark.slow
def test_numbers_of_words_reach_an_embedding_as_they_are():
    y = np.arange(120) % 3
    x = np.repeat((y * 100 + 7)[:, None], 5, 1).astype(np.uint8)
    fed = fc.federate(fc.from_arrays(x, y), fc.iid(), devices=3, net=fc.net(Words))
    assert sorted(fed.federation().devices["device-00"].data.train.x.unique().tolist()) == [7, 107, 207]
    result = fc.run(fc.fedavg(rounds=2, training={"epochs": 5}), fed, progress=False)
    assert (result.models["device-00"].predict(x) == y).all()
    pixels = fc.federate(fc.from_arrays(x, y), fc.iid(), devices=3, net=fc.mlp(4)).federation()
    assert pixels.devices["device-00"].data.train.inputs().max() <= 1


@pytest.mark.slow
def test_a_model_takes_the_numbers_that_it_learnt():
    """Bytes are divided by 255: the same numbers of another type must be as well, or be refused."""
    y = np.arange(60) % 2
    x = np.random.default_rng(0).integers(0, 256, (60, 4)).astype(np.uint8)
    given, learnt = x.copy(), {}
    for kind in (np.uint8, np.float32):
        fed = fc.federate(fc.from_arrays(given.astype(kind, copy=False), y), fc.iid(), devices=2, net=fc.mlp(4))
        learnt[kind] = fc.run(fc.fedavg(training=QUICK), fed, progress=False).models["device-00"].probabilities
        given[:] = 0  # the caller's
        assert fed.dataset.train.x.max() > 0
        given[:] = x
    as_bytes, as_numbers = learnt[np.uint8], learnt[np.float32]
    assert (as_bytes(x.astype(np.int64)) == as_bytes(x)).all()
    assert (as_bytes(x.tolist()) == as_bytes(x)).all()
    assert (as_numbers(x) == as_numbers(x.astype(np.float64))).all()
    for wrong in (x.astype(np.float32), x.astype(np.int64) + 200):
        with pytest.raises(fc.InputError, match=r"predict: x is \w+, but the model learnt bytes, 0 to 255; give uint8"):
            as_bytes(wrong)
    with pytest.raises(fc.InputError, match="predict: x has values that are not finite numbers"):
        as_numbers(np.full((1, 4), np.nan))


@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_an_error_in_a_step_names_method_device_and_round(workers: int | None):
    def divides(batch: fc.Batch) -> torch.Tensor:
        return batch.logits.sum() * (1 // (1 - batch.round))

    rows = fc.fedavg(rounds=2, training={"epochs": 1, "lr": 1e-6, "loss": divides}, label="mine")
    with pytest.raises(ZeroDivisionError) as error:
        fc.run(rows, federation("abc"), workers=workers, progress=False)
    notes = "\n".join(error.value.__notes__)
    assert re.search("in fedcore.core.training:train: device [abc], round 2 of stage 1", notes)
    assert "in method mine, seed 0" in notes


# refusals


def test_whole_numbers_beyond_int64_are_not_negative():
    assert fc.from_arrays(np.array([[2**63 + 2048], [1]], np.uint64), [0, 1]).train.x.tolist() == [
        [2.0**63 + 2048],
        [1],
    ]


def test_a_model_refuses_examples_that_its_net_cannot_take():
    model = fc.run(fc.local_only(), federation()).models["a"]
    one = next(iter(federation().devices.values())).data.test.x[0]
    for wrong in (one, torch.zeros(2, 99), np.full((1, *one.shape), "a")):
        with pytest.raises(fc.InputError, match=r"^predict: x has the shape .* must be numbers of shape \(N, \d+\)$"):
            model.predict(wrong)


def shrunk(*, training: fc.Training, factor: float) -> fc.Method:
    """Only its settings are read."""
    raise NotImplementedError


FRAME = pd.DataFrame({"u": [0.0, 1.0], "v": [2.0, 3.0]})
REFUSED: dict[str, tuple[Callable[[fc.Dataset], Any], str]] = {
    "value": (lambda data: fc.code_ot(reg=-1), "code_ot.reg = -1: must be above 0"),
    "key": (lambda data: fc.code_ot(regg=1), "code_ot.regg: no such key; did you mean reg? (allowed: rounds, "),
    "key of an own method": (
        lambda data: fc.method(shrunk, factr=0.5),
        "shrunk.factr: no such key; did you mean factor? (allowed",
    ),
    "near": (lambda data: fc.code_ot(regg=1), "; did you mean reg?"),
    "of a dataclass": (lambda data: fc.st_lf(pair_lr=0), "st_lf.pair_lr = 0: "),
    "training": (lambda data: fc.fedavg(training={"lr": -1}), "fedavg.training.lr = -1: "),
    "training as a value": (lambda data: fc.fedavg(training=fc.Training(batch=0)), "fedavg.training.batch = 0: "),
    "training's key": (lambda data: fc.fedavg(training={"epoch": 1}), "did you mean epochs?"),
    "training's type": (lambda data: fc.fedavg(training=3), "fedavg.training = 3: must be a Training, or a dict of "),
    "init": (lambda data: fc.fedavg(training={"shared_init": "same"}), "fedavg.training.shared_init = 'same': "),
    "method": (lambda data: fc.method("fedavgg"), "did you mean fedavg?"),
    "own method": (lambda data: fc.method("nowhere:median"), "method: 'nowhere:median' cannot be imported"),
    "net": (lambda data: fc.mlp(0), "mlp.widths.0 = 0: "),
    "net's key": (lambda data: fc.lenet(widht=2), "lenet.widht: no such key; did you mean width? (allowed: width)"),
    "way": (lambda data: fc.dirichlet(-1), "dirichlet.alpha = -1: "),
    "way's position": (lambda data: fc.dirichlet(1, 2, 3), "dirichlet: takes 2 settings by position, has 3"),
    "twice": (lambda data: fc.dirichlet(1, alpha=2), "dirichlet.alpha: is given twice"),
    "a place twice": (lambda data: fc.with_devices(data, {"a": [1, 2], "b": [2]}), "example 2 is named more than once"),
    "no place": (lambda data: fc.with_devices(data, {"a": [1, -2]}), "-2: not a row number of 1797 examples"),
    "no whole place": (lambda data: fc.with_devices(data, {"a": [1, 3.7]}), "with_devices: 3.7: not a row number; "),
    "a mask": (lambda data: fc.with_devices(data, {"a": np.array([True, False])}), "True: not a row number; of a mask"),
    "masked": (lambda data: fc.with_devices(data, {"a": np.ma.masked_equal([1, 2], 2)}), "with_devices: a has masked "),
    "places in rows": (lambda data: fc.with_devices(data, {"a": [[1], [2]]}), "with_devices: [1]: not a row number; "),
    "no rows": (lambda data: fc.with_devices(data, {"a": [1], "b": []}), "with_devices: b has no row number; "),
    "no rows of a part": (lambda data: fc.with_devices(data, {"b": {"val": []}}), "with_devices: b has no row number"),
    "no part": (lambda data: fc.with_devices(data, {"a": {"tran": [1]}}), "the parts of a must be among train, val"),
    "split": (
        lambda data: fc.from_arrays([[1.0]] * 2, [0, 1], split=["train", "tset"]),
        "from_arrays.split: must name one of train, val, test for each",
    ),
    "masked split": (
        lambda data: fc.from_arrays([[1.0]] * 2, [0, 1], split=np.ma.masked_equal(["train", "test"], "test")),
        "from_arrays.split: must name one of train, val, test for each of the examples, in a list",
    ),
    "split to come": (lambda data: fc.from_arrays([[1.0]], [0], split=iter(["train"])), "from_arrays.split: must name"),
    "sparse": (lambda data: fc.from_arrays(csr_array(np.eye(2)), [0, 1]), "x has the type csr_array, must be an array"),
    "no x": (lambda data: fc.from_arrays(None, [0, 1]), "from_arrays: x has the type NoneType, must be an array (N"),
    "y to come": (
        lambda data: fc.from_arrays(FRAME, iter([0, 1])),
        "must be an array (N, ...) of equal rows; give a list of it",
    ),
    "test alone": (
        lambda data: fc.from_arrays(FRAME, [0, 1], test=(FRAME,)),
        "from_arrays.test: must be inputs and la",
    ),
    "devices by key": (lambda data: fc.from_arrays(FRAME, [0, 1], device={0: "a", 1: "b"}), "device is a dict; give"),
    "devices in a column": (
        lambda data: fc.from_arrays(FRAME, [0, 1], device=np.array([["a"], ["b"]])),
        "from_arrays: device has rows of names; give the name of each example's device, as device[:, 0]",
    ),
    "masked device": (
        lambda data: fc.from_arrays(FRAME, [0, 1], device=np.ma.masked_equal([1, 2], 2)),
        "from_arrays: device[1] = masked: a device is missing",
    ),
    "test's type": (
        lambda data: fc.from_arrays(np.zeros((4, 2)), [0, 1] * 2, test=(np.zeros((1, 2), np.uint8), [0])),
        "from_arrays.test: its inputs must be those of x, in names, shapes and types",
    ),
    "test's order": (
        lambda data: fc.from_arrays(FRAME, [0, 1], test=(FRAME[["v", "u"]], [0])),
        "from_arrays.test: its inputs must be those of x, in names, shapes and types",
    ),
    "pandas' NA": (
        lambda data: fc.from_arrays(FRAME, pd.array(["a", None], "string")),
        "y[1] = None: a label is missi",
    ),
    "NA among numbers": (
        lambda data: fc.from_arrays(FRAME.assign(w=pd.array([1, None], "Int64")), [0, 1]),
        "x has values that are not finite numbers",
    ),
    "dates among numbers": (
        lambda data: fc.from_arrays(FRAME.assign(w=pd.Timestamp(0)), [0, 1]),
        "x has cells that are no numbers: ",
    ),
    "NA as device": (
        lambda data: fc.from_arrays(FRAME, [0, 1], device=pd.array(["a", None], "string")),
        "device[1] = None: a device is missing",
    ),
    "a frame of devices": (lambda data: fc.from_arrays(FRAME, [0, 1], device=FRAME[["u"]]), "device names 1 of 2 exa"),
    "test's label": (
        lambda data: fc.from_arrays(np.zeros((4, 2)), [*"abab"], test=(np.zeros((1, 2)), ["c"])),
        "from_arrays.test: label 'c' is in no other example",
    ),
    "a column": (
        lambda data: fc.from_arrays(np.zeros((2, 2)), [[0], [1]]),
        "y (2, 1) is a column: give y[:, 0]; task=",
    ),
    "one-hot": (lambda data: fc.from_arrays(np.zeros((3, 2)), np.eye(3)), "exactly one 1, as classes are written for"),
    "two types": (lambda data: fc.from_arrays(np.zeros((2, 2)), np.array([1, "b"], object)), "types, int and str; "),
    "text nan": (lambda data: fc.from_arrays(np.zeros((2, 2)), ["a", "nan"]), "y[1] = 'nan': a label is missing"),
    "no device": (
        lambda data: fc.from_arrays(np.zeros((2, 2)), [0, 1], device=["a", np.nan]),
        "device[1] = nan: a device is missing",
    ),
    "no way": (lambda data: fc.federate(data, 0.5), "federate.partitioner = 0.5: must be one of iid, dirichlet, "),
    "federation": (lambda data: fc.federate(data, device=3), "did you mean devices?"),
    "federation's value": (lambda data: fc.federate(data, val=2), "federate.val = 2: "),
    "scale": (lambda data: fc.federate(data, scale="all"), "federate.scale = 'all': "),
    "data": (lambda data: fc.load("digit"), "did you mean digits? allowed: "),
    "two of a name": (
        lambda data: fc.compare([fc.fedavg(), fc.fedavg(rounds=2)], fc.federate(data)),
        "compare: two methods are called 'fedavg'; give one of them another label",
    ),
    "no methods": (lambda data: fc.compare([], fc.federate(data)), "compare: needs a list of at least one method"),
    "no list": (lambda data: fc.compare(fc.fedavg(), fc.federate(data)), "compare: needs a list of at least one"),
    "no federation": (lambda data: fc.compare([fc.fedavg()], data), "compare.fed: Dataset is not a federation"),
    "no federation to run on": (lambda data: fc.run(fc.fedavg(), data), "run.fed: Dataset is not a federation"),
    "a seed twice": (lambda data: fc.compare([fc.fedavg()], fc.federate(data), seeds=[0, 0]), "compare.seeds = [0, 0]"),
    "a text as seed": (lambda data: fc.run(fc.fedavg(), fc.federate(data), seed="0"), "run: a seed must be a whole"),
    "names that merge": (
        lambda data: fc.with_devices(data, {1: [0], "1": [1]}),
        "from_arrays: device: 1 and '1' would be one device",
    ),
    "one seed": (lambda data: fc.compare([fc.fedavg()], fc.federate(data), seeds=3), "compare.seeds = 3: "),
    "no dataset": (lambda data: fc.federate("digits"), "federate.dataset = 'digits': "),
    "no net": (lambda data: fc.federate(data, net=fc.mlp), "federate.net = mlp: must be a net with its settings"),
    "net's name": (lambda data: fc.federate(data, net="mlp"), "federate.net = 'mlp': "),
    "no method": (
        lambda data: fc.run(fc.fedavg, fc.federate(data)),
        "run: fedavg is not a method with settings, such as fedavg(rounds=10) or method(my_builder, ...)",
    ),
    "no method after one": (
        lambda data: fc.compare([fc.fedavg(), shrunk], fc.federate(data)),
        "compare: shrunk is not a method with settings",
    ),
    "gate": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), valid=[fc.Gate("lmf > 0.2", "at chance")]),
        "compare.valid: 'lmf > 0.2' names 'lmf', which is not compared",
    ),
    "claim": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), claims=["fedavg > lmf"]),
        "compare.claims: 'fedavg > lmf' names 'lmf', which is not compared",
    ),
    "ceiling": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), ceiling=99.5),
        "compare.ceiling = 99.5: must be at most 1, or must be 'auto'",
    ),
    "min_effect": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), min_effect=1),
        "min_effect = 1: must be a fraction",
    ),
    "costs": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), metric="cost", costs=50),
        """compare.costs = 50: must be a valid dictionary, for example costs={"yes": {"no": 50}, "no": {"yes": 1}}""",
    ),
    "every": (
        lambda data: fc.run(fc.fedavg(), fc.federate(data), every=0),
        "run.every = 0: must be at least 1",
    ),
    "workers": (
        lambda data: fc.compare([fc.fedavg()], fc.federate(data), workers=0),
        "compare.workers = 0: must be at least 1",
    ),
    "with these nets": (
        lambda data: fc.run(fc.fedavg(), fc.federate(data, devices=4, net=[fc.mlp(3), fc.mlp(4)])),
        "needs equal nets",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.slow
def test_a_wrong_setting_is_refused_in_one_line_that_names_it(case: str, digits: fc.Dataset):
    ask, says = REFUSED[case]
    with pytest.raises(fc.InputError) as caught:
        ask(digits)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_builder_must_return_a_method(digits: fc.Dataset):
    def number(*, rounds: int = 1) -> int:
        return rounds

    fed = fc.federate(digits, fc.iid(), devices=2, net=fc.mlp(4))
    with pytest.raises(fc.InputError, match=rf"^{__name__}:.*number: must return a Method, returned int "):
        fc.run(fc.method(number), fed, progress=False)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'fedavgg'"):
        _ = fc.fedavgg


# what is imported, and found


def said(code: str, *paths: Path) -> str:
    """Return what a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, check=True, cwd=paths[0],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
def test_dir_lists_public_names_alone_and_each_is_there():
    out = said("import fedcore as fc; print(*dir(fc)); [getattr(fc, name) for name in dir(fc)]", ROOT)
    assert set(out.split()) == {*fc.__all__, *METHODS, *PARTITIONS, *NETS}


def test_the_package_alone_imports_no_library():
    out = said("import sys, fedcore; print({'torch', 'numpy', 'pandas', 'pydantic', 'rich'} & {*sys.modules})", ROOT)
    assert out == "set()\n"


@pytest.mark.slow
def test_a_worker_imports_neither_pandas_nor_pydantic(fed: Any):
    method = fc.fedavg(rounds=1, training=QUICK).build(fed.federation().public.nets)
    with Workers(1) as workers:
        assert len(list(rounds(method, fed.federation(), 0, workers))) == 1
        loaded = workers.call(eval, "{name.partition('.')[0] for name in __import__('sys').modules}")
    assert "fedcore" in loaded
    assert not {"pandas", "pydantic", "matplotlib", "rich", "cvxpy"} & loaded


THROWAWAY = '''
from functools import partial

import fedcore as fc
from fedcore.core.messages import received_model

__all__ = ["throwaway", "thrown"]


def throwaway(*, training, rounds: fc.Count = 2):
    """Send nothing."""
    stage = fc.Stage(partial(fc.train, training=training), None)
    return fc.Method(partial(fc.initial_messages, shared_init=True), (stage,), received_model)


@fc.control
def thrown(*, training):
    """Do the same."""
    return throwaway(training=training)
'''


@pytest.mark.slow
def test_a_file_is_enough_for_methods_to_be_found(tmp_path: Path):
    shutil.copytree(ROOT / "fedcore", tmp_path / "fedcore", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "fedcore" / "methods" / "baselines" / "bin.py").write_text(THROWAWAY)
    code = "import fedcore as fc; from fedcore.methods import METHODS, builder; "
    code += "print(fc.throwaway(rounds=3).settings, len(METHODS), hasattr(builder('thrown'), 'control'))"
    assert said(code, tmp_path) == f"{{'rounds': 3}} {len(METHODS) + 2} True\n"


def test_both_dirichlet_partitions_take_alpha_first():
    assert fc.dirichlet(0.3).settings["alpha"] == fc.device_dirichlet(0.3).settings["alpha"] == 0.3
