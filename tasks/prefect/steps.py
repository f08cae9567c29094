"""How the loop's steps run in the pipeline: each a Prefect task, cached by key, computed in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from prefect import task
from prefect.futures import PrefectFuture, as_completed

from fedcore.execute.accelerator import accelerate, run_on
from fedcore.execute.workers import WorkerDied, Workers
from fedcore.rounds import receive
from tasks.cache.calls import call_save, load_call, load_call_save
from tasks.cache.journal import Step
from tasks.cache.keys import Digest
from tasks.cache.store import Damaged, Ref, Store, refs, unflatten
from tasks.config import environment


class Steps:
    """Runs the loop's functions as cached Prefect tasks: the `execute` that the pipeline gives to fedcore.rounds.

    Arguments and results are references (tasks.cache.store). watch: called with every step as it ends, computed or
    found. played: called with the number of local steps that were done inside a step, as they are done. accelerator:
    the kind of device that local steps run on, None for the CPU; it is part of their keys. done: the steps that have
    ended.
    """

    def __init__(
        self,
        store: Store,
        workers: Workers,
        watch: Callable[[Step], None] = lambda step: None,
        played: Callable[[int], None] = lambda count: None,
        accelerator: str | None = None,
    ) -> None:
        self.store = store
        self.workers = workers
        self.watch = watch
        self.played = played
        self.accelerator = accelerator
        self.done: list[Step] = []
        self._digest = Digest()
        self._known: dict[str, Mapping[str, Any]] = {}  # what several methods ask for is a task once
        self._given: set[Ref] = set()  # what was found whole and given out

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._worked(fn, {"": args})[""]

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        return self._worked(accelerate(fn, self.accelerator), calls)

    def _worked(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        def body(*args: Any) -> Any:
            return self.workers.call(load_call_save, self.store, fn, args)

        return self._map(fn, calls, body)

    def short(self, fn: Callable[..., Any], *args: Any, start: bool = False) -> Any:
        """Run a step in this process that is done before a worker would have started.

        start: if it has to be computed, let the workers start meanwhile, for what comes after it.
        """

        def body(*args: Any) -> Any:
            if start:
                self.workers.start()
            return self.workers(load_call_save, self.store, fn, args)

        return self._map(fn, {"": args}, body)[""]

    def here(
        self,
        fn: Callable[..., Any],
        *args: Any,
        unkeyed: tuple[Any, ...] = (),
        needed: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """Run a step in this process that hands out work to the workers itself: fn(execute, *args, *unkeyed).

        unkeyed: arguments that do not change what is found under the step's key, only how much of it is looked for.
        needed: the part of what it finds whose blobs must be there.
        """

        def body(*args: Any) -> Any:
            execute = InMemory(self.store, self.workers, self.played, self.accelerator)
            return call_save(self.store, fn, (execute, *args, *unkeyed))

        return self._map(accelerate(fn, self.accelerator), {"": args}, body, needed)[""]

    def drop(self, value: Any, but: Any) -> None:
        """Delete the blobs that a value refers to, unless `but` does too or this run was given them by another step."""
        for ref in {*refs(value)} - {*refs(but)} - self._given:
            self.store.path(ref).unlink(missing_ok=True)

    def _map(
        self,
        fn: Any,
        calls: Mapping[Any, tuple[Any, ...]],
        body: Callable[..., Any],
        needed: Callable[[Any], Any] = lambda value: value,
    ) -> dict[Any, Any]:
        kind = name_of(fn, *next(iter(calls.values()), ()))
        keys = {unit: self._digest.of(("step", fn, args)) for unit, args in calls.items()}
        jobs = {unit: _Job(partial(body, *args)) for unit, args in calls.items()}
        futures = {
            unit: self._submit(kind, unit, keys[unit], jobs[unit])
            for unit in sorted(calls, key=_heaviest_first(calls))
            if keys[unit] not in self._known
        }
        results: dict[Any, Any] = {}
        steps: dict[Any, Step] = {}
        for unit in _as_they_end(calls, futures):
            record = futures[unit].result() if unit in futures else self._known[keys[unit]]
            try:
                value = self._whole(record, needed)
            except Damaged:
                # The cache's record points to a blob that is gone or spoilt: compute it again, over the record.
                jobs[unit].ran = False
                record = self._submit(kind, unit, keys[unit], jobs[unit], refresh=True).result()
                value = self._whole(record, needed)
            self._known[keys[unit]] = record
            steps[unit] = Step(
                kind, _label(unit), keys[unit], not jobs[unit].ran, record["wall"], record["cpu"],
                tuple(sorted({ref.digest for ref in refs(value)})),
            )  # fmt: skip
            self.watch(steps[unit])
            results[unit] = value
        self.done += [steps[unit] for unit in calls]
        return {unit: results[unit] for unit in calls}

    def _submit(self, kind: str, unit: Any, key: str, job: _Job, refresh: bool = False) -> PrefectFuture[Any]:
        number = next(_NUMBERS)
        _JOBS[number] = job
        step = cached_step.with_options(name=kind, task_run_name=f"{kind} {_label(unit)}".strip())
        future = (step.with_options(refresh_cache=True) if refresh else step).submit(key, number)
        future.add_done_callback(lambda _: _forget(number))
        return future

    def _whole(self, record: Mapping[str, Any], needed: Callable[[Any], Any]) -> Any:
        value = unflatten(record["value"], {})
        for ref in refs(needed(value)):
            self.store.verify(ref)
            self._given.add(ref)
        return value


class InMemory:
    """An `execute` for repeated rounds: what devices hold is loaded in the workers, everything else stays in memory."""

    def __init__(self, store: Store, workers: Workers, played: Callable[[int], None], accelerator: str | None) -> None:
        self.store = store
        self.workers = workers
        self.played = played
        self.accelerator = accelerator

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self.workers(fn, *self.store.get(args))

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        flat = accelerate(fn, self.accelerator)
        return self.workers.map(load_call, {unit: (self.store, flat, args) for unit, args in calls.items()})


class _Job:
    """A step's work, and whether it was done in this run."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.ran = False


