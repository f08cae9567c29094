"""A step's call in a worker process: load its arguments, call the function, store its result."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from fedcore.core.together import is_worth_it, run_each, run_side_by_side
from fedcore.execute.workers import run_step
from fedcore.pipeline.cache.store import Ref, Store, put_in, refs, to_json


def load_call_save(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Load the arguments' references, call the function and store its result; returns it with the seconds it took."""
    return call_save(store, lambda *loaded: run_step(fn, *store.get(loaded)), args)


def load_calls_save(store: Store, fn: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Do the same for several calls of a function; the value is the list of their results.

    One follows another, unless devices can train side by side.
    """
    every = [*calls]

    def together() -> list[Any]:
        loaded = {ref: store.get(ref) for ref in dict.fromkeys(refs(every))}
        return [store.put(result) for result in run_side_by_side(fn, *(put_in(loaded, args) for args in every))]

    def results() -> Iterator[Any]:
        loaded: dict[Ref, Any] = {}
        for args in every:
            # What the call before it needed too, such as a message to everyone, is not read again.
            loaded = {ref: loaded[ref] if ref in loaded else store.get(ref) for ref in {*refs(args)}}
            yield store.put(run_step(fn, *put_in(loaded, args)))

    return call_save(store, together if all(is_worth_it(fn, args) for args in every) else lambda: list(results()), ())


def load_calls_vectorised(store: Store, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Do the same as `load_call_save` for each of several calls, whose devices train side by side where they can.

    A call's seconds are its own and its share of what was done for several. Of one that failed the result is None: its
    own step says what was wrong.
    """
    each = run_each(partial(load_call_save, store, fn), [(args,) for args in calls])
    return [None if outcome.error else {**outcome.result, "wall": outcome.wall, "cpu": outcome.cpu} for outcome in each]


def call_save(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Call the function and store its result; returns it as JSON with references, and the seconds of this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    value = store.put(fn(*args))
    return {"value": to_json(value), "wall": time.perf_counter() - wall, "cpu": time.thread_time() - cpu}


def load_call(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Load the arguments' references and call the function."""
    return run_step(fn, *store.get(args))


def store_error(store: Store, ref: Ref) -> str:
    """Return an empty text if this process can read the store, otherwise what is wrong."""
    return "" if store.holds(ref) else f"cannot read the store {store.location}"
