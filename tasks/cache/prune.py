"""Pruning the cache: deleting steps that no run has used for long, and the blobs that only they refer to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedcore.types import InputError
from tasks.cache import journal
from tasks.cache.store import Store

DAY = 86400.0


@dataclass(frozen=True)
class Pruned:
    """How much was deleted: steps, blobs, and the bytes of both. left: the bytes of the blobs that stay."""

    steps: int
    blobs: int
    nbytes: int
    left: int


def prune(steps: Path, store: Store, days: float) -> Pruned:
    """Delete the steps that no run has used for so many days, and the older blobs that no step used since refers to.

    A run uses a step when it computes or finds it: the journal has a line that says when, and which blobs the step
    refers to. Older lines are deleted too. The blobs of a step that has no line, since its flow was killed just then,
    stay until they are that old. Whatever is gone is computed again when a run asks for it. Raises InputError while a
    flow runs: it may count on a blob that it has not yet read.
    """
    if any(map(journal.alive, journal.marks())):
        raise InputError("a flow is running here: try again when it has ended")
    since = time.time() - days * DAY
    lines = journal.lines()
    late = [line for line in lines if line["time"] >= since]
    used = {line["key"] for line in late}
    needed = {digest for line in late for digest in line.get("blobs", ())}
    records, blobs = files(steps, "*"), files(store.root, "*/*")
    forgotten = [record for record in records if record.name not in used and older(record, since)]
    orphans = [blob for blob in blobs if blob.stem not in needed and older(blob, since)]
    freed = sum(path.stat().st_size for path in (*forgotten, *orphans))
    for path in (*forgotten, *orphans):  # steps first: after a kill in between, no step counts on a blob that is gone
        path.unlink(missing_ok=True)
    if len(late) < len(lines):
        journal.rewrite(late)
    return Pruned(len(forgotten), len(orphans), freed, sum(blob.stat().st_size for blob in {*blobs} - {*orphans}))


def older(path: Path, since: float) -> bool:
    return path.stat().st_mtime < since


def files(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file()]
