"""Ways to run steps: here (`Inline`), or in worker processes that stay (`Workers`). Both give the same bits.

A worker is a fresh Python process with one thread for PyTorch and BLAS. It is joined to this process by one socket: its
end closes with this process, however that ends, and the worker leaves. Values travel pickled, their tensors beside them
in one block of shared memory which the receiver maps where it lies. Blocks have no name: they are passed as open files
and vanish with the last process that maps them. Large `Data` is put into shared memory once, for all workers, and each
maps it once.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import math
import mmap
import os
import pickle
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcore.types import Data, Device, Splits

Key = TypeVar("Key")
Result = TypeVar("Result")
Bytes: TypeAlias = npt.NDArray[np.uint8]

LARGE = 1 << 20
"""Bytes from which `Data` is kept in shared memory, each an open file; smaller data travels with each call."""

ALIGNMENT = 64
"""Bytes: where a tensor may begin in a block."""


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
    """Runs steps in `count` worker processes (one per core unless told), each started when it is first needed.

    Functions and arguments are pickled: module-level functions and partials of them. Any thread may call.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        self._shelf = _Shelf()
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

    def _start(self) -> _Worker:
        worker = _Worker()
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
        return len(value.data.train) if isinstance(value.data, Splits) else value.data.nbytes
    if isinstance(value, dict):
        value = tuple(value.values())
    return sum(map(examples, value)) if isinstance(value, tuple) else 0


# Packing: a value is a pickle and, where it has tensors, a block of shared memory that holds them.


class _Block:
    """Shared memory without a name: an open file of so many bytes."""

    def __init__(self, length: int) -> None:
        self.length = length
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("fedcore")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)
        os.truncate(self.descriptor, length)


def _map(descriptor: int, length: int, access: int = mmap.ACCESS_WRITE) -> Bytes:
    """Return a block's bytes where they lie."""
    return np.frombuffer(mmap.mmap(descriptor, length, access=access), dtype=np.uint8)


class _Packed:
    """payload: the pickle. length: bytes needed for its tensors. tokens: the kept data that the payload names."""

    def __init__(self, value: object, keep: Callable[[Data], int] | None = None) -> None:
        stream = io.BytesIO()
        pickler = _Pickler(stream, keep)
        pickler.dump(value)
        self.payload = stream.getbuffer()
        self.length, self.tokens, self._leaves = pickler.length, pickler.tokens, pickler.leaves

    def write(self, block: Bytes) -> None:
        for start, leaf in self._leaves:
            block[start : start + leaf.nbytes] = _bytes(leaf.contiguous())


class _Pickler(pickle.Pickler):
    """Pickles all but tensors, for which it finds places in a block, and large data, for which it writes tokens."""

    def __init__(self, stream: io.BytesIO, keep: Callable[[Data], int] | None) -> None:
        super().__init__(stream, protocol=5)
        self.keep = keep
        self.leaves: list[tuple[int, Tensor]] = []
        self.length = 0
        self.tokens: set[int] = set()

    def persistent_id(self, value: object) -> object:
        if type(value) is Data and self.keep is not None and value.x.nbytes >= LARGE:
            token = self.keep(value)
            self.tokens.add(token)
            return token
        if type(value) is Tensor and value.device.type == "cpu" and value.layout is torch.strided:
            start = math.ceil(self.length / ALIGNMENT) * ALIGNMENT
            self.leaves.append((start, value.detach()))
            self.length = start + value.nbytes
            return start, value.dtype, tuple(value.shape)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, parcel: _Parcel, kept: Mapping[int, Data], main: str | None) -> None:
        super().__init__(io.BytesIO(parcel.payload))
        self.parcel, self.kept, self.main = parcel, kept, main

    def persistent_load(self, name: Any) -> object:
        if isinstance(name, int):
            return self.kept[name]
        start, dtype, shape = name
        part = self.parcel.block[start : start + math.prod(shape) * dtype.itemsize]
        if self.parcel.owned:
            return torch.from_numpy(part).view(dtype).view(shape)
        leaf = torch.empty(shape, dtype=dtype)
        _bytes(leaf)[:] = part
        return leaf

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and self.main is not None:
            _adopt(self.main)
        return super().find_class(module, name)


@dataclass(frozen=True)
class _Parcel:
    """What has arrived. owned: whether the bytes of its tensors are its own, or the line's, free for the next value."""

    payload: bytes
    block: Bytes
    owned: bool

    def open(self, kept: Mapping[int, Data] | None = None, main: str | None = None) -> Any:
        return _Unpickler(self, kept or {}, main).load()


def _bytes(leaf: Tensor) -> Bytes:
    """Return a contiguous tensor's bytes, which are copied by one thread (PyTorch's many stumble over busy workers)."""
    array: Bytes = leaf.view(-1).view(torch.uint8).numpy()
    return array


