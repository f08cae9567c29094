"""Files of the project's state: each is written whole, and either understood when it is read or set aside.

Imports nothing slow.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from fedcore.pipeline.command import FULL, Failed, no_room

PART = re.compile(r"\.[0-9a-f]{16}\.part")
"""The names of files that :func:`write_atomic` has not finished; what a killed process leaves of them is nobody's."""

EXPERIMENT = re.compile(r"/[.]dvc/tmp/exps/.*$")
"""Where DVC runs an experiment of its queue, below the project's folder: a copy without cache and record."""


def find_home() -> Path:
    """Return the folder of the state: FEDCORE_HOME, or the current one; in a copy for an experiment the original."""
    return Path(os.environ.get("FEDCORE_HOME") or EXPERIMENT.sub("", str(Path.cwd()))).resolve()


def write_atomic(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file atomically, for its owner only: if the process is killed, it is complete or does not exist.

    durable: also if the machine loses its power meanwhile, which takes milliseconds to make sure of. A file in the
    place of its folder, or a folder in its own, is set aside.
    """
    try:
        _write(path, content, durable)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if path.parent.exists() and not path.parent.is_dir():
            quarantine(path.parent, "is a file, not a folder")
        if path.is_dir():
            quarantine(path, "is a folder, not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, content, durable)


def to_lines(objects: Iterable[Any]) -> bytes:
    """Return objects as lines of JSON."""
    return "".join(f"{json.dumps(line)}\n" for line in objects).encode()


def read_lines(path: Path, check: Callable[[Any], Any]) -> list[Any]:
    """Return what `check` makes of each line of JSON, except those that are damaged: a killed process leaves such.

    check: raises ValueError, TypeError or LookupError for one.
    """
    lines = []
    for text in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError, LookupError, RecursionError):
            lines.append(check(json.loads(text)))
    return lines


def _write(path: Path, content: bytes, durable: bool) -> None:
    part = f"{path.parent}/.{os.urandom(8).hex()}.part"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.errno in FULL:
            raise Failed(no_room(error, path)) from None
        raise


def quarantine(path: Path, why: str) -> None:
    """Rename what lies in the place of a state file, and say so in one line on stderr."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
    name = next(name for name in names if not name.exists())
    shutil.move(path, name)
    sys.stderr.write(f"fedcore: {path.name} {why}; set aside as {name}\n")
