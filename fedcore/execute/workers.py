"""Executors of steps: in this process (`Inline`) or in persistent workers (`Workers`). Both give the same bits.

A worker is a process with one thread for PyTorch and BLAS, forked from this process's template where it has opened one
(:mod:`fedcore.execute.template`), else a new Python process. One socket connects it to this process; when this
process ends in any way, the socket closes and the worker exits. How values travel says :mod:`fedcore.execute.packing`;
docs/architecture.md has what was tried in its place.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from fedcore.builders import name_of
from fedcore.errors import InputError, shorten_traceback
from fedcore.execute.accelerator import compute_alone, cores
from fedcore.execute.accelerator import one_thread as one_thread
from fedcore.execute.packing import KEPT, Channel, Packed, PackedData, Parcel
from fedcore.execute.template import ENVIRONMENT, fork_worker
from fedcore.pickling import dumps, list_values, to_bytes
from fedcore.types.federation import Device, is_handle
from fedcore.types.imports import draw_alike
from fedcore.types.method import Message, RoundInfo, Stage, StepId, Update, seed_all

Key = TypeVar("Key")
Result = TypeVar("Result")


class WorkerDied(RuntimeError):
    """A worker process ended during a step, for instance because it ran out of memory.

    times: how many workers have ended with the step.
    """

    times = 1


class WorkersClosed(RuntimeError):
    """A step was to run after the end of its workers, since the run was stopped."""


class Engine:
    """Runs steps, in this process, one after another; `Workers` and a cluster (fedcore.execute.cluster) do elsewhere.

    All give the same bits.
    """

    def capacity(self) -> int:
        """Return how many steps run at a time."""
        return 1

    def call(self, fn: Callable[..., Result], *args: Any, name: str = "", accelerator: str | None = None) -> Result:
        """Run one step and return its result, or raise its exception.

        name: the step's, which a cluster shows. accelerator: if not None, a cluster runs the step on a worker that has
        one.
        """
        return self(fn, *args)

    def map(
        self, fn: Callable[..., Result], calls: Mapping[Key, tuple[Any, ...]], *, name: str = "",
        accelerator: str | None = None,
    ) -> dict[Key, Result]:  # fmt: skip
        """Run a step on each key's arguments; results are in the order of the keys. name, accelerator: as for `call`.

        Raises the error of a call that fails.
        """
        return {key: self.call(fn, *args) for key, args in calls.items()}

    def __call__(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run a function in this process, such as the server's, with a worker's settings of PyTorch."""
        with one_thread():
            return run_step(fn, *args)

    def start(self) -> None:
        """Start the processes without waiting for them, if there are any."""

    def close(self) -> None:
        """End the processes, even during a step, if there are any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def run_step(fn: Callable[..., Result], *args: Any) -> Result:
    """Call a step; an error that is not one of input says, as a note, on which device and in which round it was.

    Before, the global generators are seeded by what the step is, or by the seed that it gets: a user's code may draw.
    """
    at = next((at for at in args if isinstance(at, StepId | RoundInfo)), None)
    fn, *args = _with_own_entries([fn, *args], {})
    seed_all(at.generator("step").initial_seed() if at else next((seed for seed in args if type(seed) is int), 0))
    try:
        with refuse_changes(fn, args):
            return fn(*args)
    except InputError:
        raise
    except Exception as error:
        for at in args:
            if isinstance(at, StepId):
                who = at.unit if isinstance(at.unit, str) else " and ".join(at.unit)
                error.add_note(f"in {name_of(fn)}: device {who}, round {at.round + 1} of stage {at.stage + 1}")
        raise


def _with_own_entries(value: Any, copies: dict[int, Any]) -> Any:
    """Return what a step is given such that it may put other values into it, which no other step sees.

    copies: of what it was given already, by id: what is named twice stays one.
    """
    kind, own = type(value), partial(_with_own_entries, copies=copies)
    if id(value) in copies:
        return copies[id(value)]
    if kind is partial:
        value = partial(own(value.func), *map(own, value.args), **own(value.keywords))
    elif isinstance(value, Message | Update | Stage):
        copies[id(value)] = value = replace(value, **own(vars(value)))
    elif kind is dict:
        copies[id(value)] = value = {name: own(part) for name, part in value.items()}
    return kind(map(own, value)) if kind in (list, tuple) else value


@contextmanager
def refuse_changes(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[None]:
    """Refuse a method's own step that changes a tensor it is given, or a value that it reaches: others read that, too.

    In its first two rounds, and of `deploy`, their numbers are compared, then PyTorch's counts of changes of tensors.
    Of what it reaches, such as a global, new entries are none: they may be a cache, or a log.
    """
    steps = [fn, *args, *(stage.local for stage in getattr(fn, "args", ()) if isinstance(stage, Stage))]
    users = [of for of in steps if callable(of) and not name_of(of).startswith("fedcore.")]
    own = [name_of(of) for of in users]
    rounds = [at.round for at in args if isinstance(at, StepId | RoundInfo)]
    late, seen = max(rounds, default=0) > 1, own and (rounds or name_of(fn).startswith("fedcore."))
    given: list[tuple[str, Tensor, Any]] = []
    given += [(of, x, x._version if late else x.clone()) for of, x in tensors_of([fn, *args])] if seen else []
    watched = list_values(*users) if seen and not late else {}
    yield
    for path, tensor, before in given:
        if tensor._version != before if late else not torch.equal(tensor.nan_to_num(), before.nan_to_num()):
            raise InputError(f"{own[0]}: changes {path} in place, which other steps read; change a clone of it")
    after, nothing = list_values(*users) if watched else {}, to_bytes(None)
    for path, value in watched.items():
        if value != after.get(path, value) or (value == nothing and path not in after):
            why = "which devices and rounds in other processes lack; return it as memory, or in the server's tensors"
            raise InputError(f"{own[0]}: changes its {path}, {why}")


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in what a step is given, with their paths."""
    value = [value.keywords, value.args, value.func] if isinstance(value, partial) else value
    if isinstance(value, Tensor):
        yield path, value
    elif is_dataclass(value) or isinstance(value, Mapping):
        for name, part in (value if isinstance(value, Mapping) else vars(value)).items():
            yield from tensors_of(part, f"{path}.{name}".lstrip("."))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_of(part, path)


