"""The record in MLflow: a run per method, seed and configuration, with all results, and a proposed model."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from project import METHODS
from scenarios import Killed, Repro, Tables

from fedcore.core.evaluation import outputs
from fedcore.errors import InputError
from fedcore.execute.threads import one_thread
from fedcore.nets import net
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.record.contents import read_device_table

FUSED = ("lmf", "code_ot")
CANDIDATES = {"local_only", "fedavg_3", "lmf", "code_ot"}
DEVICES = [f"device-{i:02d}" for i in range(4)]

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore:.*Any type hint:UserWarning",  # of MLflow, about its own types
)


@pytest.fixture(scope="module")
def client(repro: Repro) -> Iterator[Any]:
    """A client of the record as it was after the first `dvc repro`."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{repro.runs}")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(client: Any) -> dict[str, Any]:
    """The runs by method; the study's own under its title."""
    experiment = client.get_experiment_by_name("fedcore")
    found = client.search_runs([experiment.experiment_id])
    assert len(found) == len(METHODS) + 1
    return {run.data.tags.get("fedcore.method", "study"): run for run in found}


@pytest.fixture(scope="module")
def table(repro: Repro) -> pd.DataFrame:
    return pd.read_parquet(outs(repro) / "table.parquet")


def outs(repro: Repro) -> Path:
    """The first results, which the clone holds."""
    return repro.clone.project.folder / "pipeline" / "federate" / "code" / "code-0"


def points(database: Path, run: Any) -> dict[tuple[str, int], float]:
    """Return a run's metrics, each written once."""
    query = "select key, step, value, timestamp from metrics where run_uuid = ?"
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute(query, [run.info.run_id]).fetchall()
    assert len({(key, step) for key, step, _, _ in rows}) == len(rows)
    assert all(time == run.info.start_time + step for _, step, _, time in rows)
    return {(key, step): value for key, step, value, _ in rows}


def artifact(run: Any, path: str) -> Path:
    return Path(urlparse(run.info.artifact_uri).path) / path


# runs


def test_a_run_per_method_under_a_parent_per_study(runs: dict[str, Any]):
    assert set(runs) == {*METHODS, "study"}
    parent = runs["study"]
    assert parent.info.run_name == "code (small)"
    for label in METHODS:
        assert runs[label].data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert runs[label].info.run_name == f"{label} seed 0"
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_a_run_has_tags_that_describe_it(runs: dict[str, Any], repro: Repro):
    found = json.loads((outs(repro) / "runs.json").read_text())
    for one in found:
        tags = runs[one["method"]].data.tags
        assert tags["fedcore.config"] == one["config"]
        assert (tags["fedcore.study"], tags["fedcore.setting"], tags["fedcore.size"]) == ("code", "base", "small")
        assert (tags["fedcore.seed"], tags["fedcore.dataset"]) == ("0", "digits")
        assert tags["fedcore.kind"] == ("control" if one["method"] == "best_local" else "method")
        assert re.fullmatch("[0-9a-f]{40}", tags["fedcore.partition"])
    assert len({one["config"] for one in found}) == len(METHODS)


def test_a_runs_parameters_are_all_its_settings(runs: dict[str, Any], repro: Repro):
    params = yaml.safe_load((repro.clone.project.folder / "params.yaml").read_text())
    for label, row in METHODS.items():
        found = runs[label].data.params
        assert found["method"] == row.get("method", label)
        assert found["federation.alpha"] == str(params["federation"]["alpha"])
        assert json.loads(found["net.widths"]) == params["net"]["widths"]
        training = {**params["training"], **row.get("training", {})}
        assert {key: found[f"training.{key}"] for key in training} == {
            key: json.dumps(value).strip('"') for key, value in training.items()
        }
        own = {**params.get(found["method"], {}), **row}
        assert {key: found[key] for key in own if key not in ("method", "training")} == {
            key: str(value) for key, value in own.items() if key not in ("method", "training")
        }


