"""An executor that trains devices of one net together, on an accelerator.

Each device's step runs in a thread of its own, one at a time, up to where it trains its model
(:func:`fedcore.core.training.fit`); when all have come so far, those that can be are trained together
(:mod:`fedcore.core.stacked`), and the threads go on. A method's code does not know of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fedcore.core import stacked
from fedcore.core.training import DESCEND, Descent
from fedcore.execute.accelerator import accelerate, deterministic, move
from fedcore.execute.threads import one_thread
from fedcore.execute.workers import Inline, run_step
from fedcore.nets.randomness import holds_generator
from fedcore.types import Device, Splits

Key = TypeVar("Key")
Result = TypeVar("Result")
T = TypeVar("T")


class Together(Inline):
    """Runs steps in this process, those of a map together.

    kind: of accelerator, None for the CPU. most: devices trained together; more of them go in groups, one after
    another, in the order of the map. A group's bits depend on who is in it.
    """

    def __init__(self, kind: str | None = None, most: int = 128) -> None:
        self.kind = kind
        self.most = most
        self._resident: dict[int, tuple[Splits, Splits]] = {}

    def map(
        self,
        fn: Callable[..., Result],
        calls: Mapping[Key, tuple[Any, ...]],
        *,
        name: str = "",
        accelerator: str | None = None,
    ) -> dict[Key, Result]:
        """Run a step on each key's arguments."""
        every = [tuple(map(self._with_data_there, args)) for args in calls.values()]
        results: list[Result] = []
        for first in range(0, len(every), self.most):
            results += run_on_together(fn, self.kind, *every[first : first + self.most])
        return dict(zip(calls, results, strict=True))

    def _with_data_there(self, arg: Any) -> Any:
        """Return a device with its examples on the accelerator, where they stay from round to round."""
        if self.kind is None or not isinstance(arg, Device):
            return arg
        if id(arg.data) not in self._resident:
            self._resident[id(arg.data)] = arg.data, move(arg.data, self.kind)
        return replace(arg, data=self._resident[id(arg.data)][1])


def accelerate_all(step: Callable[..., T], kind: str | None) -> Callable[..., list[T]]:
    """Return a function of several calls' arguments that runs the step for all, together on that accelerator."""
    return partial(run_on_together, step, kind)


def run_on_together(step: Callable[..., T], kind: str | None, *calls: tuple[Any, ...]) -> list[T]:
    """Run a step with each of these arguments on the accelerator (None: here), and return the results, on the CPU."""
    with deterministic() if kind else nullcontext():
        return run_together(accelerate(step, kind), calls)


def run_together(fn: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call a step with each of these arguments; what they train, they train together.

    Raises the error of the first call that fails, after the threads have ended.
    """
    strands = [_Strand(fn, args) for args in calls]
    running = strands
    try:
        while running:
            for strand in running:
                strand.advance()
            running = [strand for strand in running if strand.waits_for is not None]
            for strand in strands:
                if strand.error is not None:
                    raise strand.error
            descents = [strand.waits_for for strand in running if strand.waits_for is not None]
            for group in stacked.groups(descents):
                if len(group) > 1:
                    stacked.descend([descents[position] for position in group])
                    for position in group:
                        running[position].trained = True
    finally:
        for strand in strands:
            strand.stop()
    return [strand.result for strand in strands]


class _Stopped(BaseException):
    """Ends a thread whose step is not wanted any more."""


class _Strand:
    """A step in a thread that runs only inside `advance`, which returns when it waits for its training or has ended.

    waits_for: the training that it waits for. trained: whether that has been done; else the thread does it itself, with
    its own settings of PyTorch. result, error: of the step, once it has ended.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.waits_for: Descent | None = None
        self.trained = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = fn, args
        self._stopping = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True, name="fedcore-together")
        self._thread.start()

    def advance(self) -> None:
        self.waits_for = None
        self._go.release()
        self._paused.acquire()

    def stop(self) -> None:
        """End the thread, which may not have begun, may wait, or run if the user interrupted `advance`."""
        self._stopping = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        if self._stopping:
            return
        DESCEND.set(self._wait)
        fn, args = self._call
        try:
            with one_thread():
                self.result = run_step(fn, *args)
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        self._paused.release()

    def _wait(self, descent: Descent) -> None:
        if holds_generator():  # the others may want it meanwhile
            descent.run()
            return
        if self._stopping:
            raise _Stopped
        self.waits_for, self.trained = descent, False
        self._paused.release()
        self._go.acquire()
        if self._stopping:
            raise _Stopped
        if not self.trained:
            descent.run()
