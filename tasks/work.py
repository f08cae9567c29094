"""What is done inside a worker process: load, one call, save. Imports nothing that a worker does not need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fedcore.data import Dataset
from fedcore.partition import Partition, partition, servers, splits
from fedcore.types import Data, Deploy, Message, Model, Params, Splits
from tasks.store import Store, flatten


def load_call_save(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Load what the arguments refer to, call the function, store its result; returns it with the seconds it took."""
    return call_save(store, lambda *loaded: fn(*store.get(loaded)), args)


def call_save(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Call the function and store its result; returns it, as JSON with references, and the seconds this thread took."""
    wall, cpu = time.perf_counter(), time.thread_time()
    value = store.put(fn(*args))
    return {"value": flatten(value, "", {}), "wall": time.perf_counter() - wall, "cpu": time.thread_time() - cpu}


def load_call(store: Store, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Load what the arguments refer to and call the function."""
    return fn(*store.get(args))


def divide(dataset: Dataset, *, federation: dict[str, Any], seed: int) -> Partition:
    """Say who holds which example."""
    return partition(dataset, seed=seed, **federation)


def hand_out(dataset: Dataset, made: Partition, *, scale: str) -> tuple[dict[str, Splits], Data, Data]:
    """Give each device its own examples; beside them the shared test set and what the server holds itself."""
    return *splits(dataset, made, scale), servers(dataset, scale)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return the shape of an example and the names of the classes."""
    return {"shape": tuple(dataset.train.x.shape[1:]), "classes": list(dataset.classes)}


def deploy(how: Deploy, own: Params, message: Message) -> Model:
    """Return what a device runs."""
    return how(own, message)
