"""A step as a Prefect task, whose input is a key and a number: Prefect does not copy, hash or store a step's data."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar, cast

from prefect import Task, task
from prefect.cache_policies import CachePolicy
from prefect.futures import PrefectFuture, as_completed
from prefect.utilities.annotations import NotSet, quote

from fedcore.execute.cluster import ClusterLost
from fedcore.execute.remote import WrongWorker
from fedcore.execute.workers import WorkerDied
from fedcore.pipeline import environment
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.orchestration.records import with_checksum

RETRIES = 2
"""How often a step is tried again after its worker died."""


class Job:
    """A step's work, and whether this run has done it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.ran = False


_JOBS: dict[int, Job] = {}
_NUMBERS = count()


def submit(cached: Task[..., Any], name: str, key: str, job: Job, refresh: bool) -> PrefectFuture[Any]:
    """Hand a job to Prefect as a run of that name; refresh: compute it even if the cache has its record.

    Prefect takes a name for a template, in which a device's braces would name an argument.
    """
    number = next(_NUMBERS)
    _JOBS[number] = job
    name = name.replace("{", "{{").replace("}", "}}")
    future = cached.with_options(task_run_name=name, refresh_cache=True if refresh else NotSet).submit(key, number)
    future.add_done_callback(lambda _: _JOBS.__delitem__(number))
    return future


def wait_for(name: str, future: PrefectFuture[Any]) -> Any:
    """Wait for a step's record; raises its error, or Failed if its worker died each time."""
    try:
        return future.result()
    except WorkerDied as died:
        times = died.times if died.times > 1 else RETRIES + 1
        raise Failed(f"{name}: {died}, {times} times; {CONTINUE}") from None
    except (ClusterLost, WrongWorker) as lost:
        raise Failed(f"{name}: {lost}; {CONTINUE}") from None


def in_order_of_completion(calls: Mapping[Any, Any], futures: Mapping[Any, PrefectFuture[Any]]) -> Iterator[Any]:
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
    "cache_policy": BY_KEY, "persist_result": True, "result_storage": environment.STEPS, "result_serializer": "json",
    "cache_result_in_memory": False, "retries": RETRIES,
    "retry_condition_fn": lambda task, run, state: _should_retry(state),
}  # fmt: skip
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
