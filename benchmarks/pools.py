"""Our workers beside two pools of libraries, on the same steps in turns: W1, tiny steps, empty steps, a deep model.

`Mapped` is joblib's executor (loky) with tensors in memory-mapped files, in portable code; `Spawned` is the pool of
`torch.multiprocessing`. Two workers each. Every pool must give the same bits. The second part kills a worker in the
middle of a step and says which steps that cost.

    python -m benchmarks.pools [repetitions]
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import BrokenProcessPool
from torch import Tensor
from torch.multiprocessing import TimeoutError, get_context

from benchmarks import w1
from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import Training
from fedcore.execute.packing import Bytes, Packed, Parcel
from fedcore.execute.workers import Workers, examples, one_thread
from fedcore.methods import method
from fedcore.types import Data, Device, Federation, Message, Net, Params, Splits, generator

WORKERS = 2
DEVICES = 16  # of the deep model
TINY = 100, 32  # devices, and examples of each: four minibatches of 8
EMPTY = 400
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}  # as ours have them


# joblib's executor, with tensors in files that both processes map. Values are packed as ours are: what differs is how
# they get there. Nothing here is bound to one operating system.

Sent: TypeAlias = tuple[bytes | memoryview, str, int]
"""A value's pickle, the file that holds its tensors, and the bytes of that file."""


@cache
def mapped(path: str, room: int, mode: Literal["r+", "c"] = "r+") -> Bytes:
    """Return a file's bytes where they lie; a file that has grown is mapped anew."""
    return np.asarray(np.memmap(path, dtype=np.uint8, mode=mode, shape=(room,))) if room else np.empty(0, np.uint8)


def send(packed: Packed, path: str, room: int) -> Sent:
    """Write a value's tensors into a file of `room` bytes, which grows if it must."""
    if packed.length > room:
        room = 2 * packed.length
        with open(path, "ab") as file:
            file.truncate(room)
    packed.write(mapped(path, room))
    return bytes(packed.payload), path, room


@lru_cache(maxsize=64)  # a worker lets go of what it has not needed for long
def kept(payload: bytes, path: str, room: int) -> Data:
    """Return large data that all workers map; nobody spoils them for others."""
    return Parcel(payload, mapped(path, room, "c"), owned=True).open()


def prepare() -> None:
    """Make a worker compute as ours do."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def answer(sent: Sent, data: dict[int, Sent], path: str, room: int) -> Sent:
    """Do a step in a worker."""
    payload, file, length = sent
    known = {token: kept(*large) for token, large in data.items()}
    fn, args = Parcel(payload, mapped(file, length), owned=False).open(known)
    return send(Packed(fn(*args)), path, room)


class Pool:
    """What the pools have in common with ours: an order, the largest devices first, and the order of the results."""

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def map(self, fn: Callable[..., Any], calls: dict[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        threads = ThreadPoolExecutor(WORKERS)
        try:
            order = sorted(calls, key=lambda key: examples(calls[key]), reverse=True)
            futures = {key: threads.submit(self.call, fn, *calls[key]) for key in order}
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            return {key: futures[key].result() for key in calls}
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        with one_thread():
            return fn(*args)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mapped(Pool):
    """joblib's executor. Each place among the running steps has two files, for what goes and for what comes back."""

    def __init__(self, count: int) -> None:
        self._folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self._count, self._executor = count, self._start(count)
        self._lock, self._large = threading.Lock(), dict[int, Sent]()
        self._places: queue.LifoQueue[tuple[str, int, str, int]] = queue.LifoQueue()
        for i in range(count):
            self._places.put((f"{self._folder}/{i}-there", 0, f"{self._folder}/{i}-back", 0))

    def _start(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, timeout=None, initializer=prepare, env={**MALLOC, **ONE_THREAD})

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        there, room, back, back_room = self._places.get()
        executor = self._executor
        try:
            packed = Packed((fn, args), self._keep)
            sent = send(packed, there, room)
            room = sent[2]
            large = {token: self._large[token] for token in packed.tokens}
            payload, _, back_room = executor.submit(answer, sent, large, back, back_room).result()
            return Parcel(payload, mapped(back, back_room), owned=False).open()
        except BrokenProcessPool:
            with self._lock:  # it takes all of its processes along; the first to notice starts others
                if self._executor is executor:
                    self._executor = self._start(self._count)
            raise
        finally:
            self._places.put((there, room, back, back_room))

    def _keep(self, data: Data) -> int:
        """Put data into a file of its own, which goes when the data go."""
        with self._lock:
            if id(data) not in self._large:
                path = f"{self._folder}/data-{id(data)}-{time.monotonic_ns()}"
                self._large[id(data)] = send(Packed(data), path, 0)
                weakref.finalize(data, self._let_go, id(data), path)
            return id(data)

    def _let_go(self, identity: int, path: str) -> None:
        self._large.pop(identity, None)
        Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)
        shutil.rmtree(self._folder)


