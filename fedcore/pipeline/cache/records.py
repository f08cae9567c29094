"""The records of steps: a file for each key, with the references of the step's result and the seconds that it took.

A run believes what a record says of a step, so a record carries a seal: a digest of what it says and of its key. What
is not whole counts as absent, and the step is computed again.

Each step has a lock: of equal flows at once, one computes the step, and the others wait for it and take it. The
operating system releases it when the process that holds it ends in any way.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from filelock import FileLock, Timeout

from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.state import write_atomic

FIELDS = {"value", "wall", "cpu", "seal"}

DIVERGED = "diverged"
"""What the value of a step has that diverged, with the reason: it would do so again."""

POLL = 0.1
"""Seconds between two looks at a lock that another process holds."""


def seal_of(key: str, record: Mapping[str, Any]) -> str:
    """Return the seal of a step's record."""
    fields = {name: record[name] for name in sorted(FIELDS - {"seal"})}
    return digest_of(json.dumps([key, fields], sort_keys=True))


def parse(key: str, content: bytes) -> dict[str, Any] | None:
    """Return the record of the step with this key, None unless it is as it was written."""
    try:
        record = json.loads(content)
        return record if set(record) == FIELDS and bool(record["seal"] == seal_of(key, record)) else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def look_up(key: str) -> dict[str, Any] | None:
    """Return the record of a step, None without a whole one."""
    try:
        return parse(key, (environment.STEPS / key).read_bytes())
    except OSError:
        return None


def write(key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write a step's record, in place of whatever lies there, and return it with its seal."""
    path, sealed = environment.STEPS / key, {**record, "seal": seal_of(key, record)}
    if path.is_dir():
        shutil.rmtree(path)
    write_atomic(path, json.dumps(sealed).encode(), durable=False)
    return sealed


@contextmanager
def lock(key: str, ends: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of a step; wait for it, unless the flow ends meanwhile: raises Failed then.

    Its file is removed: who has opened that meanwhile notices and opens the next one.
    """
    environment.LOCKS.mkdir(parents=True, exist_ok=True)
    path = environment.LOCKS / key
    held = FileLock(path, mode=0o600, thread_local=False)
    try:
        held.acquire(poll_interval=POLL, cancel_check=ends)
    except Timeout:
        raise Failed(f"{path}: another process computes this step, and the run ends; {CONTINUE}") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        held.release()
