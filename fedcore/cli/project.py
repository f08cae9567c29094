"""The project in the current folder, and what its commands need."""

import os
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from filecmp import cmpfiles
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import click

from fedcore.errors import InputError, require_extra
from fedcore.pipeline.state import find_home

PATH = click.Path(path_type=Path)
"""The type of a command's argument that is a path."""
LIBRARY = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The folder of Python's own modules."""


def enter_project() -> Path:
    """Return the project's folder, after making its state folder and the settings of Prefect and MLflow.

    Raises InputError outside of a project, and where the extra is not installed; nothing is created then.
    """
    home = find_home()
    if not (home / "params.yaml").is_file() and not (Path.cwd() / "params.yaml").is_file():
        raise InputError(f"{home}: no project here (no params.yaml); make one with: fedcore init FOLDER")
    require_extra("pipeline")
    from fedcore.pipeline import environment

    environment.prepare()
    from fedcore.pipeline.record.database import relocate

    with suppress(sqlite3.Error):  # who opens the record says it
        relocate(os.environ["MLFLOW_TRACKING_URI"], environment.ARTIFACTS)
    find_modules_here()
    return home


def enter_with_record() -> None:
    """Enter the project; where a clone has no record yet, write it from what DVC has brought."""
    enter_project()
    from fedcore.pipeline.record import tracked

    if tracked.is_new_clone():
        from fedcore.pipeline.run.outputs import open_clone

        open_clone()


def find_modules_here() -> None:
    """Let this folder's flows, tasks, methods and nets be imported, after Python's own modules, such as http."""
    if str(Path.cwd()) not in sys.path:
        own = [place for place, path in enumerate(sys.path) if Path(path).name in ("lib-dynload", LIBRARY)]
        sys.path.insert(own[-1] + 1 if own else 0, str(Path.cwd()))


def open_yaml(path: Path) -> tuple[Any, Callable[[], str]]:
    """Return the sections of a params.yaml, to be changed in place, and what returns its text, comments kept."""
    from ruamel.yaml import YAML

    settings, text = YAML(), StringIO()
    settings.preserve_quotes, settings.width = True, 120
    params = settings.load(path.read_text())

    def write() -> str:
        settings.dump(params, text)
        return re.sub(r"^((?!#).+)\n(?=\w+:)", r"\1\n\n", text.getvalue(), flags=re.MULTILINE)

    return params, write


def flow(module: str, name: str) -> Any:
    """Return a flow of the project: flows/ is the user's, so that it is found in the project's folder alone."""
    return getattr(load(f"flows.{module}"), name)


def load(module: str) -> Any:
    """Import a module of the project's flows/ or tasks/. Raises InputError where other ones hide them."""
    try:
        found = import_module(module)
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("fedcore."):
            raise InputError(
                "flows/ and tasks/ are of an earlier version of fedcore: set them aside, type: fedcore init ../NEW. "
                "Move its flows/, tasks/ and prefect.yaml here, make your edits in them, and deploy again"
            ) from None
        if missing.name not in ("flows", module, "tasks"):
            raise
        raise InputError(f"{missing.name}: the project has no such folder or module; fedcore init makes them") from None
    for name in ("flows", "tasks"):
        own, places = [file.name for file in Path(name).glob("*.py")], getattr(sys.modules.get(name), "__path__", ())
        for place in map(Path, [*places][:1]):
            if any(cmpfiles(name, place, own, shallow=False)[1:]):
                raise InputError(f"{place} hides this project's {name}/: remove {place.parent} from PYTHONPATH")
    return found


def open_template() -> None:
    """Start the process from which workers are forked, before imports that start threads."""
    from fedcore.execute.template import open_template as start
    from fedcore.execute.workers import serve

    start(serve)