def test_every_number_of_the_table_is_beside_its_run(runs: dict[str, Any], table: pd.DataFrame):
    """All rounds as a table; the devices' last numbers as a table that MLflow shows."""
    for label in METHODS:
        mine = table[table["method"] == label].reset_index(drop=True)
        pd.testing.assert_frame_equal(pd.read_parquet(artifact(runs[label], "table.parquet")), mine)
        devices = read_device_table(artifact(runs[label], "devices.json").read_bytes())
        assert json.loads(runs[label].data.tags["mlflow.loggedArtifacts"]) == [
            {"path": "devices.json", "type": "table"}
        ]
        assert sorted(devices.index) == DEVICES
        last = mine[mine["round"] == mine["round"].max()]
        for device, split, metric, value in last[["device", "split", "metric", "value"]].itertuples(index=False):
            assert devices.loc[device, f"{split}.{metric}"] == pytest.approx(value, rel=1e-12, nan_ok=True)


def test_headline_numbers_are_metrics_at_each_round(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    """Mean, spread and worst device of the accuracies; means of the other numbers."""
    prefix = {"test": "", "shared": "shared_", "val": "validation_"}
    for label in METHODS:
        found = points(repro.runs, runs[label])
        mine = table[(table["method"] == label) & table["value"].notna() & (table["split"] != "traffic")]
        assert len(mine) > 0
        for (split, metric, round_info), part in mine.groupby(["split", "metric", "round"]):
            key = f"{prefix[split]}{metric}" if split in prefix else f"topic/{split}.{metric}"
            assert found[key, round_info] == pytest.approx(part["value"].mean(), rel=1e-12)
            if metric == "accuracy":
                spread = part["value"].std(ddof=0)
                assert found[f"{key}_std", round_info] == pytest.approx(spread, rel=1e-9, abs=1e-12)
                assert found[f"{key}_worst", round_info] == part["value"].min()
        assert not [key for key, _ in found if "device-" in key]


def test_repeated_rounds_are_a_curve(runs: dict[str, Any], repro: Repro):
    found = points(repro.runs, runs["fedavg_3"])
    assert {step for key, step in found if key == "validation_accuracy"} == {1, 2, 3}
    assert len({found["shared_loss", step] for step in (1, 2, 3)}) == 3


def test_bytes_and_seconds_are_recorded(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    for label in METHODS:
        found = points(repro.runs, runs[label])
        sent = table[(table["method"] == label) & (table["metric"] == "bytes_up")]
        turns = int(sent["round"].max())
        assert found["bytes_up", turns] == sent["value"].sum()
        assert found["bytes_up", 1] == sent[sent["round"] == 1]["value"].sum()
        assert (found["bytes_up", turns] == 0) == (label == "local_only")
        kind = "rounds" if label == "fedavg_3" else "train"
        assert found[f"topic/seconds.{kind}.wall", 0] > 0
        assert found["seconds_cpu", 0] >= found[f"topic/seconds.{kind}.cpu", 0] > 0


def test_the_studys_run_has_the_answer_numbers_page_and_pictures(runs: dict[str, Any], table: pd.DataFrame):
    study = runs["study"]
    note = study.data.tags["mlflow.note.content"]
    assert "**code: base (digits): Cannot say**" in note
    assert "at least two seeds are needed" in note
    assert "| rank | method |" in note
    last = table[(table["metric"] == "accuracy") & (table["split"] == "test")]
    for label in METHODS:
        mine = last[last["method"] == label]
        mine = mine[mine["round"] == mine["round"].max()]["value"]
        assert study.data.metrics[f"accuracy/{label}"] == pytest.approx(mine.mean(), rel=1e-9)
        assert study.data.metrics[f"accuracy_worst/{label}"] == pytest.approx(mine.min(), rel=1e-9)
    assert artifact(study, "report.html").read_text().startswith("<!doctype html>")
    assert artifact(study, "pictures/base.png").read_bytes().startswith(b"\x89PNG")


def test_the_dataset_is_named_by_its_digest(client: Any, runs: dict[str, Any], repro: Repro):
    (path,) = (repro.clone.project.folder / "pipeline" / "data" / "code").glob("*/card.json")
    card = json.loads(path.read_text())
    for label in METHODS:
        ((given),) = runs[label].inputs.dataset_inputs
        assert given.dataset.name == "digits"
        assert given.dataset.digest == card["digest"][:36]
        assert json.loads(given.dataset.profile)["examples"] == 1797
    rows = {run.info.run_id: run.inputs.dataset_inputs for run in client.search_runs([runs["lmf"].info.experiment_id])}
    assert all(rows[runs[label].info.run_id] for label in METHODS)


# what lies beside a run


@pytest.mark.parametrize("label", FUSED)
def test_transport_plans_are_arrays(runs: dict[str, Any], label: str):
    """Each couples the units of two layers: rows and columns sum to even shares."""
    plans = sorted(artifact(runs[label], "arrays/plan").glob("*/*.npy"))
    folds = {path.parent.name for path in plans}
    assert folds <= set(DEVICES)
    assert len(folds) == 3  # one model is the target
    for path in plans:
        plan = np.load(path, allow_pickle=False)
        width = {"h1": 16, "h2": 8}[path.stem]
        assert plan.shape == (width, width)
        np.testing.assert_allclose(plan.sum(0), 1 / width, atol=1e-6)
        np.testing.assert_allclose(plan.sum(1), 1 / width, atol=1e-6)
    solver = {name: np.load(artifact(runs[label], f"arrays/solver/{name}.npy"), allow_pickle=False)
              for name in ("iterations", "violation", "bound")}  # fmt: skip
    assert all(values.shape == (len(plans),) for values in solver.values())
    assert (solver["violation"] <= 1e-7).all()
    assert (solver["iterations"] >= 1).all()
    assert (solver["bound"] > solver["iterations"]).all()


@pytest.mark.parametrize("label", METHODS)
def test_pictures_are_there(runs: dict[str, Any], label: str):
    found = {path.stem for path in artifact(runs[label], "pictures").glob("*.png")}
    assert "devices" in found
    assert ("transport" in found) == (label in FUSED)
    assert ("rounds" in found) == (label == "fedavg_3")
    for name in found:
        content = artifact(runs[label], f"pictures/{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 2000


# models


def stored(repro: Repro, label: str) -> dict[str, str]:
    """The digest of each device's model."""
    models: dict[str, str] = json.loads((outs(repro) / "models.json").read_text())[f"base: {label}"]
    return models


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def expected(repro: Repro, label: str, device: str, x: torch.Tensor) -> pd.DataFrame:
    """The predictions of a device's stored model."""
    params = yaml.safe_load((repro.clone.project.folder / "params.yaml").read_text())
    here = net("mlp", shape=(1, 8, 8), classes=10, widths=params["net"]["widths"])
    model = Store(repro.project.folder / ".fedcore" / "blobs").get(Ref(stored(repro, label)[device], 0))
    with one_thread():
        found = outputs(model, here, x)
    return pd.DataFrame(
        {"label": [str(k) for k in found.argmax(1).tolist()], "probability": found.amax(1).exp().numpy()}
    )


def logged(client: Any, run: Any) -> str:
    (model,) = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    return f"models:/{model.model_id}"


@pytest.mark.parametrize("label", ["fedavg_3", "code_ot", "best_local"])
def test_a_logged_model_predicts_as_the_stored_one(
    client: Any, runs: dict[str, Any], repro: Repro, x: torch.Tensor, label: str
):
    import mlflow

    place = logged(client, runs[label])
    said = mlflow.pyfunc.load_model(place).predict(x.numpy())
    pd.testing.assert_frame_equal(said, expected(repro, label, DEVICES[0], x), check_exact=True)
    info = mlflow.models.get_model_info(place)
    (taken,) = info.signature.inputs.inputs
    assert (taken.shape, taken.type) == ((-1, 1, 8, 8), np.dtype(np.float32))
    assert info.signature.outputs.input_names() == ["label", "probability"]


def test_models_of_devices_that_share_none_predict_by_device(
    client: Any, runs: dict[str, Any], repro: Repro, x: torch.Tensor
):
    import mlflow

    assert len(set(stored(repro, "local_only").values())) == len(DEVICES)
    model = mlflow.pyfunc.load_model(logged(client, runs["local_only"]))
    for device in DEVICES:
        said = model.predict(x.numpy(), params={"device": device})
        pd.testing.assert_frame_equal(said, expected(repro, "local_only", device, x), check_exact=True)
    with pytest.raises(InputError, match="name one of: device-00, device-01"):
        model.predict(x.numpy())


def test_methods_are_registered_once_and_controls_never(client: Any, runs: dict[str, Any]):
    versions = client.search_model_versions("name = 'fedcore-digits'")
    assert sorted(version.tags["fedcore.method"] for version in versions) == sorted(CANDIDATES)
    for version in versions:
        assert version.run_id == runs[version.tags["fedcore.method"]].info.run_id


def test_the_best_on_validation_is_proposed_and_not_promoted(
    client: Any, runs: dict[str, Any], repro: Repro, table: pd.DataFrame
):
    """With one seed nothing is recommended, so that validation decides."""
    assert [*client.get_registered_model("fedcore-digits").aliases] == ["candidate"]
    candidate = client.get_model_version_by_alias("fedcore-digits", "candidate")
    last = table[(table["split"] == "val") & (table["metric"] == "accuracy")]
    last = last[last["round"] == last.groupby("method")["round"].transform("max")]
    means = last.groupby("method")["value"].mean()
    assert candidate.tags["fedcore.method"] == means[sorted(CANDIDATES)].idxmax()
    assert "there is no champion yet" in candidate.tags["fedcore.proposal"]
    for run in json.loads((outs(repro) / "runs.json").read_text()):
        assert run["validation"] == pytest.approx(means[run["method"]], rel=1e-12)


# found again


def record(database: Path, run: str) -> dict[str, Any]:
    """Return a run's whole record from the database."""
    with closing(sqlite3.connect(database)) as db:

        def rows(query: str) -> list[Any]:
            return sorted(db.execute(query, [run]))

        return {
            "metrics": rows("select key, step, timestamp, value from metrics where run_uuid = ?"),
            "params": rows("select key, value from params where run_uuid = ?"),
            "tags": rows("select key, value from tags where run_uuid = ?"),
            "status": rows("select status from runs where run_uuid = ?"),
            "models": rows("select count(*) from logged_models where source_run_id = ?"),
            "versions": rows("select count(*) from model_versions where run_id = ?"),
        }


def test_a_run_left_half_written_is_found_and_completed(runs: dict[str, Any], repro: Repro):
    """It was RUNNING, without its result, half of its metrics and half of its parameters; nothing is there twice."""
    run = runs["lmf"].info.run_id
    first, again = record(repro.runs, run), record(repro.project.folder / "mlflow.db", run)
    assert again == first
    assert first["status"] == [("FINISHED",)]
    assert first["models"] == first["versions"] == [(1,)]


def test_other_code_is_another_run(runs: dict[str, Any], repro: Repro):
    """After a line of the fusion had changed: of both methods that fuse, and of no other."""
    query = "select value, count(*) from tags where key = 'fedcore.method' group by value"
    with closing(sqlite3.connect(repro.project.folder / "mlflow.db")) as db:
        counts = dict(db.execute(query).fetchall())
    assert counts == {"local_only": 1, "fedavg_3": 1, "best_local": 1, "lmf": 2, "code_ot": 3}  # code_ot: and reg=0.1


def test_a_killed_flow_leaves_no_run_open(killed: Killed):
    for project in (killed.project, killed.undisturbed):
        with closing(sqlite3.connect(project.folder / "mlflow.db")) as db:
            assert db.execute("select distinct status from runs").fetchall() == [("FINISHED",)]


def test_devices_may_have_any_name(tables: Tables):
    with closing(sqlite3.connect(tables.project.folder / "mlflow.db")) as db:
        query = "select artifact_uri from runs join tags using (run_uuid) where key = 'fedcore.method'"
        places = [Path(urlparse(uri).path) for (uri,) in db.execute(query)]
    names = {"amsterdam", "berlin", "cairo", "são paulo #4"}
    assert all({*read_device_table((place / "devices.json").read_bytes()).index} == names for place in places)
