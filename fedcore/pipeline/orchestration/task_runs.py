"""Calls as Prefect's task runs. Prefect's own cache is not used: what is known is no task run (graph.py)."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE

P = ParamSpec("P")
T = TypeVar("T")


class Call:
    """A call as the function of a task: without arguments, which Prefect would copy and search for tasks' results."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def __call__(self) -> Any:
        return self.run()


def task_of(run: Callable[[], T], task: str, name: str, **options: Any) -> Task[[], T]:
    """Return a Prefect task that makes a call. task: its name on the page; name: of its run, whatever is in it."""
    return Task(
        Call(run), name=task, task_run_name=lambda: name, cache_policy=NO_CACHE, persist_result=False, **options
    )


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
