"""Calls as Prefect's task runs, with arrows. Prefect's own cache is not used: what is cached is no task run.

Prefect is imported with the first of them: a plan has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from fedcore.errors import InputError
from fedcore.execute.cluster import ClusterLost
from fedcore.execute.remote import WrongWorker
from fedcore.execute.workers import WorkerDied
from fedcore.pipeline.cache.store import refs
from fedcore.pipeline.command import CONTINUE, Failed

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State
    from prefect.futures import PrefectFuture

P = ParamSpec("P")
T = TypeVar("T")
Node: TypeAlias = "PrefectFuture[Any]"

RETRIES = 2
"""How often a task run is tried again after a worker died."""

QUICK = {"deploy", "evaluate"}
"""Steps that take a few milliseconds where models and data are small, less than Prefect takes for a step."""

DRAWN = 32
"""The most steps of a map that are a node each on Prefect's page; more of them, and steps of pairs, are one node."""


class Outcome(NamedTuple):
    """How a step ended: its result, the seconds that it took when it was computed, and whether the cache had it."""

    value: Any
    wall: float
    cpu: float
    cached: bool


def task_of(run: Callable[[], T], task: str, name: str, **options: Any) -> Task[[], T]:
    """Return a Prefect task that makes a call, without arguments, which Prefect would copy and search for results.

    task: its name on the page. name: of its run, whatever is in it.
    """
    from prefect import Task
    from prefect.cache_policies import NO_CACHE

    call = partial(run)  # a function's source would be part of the task's key, which takes time
    return Task(call, name=task, task_run_name=lambda: name, cache_policy=NO_CACHE, persist_result=False, **options)


