"""Steps of several devices at a time, whose models of one net are trained together.

Each device's step runs in a thread of its own, one at a time, up to where it trains its model
(:func:`fedcore.core.training.fit`); when all have come so far, those that can be are trained together
(:mod:`fedcore.core.rows`). Then the threads go on. A method's code does not know of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fedcore.core import rows
from fedcore.core.prediction import IMAGE_BATCH
from fedcore.core.training import DESCEND, Descent
from fedcore.core.training_settings import Training
from fedcore.execute.accelerator import accelerate, compute_alone, deterministic, move, one_thread, trains
from fedcore.execute.workers import Engine, devices_in, run_step, shares
from fedcore.nets import shapes
from fedcore.nets.inputs import multiplications
from fedcore.nets.randomness import holds_generator
from fedcore.types.federation import Device, Splits, is_handle
from fedcore.types.method import Stage

Key = TypeVar("Key")
Result = TypeVar("Result")
T = TypeVar("T")


class Together:
    """Runs steps as an engine does; devices train together where that may be faster.

    kind: of accelerator. most: devices trained together there, in this process; more of them go in groups, one after
    another, in the order of the map. A group's bits depend on who is in it. always: whether steps run there that are
    not worth it, see `placed_on`.

    On the processor (kind None), devices of small perceptrons that one process has anyway train side by side, with the
    bits of one after another. These are steps of fedcore itself: what a method of one's own does in its step, such as
    drawing random numbers, may depend on which step comes after which.
    """

    def __init__(self, engine: Engine, kind: str | None = None, most: int = 1, always: bool = True) -> None:
        self.engine = engine
        self.kind = kind
        self.most = most
        self.always = always
        self._resident: dict[int, tuple[Splits, Splits]] = {}
        self.capacity = engine.capacity

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self.engine(fn, *args)

    def map(
        self, fn: Callable[..., Any], calls: Mapping[Key, tuple[Any, ...]], /, *, name: str = "",
        step: Callable[..., Any] | None = None,
    ) -> dict[Key, Any]:  # fmt: skip
        """Run a step on each key's arguments: those of a process in one call, if that may be faster.

        Raises the error of a call that fails. name: as for `Engine.map`. step: what `fn` calls, if not `fn` itself.
        """
        if self.kind and trains(fn) and (self.always or placed_on(fn, calls, self.kind, self.most)[0]):
            if self.most == 1:
                return self.engine.map(accelerate(fn, self.kind), calls, name=name)
            every = [tuple(map(self._with_data_there, args)) for args in calls.values()]
            parts = [every[first : first + self.most] for first in range(0, len(every), self.most)]
            return dict(
                zip(calls, (one for part in parts for one in run_on_together(fn, self.kind, *part)), strict=True)
            )
        keys = [] if self.kind else self._divide(fn if step is None else step, calls)
        if not keys:
            return self.engine.map(fn, calls, name=name)
        shared = {number: (fn, *(calls[key] for key in part)) for number, part in enumerate(keys)}
        done = self.engine.map(run_side_by_side, shared, name=name)
        results = {key: one for number, part in enumerate(keys) for key, one in zip(part, done[number], strict=True)}
        return {key: results[key] for key in calls}

    def _divide(self, step: Callable[..., Any], calls: Mapping[Key, tuple[Any, ...]]) -> list[list[Key]]:
        """Return the keys of each process's calls, in the order of the calls; none if each call is to go alone."""
        if len(calls) < 2 or holds_generator() or not all(is_worth_it(step, args) for args in calls.values()):
            return []
        data = [device.data for args in calls.values() for device in devices_in(args)]
        size = sum(of.nbytes if is_handle(of) else of.train.x.nbytes for of in data)
        position = {key: number for number, key in enumerate(calls)}
        parts = [
            sorted(part, key=position.__getitem__)
            for part in bounded_shares(calls, max(self.engine.capacity(), -(-size // MOST_BYTES)))
        ]
        return parts if len(parts) < len(calls) else []

    def _with_data_there(self, arg: Any) -> Any:
        """Return a device with its examples on the accelerator, where they stay from round to round."""
        if self.kind is None or not isinstance(arg, Device):
            return arg
        if id(arg.data) not in self._resident:
            self._resident[id(arg.data)] = arg.data, move(arg.data, self.kind)
        return replace(arg, data=self._resident[id(arg.data)][1])


WORTH_IT = 10**9
"""The fewest multiplications of a step, of all devices that take it together, for which `auto` takes an accelerator.

A core takes some 30 ms for them, and the kernels of a step there some 2 ms to start; a processor has several cores.
"""


def placed_on(
    step: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], kind: str | None, together: int
) -> tuple[str | None, int]:
    """Return the accelerator for a map's steps and how many train together there: (None, 1) where it is not worth it.

    It follows from the nets, the batch and the number of devices alone, not from a measurement: keys depend on it.
    """
    if kind is None or not trains(step):
        return None, 1
    settings = _training(step)
    batch = IMAGE_BATCH if settings is None else settings.batch
    net = max((products(device) for args in calls.values() for device in devices_in(args)), default=0)
    return (kind, together) if net * batch * min(together, len(calls)) >= WORTH_IT else (None, 1)


def describe_use(kind: str, most: int) -> str:
    """Say in a line what `auto` does with an accelerator that it has found."""
    at_once = f", up to {most} devices at a time" if most > 1 else ""
    return f"GPU ({kind}): trains steps of at least {WORTH_IT:,} multiplications{at_once}; off: run.accelerator=none"


def products(device: Device) -> int:
    """Return the multiplications of a device's net for an example; its parameters where its inputs are not known."""
    shape = device.net.build.keywords.get("shape") if isinstance(device.net.build, partial) else None
    if shape is None and not is_handle(device.data):
        shape = device.data.train.x.shape[1:]
    if shape is None:
        return sum(math.prod(size) for size in shapes(device.net).values())
    return multiplications(device.net, tuple(shape))


def _training(value: Any) -> Training | None:
    """Return the settings of training that are bound to a step."""
    if isinstance(value, Training | Stage):
        return value if isinstance(value, Training) else _training(value.local)
    parts = (value.func, *value.args, *value.keywords.values()) if isinstance(value, partial) else ()
    return next((found for part in parts if (found := _training(part)) is not None), None)


LEAST, LEAST_BYTES = 128, 4096
"""The fewest training examples of a device for which a thread of its own pays off; of stored ones their bytes."""


MOST, MOST_BYTES = 64, 1 << 28
"""The most calls that a process takes at a time, each in a thread, and the most bytes of their devices' data."""


def bounded_shares(calls: Mapping[Key, tuple[Any, ...]], count: int) -> list[list[Key]]:
    """Divide calls into at least so many shares of MOST at most; see :func:`fedcore.execute.workers.shares`."""
    parts = shares(calls, max(count, -(-len(calls) // MOST)))
    return [part[first : first + MOST] for part in parts for first in range(0, len(part), MOST)]


def is_worth_it(step: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Tell whether a step is fedcore's own and may train a small perceptron of the device among its arguments."""
    devices = [*devices_in(args)]
    if len(devices) != 1 or not is_own(step):
        return False
    data, net = devices[0].data, devices[0].net
    enough = data.nbytes >= LEAST_BYTES if is_handle(data) else len(data.train) >= LEAST
    try:
        return enough and rows.is_small(net)
    except Exception:  # of a net that cannot be built: the step says what is wrong
        return False


def is_own(step: Any) -> bool:
    """Tell whether a function, and those that are bound to it, are fedcore's."""
    if isinstance(step, partial):
        return all(is_own(part) for part in (step.func, *step.args, *step.keywords.values()) if callable(part))
    return str(getattr(step, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def run_on_together(step: Callable[..., T], kind: str | None, *calls: tuple[Any, ...]) -> list[T]:
    """Run a step with each of these arguments on the accelerator (None: here), and return the results, on the CPU.

    What they train, they train together. Raises as `run_side_by_side` does.
    """
    with deterministic() if kind else nullcontext():
        return run_side_by_side(accelerate(step, kind), *calls, exact=False)


def run_side_by_side(fn: Callable[..., Result], *calls: tuple[Any, ...], exact: bool = True) -> list[Result]:
    """Call a step with each of these arguments; what they train, they train together. exact: see `fedcore.core.rows`.

    Raises the error of the first call that fails. To find it, all are called again, one after another.
    """
    outcomes = run_each(fn, calls, exact)
    if any(isinstance(outcome.error, Exception) for outcome in outcomes):
        with one_thread():
            return [run_step(fn, *args) for args in calls]
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.result for outcome in outcomes]


def run_each(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], exact: bool = True) -> list[Outcome]:
    """Call a step with each of these arguments, and return how each call ended. exact: see `fedcore.core.rows`."""
    with one_thread():
        threads: list[_CallThread] = []
        try:
            for args in calls:
                threads.append(_CallThread(fn, args))
            _run(threads, exact)
        finally:
            for thread in threads:
                thread.stop()
    return [thread.outcome for thread in threads]


def _run(threads: Sequence[_CallThread], exact: bool) -> None:
    running = threads
    while running:
        for thread in running:
            thread.advance()
        running = [thread for thread in running if thread.waits_for is not None]
        descents = [thread.waits_for for thread in running if thread.waits_for is not None]
        for group in rows.groups(descents, exact):
            if len(group) > 1:
                wall, cpu = time.perf_counter(), time.thread_time()
                try:
                    rows.descend([descents[position] for position in group], exact)
                except Exception as error:  # nobody knows whose it is
                    for position in group:
                        running[position].outcome.error = error
                    continue
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                steps = sum(len(descents[position].batches) for position in group)
                for position in group:
                    running[position].trained = True
                    share = len(descents[position].batches) / max(steps, 1)
                    running[position].outcome.add(share * wall, share * cpu)
        running = [thread for thread in running if thread.outcome.error is None]


@dataclass
class Outcome:
    """How a call ended: with a result, or with an error. wall, cpu: its seconds, its share of what it did together."""

    result: Any = None
    error: BaseException | None = None
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu


class _Stopped(BaseException):
    """Ends a thread whose step is not wanted any more."""


class _CallThread:
    """A step in a thread that runs only inside `advance`, which returns when it waits for its training or has ended.

    waits_for: the training that it waits for. trained: whether that has been done; else the thread does it itself, with
    its own settings of PyTorch.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.waits_for: Descent | None = None
        self.trained = False
        self.outcome = Outcome()
        self._call = fn, args
        self._stopping = False
        self._go, self._paused = threading.Lock(), threading.Lock()  # half the time of two semaphores
        self._go.acquire()
        self._paused.acquire()
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="fedcore-together")
        self._thread.start()

    def advance(self) -> None:
        self.waits_for = None
        begin = time.perf_counter()
        _release(self._go)
        self._paused.acquire()
        self.outcome.add(time.perf_counter() - begin, 0.0)

    def stop(self) -> None:
        """End the thread, which may not have begun, may wait, or run if the user interrupted `advance`."""
        self._stopping = True
        _release(self._go)
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        if self._stopping:
            return
        DESCEND.set(self._wait)
        fn, args = self._call
        compute_alone()  # which `run_each` takes back: here the thread ends
        try:
            self.outcome.result = run_step(fn, *args)
        except _Stopped:
            pass
        except BaseException as error:
            self.outcome.error = error
        self.outcome.add(0.0, time.thread_time())
        _release(self._paused)

    def _wait(self, descent: Descent) -> None:
        if holds_generator() or threading.current_thread() is not self._thread:  # others may want it meanwhile
            descent.run()
            return
        if self._stopping:
            raise _Stopped
        self.waits_for, self.trained = descent, False
        _release(self._paused)
        self._go.acquire()
        if self._stopping:
            raise _Stopped
        if not self.trained:
            descent.run()


def _release(lock: threading.Lock) -> None:
    """Release a lock, which nobody has taken again if `advance` was interrupted."""
    with suppress(RuntimeError):
        lock.release()
