"""Forgetting what no run has used for long: records of steps, and the blobs that only they refer to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedcore.types import InputError
from tasks.cache import journal
from tasks.cache.store import Ref, Store, refs, unflatten

DAY = 86400.0


@dataclass(frozen=True)
class Pruned:
    """What was deleted: steps, blobs, and the bytes of both. left: the bytes of the blobs that stay."""

    steps: int
    blobs: int
    nbytes: int
    left: int


def sweep(steps: Path, store: Store, days: float) -> Pruned:
    """Delete the steps that no run has used for so many days, then the blobs that none of the others refers to.

    A step is used when a run computes or finds it: the journal says when, and loses its lines from before. Blobs of
    that time which belong to no step stay too. What is gone is computed again when it is asked for. Raises InputError
    while a flow runs: it may count on a blob that it has not yet read.
    """
    if any(map(journal.alive, journal.marks())):
        raise InputError("a flow is running here: try again when it has ended")
    since = time.time() - days * DAY
    lines = journal.lines()
    late = [line for line in lines if line["time"] >= since]
    used = {line["key"] for line in late}
    records, blobs = files(steps, "*"), files(store.root, "*/*")
    forgotten = [record for record in records if record.name not in used and older(record, since)]
    needed = {store.path(ref) for record in {*records} - {*forgotten} for ref in referred(record)}
    orphans = [blob for blob in blobs if blob not in needed and older(blob, since)]
    freed = sum(path.stat().st_size for path in (*forgotten, *orphans))
    for path in (*forgotten, *orphans):  # in this order: no record is left that refers to what was deleted
        path.unlink(missing_ok=True)
    if len(late) < len(lines):
        journal.rewrite(late)
    return Pruned(len(forgotten), len(orphans), freed, sum(blob.stat().st_size for blob in {*blobs} - {*orphans}))


def referred(record: Path) -> Iterable[Ref]:
    """Return what the record of a step, as Prefect keeps it, refers to; nothing where no run could read it either."""
    try:
        return list(refs(unflatten(json.loads(json.loads(record.read_text())["result"])["value"], {})))
    except (ValueError, KeyError, TypeError):
        return []


def older(path: Path, since: float) -> bool:
    return path.stat().st_mtime < since


def files(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file()]