class Spawned(Pool):
    """The pool of torch.multiprocessing, which moves every tensor that it is given into shared memory."""

    def __init__(self, count: int) -> None:
        before = {name: os.environ.get(name) for name in (*MALLOC, *ONE_THREAD)}
        os.environ.update({**MALLOC, **ONE_THREAD})
        self._pool = get_context("spawn").Pool(count, initializer=prepare)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self._pool.apply_async(fn, args).get(timeout=20)  # it never answers for a worker that was killed

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


POOLS: dict[str, Callable[[int], Any]] = {"ours": Workers, "joblib, mapped": Mapped, "torch, spawned": Spawned}


# The studies: each yields the leaves that a round of it gives.


def rounds(net: Net, parts: list[Data], batch: int, pool: Any, count: int) -> Iterator[list[Params]]:
    """Do a round of FedAvg at each `next`."""
    none = Data(parts[0].x[:0], parts[0].y[:0])
    names = [f"device-{i:03}" for i in range(len(parts))]
    devices = {name: Device(name, net, Splits(part, none, none)) for name, part in zip(names, parts, strict=True)}
    training = Training("sgd", w1.RATE, momentum=0.0, weight_decay=0.0, schedule="constant", batch=batch, epochs=1)
    settings = {"rounds": count + 1, "fraction": 1.0, "weights": "size"}
    fedavg = method("fedavg", nets=dict.fromkeys(names, net), training=training, shared_init=True, **settings)
    for done in run(fedavg, Federation(devices, none, 10), 0, pool, every=count + 2):
        yield [message.params for message in done.state.messages.values()][:1]


def first_study(pool: Any, count: int) -> Iterator[list[Params]]:
    """W1: see :mod:`benchmarks.w1`."""
    whole = w1.images()
    chunks = zip(whole.x.chunk(w1.DEVICES), whole.y.chunk(w1.DEVICES), strict=True)
    net = nets.net("mlp", shape=(1, 28, 28), classes=10, widths=w1.WIDTHS)
    return rounds(net, [Data(x.clone(), y.clone()) for x, y in chunks], w1.BATCH, pool, count)


def tiny(pool: Any, count: int) -> Iterator[list[Params]]:
    """Many devices with a few digits each."""
    g, (devices, each) = generator("tiny"), TINY
    parts = [
        Data(torch.randn(each, 64, generator=g), torch.randint(0, 10, (each,), generator=g)) for _ in range(devices)
    ]
    return rounds(nets.net("mlp", shape=(64,), classes=10, widths=[32]), parts, 8, pool, count)


def nothing() -> None:
    """Do nothing."""


def empty(pool: Any, count: int) -> Iterator[list[Params]]:
    """Steps that do nothing."""
    for _ in range(count + 1):
        pool.map(nothing, dict.fromkeys(range(EMPTY), ()))
        yield []


def give_back(message: Message) -> Message:
    """Return what was sent."""
    return message


