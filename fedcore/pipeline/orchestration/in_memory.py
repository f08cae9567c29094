"""Repeated rounds as one step: workers load the devices' data, everything else stays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedcore.core.together import SideBySide, accelerate_all
from fedcore.execute.accelerator import accelerate
from fedcore.execute.workers import Engine
from fedcore.pipeline.cache.calls import load_call
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.orchestration.shards import into_shards, is_vectorised, word_of


class InMemory:
    """An `execute` for repeated rounds: workers load the devices' data, everything else stays in memory."""

    def __init__(
        self, store: Store, workers: Engine, advance: Callable[[int], None], accelerator: str | None, together: int = 1
    ) -> None:
        self.store = store
        self.workers = workers
        self.advance = advance
        self.accelerator = accelerator
        self.together = together

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self.workers(fn, *self.store.get(args))

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        if not is_vectorised(fn, self.together):
            return self._run_in_workers(accelerate(fn, self.accelerator), calls, word_of(fn))
        shards = into_shards(fn, calls, self.together)
        sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
        values = self._run_in_workers(accelerate_all(fn, self.accelerator), sharded, word_of(fn))
        return {unit: result for label in shards for unit, result in zip(shards[label], values[label], strict=True)}

    def _run_in_workers(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], name: str
    ) -> dict[Any, Any]:
        loaded = {unit: (self.store, fn, args) for unit, args in calls.items()}
        if self.accelerator is None:
            call = partial(SideBySide(self.workers).map, load_call, loaded, name=name, step=fn)
        else:
            call = partial(self.workers.map, load_call, loaded, name=name, accelerator=self.accelerator)
        return with_blobs(self.store, tuple(calls.values()), call)