# A task's input is a key and a number: Prefect neither copies, hashes nor stores what a step works on.
_JOBS: dict[int, _Job] = {}
_NUMBERS = count()


def _forget(number: int) -> None:
    del _JOBS[number]


@task(
    cache_key_fn=lambda context, parameters: parameters["key"],
    persist_result=True,
    result_storage=environment.STEPS,
    result_serializer="json",
    cache_result_in_memory=False,
    retries=2,
    retry_condition_fn=lambda task, run, state: _worth_another_try(state),
)
def cached_step(key: str, number: int) -> dict[str, Any]:
    """Do the job of that number, unless a result is stored under the key.

    Returns its value (with references) and the seconds it took.
    """
    job = _JOBS[number]
    job.ran = True
    record: dict[str, Any] = job.work()
    return record


def _worth_another_try(state: Any) -> bool:
    """A worker that was killed is replaced and the step tried again; a wrong input stays wrong."""
    try:
        state.result()
    except WorkerDied:
        return True
    except Exception:
        return False
    return False


def _as_they_end(calls: Mapping[Any, Any], futures: Mapping[Any, PrefectFuture[Any]]) -> Iterator[Any]:
    """Yield units as their steps end, those that have none first; after a failure the rest in the order of the calls,
    so that the error that is raised does not depend on who was faster."""
    left = dict.fromkeys(unit for unit in calls if unit in futures)
    yield from (unit for unit in calls if unit not in futures)
    units = {future: unit for unit, future in futures.items()}
    for future in as_completed(list(units)):
        future.wait()  # it has ended; only now its state is known without asking the server
        if not future.state.is_completed():
            break
        del left[units[future]]
        yield units[future]
    yield from left


def name_of(fn: Any, *args: Any) -> str:
    """Return the word for a step (see fedcore.types.step_word), whatever is bound to its function and wherever it runs.

    What the server does with updates goes by the word of the method's own combine.
    """
    while True:
        if isinstance(fn, partial):
            fn, args = fn.func, (*fn.args, *args)
        elif fn in (run_on, receive):
            fn, args = args[0], args[1:]
        else:
            return str(getattr(fn, "word", "") or fn.__name__.partition("_")[0])


def _label(unit: Any) -> str:
    return " and ".join(unit) if isinstance(unit, tuple) else str(unit)


def _heaviest_first(calls: Mapping[Any, tuple[Any, ...]]) -> Callable[[Any], int]:
    """Return a sort key by the bytes that a call refers to, so that no worker is left with a long last step."""
    return lambda unit: -sum(ref.nbytes for ref in refs(calls[unit]))
