"""How long MLflow's record keeps the runs of data that no run reads any more.

A study has a run for each of its datasets, and below it one for each method and seed. Once nothing has been written to
the study's run for some days, the runs below it are deleted with their models, versions and files; those of a champion,
a candidate or a previous champion stay. So does the study's run with its numbers, but for its page and pictures.

Runs are deleted by `mlflow gc`. It would also remove a folder outside of the project that the database names, so that
such a run stays; and experiments that a user has moved to MLflow's trash, so that nothing is deleted while there are
any.
"""

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import mlflow
from mlflow.entities import LoggedModel, Run, ViewType

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.cache.shared import DAY, room
from fedcore.pipeline.command import Failed
from fedcore.pipeline.record import promotion, seals
from fedcore.pipeline.record.database import database_file
from fedcore.pipeline.record.registry import Version, study_run
from fedcore.pipeline.record.runs import ROWS, Record, last_asked

PARENT = "mlflow.parentRunId"
RUNS = Path("runs")


def prune(days: float, dry_run: bool = False) -> tuple[int, int, int] | None:
    """Delete what the record holds of data that no run has read for so many days; None for a record elsewhere.

    Also the folders of such an age in runs/, but not the history. dry_run: delete nothing. Returns the numbers of
    deleted runs and pages, and the bytes that their files free.
    """
    path = database_file(mlflow.get_tracking_uri())
    if path is None or not path.is_file():
        return None
    since = time.time() - days * DAY
    record = Record()
    with record.lock:
        client = record.client
        catalogue = [*promotion.all_versions(client).values()]
        versions = [version for of_model in catalogue for version in of_model.numbers.values()]
        runs = {run.info.run_id: run for run in record.search()}
        named = [of_model.numbers[number] for of_model in catalogue for number in of_model.aliases.values()]
        protected = {run for version in named for run in (version.run_id, study_run(version))}
        old, pages = split(runs, protected, since)
        models = {where: record.logged(run) for where, run in old.items()}
        places = {
            where: [_own(uri) for uri in (run.info.artifact_uri, *(model.artifact_location for model in models[where]))]
            for where, run in old.items()
        }
        old = {where: run for where, run in old.items() if None not in places[where]}
        cleared = [path for run in pages if (path := _own(run.info.artifact_uri)) and path.is_dir()]
        folders = [*cleared, *(path for path in RUNS.glob("*/") if path.stat().st_mtime < since)]
        gone = [path for path in (*folders, *(path for where in old for path in places[where])) if path]
        nbytes = sum(room(file) for path in gone for file in path.rglob("*") if file.is_file())
        if not dry_run:
            if old:
                _delete(record, old, versions, [model for where in old for model in models[where]])
            for path in folders:
                shutil.rmtree(path, ignore_errors=True)
    return len(old), len(cleared), nbytes


def split(runs: Mapping[str, Run], protected: set[str], since: float) -> tuple[dict[str, Run], list[Run]]:
    """Return the runs to delete, and the studies' runs that lose their page. protected: runs that stay in any case."""
    old, pages, used = {}, [], dict[str, int]()
    for where, run in runs.items():
        for of in (where, run.data.tags.get(ROWS, where)):  # a request, and the study whose runs it uses
            used[of] = max(used.get(of, 0), last_asked(run))
    for where, run in runs.items():
        root, seen = run, {where}
        while (above := root.data.tags.get(PARENT)) in runs and above not in seen:
            seen.add(above)
            root = runs[above]
        ended = used[root.info.run_id]
        if not ended or ended / 1000 >= since or run.info.status == "RUNNING":
            continue
        if root is run and run.data.tags.get("fedcore.kind") == "study":
            pages.append(run)
        elif where not in protected and run.data.tags.get("kind") != "method":  # it has numbers and no file
            old[where] = run
    return old, pages


def _delete(record: Record, old: Mapping[str, Run], versions: Iterable[Version], models: Sequence[LoggedModel]) -> None:
    """Delete runs for good, with their versions and models, by MLflow's own command."""
    if trash := record.client.search_experiments(ViewType.DELETED_ONLY):
        names = ", ".join(experiment.name for experiment in trash)
        raise Failed(f"MLflow's trash has experiments, which mlflow gc would delete: restore or delete them: {names}")
    for version in (version for version in versions if version.run_id in old):
        uri = record.client.get_model_version_download_uri(version.name, version.version)
        seals.forget(version.name, uri)
        record.client.delete_model_version(version.name, version.version)
    for model in models:
        if name := old[model.source_run_id].data.tags.get(promotion.MODEL):
            seals.forget(name, model.artifact_location)
        record.client.delete_logged_model(model.model_id)
    for where in old:
        record.client.delete_run(where)
    from mlflow.cli import gc  # its import takes a second, for a page's and a gateway's

    uri = mlflow.get_tracking_uri()
    chosen = ["--run-ids", ",".join(old), "--logged-model-ids", ",".join(model.model_id for model in models)]
    with chdir(environment.ARTIFACTS.parent), redirect_stdout(StringIO()):  # a line for each run
        gc.main(["--backend-store-uri", uri, "--tracking-uri", uri, *chosen], standalone_mode=False)


def _own(uri: str) -> Path | None:
    """Return the folder of artifacts; None unless it is this user's, in this project."""
    try:
        return seals.own_folder(uri, uri)
    except InputError:
        return None
