"""Run each step of the loop as a Prefect task, cached by its key and computed in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, TypeVar, cast

from prefect import Task, task
from prefect.cache_policies import CachePolicy
from prefect.futures import PrefectFuture, as_completed
from prefect.transactions import IsolationLevel, get_transaction
from prefect.utilities.annotations import quote

from fedcore.core.rounds import receive
from fedcore.core.threats import admit
from fedcore.core.together import SideBySide, accelerate_all, bounded_shares, is_worth_it, run_on_together
from fedcore.execute.accelerator import accelerate, run_on
from fedcore.execute.cluster import ClusterLost
from fedcore.execute.remote import WrongWorker
from fedcore.execute.workers import Engine, WorkerDied
from fedcore.pipeline import environment
from fedcore.pipeline.cache.calls import (
    call_save,
    load_call,
    load_call_save,
    load_calls_save,
    load_calls_side_by_side,
)
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store, refs, unflatten
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.orchestration.locks import StepLocks
from fedcore.pipeline.orchestration.records import look_up, require_written, with_checksum

MANY = 256
"""The most calls of a map that are a step each."""

SHARD = 64
"""Calls in a step where there are more than MANY: Prefect takes longer for a step than a small device's training."""

QUICK = {"deploy", "evaluate"}
"""Steps that take a few milliseconds where models and data are small, less than Prefect takes for a step."""

SMALL = 8 * 2**20
"""The most bytes that such calls of one step refer to; devices with more than half of it have a step each."""

