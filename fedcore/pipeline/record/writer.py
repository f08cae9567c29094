"""The record, written by a process of its own while the flow goes on.

MLflow and the pictures take as long as the rows of a small study, and would compete with the flow's process. This one
has a lower priority than the workers and uses the time in which they wait for each other. A further one draws a run's
pictures while this one writes the runs before it.

A thread of the flow in their place is 65 lines less, and takes 28 s of a processor against 37 for a run of four
methods; but a crash of MLflow or matplotlib is then the flow's, and a record that is killed is not written again.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rich.progress import track as progress

from fedcore.errors import InputError
from fedcore.execute.workers import WorkerDied, Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.record.pictures import draw
from fedcore.pipeline.record.result import Evidence, Notice, PromotionCandidate, Result, Rule

if TYPE_CHECKING:
    from fedcore.pipeline.record.runs import Record


PATIENCE = 120.0
"""Seconds to wait for a database that another program locks."""

SILENT = 10.0
"""Seconds that a log waits for the record without a word."""

ASIDE = "set mlflow.db aside, e.g. rename it; the next run writes the record again"

T = TypeVar("T")


class RecordWriter:
    """Writes runs in order, in another process, which starts with the first call: a flow that is refused has none.

    An error in that process is raised by the next call, or at the end of the block. history: the lines of the run,
    which are kept once all else is written. typed: its changed settings in words.
    """

    def __init__(self) -> None:
        check_driver(os.environ.get("MLFLOW_TRACKING_URI", ""))
        self._process = Workers(1, nice=19)
        self._artist = Workers(1, nice=19)
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="fedcore-pictures")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedcore-record")
        self._pending: list[Future[list[Notice] | None]] = []
        self._runs: list[Future[list[Notice] | None]] = []
        self.proposed: list[Notice] = []
        self.history: list[dict[str, Any]] = []
        self.typed = ""
        self._ready = False

    @property
    def left(self) -> int:
        """How many runs are not written yet."""
        return sum(not run.done() for run in self._runs)

    @property
    def count(self) -> int:
        """How many runs were given to be written."""
        return len(self._runs)

    def warm_up(self) -> None:
        """Start the processes that write and draw, once."""
        if not self._ready:
            self._ready = True
            self._submit(open_record)
            self._artist.start()

    def save(self, store: Store, result: Result, title: str, computed: bool = False) -> None:
        """Write a method's result to its run, unless the run has it.

        computed: the result is new, so the run hardly has it; its pictures are drawn while earlier runs are written.
        """
        drawn = [self._drawing.submit(self._call, self._artist, draw, store, result)] if computed else []
        self._runs.append(self._submit(write, "save", store, result, title, *drawn))

    def describe(self, *study: Any) -> None:
        """Write a comparison to its study's run, see :meth:`fedcore.pipeline.record.runs.Record.describe`."""
        self._submit(write, "describe", *study)

    def export(self, configs: Mapping[str, bool], folder: Path) -> None:
        """Write runs to a folder for DVC, see :meth:`fedcore.pipeline.record.runs.Record.export`."""
        self._submit(write, "export", configs, folder)

    def check_drift(self, store: Store, result: Result) -> None:
        """Compare training rows with the champion's; `proposed` has the line about them after the block."""
        self._submit(write, "check_drift", store, result)

    def propose(
        self, configs: Mapping[str, Evidence], rule: Rule, promote: bool = False, final_fit: bool = False
    ) -> list[PromotionCandidate]:
        """Propose the versions of configurations' runs once all before is written; returns those to be fitted finally.

        See :meth:`fedcore.pipeline.record.runs.Record.propose`. `proposed` has the lines about them.
        """
        self._wait()
        self._check()
        call = self._thread.submit(self._call, self._process, write, "propose", configs, rule, promote, final_fit)
        candidates: list[PromotionCandidate]
        notices, candidates = call.result()
        self.proposed += notices
        return candidates

    def save_final_fit(self, store: Store, result: Result, promote: bool = True) -> None:
        """Write a final fit to its run, register its models and, if wanted, make them the champion."""
        self._submit(write, "save_final_fit", store, result, promote)

    def _submit(self, fn: Callable[..., list[Notice] | None], *args: Any) -> Future[list[Notice] | None]:
        self._check()
        self._pending.append(self._thread.submit(self._call, self._process, fn, *args))
        return self._pending[-1]

    def _wait(self) -> None:
        """Wait until all is written: the record of hundreds of short rows takes minutes. Shows how much is left."""
        quiet = not sys.stdout.isatty()
        if said := quiet and bool(wait(self._pending, timeout=SILENT).not_done):
            count = f": {self.left} of {len(self._runs)} methods and seeds left" if self._runs else ""
            sys.stdout.write(f"saving the record{count}\n")
            sys.stdout.flush()
        for _ in progress(
            as_completed(self._pending), "saving the record", len(self._pending), transient=True, disable=quiet
        ):
            pass
        if said:
            sys.stdout.write("saving the record: done\n")

    def _call(self, process: Workers, fn: Callable[..., T], *args: Any) -> T:
        """Call a function in a process; once more in a new one if it was killed, since to write again is harmless."""
        values = [arg.result() if isinstance(arg, Future) else arg for arg in args]
        try:
            return process.call(fn, *values)
        except WorkerDied:
            try:
                return process.call(fn, *values)
            except WorkerDied as died:
                raise Failed(f"the record in MLflow: {died}, twice; {CONTINUE}") from None

    def _check(self) -> None:
        for written in [pending for pending in self._pending if pending.done()]:
            self._pending.remove(written)
            self.proposed += written.result() or []

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._process, self._artist:
            if error is None:
                self._wait()
            # The current run is finished; after an error a resumed flow writes the rest.
            for thread in (self._drawing, self._thread):
                thread.shutdown(cancel_futures=error is not None)
        if error is None:
            self._check()


