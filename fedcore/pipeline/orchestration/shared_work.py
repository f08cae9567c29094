"""Steps of a map that a worker does side by side, though each is a task and a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from fedcore.core.together import bounded_shares, is_worth_it
from fedcore.execute.workers import Engine
from fedcore.pipeline.cache.calls import load_calls_vectorised
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import Store, refs
from fedcore.pipeline.orchestration.shards import SMALL


class SharedWork:
    """Steps of a map that a worker does side by side, though each is a task and a record of its own.

    The first task that runs has its whole part done, the others take what that has brought. Where there is nothing to
    take, as a call failed, a worker died or a step is tried again, a task does its step alone and says what is wrong.
    """

    def __init__(self, store: Store, workers: Engine, fn: Callable[..., Any]) -> None:
        self.store, self.workers, self.fn = store, workers, fn
        self._parts: dict[str, _Part] = {}

    def prepare(self, due: dict[str, tuple[Any, ...]]) -> None:
        """Divide the calls of steps that are to be done, by name, among the workers, if that may be faster.

        A part refers to SMALL bytes at most: a run that is killed loses it.
        """
        if len(due) < 2 or not all(is_worth_it(self.fn, args) for args in due.values()):
            return
        size = sum(ref.nbytes for args in due.values() for ref in refs(args))
        capacity = 1
        with suppress(Exception):  # a cluster that is lost: the steps say so
            capacity = self.workers.capacity()
        for names in bounded_shares(due, max(capacity, -(-size // SMALL))):
            part = _Part({name: due[name] for name in names}, self._run)
            self._parts |= dict.fromkeys(names if len(names) > 1 else (), part)

    def take(self, name: str) -> Any:
        """Return what a step stored and the seconds it took, once; None if the step is to be done alone."""
        part = self._parts.pop(name, None)
        return None if part is None else part.take(name)

    def _run(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        work = partial(self.workers.call, load_calls_vectorised, self.store, self.fn, calls)
        return with_blobs(self.store, tuple(calls), work)


class _Part:
    """Calls by the names of their steps, and what they brought."""

    def __init__(
        self, calls: Mapping[str, tuple[Any, ...]], run: Callable[[Sequence[tuple[Any, ...]]], list[Any]]
    ) -> None:
        self.calls, self._run = calls, run
        self._lock = Lock()
        self._done: dict[str, Any] | None = None

    def take(self, name: str) -> Any:
        with self._lock:
            if self._done is None:
                self._done = {}
                with suppress(Exception):
                    self._done = dict(zip(self.calls, self._run([*self.calls.values()]), strict=True))
        return self._done.get(name)