Inline = Engine
"""Runs steps in this process."""


class Workers(Engine):
    """Runs steps in `count` worker processes (default: one per core), each started on first use or by `start`.

    Functions and arguments are pickled. Lambdas, closures and definitions of the main program or a notebook are sent by
    value: a function with the globals it refers to at every call, a class once per worker. Any thread may call.
    nice: increment of the workers' niceness; above 0 they yield to other processes. Raises InputError on Windows.
    """

    def __init__(self, count: int | None = None, nice: int = 0) -> None:
        if not hasattr(socket, "send_fds"):
            raise InputError("worker processes need Linux or macOS; on Windows use WSL, or no workers")
        self.count = count or cores()
        self._nice = nice
        self._shelf = PackedData()
        self._closed = False
        self._running: set[_Worker] = set()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # None: a worker not started yet
        for _ in range(self.count):
            self._idle.put(None)

    def call(self, fn: Callable[..., Result], *args: Any, name: str = "", accelerator: str | None = None) -> Result:
        """Run one step in the next free worker and return its result.

        Raises the step's exception, with the worker's traceback as a note, and WorkerDied if the process ends; a new
        process replaces it.
        """
        worker = self._idle.get()
        try:
            if self._closed:
                raise WorkersClosed("the workers are closed")
            packed = self._shelf.pack(("call", fn, args))
            if worker is None:
                worker = self._start()
            good, value = worker.ask(packed, self._shelf, fn)
        finally:
            if worker is not None and not worker.alive:
                self._running.discard(worker)
                worker = None
            self._idle.put(worker)
        if not good:
            raise value
        result: Result = value
        return result

    def map(
        self, fn: Callable[..., Result], calls: Mapping[Key, tuple[Any, ...]], *, name: str = "",
        accelerator: str | None = None,
    ) -> dict[Key, Result]:  # fmt: skip
        """Run a step on each key's arguments, the largest devices first; results are in the order of the keys.

        Raises the error of the first call that fails and cancels those not yet started.
        """
        threads = ThreadPoolExecutor(self.count, thread_name_prefix="fedcore-workers")
        try:
            order = sorted(calls, key=lambda key: examples(calls[key]), reverse=True)
            futures = {key: threads.submit(self.call, fn, *calls[key]) for key in order}
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return {key: futures[key].result() for key in calls}
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def capacity(self) -> int:
        """Return how many steps run at a time."""
        return self.count

    def start(self) -> None:
        """Start the remaining workers without waiting for them."""
        workers = []
        with suppress(queue.Empty):
            while True:
                workers.append(self._idle.get_nowait())
        for worker in workers:
            self._idle.put(worker or self._start())

    def _start(self) -> _Worker:
        worker = _Worker(self._nice)
        self._running.add(worker)
        if self._closed:  # by another thread, meanwhile
            worker.kill()
        return worker

    def close(self) -> None:
        """Kill the workers, even during a step."""
        self._closed = True
        for worker in list(self._running):
            worker.kill()
        self._running.clear()
        self._shelf.clear()


