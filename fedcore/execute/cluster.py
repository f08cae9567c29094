"""An executor of steps on a Dask cluster: the calls of `Workers`, in workers of other machines too.

A call travels as one packet: a pickle, and its tensors as one vector of bytes. A small packet goes with its task
through the scheduler; a large one goes from this process to a worker directly, as all results come back. A worker keeps
nothing between calls, so that a dead one costs the calls that it had and no more. The scheduler needs neither fedcore
nor PyTorch. Dask is imported when it is used; at the end is its side: the client, an address's workers, our own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

from fedcore.builders import name_of
from fedcore.errors import InputError, message_of, require_extra
from fedcore.execute import remote
from fedcore.execute.accelerator import cores, find_accelerator
from fedcore.execute.template import ENVIRONMENT
from fedcore.execute.workers import Engine, WorkerDied, WorkersClosed, shares

Key = TypeVar("Key")
Result = TypeVar("Result")

SMALL = 1 << 16
"""Most bytes of a packet that goes through the scheduler."""

PATIENCE = 15.0
"""Seconds in which a scheduler must answer, and its first worker be there."""

START = 300.0
"""Seconds in which workers of our own must be there: they import PyTorch, on a busy machine beside others."""

ABANDONED = 60.0
"""Seconds without a worker after which a step fails."""

COUNTED = 2.0
"""Seconds for which a number of workers is believed."""


DEATHS = 3
"""Workers that may die with a step, on workers of our own; other clusters have Dask's scheduler.allowed-failures."""

GPU = {"GPU": 1}
"""The Dask resource that a step on an accelerator takes."""


class ClusterLost(RuntimeError):
    """The scheduler has gone, or all workers have."""


