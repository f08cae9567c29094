"""A flow's session: the store, the workers, cached steps, progress in the terminal, and the journal of steps."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import torch
from prefect import Flow, get_client, get_run_logger, runtime
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.client.schemas.filters import (
    ArtifactCollectionFilter,
    ArtifactCollectionFilterKey,
    FlowRunFilter,
    TaskRunFilter,
)
from prefect.client.schemas.objects import State
from prefect.context import refresh_global_settings_context
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, Crashed
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedcore.config.settings import Setting
from fedcore.config.studies import Run
from fedcore.core.together import describe_use
from fedcore.errors import InputError, is_installed, printable
from fedcore.execute.accelerator import find_accelerator
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Engine, Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import OWN_PACKAGES
from fedcore.pipeline.cache.shared import open_store
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import server
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.orchestration.task_runs import shorten
from fedcore.pipeline.work import edited, word_of
from fedcore.types.federation import Federation
from fedcore.types.method import Method

T = TypeVar("T")

REPEATED = (
    "Finished in state", "Crash detected!", "Unable to connect to", "Service 'EventsWorker' failed",
    "Failed to write result",
)  # fmt: skip
"""Beginnings of lines that repeat an error, or that a server which is started again makes void."""

OPEN = TaskRunFilter.model_validate({"state": {"type": {"any_": ["PENDING", "RUNNING"]}}})
"""Which steps have not ended."""

console = Console(highlight=False, soft_wrap=True)


@contextmanager
def prefect_server() -> Iterator[str]:
    """Run the body with a Prefect server; yields its address.

    With the project's own, a flow sends no heartbeats unless the user has set them: `end_killed` finds flows whose
    process ended, nothing else reads them, and each flow would wait up to a second at its end for their thread.
    """
    own = {} if "PREFECT_API_URL" in os.environ else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    if own:
        try_again()
    with server.lease() as url:
        refresh_global_settings_context()
        # Lines about errors, which end the command and are shown then (fedcore.pipeline.command), are hidden; and those
        # about a server that does not answer: it is started again meanwhile, or the flow ends.
        logging.raiseExceptions = False  # else Prefect prints that it could not send a log to a server that is gone
        for name in ("flow_runs", "task_runs", "events.clients", "_internal.concurrency"):
            logging.getLogger(f"prefect.{name}").addFilter(_repeats_nothing)
        with temporary_settings(set_defaults=own):
            try:
                yield url
            except PrefectHTTPStatusError as error:
                if error.response.status_code < 500:
                    raise
                raise Failed(server.failure(error.response.status_code)) from None


def try_again() -> None:
    """Let every client of Prefect wait for a server that is started again, also in its first request.

    A new client, such as an artifact's, gives up at once where it has not connected before, in a traceback.
    """
    for client in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        client._has_connected = property(lambda _: True, lambda _, __: None)  # type: ignore[assignment]


def _repeats_nothing(record: logging.LogRecord) -> bool:
    return not record.exc_info and not record.getMessage().startswith(REPEATED)


def _is_not_printed(record: logging.LogRecord) -> bool:
    return not hasattr(record, "printed")


class Session:
    """One run of a flow: its store, its steps, and its progress in the terminal and in the journal.

    on_compute: called after each step that was computed.
    """

    def __init__(
        self, flow: str, store: Store, workers: Engine, progress: Progress, accelerator: str | None, together: int,
        on_compute: Callable[[], None],
    ) -> None:  # fmt: skip
        self.flow = flow
        self.on_compute = on_compute
        self.store = store
        self.steps = Graph(store, workers, self._on_step, self.advance, accelerator, together)
        self.progress = progress
        self.log = get_run_logger()
        for handler in logging.root.handlers:  # of the terminal
            handler.addFilter(_is_not_printed)
        self.bar = progress.add_task(flow, total=None)
        self.done = 0
        self.local_steps: frozenset[str] = frozenset()

    @contextmanager
    def counting(self, description: str, method: Method, count: int) -> Iterator[None]:
        """Show a description of the method whose rounds the body runs, and count its local steps, cache hits included.

        count: of these steps, which all are done at the end.
        """
        self.local_steps = frozenset(word_of(stage.local) for stage in method.stages)
        self.progress.update(self.bar, description=printable(description))
        done = self.done + count
        yield
        self.advance(done - self.done)

    def expect_steps(self, count: int) -> None:
        """Set the number of remaining local steps."""
        self.progress.update(self.bar, total=self.done + count)

    def from_cache(self, run: Callable[[], T]) -> T | None:
        """Return what a run gives of which all steps are cached; otherwise None, and nothing is shown."""
        done = self.done
        if (result := self.steps.from_cache(run)) is None:
            self.done = done
        return result

    def run_in_flow(
        self, label: str, setting: str, seed: int, settings: Mapping[str, Any], data: Mapping[str, str],
        fed: Federation, run: Callable[[], T],
    ) -> T:  # fmt: skip
        """Run a method in a flow run of its own, whose parameters are shown on Prefect's page. Raises its error.

        One that refuses the data ends well there: the run goes on, or says why it ends.
        """
        ends: list[T | Exception] = []

        def method(method: str, setting: str, seed: int, settings: dict[str, Any], data: dict[str, str]) -> State[Any]:
            """Run a method: train on the devices, combine on the server, deploy and evaluate the models."""
            log, self.log = self.log, get_run_logger()
            try:
                with self.steps.drawing(fed):
                    ends.append(run())
                return Completed()
            except InputError as refused:
                ends.append(refused)
                self.log.info(str(refused))
                return Completed(name="Left out", message=str(refused))
            except Exception as error:
                ends.append(error)
                raise
            finally:
                self.log = log

        name = shorten([f"{label}, {setting}, seed {seed}"])
        flow: Any = Flow(method, flow_run_name=lambda: name, persist_result=False, validate_parameters=False)
        shown = (label, setting, seed, dict(settings), dict(data))
        state: State[Any] = flow(*shown, wait_for=self.steps.nodes.parents(fed), return_state=True)
        if not ends and not state.is_completed():
            state.result()
        end = ends[0] if ends else run()  # a flow that is tried again may have it already
        if isinstance(end, Exception):
            raise end
        return end

    def print_line(self, line: str, terminal: bool = True, level: int = logging.INFO) -> None:
        """Print a line in Prefect's log of the flow and, if wanted, in the terminal."""
        if terminal:
            self.progress.console.print(printable(line), markup=False)
        self.log.log(level, line.strip(), extra={"printed": True})

    def advance(self, count: int) -> None:
        """Count so many more local steps as done."""
        self.done += count
        self.progress.update(self.bar, completed=self.done)

    def _on_step(self, step: Step) -> None:
        journal.append({
            "process": os.getpid(), "flow": self.flow, "step": step.kind, "unit": step.unit, "key": step.key,
            "cached": step.cached, "wall": round(step.wall, 4), "cpu": round(step.cpu, 4),
            "blobs": step.blobs, **({"calls": step.calls} if step.calls > 1 else {}),
        })  # fmt: skip
        if step.kind in self.local_steps:
            self.advance(step.calls)
        if not step.cached:
            self.on_compute()
            self.log.info(shorten([f"{step.kind} {step.unit}".strip()]) + f": {step.wall:.1f} s")


