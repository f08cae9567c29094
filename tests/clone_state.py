"""No test uses what the clone's own runs have left there: in a used clone it would test something else.

The state of this process and of those that it starts is in a folder of the session (FEDCORE_HOME). An audit hook
refuses to open what lies in the clone, also in the forks of this process; a program that would run in the clone
without FEDCORE_HOME is refused as it starts.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])
STATE = (".fedcore", "mlflow.db", "mlruns", "runs", "pipeline", "results", ".dvc/cache", ".dvc/tmp")
"""What runs leave in a project's folder, all of it ignored by git."""
FILES = {
    "open": 0, "sqlite3.connect": 0, "os.listdir": 0, "os.scandir": 0, "os.mkdir": 2, "os.remove": 1, "os.rename": 2,
    "os.rmdir": 1,
}  # fmt: skip
"""Events whose first argument is a path -> which argument is not -1 where it is relative to another folder; 0: none.
`os.open`, whose mode is None, does not say whether it is."""
PROGRAMS = re.compile(r"python[\d.]*|fedcore|dvc|prefect|mlflow")
_IN_STATE = re.compile(rf"(file:)?{re.escape(ROOT)}/({'|'.join(map(re.escape, STATE))})([-/?].*)?", re.DOTALL)


class CloneState(BaseException):
    """A test uses the clone's state. No `except Exception` catches it."""


used: list[str] = []
"""What was refused so far, also where something caught it."""


def refuse() -> None:
    """Refuse from now on, in this process and its forks, to use the clone's state."""
    sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event in FILES:
        name, place = arguments[0], FILES[event]
        if not isinstance(name, (str, bytes, os.PathLike)):
            return  # a file that is open already
        path = os.fsdecode(name)
        elsewhere = arguments[1] is None if event == "open" else place and arguments[place] != -1
        if (path.startswith(("/", "file:")) or not elsewhere) and is_clone_state(path):
            _refuse(f"{event} {path!r}")
    elif event == "subprocess.Popen":
        executable, words, folder, environment = arguments
        home = (os.environ if environment is None else environment).get("FEDCORE_HOME")
        where = os.path.abspath(os.getcwd() if folder is None else os.fsdecode(folder))
        if home is None and where == ROOT and PROGRAMS.fullmatch(os.path.basename(os.fsdecode(executable))):
            _refuse(f"{words} in the clone, without FEDCORE_HOME")


def is_clone_state(path: str) -> bool:
    """Tell whether a path, or an address of SQLite, is of what the clone's runs have left."""
    address = path.startswith("file:")
    if not address and (".." in path or not path.startswith("/")):
        path = os.path.abspath(path)
    return path.startswith((ROOT, "file:")) and _IN_STATE.fullmatch(path) is not None


def _refuse(what: str) -> None:
    used.append(what)
    raise CloneState(f"a test must not use the clone's own state: {what}")
