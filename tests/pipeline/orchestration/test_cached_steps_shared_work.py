"""Devices of small perceptrons train side by side in one call of a worker, though each has a step of its own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from federations import SGD, bits, federation

from fedcore.core.training import train
from fedcore.execute.workers import Inline, WorkerDied
from fedcore.pipeline import environment
from fedcore.pipeline.cache.calls import load_call_save, load_calls_vectorised
from fedcore.pipeline.cache.store import Store, unflatten
from fedcore.types.method import Message, StepId

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.orchestration import cached_steps
from fedcore.pipeline.orchestration.cached_steps import InMemory, SharedWork

FED = federation("abcd")
TRAIN = partial(train, training=SGD)


class Counting(Inline):
    """Says what it was asked to run. failing: how many calls a worker does not survive."""

    def __init__(self, places: int, failing: int = 0) -> None:
        self.asked: list[tuple[str, int]] = []
        self._places, self.failing = places, failing

    def capacity(self) -> int:
        return self._places

    def call(self, fn: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.asked.append((fn.__name__, len(args[-1])))
        if len(self.asked) <= self.failing:
            raise WorkerDied("it ended")
        return super().call(fn, *args)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few examples be enough."""
    monkeypatch.setattr("fedcore.core.together.LEAST_BYTES", 1)
    monkeypatch.setattr("fedcore.core.side_by_side.WORTH", 1)


def calls(store: Store) -> dict[str, tuple[Any, ...]]:
    """The arguments of the devices' steps, by the names of these."""
    there = {name: replace(device, data=store.put(device.data)) for name, device in FED.devices.items()}
    return {f"train-{name}": ({}, Message(), each, StepId(0, 0, 0, name)) for name, each in there.items()}


def alone(store: Store, name: str) -> str:
    return bits(value(store, load_call_save(store, TRAIN, calls(store)[name])))


def value(store: Store, record: dict[str, Any]) -> Any:
    return store.get(unflatten(record["value"], {}))


def test_a_part_is_done_by_the_first_step_that_takes(tmp_path: Path):
    store, engine = Store(tmp_path), Counting(2)
    work = SharedWork(store, engine, TRAIN)
    work.prepare(calls(store))
    for name in calls(store):
        record = work.take(name)
        assert bits(value(store, record)) == alone(store, name)
        assert record["cpu"] > 0
        assert 0 < record["wall"] < 60
        assert work.take(name) is None  # a step that is tried again does it alone
    assert engine.asked == [("load_calls_vectorised", 2)] * 2


def test_parts_are_as_large_as_a_kill_may_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        cached_steps, "SMALL", sum(args[2].data.nbytes for args in calls(Store(tmp_path)).values()) // 4
    )
    work = SharedWork(Store(tmp_path), Counting(1), TRAIN)
    work.prepare(calls(Store(tmp_path)))
    assert [work.take(name) is None for name in calls(Store(tmp_path))] == [True] * 4


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_step_has_nothing_to_share(tmp_path: Path, count: int):
    store, engine = Store(tmp_path), Counting(2)
    work = SharedWork(store, engine, TRAIN)
    work.prepare(dict([*calls(store).items()][:count]))
    assert work.take("train-a") is None
    assert engine.asked == []


def test_where_a_worker_dies_each_step_is_done_alone(tmp_path: Path):
    store, engine = Store(tmp_path), Counting(1, failing=1)
    work = SharedWork(store, engine, TRAIN)
    work.prepare(calls(store))
    assert [work.take(name) for name in calls(store)] == [None] * 4
    assert len(engine.asked) == 1


def failing(memory: Any, message: Message, device: Any, step_id: StepId) -> Any:
    if device.name == "b":
        raise ValueError("b cannot")
    return train(memory, message, device, step_id, training=SGD)


def test_a_call_that_fails_leaves_the_others(tmp_path: Path):
    store = Store(tmp_path)
    found = load_calls_vectorised(store, failing, [*calls(store).values()])
    assert [one is None for one in found] == [False, True, False, False]
    assert bits(value(store, found[0])) == alone(store, "train-a")


def test_repeated_rounds_train_side_by_side(tmp_path: Path):
    store = Store(tmp_path)
    engine = Counting(2)
    execute = InMemory(store, engine, lambda count: None, None)
    found = execute.map(TRAIN, calls(store))
    assert [*found] == [*calls(store)]
    assert {name: bits(result) for name, result in found.items()} == {name: alone(store, name) for name in found}
    assert engine.asked == [("run_side_by_side", 3)] * 2