def check_driver(uri: str) -> None:
    """Refuse a database server whose driver is not installed: MLflow would say so after the run."""
    if uri.startswith(("postgresql", "mysql", "mssql")):
        from sqlalchemy.engine import make_url

        try:
            make_url(uri).get_dialect().import_dbapi()
        except ImportError as missing:
            raise InputError(f"MLFLOW_TRACKING_URI: the database's driver is not installed: {missing}") from None


# In the other processes


def open_record() -> None:
    """Open the record, whose imports take seconds."""
    with_patience(record)


def write(word: str, *args: Any) -> Any:
    """Call a function of :class:`fedcore.pipeline.record.runs.Record`."""
    return with_patience(lambda: getattr(record(), word)(*args))


def with_patience(use: Callable[[], T]) -> T:
    """Use the record; while another program locks its database, try again and again, at most PATIENCE seconds.

    Raises Failed if the database stays locked or cannot be used.
    """
    end, announced = time.monotonic() + PATIENCE, False
    while True:
        try:
            return use()
        except Exception as error:
            fault = database_fault(error)
            if fault is None:
                raise
            if "locked" not in fault or time.monotonic() > end:
                damaged = "malformed" in fault or "not a database" in fault
                aside = damaged or "unable to open" in fault
                raise Failed(f"the record in MLflow: {fault}; {ASIDE if aside else CONTINUE}") from None
        if not announced:
            announced = True
            sys.stderr.write(f"fedcore: waiting up to {PATIENCE:.0f} s for the record in MLflow: {fault}\n")
        time.sleep(1)


def database_fault(error: BaseException | None) -> str | None:
    """Return the words of the database if it is the cause of an error: it is locked, damaged, full, ..."""
    while error is not None:
        if isinstance(error, sqlite3.Error):
            return str(error)
        error = error.__cause__ or error.__context__
    return None


@cache
def record() -> Record:
    """Return the record; opens it once."""
    environment.prepare()
    from fedcore.pipeline.record import runs  # MLflow is imported where runs are written

    # It would print each error of the database, which `with_patience` handles or reports.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return runs.Record()