def task(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let each call of a function be a task run. name: of the run, in which arguments stand in braces."""

    def mark(fn: Callable[P, T]) -> Callable[P, T]:
        @wraps(fn)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            given = inspect.signature(fn).bind(*args, **kwargs).arguments
            description = inspect.getdoc(fn)
            made = task_of(lambda: fn(*args, **kwargs), fn.__name__, name.format(**given), description=description)
            return made()

        return run

    return mark


def shorten(words: Iterable[str], most: int = 200) -> str:
    """Return a name of users' words: one line of printable characters, not too long for the page."""
    line = "".join(char if char.isprintable() else " " for char in " ".join(words)).strip()
    return line if len(line) <= most else f"{line[: most - 3]}..."


def label_of(unit: Any) -> str:
    return " and ".join(unit) if isinstance(unit, tuple) else str(unit)


class Nodes:
    """The task runs of steps, the nodes of Prefect's page. An arrow leads to one from each that brought a reference
    which it reads.

    ends: tells whether the flow ends, which stops what runs. draws: whether steps that the cache has are nodes.
    """

    def __init__(self, ends: Callable[[], bool], draws: bool = False) -> None:
        self.ends = ends
        self.draws = draws
        self._brought: dict[str, Node] = {}  # a blob's digest -> the task run that brought it
        self._above: dict[Node, frozenset[Node]] = {}  # task run -> all above it

    def parents(self, values: Any) -> list[Node]:
        """Return the task runs that brought the references in some values, without those above others of them."""
        nearest = dict.fromkeys(self._brought[ref.digest] for ref in refs(values) if ref.digest in self._brought)
        above = frozenset[Node]().union(*(self._above[node] for node in nearest))
        return [node for node in nearest if node not in above]

    def submit(self, run: Callable[[], Any], kind: str, name: str, args: Any, **options: Any) -> Node:
        """Start a task run that reads some arguments."""
        parents = self.parents(args)
        node: Node = self.start(task_of(run, shorten([kind]), shorten([name]), **options), parents)
        self._above[node] = frozenset(parents).union(*(self._above[parent] for parent in parents))
        return node

    def start(self, task: Any, parents: list[Node]) -> Node:
        """Start a task after others."""
        node: Node = task.submit(wait_for=parents)
        return node

    def bring(self, node: Node, value: Any) -> None:
        """Let arrows lead from a task run to all that reads a value."""
        for ref in refs(value):
            self._brought.setdefault(ref.digest, node)

    def draw(self, kind: str, name: str, args: Any, value: Any, message: str) -> None:
        """Draw a node for a value that was there."""
        from prefect.states import Completed

        self.bring(self.submit(lambda: Completed(name="Cached", message=message), kind, name, args), value)

    def draw_cached(
        self, kind: str, calls: Mapping[Any, Any], values: Mapping[Any, Any], name: Callable[[Any], str] | None
    ) -> None:
        """Draw one node for those calls of a map that the cache has. values: their results. name: see `compute`."""
        if not self.draws:
            return
        title = f"{kind}: {len(values)} of {len(calls)} from the cache"
        if len(calls) == 1:
            title = f"{kind if name is None else name(*values.values())}: from the cache"
        self.draw(kind, title, [calls[unit] for unit in values], values, "from the cache")

    def compute(
        self, kind: str, due: Mapping[Any, tuple[Any, ...]], compute: Callable[[Any], Outcome], sharded: bool,
        name: Callable[[Any], str] | None,
    ) -> Iterator[tuple[Any, Outcome]]:  # fmt: skip
        """Yield the units of a map with the outcomes of their steps, as they end: each a task run, or all are one.

        sharded: whether a unit is several devices. name: of the only step, by its result.
        """
        ends: dict[Any, Future[Outcome]] = {unit: Future() for unit in due}
        groups = [[unit] for unit in due]
        pairs = any(isinstance(unit, tuple) for unit in due)
        if len(due) > DRAWN or (len(due) > 1 and (kind in QUICK or pairs)):
            groups = [[*due]]
        nodes: dict[Any, Node] = {}
        for units in groups:
            title = kind if kind in QUICK else f"{kind} {label_of(units[0])}".strip()
            if len(units) > 1 and kind not in QUICK:
                count = sum(len(due[unit]) for unit in units) if sharded else len(units)
                title = f"{kind}: {count} {'pairs' if pairs else 'devices'}"
            run = partial(_run, units, ends, compute, name, self.ends)
            reads, again = [due[unit] for unit in units], {"retries": RETRIES, "retry_condition_fn": _should_retry}
            node = self.submit(run, kind, title, reads, **again)
            node.add_done_callback(partial(_end, [ends[unit] for unit in units]))
            nodes |= dict.fromkeys(units, node)
        for unit in in_order_of_completion(ends):
            outcome = wait_for(f"{kind} {label_of(unit)}".strip(), ends[unit])
            self.bring(nodes[unit], outcome.value)
            yield unit, outcome


def _run(
    units: Sequence[Any], ends: Mapping[Any, Future[Outcome]], compute: Callable[[Any], Outcome],
    name: Callable[[Any], str] | None, stops: Callable[[], bool],
) -> State[Any] | None:  # fmt: skip
    """Compute steps in one task run: all of them, or where it is tried again those that are left.

    A method that is refused ends well here: it is left out, or the run says why it ends.
    """
    from prefect.context import TaskRunContext
    from prefect.states import Cancelled, Completed

    left = [unit for unit in units if not ends[unit].done()]
    with ThreadPoolExecutor(len(left)) as threads:
        runs = [threads.submit(lambda unit: ends[unit].set_result(compute(unit)), unit) for unit in left]
    errors = [error for run in runs if (error := run.exception()) is not None]
    for error in sorted(errors, key=lambda error: (not isinstance(error, InputError), isinstance(error, WorkerDied))):
        if stops():
            return Cancelled(message="the run has ended meanwhile")
        if not isinstance(error, InputError):
            raise error
        for end in [ends[unit] for unit in left if not ends[unit].done()]:
            end.set_exception(error)
        return Completed(name="Left out", message=str(error))
    context = TaskRunContext.get()
    if name is not None and context is not None:
        context.task_run.name = shorten([name(ends[units[0]].result().value)])
    return None


def _end(ends: Iterable[Future[Outcome]], node: Node) -> None:
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
    """Yield units in the order in which their steps end.

    After a failure the rest follow in the order of the calls, so that the raised error does not depend on timing.
    """
    units = {end: unit for unit, end in ends.items()}
    for end in as_completed([*units]):
        if end.exception() is not None:
            break
        yield units.pop(end)
    yield from units.values()


def _should_retry(task: Any, run: Any, state: State[Any]) -> bool:
    """Tell whether to try a step again: if its worker was killed, but not after an error of the step.

    Dask has tried a step again already when it says that several workers died.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, WorkerDied) and error.times == 1
