"""Run each step of the loop as a Prefect task, cached by its key and computed in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.transactions import IsolationLevel, get_transaction

from fedcore.core.together import SideBySide, accelerate_all, bounded_shares, is_worth_it
from fedcore.execute.accelerator import accelerate
from fedcore.execute.workers import Engine
from fedcore.pipeline.cache.calls import call_save, load_call, load_call_save, load_calls_save, load_calls_vectorised
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store, refs, unflatten
from fedcore.pipeline.orchestration.records import StepLocks, look_up, require_written
from fedcore.pipeline.orchestration.shards import (
    SMALL,
    into_shards,
    is_vectorised,
    label_of,
    nested_on,
    place_calls,
    word_of,
)
from fedcore.pipeline.orchestration.steps import BY_KEY, Job, in_order_of_completion, step, submit, wait_for


class Steps:
    """Runs the loop's functions as cached Prefect tasks: the `execute` that the pipeline gives to fedcore.core.rounds.

    Arguments and results are references (fedcore.pipeline.cache.store). on_step: called with every step when it ends,
    computed or cached. advance: called with the number of local steps that a step has just done inside. accelerator:
    the hardware for local steps, None for the CPU; it is part of their keys. together: devices that train together on
    it, in one step. done: the steps that have ended. A step that the cache has is no task run, so that a night that
    computes nothing leaves nothing in Prefect's database.
    """

    in_parts = True  # methods with one training share it, whatever their devices attach

    def __init__(
        self, store: Store, workers: Engine, on_step: Callable[[Step], None] = lambda step: None,
        advance: Callable[[int], None] = lambda count: None, accelerator: str | None = None,
        tasks: Mapping[str, Task[..., Any]] | None = None, together: int = 1,
    ) -> None:  # fmt: skip
        self.store = store
        self.workers = workers
        self.on_step = on_step
        self.advance = advance
        self.accelerator = accelerator
        self.together = together if accelerator else 1
        self.done: list[Step] = []
        self.locks = StepLocks()
        policy = BY_KEY.configure(lock_manager=self.locks, isolation_level=IsolationLevel.SERIALIZABLE)
        self._tasks = {word: task.with_options(cache_policy=policy) for word, task in (tasks or {}).items()}
        self._step = step.with_options(cache_policy=policy)
        self._digest = Digest()
        self._records: dict[str, Mapping[str, Any]] = {}  # a step that several methods share is one task
        self._handed_out: set[Ref] = set()  # verified references that were returned
        self._not_seen: list[str] = []  # computed steps whose records were not looked for
        self._cheap: list[tuple[Any, Any]] = []  # values that may be deleted, each with what stays of it
        self._recompute: dict[str, Callable[[Any], Any]] = {}  # a blob's digest -> what computes its value again
        self._recomputing = Lock()

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What results depend on, beside code and settings: the kind of accelerator, and how many train together."""
        return (*([self.accelerator] if self.accelerator else []), *([self.together] if self.together > 1 else []))

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._run_in_workers(fn, {"": args}, None)[""]

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Run a step on each unit's arguments; many or quick ones share a step (see `into_shards`)."""
        placed, shards = place_calls(fn, calls, self.accelerator, self.together)
        if len(shards) == len(calls):
            return self._run_in_workers(placed, calls, self.accelerator)
        work = load_call_save if is_vectorised(fn, self.together) else load_calls_save
        sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
        values = self._run_in_workers(placed, sharded, self.accelerator, work, sharded=True)
        return {
            unit: result for label, shard in shards.items() for unit, result in zip(shard, values[label], strict=True)
        }

    def _run_in_workers(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None,
        work: Callable[..., Any] = load_call_save, sharded: bool = False,
    ) -> dict[Any, Any]:  # fmt: skip
        shared = SharedWork(self.store, self.workers, fn)

        def body(name: str, *args: Any) -> Any:
            if (done := shared.take(name)) is not None:
                return done
            call = partial(self.workers.call, work, self.store, fn, args, name=name, accelerator=accelerator)
            try:
                return with_blobs(self.store, args, call)
            except DamagedBlob:
                if not self._recompute_missing(args):
                    raise
                return call()

        alone = accelerator is not None or sharded
        return self._map(fn, calls, body, sharded=sharded, prepare=None if alone else shared.prepare)

    def run_inline(self, fn: Callable[..., Any], *args: Any, start: bool = False, result: Any = None) -> Any:
        """Run a step in this process, since it takes less time than a worker needs to start.

        start: if the step has to be computed, start the workers meanwhile for the next steps. result: the step's, if
        this process has computed it already.
        """

        def body(name: str, *args: Any) -> Any:
            if start:
                self.workers.start()
            if result is not None:
                return call_save(self.store, lambda: result, ())
            return self.workers(load_call_save, self.store, fn, args)

        return self._map(fn, {"": args}, body)[""]

    def run_nested(
        self, fn: Callable[..., Any], *args: Any, unkeyed: tuple[Any, ...] = (),
        needed: Callable[[Any], Any] = lambda value: value,
    ) -> Any:  # fmt: skip
        """Run a step in this process that runs other steps in the workers: fn(execute, *args, *unkeyed).

        unkeyed: arguments that are no part of the key, since they change only how far the step goes. needed: the part
        of the result whose blobs must exist.
        """

        def body(name: str, *args: Any) -> Any:
            return call_save(self.store, fn, (self._in_memory(), *args, *unkeyed))

        return self._map(nested_on(fn, self.accelerator, self.together), {"": args}, body, needed)[""]

    def _in_memory(self) -> InMemory:
        return InMemory(self.store, self.workers, self.advance, self.accelerator, self.together)

    def release(self, value: Any, keep: Any, recompute: Callable[[Any], Any], cheap: bool) -> None:
        """Say how a value is computed again, recompute(execute), for a step that finds it gone.

        cheap: this takes little time, so that `evict_cheap` may delete its blobs, except those of `keep`.
        """
        self._recompute |= {ref.digest: recompute for ref in refs(value)}
        if cheap:
            self._cheap.append((value, keep))

    def evict_cheap(self) -> None:
        """Delete the values that take little time to compute again; call it when no step of this run follows."""
        for value, keep in self._cheap:
            self.drop([ref for ref in refs(value) if self.store.path(ref).exists()], keep)

    def _recompute_missing(self, args: Any) -> bool:
        """Compute those blobs of a step's arguments that are gone; returns whether it is known how for any."""
        recomputable = [ref for ref in refs(args) if ref.digest in self._recompute]
        with self._recomputing:  # several steps may miss one value
            for recompute in {self._recompute[ref.digest] for ref in recomputable if not self.store.holds(ref)}:
                self.store.put(recompute(self._in_memory()))
        return bool(recomputable)

    def drop(self, value: Any, keep: Any) -> None:
        """Delete the blobs of a value, except those of `keep` and those that other steps of this run returned."""
        for ref in {*refs(value)} - {*refs(keep)} - self._handed_out:
            self.store.drop(ref)

    def _map(
        self, fn: Any, calls: Mapping[Any, tuple[Any, ...]], body: Callable[..., Any],
        needed: Callable[[Any], Any] = lambda value: value, sharded: bool = False,
        prepare: Callable[[dict[str, tuple[Any, ...]]], None] | None = None,
    ) -> dict[Any, Any]:  # fmt: skip
        kind = word_of(fn, *next(iter(calls.values()), ()))
        keys = {unit: self._digest.of(("step", fn, args)) for unit, args in calls.items()}
        jobs = {unit: Job(partial(body, f"{kind}-{keys[unit]}", *args)) for unit, args in calls.items()}
        for key in {*keys.values()} - self._records.keys():
            if (stored := look_up(key)) is not None:
                self._records[key] = stored
        if prepare is not None:
            prepare({f"{kind}-{keys[unit]}": args for unit, args in calls.items() if keys[unit] not in self._records})
        futures = {
            unit: self._submit(kind, unit, keys[unit], jobs[unit])
            for unit in sorted(calls, key=_heaviest_first(calls))
            if keys[unit] not in self._records
        }
        results: dict[Any, Any] = {}
        steps: dict[Any, Step] = {}
        for unit in in_order_of_completion(calls, futures):
            record = wait_for(_name(kind, unit), futures[unit]) if unit in futures else self._records[keys[unit]]
            if jobs[unit].ran:
                self._require_kept(keys[unit])
            value = unflatten(record["value"], {})
            if not jobs[unit].ran:
                try:
                    self._verify(needed(value))
                except DamagedBlob:
                    # The cache refers to a missing or damaged blob: compute the step again and replace its record.
                    record = wait_for(_name(kind, unit), self._submit(kind, unit, keys[unit], jobs[unit], refresh=True))
                    value = unflatten(record["value"], {})
            self._handed_out.update(refs(needed(value)))
            self._records[keys[unit]] = record
            steps[unit] = Step(
                kind, label_of(unit), keys[unit], not jobs[unit].ran, record["wall"], record["cpu"],
                tuple(sorted({ref.digest for ref in refs(value)})), len(calls[unit]) if sharded else 1,
            )  # fmt: skip
            self.on_step(steps[unit])
            results[unit] = value
        self.done += [steps[unit] for unit in calls]
        return {unit: results[unit] for unit in calls}

    def _submit(self, kind: str, unit: Any, key: str, job: Job, refresh: bool = False) -> PrefectFuture[Any]:
        return submit(self._tasks.get(kind, self._step), _name(kind, unit), key, job, refresh)

    def _require_kept(self, key: str) -> None:
        """Require a computed step's record, within a task later: Prefect writes it at the end of that task."""
        if get_transaction() is None:
            require_written(key)
        else:
            self._not_seen.append(key)

    def require_all_kept(self) -> None:
        """Require the records that were not looked for; call it when all tasks have ended."""
        for key in self._not_seen:
            require_written(key)

    def _verify(self, value: Any) -> None:
        """Read the blobs of a cached step once and offer them to other machines. Raises DamagedBlob.

        All are read, as a store that others share takes away each that is damaged and keeps any that is there.
        Those of a step that has just run are not read: whatever loads them does so, and notices a damage.
        """
        blobs = dict.fromkeys(refs(value))
        if damaged := [ref.digest for ref in blobs if not self.store.holds(ref)]:
            raise DamagedBlob(f"missing or damaged: {', '.join(damaged)}")
        self.store.offer(blobs)


def _heaviest_first(calls: Mapping[Any, tuple[Any, ...]]) -> Callable[[Any], int]:
    """Return a sort key by the bytes that a call refers to, so that the longest steps start first."""
    return lambda unit: -sum(ref.nbytes for ref in refs(calls[unit]))


def _name(kind: str, unit: Any) -> str:
    return f"{kind} {label_of(unit)}".strip()


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
