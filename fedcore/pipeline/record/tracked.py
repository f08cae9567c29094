"""What DVC tracks of a project: its data, runs of the record, and champions/NAME, by whose files a clone predicts.

A run is a folder without ids, dates and seconds: RUN has its name, tags and parameters, FILES its tables and transport
matrices, MODELS its models if they were proposed. A clone's record is written from these (`Record.restore`).

Imports no MLflow. DVC is imported where it is called: it takes a third of a second.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.files import PATCH, SETTING, STEPS, TABLE
from fedcore.pipeline.record import seals
from fedcore.pipeline.record.database import database_file

if TYPE_CHECKING:
    from mlflow.entities import Run

CHAMPIONS = "champions"
RUN, FILES, MODELS = "run.json", "files", "models"
RECORD = "record"
"""The folder with runs: in that of a study's results, and in that of a champion."""
OF_RUN = ("fedcore.config", "fedcore.result", "fedcore.final_fit_of", "fedcore.study_run")
"""Tags that are not copied as they are: without a result, a later run of the configuration writes the run again."""


def open_repo(home: Path) -> Any:
    """Return the project as DVC sees it, which says nothing by itself."""
    from dvc.repo import Repo

    repo = Repo(home)
    repo.scm_context.quiet = True
    return repo


def track(home: Path, path: Path) -> None:
    """Let DVC track a file or folder of a project."""
    with open_repo(home) as repo:
        repo.add(str(path))


def card_of(path: str | None) -> Path | None:
    """Return the file by which DVC tracks data of the project; None if it does not."""
    card = environment.HOME / f"{path}.dvc"
    return card if path and card.is_file() and card.is_relative_to(environment.HOME) else None


def data_digest(path: str | None) -> str | None:
    """Return the MD5 digest of data as DVC tracks them, whether they have changed or not; None if it does not."""
    if (card := card_of(path)) is None:
        return None
    from ruamel.yaml import YAML

    return str(YAML(typ="safe").load(card)["outs"][0]["md5"])


def has_changed(path: str | None) -> bool:
    """Tell whether data that DVC tracks are other ones now."""
    if (card := card_of(path)) is None:
        return False
    with open_repo(environment.HOME) as repo:
        return bool(repo.status([str(card)]))


def write_run(run: Run, folder: Path, models: Path | None = None) -> None:
    """Write a run of this project to a folder. models: those of :mod:`fedcore.api.serving` that it logged."""
    files = seals.own_folder(run.info.artifact_uri, f"run {run.info.run_id}")
    tags = {key: tag for key, tag in run.data.tags.items() if key.startswith("fedcore.") and key not in OF_RUN}
    card = {
        "config": run.data.tags["fedcore.config"], "name": run.info.run_name, "tags": dict(sorted(tags.items())),
        "params": dict(sorted(run.data.params.items())),
        "datasets": [dict(given.dataset) for given in run.inputs.dataset_inputs],
    }  # fmt: skip
    (folder / FILES).mkdir(parents=True)
    (folder / RUN).write_text(json.dumps(card, indent=1) + "\n")
    for path in (path for pattern in ("*.*", "plans/*.*") for path in files.glob(pattern)):
        if path.name not in (STEPS, PATCH, TABLE):
            copy = folder / FILES / path.relative_to(files)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    if (setting := folder / FILES / SETTING).is_file():  # without the folder of this machine's datasets
        text = json.loads(setting.read_text())
        text.get("data", {}).pop("root", None)
        setting.write_text(json.dumps(text, indent=1) + "\n")
    if models is not None:
        shutil.copytree(models, folder / MODELS, ignore=shutil.ignore_patterns(seals.CACHES))


def keep_champion(name: str, files: Path, runs: Iterable[tuple[Run, Path | None]] = ()) -> str | None:
    """Copy a champion's files to its folder, and let DVC track it; returns why DVC does not, if it does not.

    runs: the run of its study with its models, and that of its final fit.
    """
    folder = environment.HOME / CHAMPIONS / name
    if folder.is_dir():
        shutil.rmtree(folder)
    shutil.copytree(files, folder, ignore=shutil.ignore_patterns(seals.CACHES, seals.META))
    for number, (run, models) in enumerate(runs):
        write_run(run, folder / RECORD / str(number), models)
    if not (environment.HOME / ".dvc").is_dir():
        return None
    from dvc.exceptions import DvcException

    try:
        track(environment.HOME, folder)
    except DvcException as error:
        return f"DVC does not track {CHAMPIONS}/{name}: {error}"
    return None


def kept(name: str) -> bool:
    """Tell whether DVC tracks the files of a model's champion."""
    return (environment.HOME / CHAMPIONS / f"{name}.dvc").is_file()


def has_remote() -> bool:
    """Tell whether DVC has a place to push to."""
    with open_repo(environment.HOME) as repo:
        return bool(repo.config["remote"])


def is_new_clone() -> bool:
    """Tell whether DVC has brought runs to a project that has no record."""
    database = database_file(os.environ.get("MLFLOW_TRACKING_URI", environment.TRACKING))
    places = (Path.cwd(), f"pipeline/federate/*/{RECORD}/*"), (environment.HOME, f"{CHAMPIONS}/*/{RECORD}/*")
    return (
        database is not None
        and not database.exists()
        and any(next(folder.glob(pattern), None) for folder, pattern in places)
    )


def find_champion(wanted: str | None) -> tuple[str, Path] | None:
    """Return the name and folder of a kept champion, None if there is none. wanted: its name; None: the only one."""
    home = environment.HOME / CHAMPIONS
    names = [wanted.removesuffix("@champion")] if wanted else [path.stem for path in home.glob("*.dvc")]
    if len(names) != 1:
        return None
    folder = home / names[0]
    if not folder.is_dir() and folder.with_name(f"{folder.name}.dvc").is_file():
        raise InputError(f"{CHAMPIONS}/{names[0]}: only its name is here; bring its files by: dvc pull")
    return (names[0], folder) if folder.is_dir() else None
