"""Run each step of the loop by its key: what the cache has is taken, the rest is computed in Prefect's task runs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

from fedcore.core.evaluation import score
from fedcore.core.together import Together, bounded_shares, is_worth_it, placed_on, run_on_together
from fedcore.errors import Diverged
from fedcore.execute.accelerator import accelerate, trains
from fedcore.execute.workers import Engine
from fedcore.pipeline.cache import records
from fedcore.pipeline.cache.calls import call_save, load_call, load_call_save, load_calls_save, load_calls_vectorised
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.shared import with_blobs
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store, refs, unflatten
from fedcore.pipeline.orchestration.task_runs import QUICK, Nodes, Outcome, label_of
from fedcore.pipeline.work import around, word_of
from fedcore.types.federation import Federation

T = TypeVar("T")

MANY = 256
"""The most calls of a map that are a step each."""

SHARD = 64
"""Calls in a step where there are more than MANY: Prefect takes longer for a step than a small device's training."""

SMALL = 8 * 2**20
"""The most bytes that QUICK calls of one step refer to; devices with more than half of it have a step each."""

FEW = 1000
"""The most values that they refer to: a call that scores a thousand devices is a step of its own."""


class NotCached(Exception):
    """A step would have to be computed, in a walk that only looks."""


def whole(value: Any) -> Any:
    """Return a step's result: all blobs to which it refers must exist."""
    return value


