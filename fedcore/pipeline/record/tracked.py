"""What DVC tracks of a project: its data, and champions/NAME, the files of each champion, by which a clone predicts.

Imports no MLflow. DVC is imported where it is called: it takes a third of a second.
"""

import shutil
from pathlib import Path
from typing import Any

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.record import seals

CHAMPIONS = "champions"


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
    """Return the MD5 digest of data as DVC tracks them; None if it does not."""
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


def keep_champion(name: str, files: Path) -> str | None:
    """Copy a champion's files to its folder, and let DVC track it; returns why DVC does not, if it does not."""
    folder = environment.HOME / CHAMPIONS / name
    if folder.is_dir():
        shutil.rmtree(folder)
    shutil.copytree(files, folder, ignore=shutil.ignore_patterns(seals.CACHES, seals.META))
    if not (environment.HOME / ".dvc").is_dir():
        return None
    from dvc.exceptions import DvcException

    try:
        track(environment.HOME, folder)
    except DvcException as error:
        return f"DVC does not track {CHAMPIONS}/{name}: {error}"
    return None


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
