"""Prune the cache: delete steps that no run has used for long, and the blobs that only they refer to."""

import time
from dataclasses import dataclass
from pathlib import Path

from fedcore.errors import InputError
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.state import PART

DAY = 86400.0


@dataclass(frozen=True)
class Pruned:
    """The numbers of deleted steps and blobs, and the bytes that both free. left: the bytes of the remaining blobs."""

    steps: int
    blobs: int
    nbytes: int
    left: int


def prune(steps: Path, store: Store, days: float, dry_run: bool = False) -> Pruned:
    """Delete the steps that no run has used for this many days, and blobs of that age to which no other step refers.

    A run uses a step when it computes it or finds it in the cache; the journal has a line with the time and the blobs
    that the step refers to. Older lines are deleted too. A step has no line if its flow was killed at that moment; its
    blobs stay until they reach that age, and so do the half-written files of killed processes. A run that needs a
    deleted step computes it again. Registered models and the outputs of DVC's stages are copies and need no blob.
    Raises InputError while a flow runs, since it may need a blob that it has not yet read; a flow that starts meanwhile
    waits.

    dry_run: delete nothing, and return what would be deleted.
    """
    with journal.starting():
        if any(map(journal.alive, journal.marks())):
            raise InputError("a flow is running here: try again when it has ended")
        since = time.time() - days * DAY
        lines = journal.read()
        recent = [line for line in lines if line["time"] >= since]
        used = {line["key"] for line in recent}
        needed = {digest for line in recent for digest in line.get("blobs", ())}
        records, blobs = files(steps, "*"), files(store.root, "*/*")
        unused = [record for record in records if record.name not in used and is_older(record, since)]
        orphans = [blob for blob in blobs if blob.stem not in needed and is_older(blob, since)]
        parts = [part for part in files(steps.parent, ".*") if PART.fullmatch(part.name) and is_older(part, since)]
        freed = sum(map(room, (*unused, *orphans, *parts)))
        left = sum(blob.stat().st_size for blob in {*blobs} - {*orphans})
        pruned = Pruned(len(unused), len(orphans), freed, left)
        if dry_run:
            return pruned
        # steps first, so that no step refers to a deleted blob if this process is killed
        for path in (*unused, *orphans, *parts):
            path.unlink(missing_ok=True)
        if len(recent) < len(lines):
            journal.replace(recent)
        return pruned


def room(path: Path) -> int:
    """Return the bytes that deleting a file frees; none if it has another name, as models of MLflow's record have."""
    status = path.stat()
    return status.st_size if status.st_nlink == 1 else 0


def is_older(path: Path, since: float) -> bool:
    return path.stat().st_mtime < since


def files(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file()]