FEW = 1000
"""The most values that they refer to: a call that scores a thousand devices is a step of its own."""


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
        self,
        store: Store,
        workers: Engine,
        on_step: Callable[[Step], None] = lambda step: None,
        advance: Callable[[int], None] = lambda count: None,
        accelerator: str | None = None,
        tasks: Mapping[str, Task[..., Any]] | None = None,
        together: int = 1,
    ) -> None:
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
        self._brief: list[tuple[Any, Any]] = []  # values that may be deleted, each with what stays of it
        self._again: dict[str, Callable[[Any], Any]] = {}  # a blob's digest -> what computes its value again
        self._computing_again = Lock()

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What results depend on, beside code and settings: the kind of accelerator, and how many train together."""
        return (*([self.accelerator] if self.accelerator else []), *([self.together] if self.together > 1 else []))

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._run_in_workers(fn, {"": args}, None)[""]

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Run a step on each unit's arguments; many or quick ones share a step (see `into_shards`)."""
        placed = accelerate(fn, self.accelerator)
        shards = into_shards(fn, calls, self.together)
        if len(shards) == len(calls):
            return self._run_in_workers(placed, calls, self.accelerator)
        sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
        if trains_together(fn, self.together):
            values = self._run_in_workers(accelerate_all(fn, self.accelerator), sharded, self.accelerator, sharded=True)
        else:
            values = self._run_in_workers(placed, sharded, self.accelerator, load_calls_save, sharded=True)
        return {
            unit: result for label, shard in shards.items() for unit, result in zip(shard, values[label], strict=True)
        }

    def _run_in_workers(
        self,
        fn: Callable[..., Any],
        calls: Mapping[Any, tuple[Any, ...]],
        accelerator: str | None,
        work: Callable[..., Any] = load_call_save,
        sharded: bool = False,
    ) -> dict[Any, Any]:
        shared = SharedWork(self.store, self.workers, fn)

        def body(name: str, *args: Any) -> Any:
            if (done := shared.take(name)) is not None:
                return done
            call = partial(self.workers.call, work, self.store, fn, args, name=name, accelerator=accelerator)
            try:
                return with_blobs(self.store, args, call)
            except DamagedBlob:
                if not self._compute_again(args):
                    raise
                return call()

        alone = accelerator is not None or sharded
        return self._map(fn, calls, body, sharded=sharded, prepare=None if alone else shared.prepare)

    def run_inline(self, fn: Callable[..., Any], *args: Any, start: bool = False, known: Any = None) -> Any:
        """Run a step in this process, since it takes less time than a worker needs to start.

        start: if the step has to be computed, start the workers meanwhile for the next steps. known: the step's result,
        if this process has computed it already.
        """

        def body(name: str, *args: Any) -> Any:
            if start:
                self.workers.start()
            if known is not None:
                return call_save(self.store, lambda: known, ())
            return self.workers(load_call_save, self.store, fn, args)

        return self._map(fn, {"": args}, body)[""]

    def run_nested(
        self,
        fn: Callable[..., Any],
        *args: Any,
        unkeyed: tuple[Any, ...] = (),
        needed: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """Run a step in this process that runs other steps in the workers: fn(execute, *args, *unkeyed).

        unkeyed: arguments that are no part of the key, since they change only how far the step goes. needed: the part
        of the result whose blobs must exist.
        """

        def body(name: str, *args: Any) -> Any:
            return call_save(self.store, fn, (self._in_memory(), *args, *unkeyed))

        return self._map(nested_on(fn, self.accelerator, self.together), {"": args}, body, needed)[""]

    def _in_memory(self) -> InMemory:
        return InMemory(self.store, self.workers, self.advance, self.accelerator, self.together)

    def let_go(self, value: Any, but: Any, again: Callable[[Any], Any], brief: bool) -> None:
        """Say how a value is computed again, again(execute), for a step that finds it gone.

        brief: this takes little time, so that `drop_brief` may delete its blobs, except those of `but`.
        """
        self._again |= {ref.digest: again for ref in refs(value)}
        if brief:
            self._brief.append((value, but))

    def drop_brief(self) -> None:
        """Delete the values that take little time to compute again; call it when no step of this run follows."""
        for value, but in self._brief:
            self.drop([ref for ref in refs(value) if self.store.path(ref).exists()], but)

    def _compute_again(self, args: Any) -> bool:
        """Compute those blobs of a step's arguments that are gone; returns whether it is known how for any."""
        known = [ref for ref in refs(args) if ref.digest in self._again]
        with self._computing_again:  # several steps may miss one value
            for again in {self._again[ref.digest] for ref in known if not self.store.holds(ref)}:
                self.store.put(again(self._in_memory()))
        return bool(known)

    def drop(self, value: Any, but: Any) -> None:
        """Delete the blobs of a value, except those of `but` and those that other steps of this run returned."""
        for ref in {*refs(value)} - {*refs(but)} - self._handed_out:
            self.store.drop(ref)

    def _map(
        self,
        fn: Any,
        calls: Mapping[Any, tuple[Any, ...]],
        body: Callable[..., Any],
        needed: Callable[[Any], Any] = lambda value: value,
        sharded: bool = False,
        prepare: Callable[[dict[str, tuple[Any, ...]]], None] | None = None,
    ) -> dict[Any, Any]:
        kind = word_of(fn, *next(iter(calls.values()), ()))
        keys = {unit: self._digest.of(("step", fn, args)) for unit, args in calls.items()}
        jobs = {unit: _Job(partial(body, f"{kind}-{keys[unit]}", *args)) for unit, args in calls.items()}
        for key in {*keys.values()} - self._records.keys():
            if (known := look_up(key)) is not None:
                self._records[key] = known
        if prepare is not None:
            prepare({f"{kind}-{keys[unit]}": args for unit, args in calls.items() if keys[unit] not in self._records})
        futures = {
            unit: self._submit(kind, unit, keys[unit], jobs[unit])
            for unit in sorted(calls, key=_heaviest_first(calls))
            if keys[unit] not in self._records
        }
        results: dict[Any, Any] = {}
        steps: dict[Any, Step] = {}
        for unit in _in_order_of_completion(calls, futures):
            record = _result(kind, unit, futures[unit]) if unit in futures else self._records[keys[unit]]
            if jobs[unit].ran:
                self._require_kept(keys[unit])
            value = unflatten(record["value"], {})
            if not jobs[unit].ran:
                try:
                    self._verify(needed(value))
                except DamagedBlob:
                    # The cache refers to a missing or damaged blob: compute the step again and replace its record.
                    record = _result(kind, unit, self._submit(kind, unit, keys[unit], jobs[unit], refresh=True))
                    value = unflatten(record["value"], {})
            self._handed_out.update(refs(needed(value)))
            self._records[keys[unit]] = record
            steps[unit] = Step(
                kind, _label(unit), keys[unit], not jobs[unit].ran, record["wall"], record["cpu"],
                tuple(sorted({ref.digest for ref in refs(value)})), len(calls[unit]) if sharded else 1,
            )  # fmt: skip
            self.on_step(steps[unit])
            results[unit] = value
        self.done += [steps[unit] for unit in calls]
        return {unit: results[unit] for unit in calls}

    def _submit(self, kind: str, unit: Any, key: str, job: _Job, refresh: bool = False) -> PrefectFuture[Any]:
        number = next(_NUMBERS)
        _JOBS[number] = job
        named = self._tasks.get(kind, self._step).with_options(task_run_name=f"{kind} {_label(unit)}".strip())
        future = (named.with_options(refresh_cache=True) if refresh else named).submit(key, number)
        future.add_done_callback(lambda _: _forget(number))
        return future

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
        places = 1
        with suppress(Exception):  # a cluster that is lost: the steps say so
            places = self.workers.places()
        for names in bounded_shares(due, max(places, -(-size // SMALL))):
            part = _Part({name: due[name] for name in names}, self._run)
            self._parts |= dict.fromkeys(names if len(names) > 1 else (), part)

    def take(self, name: str) -> Any:
        """Return what a step stored and the seconds it took, once; None if the step is to be done alone."""
        part = self._parts.pop(name, None)
        return None if part is None else part.take(name)

    def _run(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        work = partial(self.workers.call, load_calls_side_by_side, self.store, self.fn, calls)
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
        self,
        store: Store,
        workers: Engine,
        advance: Callable[[int], None],
        accelerator: str | None,
        together: int = 1,
    ) -> None:
        self.store = store
        self.workers = workers
        self.advance = advance
        self.accelerator = accelerator
        self.together = together

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self.workers(fn, *self.store.get(args))

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        if not trains_together(fn, self.together):
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


def nested_on(fn: Callable[..., Any], accelerator: str | None, together: int) -> Callable[..., Any]:
    """Return what the key of a step that runs other steps there knows as its function."""
    return accelerate(fn, accelerator) if together == 1 else partial(accelerate_all(fn, accelerator), together)


def trains_together(fn: Any, together: int) -> bool:
    """Tell whether the calls of a function share steps since their devices train together on an accelerator."""
    return together > 1 and word_of(fn) not in QUICK


def into_shards(fn: Any, calls: Mapping[Any, tuple[Any, ...]], together: int = 1) -> dict[str, dict[Any, Any]]:
    """Divide the calls of devices into shards that follow one another, each a step of its own.

    So many devices as train `together` share a step. Else, of more than MANY calls SHARD share a step; of fewer those
    of a QUICK function, up to SMALL bytes and FEW values; the others are shards of one. A step's key covers its own
    devices, so that one that changes costs its shard.
    """
    if trains_together(fn, together):
        units = list(calls)
        parts = [units[first : first + together] for first in range(0, len(units), together)]
        return {_of_shard(part): {unit: calls[unit] for unit in part} for part in parts}
    many = len(calls) > MANY
    if not many and word_of(fn) not in QUICK:
        return {_label(unit): {unit: args} for unit, args in calls.items()}
    shards: list[dict[Any, Any]] = []
    full = 2.0
    for unit, args in calls.items():
        references = [] if many else refs(args)
        share = 1 / SHARD if many else max(sum(ref.nbytes for ref in references) / SMALL, len(references) / FEW)
        if full + share > 1:
            shards.append({})
            full = 0.0
        shards[-1][unit] = args
        full += share
    return {_of_shard([*shard]): shard for shard in shards}


def _of_shard(units: Sequence[Any]) -> str:
    return f"{_label(units[0])} to {_label(units[-1])}"


class _Job:
    """A step's work, and whether this run has done it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.ran = False


# A task's input is a key and a number, so that Prefect does not copy, hash or store a step's data.
_JOBS: dict[int, _Job] = {}
_NUMBERS = count()


RETRIES = 2
"""How often a step is tried again after its worker died."""


def _result(kind: str, unit: Any, future: PrefectFuture[Any]) -> Any:
    """Wait for a step's record; raises its error, or Failed if its worker died each time."""
    word = f"{kind} {_label(unit)}".strip()
    try:
        return future.result()
    except WorkerDied as died:
        times = died.times if died.times > 1 else RETRIES + 1
        raise Failed(f"{word}: {died}, {times} times; {CONTINUE}") from None
    except (ClusterLost, WrongWorker) as lost:
        raise Failed(f"{word}: {lost}; {CONTINUE}") from None


def _forget(number: int) -> None:
    del _JOBS[number]


BY_KEY = CachePolicy.from_cache_key_fn(lambda context, parameters: parameters["key"])


def _should_retry(state: Any) -> bool:
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


STEP_OPTIONS: dict[str, Any] = {
    "cache_policy": BY_KEY,
    "persist_result": True,
    "result_storage": environment.STEPS,
    "result_serializer": "json",
    "cache_result_in_memory": False,
    "retries": RETRIES,
    "retry_condition_fn": lambda task, run, state: _should_retry(state),
}
"""Options of the Prefect tasks that run cached steps: each takes a step's key and the number of its job."""


def compute(key: str, number: int) -> dict[str, Any]:
    """Run the job of that number; a task with STEP_OPTIONS calls it if the cache has no result for the key.

    Returns the job's value, with references, and the seconds that it took, with a checksum.
    """
    job = _JOBS[number]
    job.ran = True
    return with_checksum(key, job.work())


T = TypeVar("T")


def as_is(value: T) -> T:
    """Mark an argument that Prefect hands to a task as it is, without looking for other tasks' results in it."""
    return cast(T, quote(value))


@task(**STEP_OPTIONS)
def step(key: str, number: int) -> dict[str, Any]:
    """Run a step that has no task of its own."""
    return compute(key, number)


def _in_order_of_completion(calls: Mapping[Any, Any], futures: Mapping[Any, PrefectFuture[Any]]) -> Iterator[Any]:
    """Yield units in the order in which their steps end, units without a step first.

    After a failure the rest follow in the order of the calls, so that the raised error does not depend on timing.
    """
    left = dict.fromkeys(unit for unit in calls if unit in futures)
    yield from (unit for unit in calls if unit not in futures)
    units = {future: unit for unit, future in futures.items()}
    for future in as_completed(list(units)):
        future.wait()  # it has ended; now its state is known without a request to the server
        if not future.state.is_completed():
            break
        del left[units[future]]
        yield units[future]
    yield from left


def word_of(fn: Any, *args: Any) -> str:
    """Return the word for a step (see fedcore.types.step_word), whatever its bound arguments and wherever it runs.

    A step of the server has the word of the method's `combine`.
    """
    while True:
        if isinstance(fn, partial):
            fn, args = fn.func, (*fn.args, *args)
        elif fn in (run_on, run_on_together, receive, admit):
            fn, args = args[0], args[1:]
        else:
            return str(getattr(fn, "word", "") or fn.__name__.partition("_")[0])


def _label(unit: Any) -> str:
    return " and ".join(unit) if isinstance(unit, tuple) else str(unit)


def _heaviest_first(calls: Mapping[Any, tuple[Any, ...]]) -> Callable[[Any], int]:
    """Return a sort key by the bytes that a call refers to, so that the longest steps start first."""
    return lambda unit: -sum(ref.nbytes for ref in refs(calls[unit]))
