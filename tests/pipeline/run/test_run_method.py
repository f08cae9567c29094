"""What a run of one method tells."""

import json
import pickle
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from federations import data, device_of, model

import fedcore as fc
from fedcore.core.evaluation import outputs
from fedcore.data import Dataset
from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.types.federation import Data
from fedcore.types.method import Model, Report, Threshold

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.core.metrics import METRICS
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.pipeline.run.partitions import require_two
from fedcore.pipeline.run.run_method import (
    choose_threshold,
    leader_of,
    name_classes,
    prepared_bytes,
    save_metrics,
    summary_line,
)
from fedcore.pipeline.run.step_functions import distribute, score_validation
from fedcore.results.criterion import Criterion


def test_a_warning_names_the_classes_of_the_data(tmp_path: Path):
    store = Store(tmp_path)
    data: Any = store.put(Dataset(Data(torch.zeros(2, 1), torch.tensor([0, 1])), None, ("leak", "worn")))
    told = [Report(words={"warning": "nobody has {1}"})]
    assert name_classes(store, PreparedData(data, data), told) == [Report(words={"warning": "nobody has 'worn'"})]
    assert name_classes(store, PreparedData(None, None), [Report()]) == [Report()]  # type: ignore[arg-type]


def test_progress_and_metrics_count_the_devices_of_the_table(tmp_path: Path):
    """Device c has 5 test rows, fewer than 20: own tests are 0.7 on average, where all three would have 0.5."""
    scores, sizes = {"a": 0.6, "b": 0.8, "c": 0.1}, {"a": 30, "b": 90, "c": 5}
    rows = [(name, "test", "accuracy", value) for name, value in scores.items()]
    rows += [(name, "data", "test_examples", size) for name, size in sizes.items()]
    rows += [(name, "data", "test_classes", 2) for name in sizes]
    rows += [(name, "shared", "accuracy", 0.5) for name in sizes]
    table = pd.DataFrame(rows, columns=["device", "split", "metric", "value"]).assign(
        study="s", dataset="d", setting="base", method="fedavg", seed=0, stage=0, round=1
    )
    row = SimpleNamespace(label="fedavg")
    result: Any = SimpleNamespace(table=table, metric=METRICS["accuracy"], name="x", steps=(), validation=0.5, row=row)
    line = summary_line(result, Criterion(least_test=20))
    assert line.split("x ", 1)[1].strip().startswith("own test 0.700 (worst 0.600), shared test 0.500 (worst 0.500)")
    assert "own test 0.750" in summary_line(result, Criterion(least_test=20, weigh="examples"))
    led = leader_of(result, Criterion(least_test=0))
    assert led is not None
    assert led.test == METRICS["accuracy"].value(0.5)
    result.criterion = Criterion(least_test=20)
    save_metrics([result], tmp_path / "metrics.json", tmp_path / "curves.csv")
    assert json.loads((tmp_path / "metrics.json").read_text())["base: fedavg"]["test_mean"] == 0.7
    assert pd.read_csv(tmp_path / "curves.csv").query("split == 'test'")["accuracy"].tolist() == pytest.approx([0.7])


@pytest.mark.parametrize("scale", ["none", "common"])
def test_the_pipeline_prepares_and_counts_as_a_script_does(tmp_path: Path, scale: Any):
    digits = fc.load("digits")
    fed = fc.federate(digits, devices=4, scale=scale)
    held, shared, server = distribute(digits, fed.partition(), scale=scale)
    for name, device in fed.federation().devices.items():
        for part in ("train", "val", "test"):
            assert torch.equal(getattr(held[name], part).x, getattr(device.data, part).x)
    assert torch.equal(shared.x, fed.federation().test.x)
    assert not len(server)
    store = Store(tmp_path)
    prepared: Any = PreparedData(store.put(digits), store.put(fed.partition()))
    counted = prepared_bytes(store, prepared, scale)
    rows = fc.run(fc.majority(), fed).table.set_index("metric")
    assert counted == ({"prepare_up": 8 + 16 * 64, "prepare_down": 16 * 64} if scale == "common" else {})
    for metric, value in counted.items():
        assert rows.loc[metric, "value"].tolist() == [value] * 4


def test_validation_rows_of_all_devices_are_scored_by_their_own_models():
    devices = {name: device_of(name) for name in "ab"}
    models = {name: Model((model(name),)) for name in devices}
    found = score_validation(models, devices, positive=2)
    expected = [outputs(models[name], of.net, of.data.val.x).exp()[:, 2] for name, of in devices.items()]
    assert torch.equal(found["scores"], torch.cat(expected))
    assert torch.equal(found["positive"], torch.cat([of.data.val.y for of in devices.values()]) == 2)
    none = {name: replace(of, data=replace(of.data, val=data(0))) for name, of in devices.items()}
    assert [len(part) for part in score_validation(models, none, positive=2).values()] == [0, 0]


def test_costs_choose_the_threshold_that_probabilities_would():
    """A missed fault costs nine alarms: of calibrated rows those with a probability of .1 and more."""
    setting = SimpleNamespace(threshold="fault", scoring={"costs": {"fault": {"ok": 9.0}, "ok": {"fault": 1.0}}})
    result: Any = SimpleNamespace(setting=setting, metric=METRICS["cost"])
    scores = torch.tensor([0.05, 0.15, 0.4]).repeat_interleave(100)
    positive = torch.cat([torch.arange(100) < count for count in (5, 15, 40)])
    found = choose_threshold(result, {"scores": scores, "positive": positive}, ("fault", "ok"))
    assert found == Threshold("fault", scores[100].item())
    nothing = {"scores": scores, "positive": torch.zeros(300, dtype=torch.bool)}
    assert choose_threshold(result, nothing, ("fault", "ok")) is None


def test_a_threshold_is_for_one_of_two_classes():
    require_two(("fault", "ok"), "ok")
    with pytest.raises(InputError, match=r"^run.threshold = 'validation': is for data of two classes; these have 3$"):
        require_two(("a", "b", "c"), "a")
    with pytest.raises(InputError, match=r"^run.positive = 'falt'.*did you mean fault\?"):
        require_two(("fault", "ok"), "falt")


def test_a_result_is_sent_without_what_it_has_computed_of_itself():
    """Else a thread that computes it, while another pickles the result, changes what is pickled."""
    nothing: Any = None
    result = Result(*[nothing] * 13)
    result.__dict__["digest"] = "found"
    sent = pickle.loads(pickle.dumps(result))
    assert sent.__dict__.keys() == {one.name for one in fields(Result)}
    assert sent == result