class _Line:
    """One end of the socket between two processes, with a block for what is sent and one for what is received.

    A block serves value after value (fresh memory costs ten times the copy), so each end takes its turn: a value is
    opened before the answer to it is sent.
    """

    HEADER = struct.Struct("=QQ?")  # bytes of the pickle; bytes of the block that comes along, if any; owned

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._outgoing: Bytes = np.empty(0, dtype=np.uint8)
        self._incoming: Bytes = np.empty(0, dtype=np.uint8)

    def send(self, packed: _Packed) -> None:
        """Send a value in the line's own block."""
        grown = None
        if packed.length > len(self._outgoing):
            grown = _Block(2 * packed.length)
            self._outgoing = _map(grown.descriptor, grown.length)
        packed.write(self._outgoing)
        self._send(packed, grown, owned=False)

    def give(self, packed: _Packed, block: _Block) -> None:
        """Send a value whose tensors already stand in a block of their own, which both ends share from now on."""
        self._send(packed, block, owned=True)

    def _send(self, packed: _Packed, block: _Block | None, owned: bool) -> None:
        header = self.HEADER.pack(len(packed.payload), 0 if block is None else block.length, owned)
        socket.send_fds(self.channel, [header], [] if block is None else [block.descriptor])
        self.channel.sendall(packed.payload)

    def receive(self) -> _Parcel:
        """Wait for the next value. Raises EOFError when the other end is gone."""
        header, descriptors, _, _ = socket.recv_fds(self.channel, self.HEADER.size, 1)
        if len(header) < self.HEADER.size:
            raise EOFError
        size, length, owned = self.HEADER.unpack(header)
        block = self._incoming
        for descriptor in descriptors:
            access = mmap.ACCESS_COPY if owned else mmap.ACCESS_WRITE  # nobody spoils what others map as well
            block = _map(descriptor, length, access)
            os.close(descriptor)
        if not owned:
            self._incoming = block
        payload = bytearray(size)
        rest = memoryview(payload)
        while rest:
            got = self.channel.recv_into(rest)
            if got == 0:
                raise EOFError
            rest = rest[got:]
        return _Parcel(bytes(payload), block, owned)


class _Shelf:
    """The large data that this process has packed, by identity; each is let go when nothing else here refers to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tokens = itertools.count()
        self._token_of: dict[int, int] = {}
        self._held: dict[int, tuple[_Packed, _Block, weakref.ref[Data]]] = {}

    def pack(self, value: object) -> _Packed:
        return _Packed(value, self._keep)

    def __getitem__(self, token: int) -> tuple[_Packed, _Block]:
        packed, block, _ = self._held[token]
        return packed, block

    def held(self) -> set[int]:
        return set(self._held)

    def clear(self) -> None:
        self._token_of.clear()
        self._held.clear()

    def _keep(self, data: Data) -> int:
        with self._lock:
            if id(data) not in self._token_of:
                token = next(self._tokens)
                packed = _Packed(("keep", token, data))
                block = _Block(packed.length)
                packed.write(_map(block.descriptor, block.length))
                reference = weakref.ref(data, partial(self._let_go, id(data), token))
                self._held[token] = packed, block, reference
                self._token_of[id(data)] = token
            return self._token_of[id(data)]

    def _let_go(self, identity: int, token: int, _: weakref.ref[Data]) -> None:
        self._token_of.pop(identity, None)
        self._held.pop(token, None)


class _Worker:
    """A worker process as seen from here."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        start = json.dumps([theirs.fileno(), sys.path, _main_program()])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, start],
                env={**os.environ, **dict.fromkeys(_THREADS, "1")},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C in the terminal is this process's to handle
            )
        self._line = _Line(ours)
        self._known: set[int] = set()
        self.alive = True

    def ask(self, packed: _Packed, shelf: _Shelf, fn: object) -> tuple[bool, Any]:
        """Return (True, what fn returned) or (False, what it raised)."""
        try:
            stale = self._known - shelf.held()
            if stale:
                self._line.send(_Packed(("forget", stale)))
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
    "import json, sys; descriptor, sys.path[:], main = json.loads(sys.argv[1]); "
    "from fedcore.workers import serve; serve(descriptor, main)"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _main_program() -> str | None:
    """Return the module or file that this process was started with."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else getattr(main, "__file__", None)


def _name(fn: object) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"


# The worker's side.


def serve(descriptor: int, main: str | None) -> None:
    """Answer calls until the process at the other end is gone."""
    line = _Line(socket.socket(fileno=descriptor))
    threading.Thread(target=_leave_with, args=(line.channel,), daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    kept: dict[int, Data] = {}
    with suppress(EOFError, ConnectionError):
        while True:
            answer = _answer(line.receive(), kept, main)
            if answer is not None:
                line.send(answer)
            del answer


def _leave_with(channel: socket.socket) -> None:
    """End this process, in the middle of a step if need be, when the other end closes."""
    ending = select.poll()
    ending.register(channel, 0)
    ending.poll()
    os._exit(0)


def _answer(parcel: _Parcel, kept: dict[int, Data], main: str | None) -> _Packed | None:
    try:
        match parcel.open(kept, main):
            case ("keep", token, data):
                kept[token] = data
                return None
            case ("forget", tokens):
                for token in tokens:
                    del kept[token]
                return None
            case ("call", fn, args):
                return _Packed((True, fn(*args)))
            case order:
                raise ValueError(f"no order: {order}")
    except Exception as error:
        error.add_note(f"\nIn the worker process:\n{traceback.format_exc()}")
        return _Packed((False, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error


@cache
def _adopt(main: str) -> None:
    """Load the program of the process at the other end, for functions that are defined in it."""
    if main.endswith(".py"):
        spec = importlib.util.spec_from_file_location("__mp_main__", main)
    else:
        spec = importlib.util.find_spec(main)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["__main__"] = sys.modules[spec.name] = module
        spec.loader.exec_module(module)
