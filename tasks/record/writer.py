"""The record, written by a process of its own while the flow goes on.

MLflow, the export of models and the pictures take as long as the rows of a small study. In the flow's process they
would compete with it, and PyTorch's tracer, which patches torch.nn.Module for all threads, would block every step. The
process has a lower priority than the workers and uses the time in which they wait for each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import track as progress

from fedcore.execute.workers import Workers
from tasks.cache.store import Store
from tasks.config import environment
from tasks.record.result import Result

if TYPE_CHECKING:
    from tasks.record.runs import Record


class RecordWriter:
    """Writes runs in order, in another process, which starts with the first call: a flow that is refused has none.

    An error in that process is raised by the next call, or at the end of the block.
    """

    def __init__(self) -> None:
        self._process = Workers(1, nice=15)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedcore-record")
        self._pending: list[Future[list[str] | None]] = []
        self.proposed: list[str] = []
        self._ready = False

    def warm_up(self) -> None:
        """Prepare the process to write a run, once."""
        if not self._ready:
            self._ready = True
            self._submit(warm_up)

    def save(self, store: Store, result: Result, title: str) -> None:
        """Write a method's result to its run, unless the run has it."""
        self._submit(save, store, result, title)

    def describe(self, *study: Any) -> None:
        """Write a comparison to its study's run, see :meth:`tasks.record.runs.Record.describe`."""
        self._submit(describe, *study)

    def propose(self, configs: Sequence[str], promote: bool = False) -> None:
        """Propose the versions of configurations' runs, see :meth:`tasks.record.runs.Record.propose`.

        `proposed` has the lines about them after the block.
        """
        self._submit(propose, configs, promote)

    def _submit(self, fn: Callable[..., list[str] | None], *args: Any) -> None:
        self._check()
        self._pending.append(self._thread.submit(self._process.call, fn, *args))

    def _check(self) -> None:
        for written in [one for one in self._pending if one.done()]:
            self._pending.remove(written)
            self.proposed += written.result() or []

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._process:
            if error is None:  # the record of hundreds of short rows takes minutes more
                quiet = not sys.stdout.isatty()
                for _ in progress(
                    as_completed(self._pending), "writing the record", len(self._pending), transient=True, disable=quiet
                ):
                    pass
            # The current run is finished; after an error a resumed flow writes the rest.
            self._thread.shutdown(cancel_futures=error is not None)
        if error is None:
            self._check()


# In the other process


def warm_up() -> None:
    """Open the record, and prepare the process to write a run."""
    record()
    from tasks.record import runs

    runs.warm_up()


def save(store: Store, result: Result, title: str) -> None:
    record().save(store, result, title)


def describe(*study: Any) -> None:
    record().describe(*study)


def propose(configs: Sequence[str], promote: bool) -> list[str]:
    return record().propose(configs, promote)


@cache
def record() -> Record:
    """Return the record; opens it once."""
    environment.prepare()
    from tasks.record import runs  # MLflow is imported where runs are written

    return runs.Record()
