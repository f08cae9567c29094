"""The record in MLflow: a run per method, seed and configuration, with all results, and a proposed model."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from project import METHODS
from scenarios import Killed, Repro, Tables

import fedcore as fc
from fedcore.core.evaluation import outputs
from fedcore.errors import InputError
from fedcore.execute.accelerator import one_thread
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
    """A client of the record as it was after the first `dvc repro`, in the project's folder."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{repro.runs}")
    with chdir(repro.project.folder):
        yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(client: Any) -> dict[str, Any]:
    """The runs by method; the study's own under its title."""
    experiment = client.get_experiment_by_name("fedcore")
    found = client.search_runs([experiment.experiment_id])
    assert len(found) == 2 * len(METHODS) + 1
    return {run.data.tags.get("fedcore.method", "study"): run for run in found if run.data.tags["kind"] != "method"}


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
    return Path(run.info.artifact_uri) / path


# runs


def test_a_run_per_method_under_a_parent_per_study(runs: dict[str, Any]):
    assert set(runs) == {*METHODS, "study"}
    parent = runs["study"]
    assert parent.info.run_name == "code"
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
        assert tags["kind"] == ("control" if one["method"] == "best_local" else "seed")
        assert (tags["method"], tags["seed"], tags["study"], tags["latest"]) == (one["method"], "0", "code", "true")
        assert tags["data"] == f"digits {tags['fedcore.data'][:8]}"
        assert tags["mlflow.source.name"] == "fedcore"
        assert tags["mlflow.user"]
        assert re.fullmatch("[0-9a-f-]{36}", tags["flow_run"])
        assert re.fullmatch("[0-9a-f]{40}", tags["fedcore.partition"])
    assert len({one["config"] for one in found}) == len(METHODS)


def test_one_line_finds_the_accuracy_by_method_and_seed(client: Any, runs: dict[str, Any]):
    import mlflow

    found = mlflow.search_runs(experiment_names=["fedcore"], filter_string="tags.kind='seed' and tags.latest='true'")
    accuracy = found.pivot_table(index="tags.method", columns="tags.seed", values="metrics.test/accuracy")
    assert accuracy.shape == (len(CANDIDATES), 1)
    assert {*accuracy.index} == CANDIDATES
    assert accuracy.loc["lmf", "0"] == runs["lmf"].data.metrics["test/accuracy"]


OFF = {"momentum", "nesterov", "weight_decay", "round_decay", "schedule", "optimiser_state", "class_weights",
       "precision"}  # fmt: skip


def test_a_runs_parameters_are_its_settings_that_are_not_off(runs: dict[str, Any], repro: Repro):
    params = yaml.safe_load((repro.clone.project.folder / "params.yaml").read_text())
    for label, row in METHODS.items():
        found = runs[label].data.params
        assert found["method"] == row.get("method", label)
        assert found["federation.alpha"] == str(params["federation"]["alpha"])
        assert json.loads(found["net.widths"]) == params["net"]["widths"]
        training = {**params["training"], **row.get("training", {})}
        assert found["federation.devices"] == str(len(DEVICES))
        assert not {"federation.share", "federation.classes", "data.missing_values"} & {*found}
        trained = {key.partition(".")[2]: value for key, value in found.items() if key.startswith("training.")}
        assert trained == {
            key: json.dumps(value).strip('"')
            for key, value in training.items()
            if key not in OFF and value not in (None, False)
        }
        assert len(found) < 30
        own = {**params.get(found["method"], {}), **row}
        assert {key: found[f"{found['method']}.{key}"] for key in own if key not in ("method", "training")} == {
            key: str(value) for key, value in own.items() if key not in ("method", "training")
        }


