"""The record loses runs of data that nobody reads any more; what an alias names, and studies' numbers, stay."""

import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest

from fedcore.pipeline import environment
from fedcore.pipeline.command import Failed
from fedcore.pipeline.record import database as sqlite_file
from fedcore.pipeline.record import registry, retention, seals
from fedcore.pipeline.record.registry import CHAMPION
from fedcore.pipeline.record.runs import ASKED, Record

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own
NOW = time.time()


@dataclass
class Kept:
    record: Record
    runs: dict[str, str]
    versions: dict[str, Any]


def add(record: Record, kind: str, parent: str | None, days: float, tags: dict[str, str] | None = None) -> str:
    """Add a run that ended so many days ago, with a file."""
    lineage = {retention.PARENT: parent} if parent else {}
    run = record.client.create_run(record.experiment, tags={"fedcore.kind": kind, **lineage, **(tags or {})})
    where = str(run.info.run_id)
    record.client.log_metric(where, "accuracy", 0.5)
    record.client.log_text(where, "page", "report.html")
    record.client.set_terminated(where, end_time=int((NOW - days * 86400) * 1000))
    return where


def register(record: Record, where: str, **tags: str) -> Any:
    """Register a model of a run."""
    with mlflow.start_run(run_id=where):
        made = mlflow.initialize_logged_model(name="net")
    place = Path(made.artifact_location)
    place.mkdir(parents=True, exist_ok=True)
    (place / "tensors").write_text(where)
    mlflow.finalize_logged_model(made.model_id, "READY")
    seals.seal("fedcore-state", made.artifact_location)
    return record.client.create_model_version(
        "fedcore-state", f"models:/{made.model_id}", where, model_id=made.model_id, tags=tags
    )


@pytest.fixture
def kept(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A study on data of a hundred days ago and one on those of yesterday, each with runs and versions."""
    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path / "mlruns")
    monkeypatch.setattr(environment, "REGISTERED", tmp_path / "registered")
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.chdir(tmp_path)
    record = Record()
    record.client.create_registered_model("fedcore-state")
    runs, versions = {}, {}
    for name, days in (("old", 100), ("new", 1)):
        asked = {ASKED: str(int((NOW - days * 86400) * 1000))}  # a run ends with its first request
        runs[name] = add(record, "study", None, 100, asked if name == "new" else None)
        for row in ("a", "b"):
            runs[f"{name} {row}"] = add(record, "method", runs[name], 100)
            versions[f"{name} {row}"] = register(record, runs[f"{name} {row}"])
    runs["fit"] = add(record, "final fit", runs["old a"], 100)
    tags = {registry.FINAL_FIT_OF: "1", registry.STUDY_RUN: runs["old a"]}
    versions["fit"] = register(record, runs["fit"], **tags)
    record.client.set_registered_model_alias("fedcore-state", CHAMPION, versions["fit"].version)
    return Kept(record, runs, versions)


def names(kept: Kept) -> set[str]:
    there = {run.info.run_id for run in kept.record.search()}
    return {name for name, where in kept.runs.items() if where in there}


def test_runs_of_old_data_go_and_those_of_a_champion_stay(kept: Kept, tmp_path: Path):
    place = Path(kept.record.client.get_run(kept.runs["old b"]).info.artifact_uri).absolute()
    sealed = len([*(tmp_path / "registered").iterdir()])
    dry_summary = retention.prune(30, dry_run=True)
    assert names(kept) == {*kept.runs}
    assert place.is_dir()
    trashed = kept.record.client.create_experiment("of the user")
    kept.record.client.delete_experiment(trashed)
    with pytest.raises(Failed, match=r"restore or delete them: of the user$"):
        retention.prune(30)
    assert names(kept) == {*kept.runs}
    kept.record.client.restore_experiment(trashed)
    assert retention.prune(30) == dry_summary
    assert dry_summary is not None
    assert dry_summary[:2] == (1, 1)
    assert dry_summary[2] > 0
    assert names(kept) == {*kept.runs} - {"old b"}
    assert not place.exists()
    assert len([*(tmp_path / "registered").iterdir()]) == sealed - 1
    found = {str(one.version) for one in mlflow.search_model_versions(filter_string="name = 'fedcore-state'")}
    assert found == {str(one.version) for name, one in kept.versions.items() if name != "old b"}
    champion = kept.versions["fit"]
    uri = kept.record.client.get_model_version_download_uri(champion.name, champion.version)
    assert seals.check(champion.name, uri, "champion").is_dir()
    assert kept.record.client.get_run(kept.runs["old"]).data.metrics == {"accuracy": 0.5}
    assert kept.record.client.list_artifacts(kept.runs["old"]) == []
    assert retention.prune(30) == (0, 0, 0)


def test_mlflow_gc_in_a_copy_leaves_the_original_whole(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before any command of fedcore there. A copied record of an earlier version, with whole addresses, is mended."""
    from mlflow.cli import gc  # warns

    kept.record.client.create_experiment("elsewhere", "s3://bucket/mlruns")
    original = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    copy, uri, where = shutil.copytree(tmp_path, tmp_path / "copy"), "sqlite:///record.db", kept.runs["old b"]
    monkeypatch.chdir(copy)
    client = mlflow.MlflowClient(uri)
    client.delete_run(where)
    gc.main(["--backend-store-uri", uri, "--tracking-uri", uri], standalone_mode=False)
    assert not (copy / "mlruns" / where / "artifacts").exists()
    assert {path: path.read_bytes() for path in original} == original
    with closing(sqlite3.connect("record.db")) as database, database:
        for table, column in sqlite_file.PLACES:
            change = f"update {table} set {column} = ? || {column} where {column} like 'mlruns%'"
            database.execute(change, [f"{tmp_path.as_uri()}/"])
    sqlite_file.relocate(uri, copy / "mlruns")
    assert client.get_run(kept.runs["new"]).info.artifact_uri == f"mlruns/{kept.runs['new']}/artifacts"
    assert client.get_experiment_by_name("elsewhere").artifact_location == "s3://bucket/mlruns"
    location = client.get_model_version_download_uri("fedcore-state", "1")  # whole: it is read from any folder
    assert location.startswith((copy / "mlruns" / "models").as_uri())


def test_what_was_read_lately_stays_however_old_its_runs(kept: Kept, tmp_path: Path):
    shutil.rmtree(tmp_path / "mlruns" / "models")  # as does a run whose files are lost
    summary = retention.prune(99.9999)
    assert summary is not None
    assert {"new", "new a", "new b"} <= names(kept)
    assert retention.prune(200) == (0, 0, 0)


def test_folders_of_old_runs_go_and_the_history_stays(kept: Kept, tmp_path: Path):
    for name, days in (("abc", 100), ("def", 1)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "runs" / name, (NOW - days * 86400,) * 2)
    (tmp_path / "runs" / "history.jsonl").touch()
    retention.prune(30)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["def", "history.jsonl"]


def test_a_record_elsewhere_is_left_alone(tmp_path: Path):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'none.db'}")
    assert retention.prune(0) is None
    mlflow.set_tracking_uri(before)
