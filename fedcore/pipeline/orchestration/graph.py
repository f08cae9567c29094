"""Run each step of the loop by its key: what the cache has is taken, the rest are Prefect's task runs, with arrows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.states import Completed

from fedcore.core.together import SideBySide, accelerate_all, bounded_shares, is_worth_it, placed_on
from fedcore.errors import InputError
from fedcore.execute.accelerator import accelerate
from fedcore.execute.cluster import ClusterLost
from fedcore.execute.remote import WrongWorker
from fedcore.execute.workers import Engine, WorkerDied
from fedcore.pipeline.cache import records
from fedcore.pipeline.cache.calls import call_save, load_call, load_call_save, load_calls_save, load_calls_vectorised
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store, refs, unflatten
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.orchestration.shards import (
    QUICK,
    SMALL,
    evaluated,
    into_shards,
    is_vectorised,
    label_of,
    nested_on,
    place_calls,
)
from fedcore.pipeline.orchestration.task_runs import shorten, task_of
from fedcore.pipeline.work import word_of
from fedcore.types.federation import Federation

T = TypeVar("T")

RETRIES = 2
"""How often a step is tried again after its worker died."""

DRAWN = 32
"""The most steps of a map that are a node each on Prefect's page; more of them, and steps of pairs, are one node."""


class NotCached(Exception):
    """A step would have to be computed, in a walk that only looks."""