def devices_in(value: object) -> Iterator[Device]:
    """Yield the devices among a step's arguments."""
    if isinstance(value, Device):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
        yield from devices_in(part)


def examples(value: object) -> int:
    """Return the training examples in a step's arguments, of stored ones their bytes, to estimate its time."""
    return sum(of.data.nbytes if is_handle(of.data) else len(of.data.train) for of in devices_in(value))


def shares(calls: Mapping[Key, tuple[Any, ...]], count: int) -> list[list[Key]]:
    """Divide calls into shares with about as many training examples each, the largest devices first."""
    parts: list[list[Key]] = [[] for _ in range(count)]
    loads = [(0, 0)] * count  # examples, calls
    for key in sorted(calls, key=lambda key: examples(calls[key]), reverse=True):
        least = loads.index(min(loads))
        parts[least].append(key)
        loads[least] = loads[least][0] + examples(calls[key]), loads[least][1] + 1
    return parts


class _Worker:
    """This process's handle of a worker process."""

    def __init__(self, nice: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = fork_worker(theirs, nice) or _start_python(theirs, nice)
        self._line = Channel(ours)
        self._known: set[int] = set()
        self.alive = True

    def ask(self, packed: Packed, shelf: PackedData, fn: object) -> tuple[bool, Any]:
        """Return (True, result of fn) or (False, its exception)."""
        try:
            stale = self._known - shelf.tokens()
            if stale:
                self._line.send(Packed(("forget", stale)))
            for token in packed.tokens - self._known:
                self._line.give(*shelf[token])
            self._known = (self._known - stale) | packed.tokens
            self._line.send(packed)
            answer: tuple[bool, Any] = self._line.receive().open()
        except (EOFError, OSError):
            raise WorkerDied(f"a worker {self._ending()} while it ran {name_of(fn)}") from None
        except BaseException:
            self.kill()
            raise
        return answer

    def kill(self) -> None:
        self.alive = False
        self._process.kill()
        self._process.wait()
        self._line.channel.close()

    def _ending(self) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name} (out of memory?)"
        return f"left with exit code {code}"


def _start_python(connection: socket.socket, nice: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _START, json.dumps([connection.fileno(), sys.path])],
        env={**ENVIRONMENT, **os.environ, **dict.fromkeys(_THREADS, "1")},
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        process_group=0,  # only this process handles Ctrl-C
    )
    if nice:  # before its threads start, which inherit it
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
    return process


_START = (
    "import gc, json, sys; gc.disable(); descriptor, sys.path[:] = json.loads(sys.argv[1]); "
    "from fedcore.execute.workers import serve; gc.freeze(); gc.enable(); serve(descriptor)"
)
"""Imported objects live to the end: collecting garbage among them again and again took a fifth of the imports."""
GLANCE = 0.1
"""Seconds between two looks at what has come and is not read yet."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# The worker's side.


def serve(descriptor: int) -> None:
    """Answer calls until the other end closes."""
    line = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=_leave_with, args=(line.channel,), daemon=True).start()
    compute_alone()
    draw_alike()
    with suppress(EOFError, ConnectionError):
        while True:
            answer = _answer(line.receive())
            if answer is not None:
                line.send(answer)
            del answer


def _leave_with(channel: socket.socket) -> None:
    """End this process, even during a step, when the other end closes; what comes otherwise the main thread reads."""
    with suppress(OSError):
        while channel.recv(1, socket.MSG_PEEK):
            time.sleep(GLANCE)
    os._exit(0)


def _answer(parcel: Parcel) -> Packed | None:
    try:
        match parcel.open():
            case ("keep", token, data):
                KEPT[token] = data
                return None
            case ("forget", tokens):
                for token in tokens:
                    del KEPT[token]
                return None
            case ("call", fn, args):
                return Packed((True, run_step(fn, *args)))
            case order:
                raise ValueError(f"no order: {order}")
    except Exception as error:
        shorten_traceback(error)
        error.add_note(f"\nIn the worker process:\n{traceback.format_exc()}")
        return Packed((False, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error