def end_killed() -> None:
    """Mark the flow runs whose process was killed, those of their methods, and their steps as crashed in Prefect."""
    ended = Crashed(
        message="its process was killed; the same command, or a deployment's next run, goes on from its last step"
    )
    for mark in journal.marks():
        if not journal.alive(mark):
            with get_client(sync_client=True) as client, suppress(ObjectNotFound, ValueError):
                killed = UUID(mark.name)
                of_methods = FlowRunFilter.model_validate(
                    {"parent_flow_run_id": {"any_": [killed]}, "state": {"type": {"any_": ["RUNNING"]}}}
                )
                for run in (killed, *(of.id for of in _every(client.read_flow_runs, flow_run_filter=of_methods))):
                    of_run = FlowRunFilter.model_validate({"id": {"any_": [run]}})
                    for step in _every(client.read_task_runs, flow_run_filter=of_run, task_run_filter=OPEN):
                        client.set_task_run_state(step.id, ended, force=True)
                    client.set_flow_run_state(run, ended, force=True)
            journal.remove_mark(mark)


def _every(read: Callable[..., list[Any]], **filters: Any) -> list[Any]:
    found: list[Any] = []
    while page := read(**filters, offset=len(found)):  # of 200
        found += page
    return found


def answer_links(address: str) -> list[tuple[str, str]]:
    """Return what links show, and the links, to the studies' answers on Prefect's page. address: that of the page."""
    answers = ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(like_="answer-%"))
    with get_client(sync_client=True) as client:
        keys = sorted(str(found.key) for found in client.read_latest_artifacts(artifact_filter=answers))
    return [(f"{key} in Prefect", f"{address}/artifacts/key/{key}") for key in keys]


