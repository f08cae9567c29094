"""A lock for each step: of equal flows at once, one computes the step, and the others wait for it and take it.

Prefect holds the lock from before it looks for the step's record until it has written it. The operating system releases
it when the process that holds it ends in any way. Prefect's own lock files stay locked where a process was killed.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from filelock import FileLock, Timeout

from fedcore.pipeline import environment
from fedcore.pipeline.orchestration.records import discard_damaged

POLL = 0.1
"""Seconds between two looks at a lock that another process holds."""


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