class Graph:
    """Runs the loop's functions as cached steps: the `execute` that the pipeline gives to fedcore.core.rounds.

    Arguments and results are references (fedcore.pipeline.cache.store). on_step: called with every step when it ends,
    computed or cached. advance: called with the number of local steps that a step has just done inside. accelerator:
    the hardware for local steps, None for the CPU; it is part of their keys. together: devices that train together on
    it, in one step. done: the steps that have ended.

    A step that is computed is a task run, or a part of one, and an arrow leads to it from each task run that brought a
    reference which it reads. A step that the cache has is none, except within `drawing`.
    """

    in_parts = True  # methods with one training share it, whatever their devices attach

    def __init__(
        self, store: Store, workers: Engine, on_step: Callable[[Step], None] = lambda step: None,
        advance: Callable[[int], None] = lambda count: None, accelerator: str | None = None, together: int = 1,
    ) -> None:  # fmt: skip
        self.store = store
        self.workers = workers
        self.on_step = on_step
        self.advance = advance
        self.accelerator = accelerator
        self.together = together if accelerator else 1
        self.done: list[Step] = []
        self._digest = Digest()
        self._records: dict[str, Mapping[str, Any]] = {}  # a step that several methods share is one task
        self._handed_out: set[Ref] = set()  # verified references that were returned
        self._cheap: list[tuple[Any, Any]] = []  # values that may be deleted, each with what stays of it
        self._recompute: dict[str, Callable[[Any], Any]] = {}  # a blob's digest -> what computes its value again
        self._recomputing = Lock()
        self._closed = threading.Event()
        self._looks = False  # whether a step that is not cached ends the walk
        self._draws = False  # whether cached steps are nodes
        self._brought: dict[str, PrefectFuture[Any]] = {}  # a blob's digest -> the task run that brought it
        self._above: dict[PrefectFuture[Any], frozenset[PrefectFuture[Any]]] = {}  # task run -> all above it

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What results depend on, beside code and settings: the kind of accelerator, and how many train together."""
        return (*([self.accelerator] if self.accelerator else []), *([self.together] if self.together > 1 else []))

    def close(self) -> None:
        """Let no step wait for another process: the flow ends."""
        self._closed.set()

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._run_in_workers(fn, {"": args}, None)[""]

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Run a step on each unit's arguments; many or quick ones share a step (see `into_shards`)."""
        fn = evaluated(fn)
        accelerator, together = placed_on(fn, calls, self.accelerator, self.together)
        placed, shards = place_calls(fn, calls, accelerator, together)
        if len(shards) == len(calls):
            return self._run_in_workers(placed, calls, accelerator)
        work = load_call_save if is_vectorised(fn, together) else load_calls_save
        sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
        values = self._run_in_workers(placed, sharded, accelerator, work, sharded=True)
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
        needed: Callable[[Any], Any] = lambda value: value, name: Callable[[Any], str] | None = None,
    ) -> Any:  # fmt: skip
        """Run a step in this process that runs other steps in the workers: fn(execute, *args, *unkeyed).

        unkeyed: arguments that are no part of the key, since they change only how far the step goes. needed: the part
        of the result whose blobs must exist. name: of the step on Prefect's page, by its result.
        """

        def body(_: str, *args: Any) -> Any:
            return call_save(self.store, fn, (self._in_memory(), *args, *unkeyed))

        return self._map(nested_on(fn, self.accelerator, self.together), {"": args}, body, needed, name=name)[""]

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

    def from_cache(self, walk: Callable[[], T]) -> T | None:
        """Return what a walk through steps gives if all of them are cached; otherwise None, and nothing is said."""
        on_step, seen, done = self.on_step, list[Step](), len(self.done)
        self.on_step, self._looks = seen.append, True
        try:
            result = walk()
        except NotCached:
            del self.done[done:]
            return None
        finally:
            self.on_step, self._looks = on_step, False
        for step in seen:
            on_step(step)
        return result

    @contextmanager
    def drawing(self, fed: Federation) -> Iterator[None]:
        """Draw the steps of one method, in a flow run of their own: cached ones, too, and first what its data are."""
        before = self._brought, self._above
        self._brought, self._above, self._draws = {}, {}, True
        try:
            name = f"partition: {len(fed.devices)} devices"
            self._bring(self._draw("partition", name, [], "divided by the run above"), fed)
            yield
        finally:
            (self._brought, self._above), self._draws = before, False

    def parents(self, values: Any) -> list[PrefectFuture[Any]]:
        """Return the task runs that brought the references in some values, without those above others of them."""
        nearest = dict.fromkeys(self._brought[ref.digest] for ref in refs(values) if ref.digest in self._brought)
        above = frozenset[PrefectFuture[Any]]().union(*(self._above[node] for node in nearest))
        return [node for node in nearest if node not in above]

    def _submit(self, run: Callable[[], Any], kind: str, name: str, args: Any, **options: Any) -> PrefectFuture[Any]:
        parents = self.parents(args)
        task: Any = task_of(run, shorten([kind]), shorten([name]), **options)
        node: PrefectFuture[Any] = task.submit(wait_for=parents)
        self._above[node] = frozenset(parents).union(*(self._above[parent] for parent in parents))
        return node

    def _draw(self, kind: str, name: str, args: Any, message: str) -> PrefectFuture[Any]:
        """Draw a node for what was there."""
        return self._submit(lambda: Completed(name="Cached", message=message), kind, name, args)

    def _bring(self, node: PrefectFuture[Any], value: Any) -> None:
        for ref in refs(value):
            self._brought.setdefault(ref.digest, node)

    def _map(
        self, fn: Any, calls: Mapping[Any, tuple[Any, ...]], body: Callable[..., Any],
        needed: Callable[[Any], Any] = lambda value: value, sharded: bool = False,
        prepare: Callable[[dict[str, tuple[Any, ...]]], None] | None = None, name: Callable[[Any], str] | None = None,
    ) -> dict[Any, Any]:  # fmt: skip
        kind = word_of(fn, *next(iter(calls.values()), ()))
        keys = {unit: self._digest.of(("step", fn, args)) for unit, args in calls.items()}
        ends: dict[Any, Future[tuple[Mapping[str, Any], bool]]] = {unit: Future() for unit in calls}
        for unit, key in keys.items():
            if (record := self._find(self._records.get(key) or records.look_up(key), needed)) is not None:
                ends[unit].set_result((record, True))
        due = {unit: calls[unit] for unit in sorted(calls, key=_heaviest_first(calls)) if not ends[unit].done()}
        if due and self._looks:
            raise NotCached
        if prepare is not None:
            prepare({f"{kind}-{keys[unit]}": args for unit, args in due.items()})

        def compute(unit: Any) -> None:
            key = keys[unit]
            with records.lock(key, self._closed.is_set):
                record = self._find(records.look_up(key), needed)  # another flow may have computed it
                cached = record is not None
                ends[unit].set_result((record or records.write(key, body(f"{kind}-{key}", *calls[unit])), cached))

        nodes = self._start_nodes(kind, due, ends, compute, sharded, name)
        if self._draws and len(due) < len(calls):
            nodes |= self._draw_cached(kind, {unit: calls[unit] for unit in calls if unit not in due}, ends, name)
        results: dict[Any, Any] = {}
        steps: dict[Any, Step] = {}
        for unit in in_order_of_completion(ends):
            record, cached = wait_for(_name(kind, unit), ends[unit])
            value = unflatten(record["value"], {})
            self._handed_out.update(refs(needed(value)))
            self._records[keys[unit]] = record
            steps[unit] = Step(
                kind, label_of(unit), keys[unit], cached, record["wall"], record["cpu"],
                tuple(sorted({ref.digest for ref in refs(value)})), len(calls[unit]) if sharded else 1,
            )  # fmt: skip
            self.on_step(steps[unit])
            results[unit] = value
            if unit in nodes:
                self._bring(nodes[unit], value)
        self.done += [steps[unit] for unit in calls]
        return {unit: results[unit] for unit in calls}

    def _start_nodes(
        self, kind: str, due: Mapping[Any, tuple[Any, ...]], ends: Mapping[Any, Future[Any]],
        compute: Callable[[Any], None], sharded: bool, name: Callable[[Any], str] | None,
    ) -> dict[Any, PrefectFuture[Any]]:  # fmt: skip
        """Start the task runs of steps, of which each is a task run, or all are one; returns each step's."""
        nodes: dict[Any, PrefectFuture[Any]] = {}
        groups = [[unit] for unit in due]
        if len(due) > DRAWN or (len(due) > 1 and (kind in QUICK or any(isinstance(unit, tuple) for unit in due))):
            groups = [[*due]]
        for units in groups:
            title = _name(kind, "" if kind in QUICK else units[0])
            if len(units) > 1:
                title = count_units(kind, sum(len(due[unit]) if sharded else 1 for unit in units), units)
            run, options = partial(_run_all, units, ends, compute), dict[str, Any]()
            if len(units) == 1:
                run, options = partial(_run_one, units[0], ends, compute, name), RETRIED
            node = self._submit(run, kind, title, [due[unit] for unit in units], **options)
            node.add_done_callback(partial(_end_all, [ends[unit] for unit in units]))
            nodes |= dict.fromkeys(units, node)
        return nodes

    def _draw_cached(
        self, kind: str, had: Mapping[Any, tuple[Any, ...]], ends: Mapping[Any, Future[Any]],
        name: Callable[[Any], str] | None,
    ) -> dict[Any, PrefectFuture[Any]]:  # fmt: skip
        title = kind if len(ends) == 1 else f"{kind}: {len(had)} of {len(ends)}"
        if name is not None:
            (unit,) = had
            title = name(unflatten(ends[unit].result()[0]["value"], {}))
        title += ": from the cache" if len(ends) == 1 else " from the cache"
        node = self._draw(kind, title, [*had.values()], "from the cache")
        return dict.fromkeys(had, node)

    def _find(self, record: Mapping[str, Any] | None, needed: Callable[[Any], Any]) -> Mapping[str, Any] | None:
        """Return a cached step's record if the blobs that are needed are there and whole, and offer them to others.

        All are read, as a store that others share takes away each that is damaged and keeps any that is there.
        Those of a step that has just run are not read: whatever loads them does so, and notices a damage.
        """
        if record is None:
            return None
        blobs = dict.fromkeys(refs(needed(unflatten(record["value"], {}))))
        if [ref for ref in blobs if not self.store.holds(ref)]:
            return None
        self.store.offer(blobs)
        return record