@contextmanager
def open_session(
    flow: str, store: Store, engine: Engine, accelerator: str = "none", together: int = 1,
    on_compute: Callable[[], None] = lambda: None,
) -> Iterator[Session]:  # fmt: skip
    """Open a session; worker processes of its own start with the first step that is not cached.

    accelerator, together: the hardware for devices' steps, as in section run. on_compute: see `Session`.
    """
    columns: list[Any] = [
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=console.width - 32)),
        TimeRemainingColumn(), TextColumn("left,"), MofNCompleteColumn(), TextColumn("rounds"),
    ]  # fmt: skip
    environment.prepare()  # a deployment enters here
    progress = Progress(*columns, console=console, transient=True)
    end_killed()
    with journal.running(str(runtime.flow_run.id)), store.lease("flow"), engine, progress:
        device = engine.find_accelerator(accelerator) if isinstance(engine, Cluster) else find_accelerator(accelerator)
        session = Session(flow, store, engine, progress, device, together, on_compute)
        with closing(session.steps):
            yield session


@contextmanager
def open_run_session(
    flow: str, run: Run, settings: Iterable[Setting], on_compute: Callable[[], None]
) -> Iterator[Session]:
    """Open a session with the store, the engine and the hardware of section run. settings: those of the jobs.

    At its end it deletes what the section says is not kept.
    """
    store = open_store(run.store)
    engine = choose_engine(run, settings, store, console.print)
    with open_session(flow, store, engine, run.accelerator, run.together, on_compute) as session:
        if session.steps.accelerator:
            console.print(describe_use(session.steps.accelerator, session.steps.together), markup=False)
        yield session
        if run.states == "long":
            session.steps.evict_cheap()


def choose_engine(run: Run, settings: Iterable[Setting], store: Store, say: Callable[[str], None]) -> Engine:
    """Return what computes the steps of a run.

    settings: those of its jobs; a cluster is sent the user's modules that they name. store: all workers must read it.
    say: called with a line about the cluster.
    """
    if run.engine == "local":
        return Workers(run.workers)
    # What no worker has in its own folder yet, so that it must ask the store.
    check = partial(store_error, store, store.put(torch.tensor([*os.urandom(16)]))) if run.cluster else None
    return Cluster(
        run.cluster, run.workers, own=sorted(OWN_PACKAGES), modules=own_modules(settings), check=check, say=say,
    )  # fmt: skip


def own_modules(settings: Iterable[Setting]) -> list[str]:
    """Return the user's modules and packages that the settings name, those aside that are installed."""
    named = {
        name.partition(":")[0].partition(".")[0]
        for setting in settings
        for name in (*(str(net["name"]) for net in setting.nets), *(str(row.name) for row in setting.methods))
        if ":" in name
    }
    named |= {name.partition(".")[0] for name in edited()}
    specs = {name: find_spec(name) for name in sorted(named)}
    return [name for name, of in specs.items() if not is_installed(Path((of and of.origin) or ".").resolve())]