class Graph:
    """Runs the loop's functions as cached steps: the `execute` that the pipeline gives to fedcore.core.rounds.

    Arguments and results are references (fedcore.pipeline.cache.store). on_step: called with every step when it ends,
    computed or cached. advance: called with the number of local steps that a step has just done inside. accelerator:
    the hardware for local steps, None for the CPU; it is part of their keys. together: devices that train together on
    it, in one step. done: the steps that have ended. nodes: the task runs of those that were computed.
    """

    in_parts = True  # methods with one training share it, whatever their devices attach

    def __init__(
        self, store: Store, workers: Engine, on_step: Callable[[Step], None] = lambda step: None,
        advance: Callable[[int], None] = lambda count: None, accelerator: str | None = None, together: int = 1,
    ) -> None:  # fmt: skip
        self.store = store
        self.workers = workers
        self.on_step = on_step
        self.accelerator = accelerator
        self.together = together if accelerator else 1
        self.done: list[Step] = []
        self._in_memory = OnEngine(store, workers, advance, accelerator, self.together)
        self._digest = Digest()
        self._known: dict[str, Outcome] = {}  # a step that several methods share is looked up once
        self._handed_out: set[Ref] = set()  # verified references that were returned
        self._cheap: list[tuple[Any, Any]] = []  # values that may be deleted, each with what stays of it
        self._recompute: dict[str, Callable[[Any], Any]] = {}  # a blob's digest -> what computes its value again
        self._recomputing = Lock()
        self._closed = threading.Event()
        self.nodes = Nodes(self._closed.is_set)
        self._looks = False  # whether a step that is not cached ends the walk

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What results depend on, beside code and settings: the kind of accelerator, and how many train together."""
        return (*([self.accelerator] if self.accelerator else []), *([self.together] if self.together > 1 else []))

    def close(self) -> None:
        """Let no step wait for another process: the flow ends."""
        self._closed.set()

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._run(fn, {"": args})[""]

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Run a step on each unit's arguments; many or quick ones share a step (see `into_shards`)."""
        return map_in_shards(fn, calls, self.accelerator, self.together, self._run)

    def _run(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None = None,
        work: Callable[..., Any] = load_call_save, sharded: bool = False,
    ) -> dict[Any, Any]:  # fmt: skip
        def body(key: str, *args: Any) -> Any:
            name = f"{word_of(fn, *args)}-{key}"
            call = partial(self.workers.call, work, self.store, fn, args, name=name, accelerator=accelerator)
            try:
                return with_blobs(self.store, args, call)
            except DamagedBlob:
                if not self._recompute_missing(args):
                    raise
                return call()

        return self._map(fn, calls, body, sharded=sharded, side_by_side=accelerator is None and not sharded)

    def run_inline(self, fn: Callable[..., Any], *args: Any, start: bool = False) -> Any:
        """Run a step in this process, since it takes less time than a worker needs to start.

        start: if the step has to be computed, start the workers meanwhile for the next steps.
        """

        def body(key: str, *args: Any) -> Any:
            if start:
                self.workers.start()
            return self.workers(load_call_save, self.store, fn, args)

        return self._map(fn, {"": args}, body)[""]

    def run_nested(
        self, fn: Callable[..., Any], *args: Any, unkeyed: tuple[Any, ...] = (),
        needed: Callable[[Any], Any] = whole, name: Callable[[Any], str] | None = None,
    ) -> Any:  # fmt: skip
        """Run a step in this process that runs other steps in the workers: fn(execute, *args, *unkeyed).

        unkeyed: arguments that are no part of the key, since they change only how far the step goes. needed: the part
        of the result whose blobs must exist. name: of the step on Prefect's page, by its result.
        """

        def body(key: str, *args: Any) -> Any:
            return call_save(self.store, fn, (self._in_memory, *args, *unkeyed))

        return self._map(nested_on(fn, self.accelerator, self.together), {"": args}, body, needed, name=name)[""]

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
                self.store.put(recompute(self._in_memory))
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
            del self.done[done:], seen[:]
            return None
        finally:
            self.on_step, self._looks = on_step, False
            for step in seen:
                on_step(step)
        return result

    @contextmanager
    def drawing(self, fed: Federation) -> Iterator[None]:
        """Draw the steps of one method, in a flow run of their own: cached ones, too, and first what its data are."""
        before, self.nodes = self.nodes, Nodes(self._closed.is_set, draws=True)
        self.nodes.draw("partition", f"partition: {len(fed.devices)} devices", (), fed, "divided by the run above")
        try:
            yield
        finally:
            self.nodes = before

    def _map(
        self, fn: Any, calls: Mapping[Any, tuple[Any, ...]], body: Callable[..., Any],
        needed: Callable[[Any], Any] = whole, sharded: bool = False, side_by_side: bool = False,
        name: Callable[[Any], str] | None = None,
    ) -> dict[Any, Any]:  # fmt: skip
        """Return the results of steps: body(key, *arguments) computes one's record.

        needed, name: as for `run_nested`. sharded: whether a unit is several devices. side_by_side: see `into_parts`.
        """
        kind = word_of(fn, *next(iter(calls.values()), ()))
        keys = {unit: self._digest.of(("step", fn, args)) for unit, args in calls.items()}
        had = {unit: outcome for unit, key in keys.items() if (outcome := self._find(key, needed)) is not None}
        due = {unit: args for unit, args in calls.items() if unit not in had}
        if due and self._looks:
            raise NotCached
        if had:
            self.nodes.draw_cached(kind, calls, {unit: outcome.value for unit, outcome in had.items()}, name)
        results: dict[Any, Any] = {}
        steps: dict[Any, Step] = {}
        computed = self._compute(kind, keys, due, body, fn if side_by_side else None, needed, sharded, name)
        for unit, outcome in chain(had.items(), computed):
            self._handed_out.update(refs(needed(outcome.value)))
            steps[unit] = Step(
                kind, label_of(unit), keys[unit], outcome.cached, outcome.wall, outcome.cpu,
                tuple(sorted({ref.digest for ref in refs(outcome.value)})), len(calls[unit]) if sharded else 1,
            )  # fmt: skip
            self.on_step(steps[unit])
            results[unit] = outcome.value
        self.done += [steps[unit] for unit in calls]
        return {unit: results[unit] for unit in calls}

    def _compute(
        self, kind: str, keys: Mapping[Any, str], due: Mapping[Any, tuple[Any, ...]], body: Callable[..., Any],
        fn: Any, needed: Callable[[Any], Any], sharded: bool, name: Callable[[Any], str] | None,
    ) -> Iterator[tuple[Any, Outcome]]:  # fmt: skip
        """Yield the units that the cache does not have, each with its outcome, as they end. fn: of steps in parts."""
        weights = {unit: sum(ref.nbytes for ref in refs(args)) for unit, args in due.items()}
        due = {unit: due[unit] for unit in sorted(due, key=lambda unit: -weights[unit])}  # the longest steps first
        by_key = {keys[unit]: args for unit, args in due.items()}
        parts = {} if fn is None else into_parts(self.store, self.workers, fn, by_key)

        def compute(unit: Any) -> Outcome:
            key = keys[unit]
            with records.lock(key, self._closed.is_set):
                if (outcome := self._find(key, needed)) is not None:  # another flow has computed it
                    return outcome
                done = parts[key].take(key) if key in parts else None
                try:
                    record = records.write(key, body(key, *due[unit]) if done is None else done)
                except Diverged as error:
                    records.write(key, {"value": {records.DIVERGED: str(error)}, "wall": 0.0, "cpu": 0.0})
                    raise
            outcome = _outcome(record)
            self._known[key] = outcome
            return outcome._replace(cached=False)

        return self.nodes.compute(kind, due, compute, sharded, name)

    def _find(self, key: str, needed: Callable[[Any], Any]) -> Outcome | None:
        """Return a cached step if the blobs that are needed are there and whole, and offer them to others.

        Raises Diverged if it did.

        All are read, as a store that others share takes away each that is damaged and keeps any that is there.
        Those of a step that has just run are not read: whatever loads them does so, and notices a damage.
        """
        outcome = self._known.get(key)
        if outcome is None and (record := records.look_up(key)) is not None:
            if records.DIVERGED in record["value"]:  # no line of the journal says that it is used: its time does
                records.write(key, record)
            outcome = _outcome(record)
        if outcome is None:
            return None
        blobs = dict.fromkeys(refs(needed(outcome.value)))
        if [ref for ref in blobs if not self.store.holds(ref)]:
            return None
        self.store.offer(blobs)
        self._known[key] = outcome
        return outcome


