"""The records of steps: the file that Prefect writes for each key, with the references of the step's result.

A run believes what a record says of a step, so a record carries a seal: a digest of what it says and of its key. What
is not whole is removed before Prefect reads it, and the step is computed again. Prefect would load a record through
whichever serializer the record itself names, pickle among them.

Each step has a lock: of equal flows at once, one computes the step, and the others wait for it and take it. Prefect
holds the lock from before it looks for the step's record until it has written it. The operating system releases it when
the process that holds it ends in any way. Prefect's own lock files stay locked where a process was killed.
"""

import asyncio
import json
import shutil
import threading
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prefect.serializers import JSONSerializer

from fedcore.pipeline import environment
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.state import write_atomic

SERIALIZER = JSONSerializer().model_dump(mode="json")
FIELDS = {"value", "wall", "cpu", "seal"}
PAGE = 4096
"""Bytes for which a disk needs room of its own."""

POLL = 0.1
"""Seconds between two looks at a lock that another process holds."""


def with_checksum(key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's record with its seal."""
    return {**record, "seal": _seal(key, record)}


def _seal(key: str, record: Mapping[str, Any]) -> str:
    fields = {name: record[name] for name in sorted(FIELDS - {"seal"})}
    return blake2b(json.dumps([key, fields], sort_keys=True).encode(), digest_size=20).hexdigest()


def discard_damaged(path: Path) -> None:
    """Remove what lies in the place of a step's record unless it is a whole record of the step; it is named by its key.

    A folder in its place goes with all that it holds.
    """
    try:
        if is_valid(path.name, path.read_bytes()):
            return
        path.unlink()
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(path)


def look_up(key: str) -> dict[str, Any] | None:
    """Return the record of a step, None without a whole one."""
    try:
        content = (environment.STEPS / key).read_bytes()
    except OSError:
        return None
    record: dict[str, Any] = json.loads(json.loads(content)["result"]) if is_valid(key, content) else {}
    return record or None


def require_written(key: str) -> None:
    """Raise Failed, or OSError, unless the record of a computed step is there: Prefect goes on after a failed write."""
    if look_up(key) is None:
        path = environment.STEPS / key
        write_atomic(path, bytes(PAGE))  # it says why; and if there is room again, the next run sets it right
        raise Failed(f"{path}: the step's record was not kept; {CONTINUE}")


def is_valid(key: str, content: bytes) -> bool:
    """Tell whether a file holds a record of the step with this key, as it was written."""
    try:
        outer = json.loads(content)
        metadata = outer["metadata"]
        if set(outer) != {"metadata", "result"} or metadata["serializer"] != SERIALIZER or metadata["expiration"]:
            return False
        record = json.loads(outer["result"])
        return set(record) == FIELDS and bool(record["seal"] == _seal(key, record))
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


class StepLocks:
    """The locks of a flow's steps: a `prefect.locking.protocol.LockManager`.

    folder: of the lock files; records: of the steps' records. A record that is damaged goes while the lock is held, so
    that nobody is writing it.
    """

    def __init__(self, folder: Path = environment.LOCKS, records: Path = environment.STEPS) -> None:
        self.folder = folder
        self.records = records
        self._held: dict[str, tuple[str, FileLock]] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Give up waiting: the flow ends."""
        self._closed.set()

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Wait for the lock of a step and take it. Returns False after the timeout, or if the flow ends meanwhile."""
        if self.is_lock_holder(key, holder):
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / key, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=acquire_timeout, poll_interval=POLL, cancel_check=self._closed.is_set)
        except Timeout:
            return False
        self._held[key] = holder, lock
        discard_damaged(self.records / key)
        return True

    def release_lock(self, key: str, holder: str) -> None:
        """Release the lock, and remove its file: who has opened that meanwhile notices and opens the next one."""
        if self.is_lock_holder(key, holder):
            _, lock = self._held.pop(key)
            (self.folder / key).unlink(missing_ok=True)
            lock.release()

    def is_locked(self, key: str) -> bool:
        """Tell whether a step of this flow holds the lock."""
        return key in self._held

    def is_lock_holder(self, key: str, holder: str) -> bool:
        return key in self._held and self._held[key][0] == holder

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Return at once: whoever reads a record in this flow has waited for its step."""
        return True

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        return await asyncio.to_thread(self.acquire_lock, key, holder, acquire_timeout, hold_timeout)

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        return self.wait_for_lock(key, timeout)
