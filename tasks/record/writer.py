"""The record, written by a process of its own while the flow goes on.

MLflow, its models' exports and the pictures take as long as the rows of a small study. In the flow's process they would
take turns with it, and PyTorch's tracer, which patches torch.nn.Module for all threads, with every step. The process
stands back behind the workers: what it does fits into the moments in which they wait for each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    """Has runs written, in their order; opened once per flow.

    What could not be written is raised by the next order, or at the end of the block.
    """

    def __init__(self) -> None:
        self._process = Workers(1, nice=15)
        self._orders = ThreadPoolExecutor(1, thread_name_prefix="fedcore-clerk")
        self._given: list[Future[None]] = []
        self._ready = False

    def expect(self) -> None:
        """Have all at hand that writing a run needs, since there will be one."""
        if not self._ready:
            self._ready = True
            self._order(expect)

    def keep(self, store: Store, result: Result, title: str) -> None:
        """Have a method's result written into its run, unless it is there."""
        self._order(keep, store, result, title)

    def set_champion(self, alias: str, config: str) -> None:
        """Have an alias pointed to the version of a configuration's run."""
        self._order(set_champion, alias, config)

    def _order(self, fn: Callable[..., None], *args: Any) -> None:
        self._check()
        self._given.append(self._orders.submit(self._process.call, fn, *args))

    def _check(self) -> None:
        for given in [one for one in self._given if one.done()]:
            self._given.remove(given)
            given.result()

    def __enter__(self) -> RecordWriter:
        self._order(begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._process:
            if error is None:  # where rows are short, the record of hundreds of them takes minutes more
                quiet = not sys.stdout.isatty()
                for _ in progress(
                    as_completed(self._given), "writing the record", len(self._given), transient=True, disable=quiet
                ):
                    pass
            # What is being written is finished; after an error the rest is left to the run that goes on from there.
            self._orders.shutdown(cancel_futures=error is not None)
        if error is None:
            self._check()


# The process's side.


def begin() -> None:
    """Import and open what the first order needs, before there is one."""
    environment.prepare()
    record()


def expect() -> None:
    from tasks.record import runs  # MLflow is imported where runs are written

    runs.warm_up()


def keep(store: Store, result: Result, title: str) -> None:
    record().keep(store, result, title)


def set_champion(alias: str, config: str) -> None:
    record().set_champion(alias, config)


@cache
def record() -> Record:
    """Open the record, once."""
    from tasks.record import runs

    return runs.Record()