class Cluster(Engine):
    """Runs steps on the workers of a Dask scheduler, or on `count` of our own on this machine (default: one per core).

    address: the scheduler's, such as tcp://10.0.0.5:8786 or tls://...; certificates are those of Dask's configuration.
    own: packages whose source every worker must have as it is here. modules: those that are sent to the workers.
    check: called by each worker before the first step; returns what is wrong there, or an empty text. say: called with
    a line about the cluster once it is there. Functions and arguments travel as those of `Workers` do. Any thread may
    call. Raises InputError if there is no such cluster, or if a worker cannot do the steps of this process.
    """

    def __init__(
        self, address: str | None = None, count: int | None = None, *, own: Sequence[str] = ("fedcore",),
        modules: Sequence[str] = (), check: Callable[[], str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.address = address
        self._count = count or cores()
        self._own = {name: remote.source(name) for name in own}
        self._modules, self._check, self._say = tuple(modules), check, say
        self._connecting, self._free = threading.RLock(), threading.Condition()
        self._client: Any = None
        self._ours: Any = None
        self._closed = False
        self._running = 0
        self._workers: tuple[float, list[str]] = (0.0, [])  # when they were counted; their addresses
        self._asked: Counter[str] = Counter()

    def call(self, fn: Callable[..., Result], *args: Any, name: str = "", accelerator: str | None = None) -> Result:
        """Run one step on the cluster and return its result.

        name: the task's key, which Dask shows without its digits. Two runs that ask for one at the same time share its
        result. accelerator: if not None, only a worker with the resource GPU runs the step.
        Raises the step's exception; WorkerDied if more workers died with it than the scheduler allows; ClusterLost.
        """
        with self._turn():
            key = self._next(name) if name else f"{word(fn)}-{uuid4().hex}"
            job = _Job(fn, [args], key, accelerator)
            result: Result = self._receive(job, self._send(job))[0]
        return result

    def map(
        self, fn: Callable[..., Result], calls: Mapping[Key, tuple[Any, ...]], *, name: str = "",
        accelerator: str | None = None,
    ) -> dict[Key, Result]:  # fmt: skip
        """Run a step on each key's arguments, in one task per worker; results are in the order of the keys.

        name: the first word of the tasks' keys. For the rest see `call`.
        """
        with self._turn():
            workers = self._addresses(0.0)
            parts = [part for part in shares(calls, max(1, len(workers))) if part]
            given = ([calls[key] for key in part] for part in parts)
            jobs = [_Job(fn, each, f"{name or word(fn)}-{uuid4().hex}", accelerator) for each in given]
            futures = [self._send(job, workers[number : number + 1]) for number, job in enumerate(jobs)]
            try:
                received = map(self._receive, jobs, futures)
                results = {key: of for part in parts for key, of in zip(part, next(received), strict=True)}
            finally:
                for future in futures:
                    future.release()
        return {key: results[key] for key in calls}

    def capacity(self) -> int:
        """Return how many steps run at a time."""
        return max(1, len(self._addresses(0.0)))

    def find_accelerator(self, wanted: str) -> str | None:
        """Return the kind of accelerator that workers have for steps, or None. wanted: "auto" or "none"."""
        if self.address is None:
            return find_accelerator(wanted)
        workers = self._connect().scheduler_info()["workers"].values()
        offered = {name for worker in workers for name in worker["resources"]}
        return "cuda" if wanted == "auto" and GPU.keys() <= offered else None

    def start(self) -> None:
        """Start our own workers without waiting for them."""

        def start() -> None:
            with suppress(Exception):  # the first call says what is wrong
                self._connect()

        threading.Thread(target=start, name="fedcore-cluster", daemon=True).start()

    def close(self) -> None:
        """Leave the cluster; workers of our own end, even during a step."""
        self._closed = True
        with self._connecting:
            for part in (self._client, self._ours):
                if part is not None:
                    with suppress(Exception):
                        part.close(timeout=5)

    def __enter__(self) -> Cluster:
        require_extra("cluster", subject="run.engine = 'dask': ")
        if self.address is not None:
            try:
                self._connect()
            except BaseException:
                self.close()
                raise
        return self

    # Connecting.

    def _connect(self) -> Any:
        """Return Dask's client; the first call connects it, or starts the workers."""
        with self._connecting:
            if self._closed:
                raise WorkersClosed("the cluster is closed")
            if self._client is None:
                distributed = import_distributed()
                if self.address is None:
                    self._ours = OwnWorkers(distributed, self._count)
                    self._client = connect(distributed, self._ours.address, self._count, START, self._ours.security)
                else:
                    self._client = connect(distributed, self.address, 1, PATIENCE)
                    self._survey()
                if self._modules:
                    self._client.register_plugin(shipment(distributed, self._modules), name=f"fedcore-{uuid4().hex}")
                workers = len(self._client.nthreads())
                self._say(f"dask: {workers} worker{'s' * (workers != 1)}, {self._client.dashboard_link}")
            return self._client

    def _survey(self) -> None:
        """Refuse workers that cannot do the steps of this process as it would; raises InputError, which names them."""
        check = None if self._check is None else remote.pack(self._check)
        for _ in range(DEATHS):
            surveys = self._client.run(by_value("survey"), tuple(self._own), check, on_error="return")
            if not any(isinstance(survey, OSError) for survey in surveys.values()):
                break
            time.sleep(COUNTED)  # a worker has just ended; another takes its place
        expected = remote.survey(self._own, None) | {"check": ""}
        wrong = [
            f"worker {address}: {line}" for address, survey in surveys.items() for line in differences(survey, expected)
        ] + [
            f"worker {address}: has {threads} threads; start it with --nthreads 1"
            for address, threads in self._client.nthreads().items()
            if threads != 1
        ]
        if wrong:
            raise InputError(f"cluster {self.address}: {'; '.join(wrong)}")

    # Calling.

    def _next(self, name: str) -> str:
        """Return a key for a step: its name, but another if it is asked for again, since its result was of no use."""
        with self._free:
            self._asked[name] += 1
            again = self._asked[name] - 1
        return f"{name}-{again}" if again else name

    def _send(self, job: _Job, workers: Sequence[str] = ()) -> Any:
        """Return the future of a job that is sent to the cluster. workers: for a large packet; any if empty."""
        client, packet = self._connect(), remote.pack((job.fn, job.calls))
        sent = packet if len(packet[0]) + packet[1].nbytes <= SMALL else self._scatter(packet, workers)
        with self._reached():
            return client.submit(
                by_value("answer"), self._own, sent, key=job.key, pure=False,
                resources=GPU if job.accelerator else None,
            )  # fmt: skip

    def _scatter(self, packet: remote.Packet, addresses: Sequence[str]) -> Any:
        """Return the future of a packet that is put at a worker; one that died unnoticed takes another try."""
        key, left = f"packet-{uuid4().hex}", DEATHS
        while True:
            left -= 1
            with self._reached():
                try:
                    return self._client.scatter({key: packet}, direct=True, workers=addresses or None)[key]
                except OSError:
                    if not left:
                        raise
            addresses = ()
            time.sleep(COUNTED / 2)

    def _receive(self, job: _Job, future: Any) -> list[Any]:
        """Return a job's results; it is sent again where a worker died that had its packet."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        for attempt in range(DEATHS):
            if attempt:
                future = self._send(replace(job, key=f"{job.key}-{uuid4().hex}"))
            try:
                self._wait(future)
                results: list[Any] = remote.unpack(future.result())
                return results
            except KilledWorker as killed:
                raise died(job, killed.allowed_failures + 1) from None
            except CancelledError as error:
                self._refuse_if_lost(getattr(error, "reason", "") == "scheduler-connection-lost")
            except CommClosedError:  # the scheduler went when it was asked where the result is
                self._refuse_if_lost(True)
            finally:
                future.release()
        raise died(job, DEATHS)

    def _wait(self, future: Any) -> None:
        """Wait until a task has ended; raises ClusterLost if no worker is left to do it."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        last_seen = time.monotonic()
        while not done.wait(ABANDONED / 6):
            if self._addresses():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > ABANDONED:
                raise ClusterLost(f"the cluster {self._place()} has no worker left")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise ClusterLost or WorkersClosed for an error in speaking to the scheduler that has gone."""
        try:
            yield
        except Exception:
            self._refuse_if_lost()
            raise

    def _refuse_if_lost(self, lost: bool = False) -> None:
        """Raise WorkersClosed or ClusterLost. lost: the scheduler was lost, though there may be a new one by now."""
        if self._closed:
            raise WorkersClosed("the cluster is closed") from None
        if lost or self._client.status != "running":
            raise ClusterLost(f"the scheduler at {self._place()} has gone") from None

    def _place(self) -> str:
        return self.address or str(self._ours.address)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a turn: two calls for each worker, as Dask blames a worker's death on all tasks that wait there."""
        with self._free:
            while self._running >= 2 * max(1, len(self._addresses())):
                self._free.wait(COUNTED)
            self._running += 1
        try:
            yield
        finally:
            with self._free:
                self._running -= 1
                self._free.notify()

    def _addresses(self, age: float = COUNTED) -> list[str]:
        """Return the workers' addresses, as they were at most so many seconds ago."""
        when, addresses = self._workers
        if time.monotonic() > when + age:
            with self._reached():
                addresses = sorted(self._connect().nthreads())
            self._workers = time.monotonic(), addresses
        return addresses


@dataclass(frozen=True)
class _Job:
    """A function with the arguments of its calls, one Dask task of that key. accelerator: as for `Cluster.call`."""

    fn: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    key: str
    accelerator: str | None


def died(job: _Job, times: int) -> WorkerDied:
    """Return the error of a job with which so many workers died."""
    error = WorkerDied(f"a worker of the cluster ended while it ran {name_of(job.fn)}")
    error.times = times
    return error


def word(fn: object) -> str:
    """Return the name of a step's function."""
    return name_of(fn).rpartition(":")[2]


def differences(survey: Mapping[str, str] | BaseException, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a worker, in words."""
    if isinstance(survey, BaseException):
        yield f"cannot run fedcore ({reason(survey)})"
        return
    for name, value in expected.items():
        here = survey.get(name, "")
        if name == "check":
            yield from [here] if here else []
        elif here != value:
            yield f"has another {name}" if name.startswith("source") else f"has {name} {here or '(none)'}, not {value}"


def reason(error: BaseException) -> str:
    """Return the first cause of an error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return message_of(error)


def by_value(name: str) -> Callable[..., Any]:
    """Return a call of a function of `fedcore.execute.remote` that a scheduler without fedcore can read."""

    def call(*args: Any) -> Any:
        from importlib import import_module

        return getattr(import_module("fedcore.execute.remote"), name)(*args)

    return call


def shipment(distributed: Any, modules: Sequence[str]) -> Any:
    """Return a plugin that brings modules to every worker, also to those that join later."""
    archived = remote.archive(modules)

    class Modules(distributed.WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            from pathlib import Path

            from fedcore.execute.remote import install

            install(archived, modules, Path(worker.local_directory))

    return Modules()


def import_distributed() -> Any:
    """Return Dask's package, with its lines on stderr off: errors say in one line what a user must know."""
    import distributed

    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def connect(distributed: Any, address: str, count: int, wait: float, security: Any = None) -> Any:
    """Return a client of a scheduler that has at least `count` workers; raises InputError in one line otherwise.

    wait: seconds for them. security: certificates; None: those of Dask's configuration.
    """
    client = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions: the survey refuses those that matter
            client = distributed.Client(
                address, timeout=wait, direct_to_workers=True, set_as_default=False, security=security
            )
        client.wait_for_workers(count, timeout=wait)
    except Exception as error:
        if client is not None:
            client.close()
        raise InputError(f"cluster {address}: no scheduler with workers answers ({reason(error)})") from error
    return client


class OwnWorkers:
    """A scheduler in this process and `count` workers as processes on this machine, on loopback.

    They and this process know one another by certificates made for them: other users of the machine could speak to a
    scheduler without, and have it run what they like with the rights of this one.
    """

    def __init__(self, distributed: Any, count: int) -> None:
        from distributed.deploy.subprocess import SubprocessWorker

        class Worker(SubprocessWorker):  # type: ignore[misc]
            async def _start(self) -> None:
                spec = json.dumps({"cls": self.worker_class, "opts": self.worker_kwargs})
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "dask", "spec", self.scheduler, "--spec", spec,
                    env={**ENVIRONMENT, **os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,  # only this process handles Ctrl-C
                )  # fmt: skip

        self.security = distributed.Security.temporary()
        self._folder = TemporaryDirectory(prefix="fedcore-")  # of mode 700
        files = {name: Path(self._folder.name) / f"{name}.pem" for name in ("ca", "cert", "key")}
        files["ca"].write_text(self.security.tls_ca_file)
        files["cert"].write_text(self.security.tls_worker_cert)
        files["key"].write_text(self.security.tls_worker_key)
        tls = "DASK_DISTRIBUTED__COMM__TLS__"
        paths = zip(("CA_FILE", "WORKER__CERT", "WORKER__KEY"), files.values(), strict=True)
        settings = {"DASK_LOGGING__DISTRIBUTED": "critical", **{f"{tls}{key}": str(path) for key, path in paths}}
        scheduler = {
            "cls": distributed.Scheduler,
            "options": {
                "host": "tls://127.0.0.1", "dashboard_address": "127.0.0.1:0", "allowed_failures": DEATHS - 1,
                "security": self.security,
            },
        }  # fmt: skip
        gpu = {"resources": GPU} if find_accelerator("auto") else {}
        own = {"host": "127.0.0.1", "protocol": "tls", "nthreads": 1, "memory_limit": 0, "dashboard": False, **gpu}
        worker = {"cls": Worker, "options": {"worker_kwargs": own}}
        workers = dict.fromkeys(range(count), worker)
        self._cluster = distributed.SpecCluster(
            workers, scheduler, worker, security=self.security, silence_logs=logging.CRITICAL
        )
        self.address = self._cluster.scheduler_address

    def close(self, timeout: float) -> None:
        self._cluster.close(timeout=timeout)
        self._folder.cleanup()