def _outcome(record: Mapping[str, Any]) -> Outcome:
    if records.DIVERGED in record["value"]:
        raise Diverged(record["value"][records.DIVERGED])
    return Outcome(unflatten(record["value"], {}), record["wall"], record["cpu"], True)


@dataclass
class Part:
    """Steps, by name, that a worker does side by side, though each is a record of its own.

    The first that is taken has all done, the others take what that has brought. Where there is nothing to take, as a
    call failed, a worker died or a step is tried again, a step is done alone and says what is wrong.
    """

    calls: Mapping[str, tuple[Any, ...]]
    run: Callable[[Sequence[tuple[Any, ...]]], list[Any]]
    _lock: Lock = field(default_factory=Lock)
    _done: dict[str, Any] | None = None

    def take(self, name: str) -> Any:
        """Return what a step stored and the seconds it took, once; None if the step is to be done alone."""
        with self._lock:
            if self._done is None:
                self._done = {}
                with suppress(Exception):
                    self._done = dict(zip(self.calls, self.run([*self.calls.values()]), strict=True))
            return self._done.pop(name, None)


def into_parts(store: Store, workers: Engine, fn: Any, due: Mapping[str, tuple[Any, ...]]) -> dict[str, Part]:
    """Divide the calls of steps that are to be done, by name, among the workers, if that may be faster.

    A part refers to SMALL bytes at most: a run that is killed loses it.
    """
    if len(due) < 2 or not all(is_worth_it(fn, args) for args in due.values()):
        return {}

    def run(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return with_blobs(store, tuple(calls), partial(workers.call, load_calls_vectorised, store, fn, calls))

    size = sum(ref.nbytes for args in due.values() for ref in refs(args))
    capacity = 1
    with suppress(Exception):  # a cluster that is lost: the steps say so
        capacity = workers.capacity()
    parts: dict[str, Part] = {}
    for names in bounded_shares(due, max(capacity, -(-size // SMALL))):
        parts |= dict.fromkeys(names if len(names) > 1 else (), Part({name: due[name] for name in names}, run))
    return parts


@dataclass
class OnEngine:
    """An `execute` for repeated rounds: workers load the devices' data, everything else stays in memory."""

    store: Store
    workers: Engine
    advance: Callable[[int], None]
    accelerator: str | None
    together: int = 1

    def capacity(self) -> int:
        """Return how many steps run at a time."""
        return self.workers.capacity()

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self.workers(fn, *self.store.get(args))

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Run a step on each unit's arguments: those that train together in one call, the others side by side."""
        return map_in_shards(fn, calls, self.accelerator, self.together, self._run, shares_steps=False)

    def _run(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None = None,
        work: Any = None, sharded: bool = False,
    ) -> dict[Any, Any]:  # fmt: skip
        loaded = {unit: (self.store, fn, args) for unit, args in calls.items()}
        engine: Any = Together(self.workers) if accelerator is None else self.workers
        options = {"step": fn} if accelerator is None else {"accelerator": accelerator}
        call = partial(engine.map, load_call, loaded, name=word_of(fn), **options)
        return with_blobs(self.store, tuple(calls.values()), call)


def evaluated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step's function, in the project's task if it scores models."""
    scores: Callable[..., Any] = around("evaluate", fn) if fn is score else fn
    return scores


def nested_on(fn: Callable[..., Any], accelerator: str | None, together: int) -> Callable[..., Any]:
    """Return what the key of a step that runs other steps there knows as its function."""
    fn = around("evaluate", fn)  # its rounds are scored inside
    step: Callable[..., Any] = run_on_together
    return accelerate(fn, accelerator) if together == 1 else partial(step, fn, accelerator, together)


def map_in_shards(
    fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None, together: int,
    run: Callable[..., dict[Any, Any]], shares_steps: bool = True,
) -> dict[Any, Any]:  # fmt: skip
    """Run a step on each unit's arguments, where it is worth it on the accelerator, by run(step, calls, accelerator).

    Where calls share a step, it is run(step, shards' calls, accelerator, work, True), whose results are lists.
    shares_steps: whether others do than those of devices that train together.
    """
    fn = evaluated(fn)
    accelerator, together = placed_on(fn, calls, accelerator, together)
    vectorised = is_vectorised(fn, together)
    shards = into_shards(fn, calls, together) if shares_steps or vectorised else {}
    if len(shards) in (0, len(calls)):
        return run(accelerate(fn, accelerator), calls, accelerator)
    step = partial(run_on_together, fn, accelerator) if vectorised else accelerate(fn, accelerator)
    sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
    values = run(step, sharded, accelerator, load_call_save if vectorised else load_calls_save, True)
    return {unit: result for label, shard in shards.items() for unit, result in zip(shard, values[label], strict=True)}


def is_vectorised(fn: Any, together: int) -> bool:
    """Tell whether the calls of a function share steps since their devices train together on an accelerator."""
    return together > 1 and trains(fn) and word_of(fn) not in QUICK


def into_shards(fn: Any, calls: Mapping[Any, tuple[Any, ...]], together: int = 1) -> dict[str, dict[Any, Any]]:
    """Divide the calls of devices into shards that follow one another, each a step of its own.

    So many devices as train `together` share a step. Else, of more than MANY calls SHARD share a step; of fewer those
    of a QUICK function, up to SMALL bytes and FEW values; the others are shards of one. A step's key covers its own
    devices, so that one that changes costs its shard.
    """
    if is_vectorised(fn, together):
        units = list(calls)
        parts = [units[first : first + together] for first in range(0, len(units), together)]
        return {_of_shard(part): {unit: calls[unit] for unit in part} for part in parts}
    many = len(calls) > MANY
    if not many and word_of(fn) not in QUICK:
        return {label_of(unit): {unit: args} for unit, args in calls.items()}
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
    return f"{label_of(units[0])} to {label_of(units[-1])}"
