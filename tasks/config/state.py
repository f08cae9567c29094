"""Files of the project's state: each is written whole, and either understood when it is read or set aside.

Imports nothing slow.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path

from tasks.config.command import FULL, Failed, no_room


def write_whole(path: Path, content: bytes, lasting: bool = True) -> None:
    """Write a file atomically, for its owner only: if the process is killed, it is complete or does not exist.

    lasting: also if the machine loses its power meanwhile, which takes milliseconds to make sure of. A file in the
    place of its folder, or a folder in its own, is set aside.
    """
    if path.parent.exists() and not path.parent.is_dir():
        set_aside(path.parent, "is a file, not a folder")
    if path.is_dir():
        set_aside(path, "is a folder, not a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL:
            raise Failed(no_room(error, path)) from None
        raise


def set_aside(path: Path, why: str) -> None:
    """Rename what lies in the place of a state file, and say so in one line on stderr."""
    places = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
    place = next(place for place in places if not place.exists())
    shutil.move(path, place)
    sys.stderr.write(f"fedcore: {path.name} {why}; set aside as {place}\n")
