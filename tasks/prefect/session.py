"""A flow's session: the store, the workers, cached steps, progress in the terminal, and the journal of steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect import get_client, get_run_logger, runtime
from prefect.context import refresh_global_settings_context
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedcore.execute.accelerator import find_accelerator
from fedcore.execute.workers import Workers
from fedcore.types import InputError
from tasks.cache import journal
from tasks.cache.journal import Step
from tasks.cache.store import Store
from tasks.config import environment
from tasks.prefect import server
from tasks.prefect.steps import Steps

console = Console(highlight=False, soft_wrap=True)


@contextmanager
def orchestrated() -> Iterator[None]:
    """Run the body with a Prefect server to talk to."""
    with server.lease():
        refresh_global_settings_context()
        quiet = _Quiet()
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).addFilter(quiet)
        yield


class _Quiet(logging.Filter):
    """Keeps what Prefect says of a refusal out of the terminal: its one line says all."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, InputError) and "an exception InputError: " not in record.getMessage()


class Session:
    """One run of a flow: its store, its steps, and its progress in the terminal and in the journal.

    computes: called when a step that had to be computed ends.
    """

    def __init__(
        self,
        flow: str,
        workers: Workers,
        progress: Progress,
        accelerator: str | None,
        computes: Callable[[], None],
    ) -> None:
        self.flow = flow
        self.computes = computes
        self.store = Store(environment.BLOBS)
        self.steps = Steps(self.store, workers, self._watch, self._advance, accelerator)
        self.progress = progress
        self.log = get_run_logger()
        self.bar = progress.add_task(flow, total=None)
        self.done = 0
        self.local: frozenset[str] = frozenset()

    def begin(self, what: str, local: frozenset[str]) -> None:
        """Say what is being done, and the names of its steps that count as local."""
        self.local = local
        self.progress.update(self.bar, description=what)

    def expect(self, work: int) -> None:
        """Say how many local steps are still to come."""
        self.progress.update(self.bar, total=self.done + work)

    def reach(self, done: int) -> None:
        """Say how many local steps are done, also those that were found done."""
        self._advance(done - self.done)

    def say(self, line: str) -> None:
        """Say what was found, here and in Prefect's log of the flow."""
        self.progress.console.print(line)
        self.log.info(line.strip())

    def _advance(self, count: int) -> None:
        self.done += count
        self.progress.update(self.bar, completed=self.done)

    def _watch(self, step: Step) -> None:
        journal.note({
            "process": os.getpid(), "flow": self.flow, "step": step.kind, "unit": step.unit, "key": step.key,
            "cached": step.cached, "wall": round(step.wall, 4), "cpu": round(step.cpu, 4),
            "blobs": step.blobs,
        })  # fmt: skip
        if step.kind in self.local:
            self._advance(1)
        if not step.cached:
            self.computes()


@contextmanager
def on_record(flow_run: str) -> Iterator[None]:
    """Keep Prefect's view of flow runs true: one whose process was killed is marked as crashed by the next."""
    journal.FLOWS.mkdir(parents=True, exist_ok=True)
    for mark in journal.marks():
        if not journal.alive(mark):
            with get_client(sync_client=True) as client, suppress(ObjectNotFound):
                client.set_flow_run_state(UUID(mark.name), Crashed(message="its process ended"), force=True)
            mark.unlink(missing_ok=True)
    mark = journal.FLOWS / flow_run
    mark.write_text(str(os.getpid()))
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def session(
    flow: str, workers: int | None, accelerator: str = "none", computes: Callable[[], None] = lambda: None
) -> Iterator[Session]:
    """Open a session: worker processes start with the first step that is not cached.

    accelerator: what devices' steps may run on, as in section run. computes: see `Session`.
    """
    columns: list[Any] = [
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    ]  # fmt: skip
    progress = Progress(*columns, console=console, transient=True)
    with on_record(str(runtime.flow_run.id)), Workers(workers) as pool, progress:
        yield Session(flow, pool, progress, find_accelerator(accelerator), computes)
