"""Ways to run steps: here (`Inline`), or in worker processes that stay (`Workers`). Both give the same bits.

A worker is a fresh Python process with one thread for PyTorch and BLAS. It is joined to this process by one socket: its
end closes with this process, however that ends, and the worker leaves. Values travel pickled, their tensors beside them
in one block of shared memory which the receiver maps where it lies. Blocks have no name: they are passed as open files
and vanish with the last process that maps them. Large `Data` is put into shared memory once, for all workers, and each
maps it once.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch

from fedcore.execute.packing import Channel, Packed, PackedData, Parcel
from fedcore.pickling import dumps
from fedcore.types import Data, Device, Handle

Key = TypeVar("Key")
Result = TypeVar("Result")


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a step, for instance because memory ran out."""


class Inline:
    """Runs every step in this process, one after the other."""

    def call(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run one step as a worker would."""
        with one_thread():
            return fn(*args)

    def map(self, fn: Callable[..., Result], calls: Mapping[Key, tuple[Any, ...]]) -> dict[Key, Result]:
        """Run a step on each key's arguments."""
        return {key: self.call(fn, *args) for key, args in calls.items()}

    def __call__(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run what is not a device's step."""
        return self.call(fn, *args)

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class Workers:
    """Runs steps in `count` worker processes (one per core unless told), each started when first needed, or by `start`.

    Functions and arguments are pickled; lambdas, closures and what the main program or a notebook defines travel by
    value, a function with the globals that it names at every call, a class once to each worker. Any thread may call.
    nice: how far the workers stand back where other processes want the same cores.
    """

    def __init__(self, count: int | None = None, nice: int = 0) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        self._nice = nice
        self._shelf = PackedData()
        self._closed = False
        self._running: set[_Worker] = set()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # None: a place where none has started yet
        for _ in range(self.count):
            self._idle.put(None)

    def call(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run one step in the next free worker and wait for it.

        What the step raises is raised here, with the worker's traceback as a note. Raises WorkerDied if the process
        ends; a new one takes its place.
        """
        place = self._idle.get()
        try:
            if self._closed:
                raise RuntimeError("the workers are closed")
            packed = self._shelf.pack(("call", fn, args))
            if place is None:
                place = self._start()
            good, value = place.ask(packed, self._shelf, fn)
        finally:
            if place is not None and not place.alive:
                self._running.discard(place)
                place = None
            self._idle.put(place)
        if not good:
            raise value
        result: Result = value
        return result

    def map(self, fn: Callable[..., Result], calls: Mapping[Key, tuple[Any, ...]]) -> dict[Key, Result]:
        """Run a step on each key's arguments, the largest devices first; results come in the order of the keys.

        When one fails its error is raised and those not yet begun are dropped.
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

    def __call__(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run what is not a device's step, in this process."""
        with one_thread():
            return fn(*args)

    def start(self) -> None:
        """Start the workers that have not been needed yet, without waiting for them."""
        places = []
        with suppress(queue.Empty):
            while True:
                places.append(self._idle.get_nowait())
        for place in places:
            self._idle.put(place or self._start())

    def _start(self) -> _Worker:
        worker = _Worker(self._nice)
        self._running.add(worker)
        if self._closed:  # by another thread, meanwhile
            worker.kill()
        return worker

    def close(self) -> None:
        """End the workers at once, whatever they are doing."""
        self._closed = True
        for worker in list(self._running):
            worker.kill()
        self._running.clear()
        self._shelf.clear()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a worker does: with one thread, and numbers too small for full precision taken as zero.

    Several threads would hardly be faster at a server's sums, and lose much where other processes use the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def examples(value: object) -> int:
    """Return how many training examples a step's arguments hold: what its time grows with."""
    if isinstance(value, Device):
        return value.data.nbytes if isinstance(value.data, Handle) else len(value.data.train)
    if isinstance(value, dict):
        value = tuple(value.values())
    return sum(map(examples, value)) if isinstance(value, tuple) else 0


class _Worker:
    """A worker process as seen from here."""

    def __init__(self, nice: int) -> None:
        ours, theirs = socket.socketpair()
        start = json.dumps([theirs.fileno(), sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, start],
                env={**_MEMORY, **os.environ, **dict.fromkeys(_THREADS, "1")},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C in the terminal is this process's to handle
            )
        if nice:  # before it has threads of its own, which inherit it
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
        self._line = Channel(ours)
        self._known: set[int] = set()
        self.alive = True

    def ask(self, packed: Packed, shelf: PackedData, fn: object) -> tuple[bool, Any]:
        """Return (True, what fn returned) or (False, what it raised)."""
        try:
            stale = self._known - shelf.held()
            if stale:
                self._line.send(Packed(("forget", stale)))
            for token in packed.tokens - self._known:
                self._line.give(*shelf[token])
            self._known = (self._known - stale) | packed.tokens
            self._line.send(packed)
            answer: tuple[bool, Any] = self._line.receive().open()
        except (EOFError, OSError):
            raise WorkerDied(f"a worker {self._ending()} while it ran {_name(fn)}") from None
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


_START = (
    "import gc, json, sys; gc.disable(); descriptor, sys.path[:] = json.loads(sys.argv[1]); "
    "from fedcore.execute.workers import serve; gc.freeze(); gc.enable(); serve(descriptor)"
)
"""What is imported stays to the end: searching it for garbage, again and again, took a fifth of the imports."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""What glibc keeps of freed memory. By default a worker gives its activations back after every minibatch and gets them
anew as pages to be zeroed: a fifth of a step of VGG-11 or MobileNetV2, up to a quarter of one of DFL's CNN, by what was
allocated before. The environment's own values win."""


def _name(fn: object) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"


# The worker's side.


def serve(descriptor: int) -> None:
    """Answer calls until the process at the other end is gone."""
    line = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=_leave_with, args=(line.channel,), daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    kept: dict[int, Data] = {}
    with suppress(EOFError, ConnectionError):
        while True:
            answer = _answer(line.receive(), kept)
            if answer is not None:
                line.send(answer)
            del answer


def _leave_with(channel: socket.socket) -> None:
    """End this process, in the middle of a step if need be, when the other end closes."""
    ending = select.poll()
    ending.register(channel, 0)
    ending.poll()
    os._exit(0)


def _answer(parcel: Parcel, kept: dict[int, Data]) -> Packed | None:
    try:
        match parcel.open(kept):
            case ("keep", token, data):
                kept[token] = data
                return None
            case ("forget", tokens):
                for token in tokens:
                    del kept[token]
                return None
            case ("call", fn, args):
                return Packed((True, fn(*args)))
            case order:
                raise ValueError(f"no order: {order}")
    except Exception as error:
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