def _run_one(
    unit: Any, ends: Mapping[Any, Future[Any]], compute: Callable[[Any], None], name: Callable[[Any], str] | None
) -> State[Any] | None:
    """Compute a step in a task run of its own, which is named by the step's result if that is known only now."""
    try:
        compute(unit)
    except InputError as refused:
        ends[unit].set_exception(refused)
        return _left_out(refused)
    context = TaskRunContext.get()
    if name is not None and context is not None:
        context.task_run.name = shorten([name(unflatten(ends[unit].result()[0]["value"], {}))])
    return None


def _run_all(
    units: Sequence[Any], ends: Mapping[Any, Future[Any]], compute: Callable[[Any], None]
) -> State[Any] | None:
    """Compute several steps in one task run, each again if its worker died. Raises the first one's error that fails."""

    def compute_again(unit: Any) -> None:
        for tries in range(RETRIES + 1):
            try:
                compute(unit)
                return
            except WorkerDied as died:
                if died.times > 1 or tries == RETRIES:
                    raise

    with ThreadPoolExecutor(len(units)) as threads:
        runs = [threads.submit(compute_again, unit) for unit in units]
        for unit, run in zip(units, runs, strict=True):
            run.add_done_callback(partial(_fail, ends[unit]))
    for error in filter(None, [run.exception() for run in runs]):
        if isinstance(error, InputError):
            return _left_out(error)
        raise error
    return None


