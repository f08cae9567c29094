"""How long MLflow's record keeps the runs of data that no run reads any more.

A study has a run for each of its datasets, and below it one for each method and seed. Once nothing has been written to
the study's run for some days, the runs below it are deleted with their models, versions and files; those of a champion,
a candidate or a previous champion stay. So does the study's run with its numbers, but for its page and pictures.

Runs are deleted by what `mlflow gc` calls, not by the command: tried on MLflow 3.17, it removed a folder outside the
project that the database named, an experiment that a user had moved to MLflow's trash, and took 4.2 s of a processor.
"""

import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion

from fedcore.errors import InputError
from fedcore.pipeline.cache.prune import DAY, room
from fedcore.pipeline.record import promotion, proposals, seals
from fedcore.pipeline.record.runs import Record

PARENT = "mlflow.parentRunId"
RUNS = Path("runs")


@dataclass(frozen=True)
class PruneSummary:
    """The numbers of deleted runs and pages, and the bytes that their files free."""

    runs: int
    pages: int
    nbytes: int


def prune(days: float, dry_run: bool = False) -> PruneSummary | None:
    """Delete what the record holds of data that no run has read for so many days; None for a record elsewhere.

    Also the folders of such an age in runs/, but not the history. dry_run: delete nothing.
    """
    kind, _, path = mlflow.get_tracking_uri().partition("sqlite:///")
    if kind or not Path(path).is_file():
        return None
    since = time.time() - days * DAY
    record = Record()
    with record.lock:
        client, runs = record.client, all_runs(record)
        versions = {name: all_versions(client, name) for name in promotion.names(client)}
        old, pages = split(runs, needed(client, versions), since)
        cleared = [*filter(None, (_remove(run.info.artifact_uri, dry_run) for run in pages))]
        nbytes = sum(cleared)
        for name, of_name in versions.items():
            for version in of_name:
                if version.run_id in old and not dry_run:
                    seals.forget(name, client.get_model_version_download_uri(name, version.version))
                    client.delete_model_version(name, version.version)
        nbytes += sum(_delete(record, run, dry_run) for run in old.values())
    folders = [path for path in RUNS.glob("*/") if path.stat().st_mtime < since]
    nbytes += sum(map(_clear, folders)) if not dry_run else sum(map(_size, folders))
    if old and not dry_run:
        database = sqlite3.connect(path, timeout=10, isolation_level=None)
        with closing(database), suppress(sqlite3.OperationalError):  # a page of MLflow reads it: the next time
            database.execute("vacuum")
    return PruneSummary(len(old), len(cleared), nbytes)


def all_runs(record: Record) -> dict[str, Run]:
    """Return the runs of the record by their ids."""
    runs: dict[str, Run] = {}
    token = None
    while True:
        page = record.client.search_runs([record.experiment], max_results=1000, page_token=token)
        runs |= {run.info.run_id: run for run in page}
        token = page.token
        if not token:
            return runs


def all_versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Return all versions of a registered model."""
    versions: list[ModelVersion] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=1000, page_token=token)
        versions += page
        token = page.token
        if not token:
            return versions


def needed(client: MlflowClient, versions: Mapping[str, Iterable[ModelVersion]]) -> set[str]:
    """Return the runs of all versions that have an alias, and of the studies' versions whose final fits they are."""
    run_ids: set[str] = set()
    for name, of_name in versions.items():
        aliased = {str(number) for number in client.get_registered_model(name).aliases.values()}
        for version in of_name:
            if str(version.version) in aliased:
                run_ids |= {version.run_id, proposals.study_run(version)}
    return run_ids


def split(runs: Mapping[str, Run], protected: set[str], since: float) -> tuple[dict[str, Run], list[Run]]:
    """Return the runs to delete, and the studies' runs that lose their page. protected: runs that stay in any case."""
    old, pages = {}, []
    for where, run in runs.items():
        root, seen = run, {where}
        while (above := root.data.tags.get(PARENT)) in runs and above not in seen:
            seen.add(above)
            root = runs[above]
        ended = root.info.end_time
        if ended is None or ended / 1000 >= since or run.info.status == "RUNNING":
            continue
        if root is run and run.data.tags.get("fedcore.kind") == "study":
            pages.append(run)
        elif where not in protected and run.data.tags.get("kind") != "method":  # it has numbers and no file
            old[where] = run
    return old, pages


def _delete(record: Record, run: Run, dry_run: bool) -> int:
    """Delete a run for good, with its models; returns the bytes of their files."""
    where, store = run.info.run_id, record.client._tracking_client.store
    models = record.client.search_logged_models([record.experiment], f"source_run_id = '{where}'")
    nbytes = sum(
        _remove(uri, dry_run) for uri in (run.info.artifact_uri, *(model.artifact_location for model in models))
    )
    if not dry_run:
        for model in models:
            if name := run.data.tags.get(promotion.MODEL):
                seals.forget(name, model.artifact_location)
            record.client.delete_logged_model(model.model_id)
            store._hard_delete_logged_model(model.model_id)  # as `mlflow gc` does, which would delete others' runs, too
        record.client.delete_run(where)
        store._hard_delete_run(where)
    return nbytes


def _remove(uri: str, dry_run: bool) -> int:
    """Remove artifacts, if they are this user's and in this project; returns their bytes."""
    try:
        folder = seals.own_folder(uri, uri)
    except (InputError, FileNotFoundError):
        return 0
    return _size(folder) if dry_run else _clear(folder)


def _clear(folder: Path) -> int:
    nbytes = _size(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return nbytes


def _size(folder: Path) -> int:
    return sum(room(path) for path in folder.rglob("*") if path.is_file())