def deep(pool: Any, count: int) -> Iterator[list[Params]]:
    """A ResNet-20, 128 leaves, to every device and back."""
    sent = Message(nets.init(nets.net("resnet20", shape=(3, 32, 32), classes=10), generator("init")))
    for _ in range(count + 1):
        back = pool.map(give_back, dict.fromkeys(range(DEVICES), (sent,)))
        yield [message.params for message in back.values()]


STUDIES: dict[str, Callable[[Any, int], Iterator[list[Params]]]] = {
    "W1, a round": first_study,
    f"{TINY[0]} tiny steps, a round": tiny,
    f"{EMPTY} empty steps": empty,
    f"ResNet-20 there and back, {DEVICES} times": deep,
}


def same(ours: list[Params], others: list[Params]) -> bool:
    """Return whether two lists of models hold the same bits."""
    return len(ours) == len(others) and all(
        list(one) == list(other) and torch.equal(bits(one), bits(other))
        for one, other in zip(ours, others, strict=True)
    )


def bits(params: Params) -> Tensor:
    """Return the bytes of all leaves."""
    return torch.cat([leaf.reshape(-1).view(torch.uint8) for leaf in params.values()])


def compare(repetitions: int) -> None:
    """Time the pools in turns; print medians, and the median and range of the ratios within a repetition."""
    pools = {name: make(WORKERS) for name, make in POOLS.items()}
    for title, study in STUDIES.items():
        going = {name: study(pool, repetitions + 1) for name, pool in pools.items()}
        walls: dict[str, list[float]] = {name: [] for name in pools}
        for repetition in range(repetitions + 1):
            found = {}
            order = list(going)[repetition % len(going) :] + list(going)[: repetition % len(going)]
            for name in order:
                start = time.perf_counter()
                found[name] = next(going[name])
                if repetition:  # the first starts the processes and warms up
                    walls[name].append(time.perf_counter() - start)
            for name, models in found.items():
                if not same(found["ours"], models):
                    raise SystemExit(f"{title}: {name} gives other bits")
        print(f"{title}, same bits in all:")
        for name, times in walls.items():
            ratios = [time / ours for time, ours in zip(times, walls["ours"], strict=True)]
            print(
                f"  {name:15} {1e3 * median(times):8.1f} ms, {median(ratios):5.2f} of ours"
                f" (from {min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )
    for pool in pools.values():
        pool.close()


def step(seconds: float, victim: str) -> int:
    """Work for so long; the victim is killed at half the time, the first time."""
    time.sleep(seconds / 2)
    if victim and not Path(victim).exists():
        Path(victim).touch()
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    time.sleep(seconds / 2)
    return os.getpid()


def kill_one(name: str, steps: int = 8, seconds: float = 1.0) -> None:
    """Kill a worker in the third step; try each step again that raised, and print how many were lost."""
    with POOLS[name](WORKERS) as pool, tempfile.TemporaryDirectory() as folder:
        pool.map(step, dict.fromkeys(range(WORKERS), (0.1, "")))  # starts them
        lost: list[str] = []

        def persist(i: int) -> None:
            while True:
                try:
                    pool.call(step, seconds, f"{folder}/killed" if i == 2 else "")
                    return
                except Exception as error:
                    lost.append(type(error).__name__)
                    if isinstance(error, TimeoutError):
                        return

        start = time.perf_counter()
        with ThreadPoolExecutor(WORKERS) as threads:
            list(threads.map(persist, range(steps)))
        wall = time.perf_counter() - start
        print(
            f"  {name:15} {len(lost)} of {steps} steps of {seconds} s lost ({', '.join(lost)});"
            f" {wall:.1f} s in all, {steps * seconds / WORKERS:.1f} undisturbed",
            flush=True,
        )


def main(repetitions: int = 9) -> None:
    compare(repetitions)
    print("A worker killed in the middle of a step:")
    for name in POOLS:
        kill_one(name)


if __name__ == "__main__":
    from benchmarks import pools  # by its own name, so that its steps are importable as fedcore's are

    pools.main(*map(int, sys.argv[1:]))