def _left_out(refused: InputError) -> State[Any]:
    """Return the state of a task run whose method is left out, or ends the run: then this says why."""
    return Completed(name="Left out", message=str(refused))


def _fail(end: Future[Any], run: Future[None]) -> None:
    if (error := run.exception()) is not None:
        end.set_exception(error)


def _end_all(ends: Iterable[Future[Any]], node: PrefectFuture[Any]) -> None:
    """Let steps that a task run has not ended have its error."""
    for end in ends:
        if not end.done():
            try:
                node.result()
                end.set_exception(Failed(f"a step has no result; {CONTINUE}"))
            except BaseException as error:
                end.set_exception(error)


def wait_for(name: str, end: Future[T]) -> T:
    """Wait for a step; raises its error, or Failed if its worker died each time."""
    try:
        return end.result()
    except WorkerDied as died:
        times = died.times if died.times > 1 else RETRIES + 1
        raise Failed(f"{name}: {died}, {times} times; {CONTINUE}") from None
    except (ClusterLost, WrongWorker) as lost:
        raise Failed(f"{name}: {lost}; {CONTINUE}") from None


def in_order_of_completion(ends: Mapping[Any, Future[Any]]) -> Iterator[Any]:
    """Yield units in the order in which their steps end, those that have ended first.

    After a failure the rest follow in the order of the calls, so that the raised error does not depend on timing.
    """
    left = dict.fromkeys(ends)
    for unit in [unit for unit, end in ends.items() if end.done() and end.exception() is None]:
        del left[unit]
        yield unit
    units = {ends[unit]: unit for unit in left}
    for end in as_completed([*units]):
        if end.exception() is not None:
            break
        del left[units[end]]
        yield units[end]
    yield from left


def _should_retry(state: State[Any]) -> bool:
    """Tell whether to try a step again: if its worker was killed, but not after an error of the step.

    Dask has tried a step again already when it says that several workers died.
    """
    try:
        state.result()
    except WorkerDied as died:
        return died.times == 1
    except Exception:
        return False
    return False


RETRIED: dict[str, Any] = {
    "retries": RETRIES, "retry_condition_fn": lambda task, run, state: _should_retry(state)
}  # fmt: skip


def count_units(kind: str, count: int, units: Sequence[Any]) -> str:
    """Return the name of a task run that has several steps, such as "train: 500 devices"."""
    if kind in QUICK:
        return kind
    return f"{kind}: {count} {'pairs' if any(isinstance(unit, tuple) for unit in units) else 'devices'}"


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
        fn = evaluated(fn)
        accelerator, together = placed_on(fn, calls, self.accelerator, self.together)
        if not is_vectorised(fn, together):
            return self._run_in_workers(accelerate(fn, accelerator), calls, word_of(fn), accelerator)
        shards = into_shards(fn, calls, together)
        sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
        values = self._run_in_workers(accelerate_all(fn, accelerator), sharded, word_of(fn), accelerator)
        return {unit: result for label in shards for unit, result in zip(shards[label], values[label], strict=True)}

    def _run_in_workers(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], name: str, accelerator: str | None
    ) -> dict[Any, Any]:
        loaded = {unit: (self.store, fn, args) for unit, args in calls.items()}
        if accelerator is None:
            call = partial(SideBySide(self.workers).map, load_call, loaded, name=name, step=fn)
        else:
            call = partial(self.workers.map, load_call, loaded, name=name, accelerator=accelerator)
        return with_blobs(self.store, tuple(calls.values()), call)