def test_every_number_of_the_table_is_beside_its_run(runs: dict[str, Any], table: pd.DataFrame):
    """All rounds as a table; the devices' last numbers as a table that MLflow shows."""
    for label in METHODS:
        mine = table[table["method"] == label].reset_index(drop=True)
        pd.testing.assert_frame_equal(pd.read_parquet(artifact(runs[label], "table.parquet")), mine)
        devices = read_device_table(artifact(runs[label], "devices.json").read_bytes())
        shown = json.loads(runs[label].data.tags["mlflow.loggedArtifacts"])
        assert [one["path"] for one in shown] == [
            "devices.json",
            "rounds.json",
            "seconds.json",
            *(["plans/folds.json"] if label in FUSED else []),
        ]
        assert {one["type"] for one in shown} == {"table"}
        assert sorted(devices.index) == DEVICES
        last = mine[mine["round"] == mine["round"].max()]
        for device, split, metric, value in last[["device", "split", "metric", "value"]].itertuples(index=False):
            assert devices.loc[device, f"{split}/{metric}"] == pytest.approx(value, rel=1e-12, nan_ok=True)


def test_means_are_final_numbers_and_a_table_of_rounds(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    """Mean, spread and worst device of the accuracies; means of the other numbers."""
    for label in METHODS:
        found = points(repro.runs, runs[label])
        assert len({key for key, _ in found}) <= 25
        means = read_device_table(artifact(runs[label], "rounds.json").read_bytes(), "round")
        mine = table[(table["method"] == label) & table["value"].notna() & (table["split"] != "traffic")]
        assert len(mine) > 0
        for (split, metric, round_info), part in mine.groupby(["split", "metric", "round"]):
            key = f"{split}/{metric}"
            assert means.loc[round_info, key] == pytest.approx(part["value"].mean(), rel=1e-12)
            if metric == "accuracy":
                spread = part["value"].std()
                assert means.loc[round_info, f"{key}_std"] == pytest.approx(spread, rel=1e-9, abs=1e-12)
                assert means.loc[round_info, f"{key}_worst"] == part["value"].min()
                if round_info == mine[mine["split"] == split]["round"].max():
                    assert found[key, 0] == means.loc[round_info, key]
        assert found["test/worst_device", 0] == means["test/accuracy_worst"].dropna().iloc[-1]
        assert not [key for key, _ in found if "device-" in key]


def test_repeated_rounds_are_a_curve(runs: dict[str, Any], repro: Repro):
    found = points(repro.runs, runs["fedavg_3"])
    assert {step for key, step in found if key == "round/val_accuracy"} == {1, 2, 3}
    assert len({found["round/shared_loss", step] for step in (1, 2, 3)}) == 3


def test_bytes_and_seconds_are_recorded(runs: dict[str, Any], repro: Repro, table: pd.DataFrame):
    for label in METHODS:
        found = points(repro.runs, runs[label])
        sent = table[(table["method"] == label) & (table["metric"] == "bytes_up")]
        assert found["traffic/up_MB", 0] == pytest.approx(sent["value"].sum() / 1e6)
        assert (found["traffic/up_MB", 0] == 0) == (label == "local_only")
        seconds = read_device_table(artifact(runs[label], "seconds.json").read_bytes(), "kind")
        kind = "rounds" if label == "fedavg_3" else "train"
        assert found["seconds", 0] == pytest.approx(seconds["wall"].sum())
        assert seconds.loc[kind, "wall"] > 0 < seconds.loc[kind, "cpu"]


def test_the_studys_run_has_the_answer_numbers_page_and_pictures(
    client: Any, runs: dict[str, Any], table: pd.DataFrame
):
    study = runs["study"]
    note = study.data.tags["mlflow.note.content"]
    assert "**code (digits): Cannot say**" in note
    assert "One seed has no interval; type the same with" in note
    assert "| rank | method |" in note
    last = table[(table["metric"] == "accuracy") & (table["split"] == "test")]
    children = client.search_runs([study.info.experiment_id], f"tags.`mlflow.parentRunId` = '{study.info.run_id}'")
    rows = {run.data.tags["method"]: run for run in children if run.data.tags["kind"] == "method"}
    assert {*rows} == {*METHODS}
    for label, row in rows.items():
        mine = last[last["method"] == label]
        mine = mine[mine["round"] == mine["round"].max()].set_index("device")["value"]
        assert mine[row.data.tags["worst_device"]] == mine[runs[label].data.tags["worst_device"]] == mine.min()
        assert row.data.metrics["test/accuracy"] == pytest.approx(mine.mean(), rel=1e-9)
        assert row.data.metrics["test/worst_device"] == pytest.approx(mine.min(), rel=1e-9)
        assert row.data.tags["runs"] == runs[label].info.run_id
        assert row.data.tags["fedcore.shown"] in ("no", "guess"), "one seed shows nothing"
    assert artifact(study, "report.html").read_text().startswith("<!doctype html>")
    assert artifact(study, "pictures/base.png").read_bytes().startswith(b"\x89PNG")


def test_the_dataset_is_named_by_its_digest(client: Any, runs: dict[str, Any], repro: Repro):
    (path,) = (repro.clone.project.folder / "pipeline" / "data" / "code").glob("*/card.json")
    card = json.loads(path.read_text())
    for label in METHODS:
        ((given),) = runs[label].inputs.dataset_inputs
        assert given.dataset.name == "digits"
        assert given.dataset.digest == card["digest"][:8]
        assert json.loads(given.dataset.profile)["examples"] == 1797
    rows = {run.info.run_id: run.inputs.dataset_inputs for run in client.search_runs([runs["lmf"].info.experiment_id])}
    assert all(rows[runs[label].info.run_id] for label in METHODS)


# what lies beside a run


@pytest.mark.parametrize("label", FUSED)
def test_transport_plans_are_arrays(runs: dict[str, Any], label: str):
    """Each couples the units of two layers: rows and columns sum to even shares."""
    plans = fc.load_plans(artifact(runs[label], "plans"))
    assert {fold.device for fold in plans} | {fold.into for fold in plans} <= set(DEVICES)
    assert [fold.order for fold in plans] == [1, 1, 2, 2, 3, 3]  # one model is the target
    for fold in plans:
        width = {"h1": 16, "h2": 8}[fold.layer]
        assert fold.matrix.shape == (width, width)
        np.testing.assert_allclose(fold.matrix.sum(0), 1 / width, atol=1e-6)
        np.testing.assert_allclose(fold.matrix.sum(1), 1 / width, atol=1e-6)
        assert artifact(runs[label], f"pictures/plans/{fold.name}.png").read_bytes().startswith(b"\x89PNG")
    assert artifact(runs[label], "pictures/plans/all.png").is_file()
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


def test_what_is_proposed_is_registered_and_nothing_else(client: Any, runs: dict[str, Any]):
    (version,) = client.search_model_versions("name = 'fedcore-digits'")
    assert version.run_id == runs[version.tags["fedcore.method"]].info.run_id
    named = {label for label, run in runs.items() if "fedcore.model" in run.data.tags}
    assert named == CANDIDATES


def test_the_simplest_that_serves_every_device_is_proposed_not_promoted(
    client: Any, runs: dict[str, Any], repro: Repro, table: pd.DataFrame
):
    """With one seed nothing is recommended."""
    assert [*client.get_registered_model("fedcore-digits").aliases] == ["candidate"]
    candidate = client.get_model_version_by_alias("fedcore-digits", "candidate")
    last = table[(table["split"] == "val") & (table["metric"] == "accuracy")]
    last = last[last["round"] == last.groupby("method")["round"].transform("max")]
    means = last.groupby("method")["value"].mean()
    assert candidate.tags["fedcore.method"] == "local_only"
    assert "not shown to be better): no champion yet" in candidate.tags["fedcore.proposal"]
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
            "tags": rows("select key, value from tags where run_uuid = ? and key not in ('latest', 'requests')"),
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
    assert first["models"] == [(1,)]


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
        places = [tables.project.folder / uri for (uri,) in db.execute(query)]
    names = {"amsterdam", "berlin", "cairo", "são paulo #4"}
    assert all({*read_device_table((place / "devices.json").read_bytes()).index} == names for place in places)
