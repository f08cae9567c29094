"""The record in MLflow: a run per method, seed and configuration, with all results, and a champion."""

from __future__ import annotations

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

from fedcore.evaluate import outputs
from fedcore.nets import Net, net
from fedcore.results.summary import LESS
from tasks.cache.store import Ref, Store

FUSED = ("lmf", "code_ot")
CANDIDATES = {"fedavg_3", "lmf", "code_ot"}
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
        assert found["init"] == training.pop("init")
        assert {key: found[f"training.{key}"] for key in training} == {
            key: "null" if value is None else str(value) for key, value in training.items()
        }
        own = {**params.get(found["method"], {}), **row}
        assert {key: found[key] for key in own if key not in ("method", "training")} == {
            key: str(value) for key, value in own.items() if key not in ("method", "training")
        }


def test_every_number_of_the_table_is_a_point_of_its_run(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    """Per device, split and metric, at each round; with mean, spread and worst device; none without traffic."""
    for label in METHODS:
        found = points(repro.runs, runs[label])
        mine = table[(table["method"] == label) & table["value"].notna()]
        assert len(mine) > 0
        for device, split, metric, turn, value in zip(
            *(mine[column] for column in ("device", "split", "metric", "round", "value")), strict=True
        ):
            at = f"devices/{split}.{metric}.{device}", turn
            assert at not in found if split == "traffic" and value == 0 else found[at] == value
        for (split, metric, turn), part in mine[mine["split"] != "traffic"].groupby(["split", "metric", "round"]):
            values = part["value"]
            assert found[f"{split}.{metric}", turn] == pytest.approx(values.mean(), rel=1e-12)
            assert found[f"{split}.{metric}.std", turn] == pytest.approx(values.std(ddof=0), rel=1e-9, abs=1e-12)
            worst = values.max() if metric in LESS else values.min()
            assert found[f"{split}.{metric}.worst", turn] == worst


def test_repeated_rounds_are_a_curve(runs: dict[str, Any], repro: Repro):
    found = points(repro.runs, runs["fedavg_3"])
    for device in DEVICES:
        assert {step for key, step in found if key == f"devices/val.accuracy.{device}"} == {1, 2, 3}
    assert len({found["shared.loss", step] for step in (1, 2, 3)}) == 3


def test_bytes_and_seconds_are_recorded(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    for label in METHODS:
        found = points(repro.runs, runs[label])
        sent = table[(table["method"] == label) & (table["metric"] == "bytes_up") & (table["round"] == 1)][
            "value"
        ].sum()
        assert found["bytes_up", 1] == sent
        assert (sent == 0) == (label == "local_only")
        kind = "rounds" if label == "fedavg_3" else "train"
        assert found[f"seconds.{kind}.wall", 0] > 0
        assert found[f"seconds.{kind}.cpu", 0] > 0


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


def test_models_of_devices_that_share_none_are_kept(runs: dict[str, Any], repro: Repro):
    models = json.loads((outs(repro) / "models.json").read_text())["base: local_only"]
    assert len(set(models.values())) == len(DEVICES)
    store = Store(repro.project.folder / ".fedcore" / "blobs")
    for device, digest in models.items():
        kept = artifact(runs["local_only"], f"devices/{device}.safetensors").read_bytes()
        assert kept == store.path(Ref(digest, 0)).read_bytes()


# models


def the_net(repro: Repro) -> Net:
    params = yaml.safe_load((repro.clone.project.folder / "params.yaml").read_text())
    return net("mlp", shape=(1, 8, 8), classes=10, widths=params["net"]["widths"])


def stored_outputs(repro: Repro, label: str, x: torch.Tensor) -> torch.Tensor:
    """The predictions of a method's stored model."""
    (digest,) = set(json.loads((outs(repro) / "models.json").read_text())[f"base: {label}"].values())
    store = Store(repro.project.folder / ".fedcore" / "blobs")
    return outputs(store.get(Ref(digest, 0)), the_net(repro), x)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("label", ["fedavg_3", "code_ot", "best_local"])
def test_a_logged_model_predicts_as_the_stored_one(
    client: Any, runs: dict[str, Any], repro: Repro, x: torch.Tensor, label: str
):
    import mlflow

    (model,) = client.search_logged_models(
        [runs[label].info.experiment_id], f"source_run_id = '{runs[label].info.run_id}'"
    )
    expected = stored_outputs(repro, label, x)
    loaded = mlflow.pytorch.load_model(f"models:/{model.model_id}")
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expected.exp().sum(1), torch.ones(7))
    info = mlflow.models.get_model_info(f"models:/{model.model_id}")
    (taken,), (given) = info.signature.inputs.inputs, info.signature.outputs.inputs[0]
    assert (taken.shape, taken.type) == ((-1, 1, 8, 8), np.dtype(np.float32))
    assert (given.shape, given.type) == ((-1, 10), np.dtype(np.float32))


def test_the_champion_loads_by_its_alias(client: Any, repro: Repro, x: torch.Tensor):
    import mlflow

    label = client.get_model_version_by_alias("fedcore-global", "champion").tags["fedcore.method"]
    said = mlflow.pyfunc.load_model("models:/fedcore-global@champion").predict(x.numpy())
    np.testing.assert_allclose(said, stored_outputs(repro, label, x).numpy(), rtol=1e-5, atol=1e-5)


def test_candidates_are_registered_once_and_controls_never(client: Any, runs: dict[str, Any]):
    versions = client.search_model_versions("name = 'fedcore-global'")
    assert sorted(version.tags["fedcore.method"] for version in versions) == sorted(CANDIDATES)
    for version in versions:
        assert version.run_id == runs[version.tags["fedcore.method"]].info.run_id


def test_the_champion_is_the_best_on_validation(client: Any, runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    champion = client.get_model_version_by_alias("fedcore-global", "champion")
    last = table[(table["split"] == "val") & (table["metric"] == "accuracy")]
    last = last[last["round"] == last.groupby("method")["round"].transform("max")]
    means = last.groupby("method")["value"].mean()
    assert champion.tags["fedcore.method"] == means[sorted(CANDIDATES)].idxmax()
    assert champion.run_id == runs[champion.tags["fedcore.method"]].info.run_id
    # The test would say nothing if the best of all were a candidate.
    assert means["best_local"] > means[sorted(CANDIDATES)].max()
    stored = {run["method"]: run for run in json.loads((outs(repro) / "runs.json").read_text())}
    assert {label for label, run in stored.items() if run["candidate"]} == CANDIDATES
    for label, run in stored.items():
        assert run["validation"] == pytest.approx(means[label], rel=1e-12)


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
    """MLflow takes letters and digits; other names are written so that they still differ."""
    with closing(sqlite3.connect(tables.project.folder / "mlflow.db")) as db:
        keys = {
            key for (key,) in db.execute("select distinct key from metrics where key like 'devices/test.accuracy.%'")
        }
    names = {key.removeprefix("devices/test.accuracy.") for key in keys}
    assert {"amsterdam", "berlin", "cairo"} < names
    (odd,) = names - {"amsterdam", "berlin", "cairo"}
    assert re.fullmatch(r"s_o paulo _4-[0-9a-f]{6}", odd)
