"""Steps that the cache has."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from at_once import run_at_once
from federations import SGD, bits, federation

from fedcore import Message, StepId, train
from fedcore.core import rows
from fedcore.core.evaluation import score
from fedcore.core.rounds import State, begin, run
from fedcore.errors import Diverged
from fedcore.execute.workers import Inline, WorkerDied
from fedcore.methods import method
from fedcore.pipeline import environment
from fedcore.pipeline.cache import records
from fedcore.pipeline.cache.calls import load_call_save, load_calls_vectorised
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.store import Ref, Store, flatten, unflatten
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import graph
from fedcore.pipeline.orchestration.graph import Graph, OnEngine, into_parts, into_shards, nested_on
from fedcore.pipeline.orchestration.task_runs import DRAWN
from fedcore.pipeline.run import chunks
from fedcore.pipeline.run.chunks import compute_chunk
from fedcore.pipeline.run.step_functions import deploy
from fedcore.pipeline.work import word_of
from fedcore.types.federation import Federation
from fedcore.types.method import Method


def double(number: int) -> int:
    return 2 * number


@pytest.mark.slow
def test_what_the_cache_has_is_no_task_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prefect is asked for nothing: a night that computes nothing leaves nothing in its database."""
    nodes = run_at_once(tmp_path, monkeypatch)
    key = Digest().of(("step", double, (4,)))
    records.write(key, {"value": flatten(7, "", {}), "wall": 1.0, "cpu": 0.5})
    nothing: Any = None
    steps = Graph(Store(tmp_path / "blobs"), nothing)
    assert steps(double, 4) == 7
    assert [(step.cached, step.wall) for step in steps.done] == [(True, 1.0)]
    assert nodes == []


@pytest.mark.slow
def test_a_record_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run would end well, and the next one compute everything again."""
    run_at_once(tmp_path, monkeypatch)

    def full(path: Path, content: bytes, durable: bool) -> None:
        raise Failed(f"{path}: no room")

    monkeypatch.setattr(records, "write_atomic", full)
    with pytest.raises(Failed, match="no room"):
        Graph(Store(tmp_path / "blobs"), Inline())(double, 4)


def sums(*values: Any) -> torch.Tensor:
    return torch.stack([*values]).sum(0)


@pytest.mark.slow
def test_arrows_lead_from_the_nearest_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between steps as their references say: not from what stands above a nearer one. Many units are one task run."""
    nodes = run_at_once(tmp_path, monkeypatch)
    steps = Graph(Store(tmp_path / "blobs"), Inline())
    first = steps(sums, torch.ones(2))
    trained = steps.map(sums, {name: (first, torch.ones(2) * number) for number, name in enumerate("{0}", 1)})
    steps(sums, first, *trained.values())
    steps.map(sums, {f"d{number}": (trained["0"], torch.ones(2) * number) for number in range(DRAWN + 1)})
    steps.map(sums, {("a", "b"): (first, torch.ones(2) * 7), ("a", "c"): (first, torch.ones(2) * 8)})
    arrows = {node.name: [parent.name for parent in node.parents] for node in nodes}
    units = ["sums {", "sums 0", "sums }"]
    assert arrows == {
        "sums": units, **{unit: ["sums"] for unit in units}, "sums: 33 devices": ["sums 0"], "sums: 2 pairs": ["sums"],
    }  # fmt: skip


@pytest.mark.slow
def test_a_method_that_is_cached_in_part_is_drawn_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = run_at_once(tmp_path, monkeypatch)
    steps = Graph(Store(tmp_path / "blobs"), Inline())

    def walk() -> Any:
        trained = steps.map(sums, {name: (torch.ones(2) * number,) for number, name in enumerate("ab")})
        return steps(sums, *trained.values())

    walk()
    del nodes[:]
    with steps.drawing(federation("ab")):
        walk()
        steps(sums, torch.ones(3))
    assert [node.name for node in nodes] == [
        "partition: 2 devices", "sums: 2 of 2 from the cache", "sums: from the cache", "sums",
    ]  # fmt: skip
    assert [parent.name for parent in nodes[2].parents] == ["sums: 2 of 2 from the cache"]


def test_a_walk_that_only_looks_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = run_at_once(tmp_path, monkeypatch)
    said: list[str] = []
    steps = Graph(Store(tmp_path / "blobs"), Inline(), on_step=lambda step: said.append(step.key))
    steps(double, 4)
    assert steps.from_cache(lambda: (steps(double, 4), steps(double, 5))) is None
    assert (len(steps.done), len(said), len(nodes)) == (1, 1, 1)
    assert steps.from_cache(lambda: steps(double, 4)) == 8
    assert (len(steps.done), len(said), len(nodes)) == (2, 2, 1)


def diverge(number: int) -> int:
    raise Diverged(f"step {number} is not finite")


def test_what_diverged_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor is its record pruned where a run has used it of late."""
    nodes = run_at_once(tmp_path, monkeypatch)
    for _ in range(2):
        steps = Graph(Store(tmp_path / "blobs"), Inline())
        with pytest.raises(Diverged, match=r"^step 4 is not finite$"):
            steps.from_cache(lambda of=steps: of(diverge, 4)) or steps(diverge, 4)
        (record,) = environment.STEPS.iterdir()
        assert record.stat().st_mtime > 9
        os.utime(record, (9, 9))
    assert len(nodes) == 1


@pytest.mark.slow
def test_rounds_before_one_that_diverges_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that a shorter run, which does not come to that round, takes them."""
    run_at_once(tmp_path, monkeypatch)
    monkeypatch.setattr(chunks, "CHUNK", 1e9)
    real, played = chunks.play, list[int]()

    def play(method: Method, fed: Federation, seed: int, execute: Any, state: State) -> Any:
        played.append(state.round)
        if state.round == 2:
            raise Diverged("round 3 is not finite")
        return real(method, fed, seed, execute, state)

    monkeypatch.setattr(chunks, "play", play)
    fed = federation("ab")
    nets = {name: device.net for name, device in fed.devices.items()}
    for rounds, asked in ((4, [0, 1, 2, 2]), (4, []), (2, [])):
        built = method(
            "fedavg", nets=nets, training=SGD, shared_init=True, rounds=rounds, fraction=1.0, weights="size",
            upload="model",
        )  # fmt: skip
        del played[:]
        with pytest.raises(Diverged, match="round 3") if rounds > 2 else nullcontext():
            assert len([*chunks.rounds(built, fed, 0, Graph(Store(tmp_path / "blobs"), Inline()), 1)]) == rounds
        assert played == asked


# Devices train together in the repeated rounds of a chunk as well.
environment.prepare()  # Prefect reads its settings when it is imported


@pytest.mark.slow
def test_devices_train_together_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    real = rows.descend
    monkeypatch.setattr(rows, "descend", lambda of, exact: [sizes.append(len(of)), real(of, exact)][1])
    monkeypatch.setattr(chunks, "CHUNK", 1e9)  # however slow this machine is
    fed, store = federation("ab"), Store(tmp_path)
    nets = {name: device.net for name, device in fed.devices.items()}
    built = method(
        "fedavg", nets=nets, training=SGD, shared_init=True, rounds=3, fraction=1.0, weights="size", upload="model"
    )
    execute = OnEngine(store, Inline(), lambda count: None, "cpu", 2)  # type: ignore[arg-type]
    start = begin(built, fed, 0, Inline())
    found = compute_chunk(execute, built, fed, 0, start, 1, 3, [start])
    assert sizes == [2, 2, 2]
    expected = [*run(built, fed, 0, Inline())][-1].state.messages["a"].params
    for name, tensor in store.get(found["state"][1]["a"]).params.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_chunks_key_knows_how_many_train_together():
    steps = [nested_on(compute_chunk, kind, most) for kind, most in ((None, 1), ("cpu", 1), ("cpu", 2), ("cpu", 3))]
    assert len({Digest().of(step) for step in steps}) == 4
    assert {word_of(step) for step in steps} == {"rounds"}


# Devices of small perceptrons train side by side in one call of a worker, though each has a step of its own.
environment.prepare()  # Prefect reads its settings when it is imported

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
    monkeypatch.setattr("fedcore.core.rows.WORTH", 1)
    monkeypatch.setattr("fedcore.core.together.WORTH_IT", 1)


def calls(store: Store) -> dict[str, tuple[Any, ...]]:
    """The arguments of the devices' steps, by the names of these."""
    there = {name: replace(device, data=store.put(device.data)) for name, device in FED.devices.items()}
    return {f"train-{name}": ({}, Message(), each, StepId(0, 0, 0, name)) for name, each in there.items()}


def alone(store: Store, name: str) -> str:
    return bits(value(store, load_call_save(store, TRAIN, calls(store)[name])))


def value(store: Store, record: dict[str, Any]) -> Any:
    return store.get(unflatten(record["value"], {}))


@pytest.mark.slow
def test_a_part_is_done_by_the_first_step_that_takes(tmp_path: Path):
    store, engine = Store(tmp_path), Counting(2)
    parts = into_parts(store, engine, TRAIN, calls(store))
    for name in calls(store):
        record = parts[name].take(name)
        assert bits(value(store, record)) == alone(store, name)
        assert record["cpu"] > 0
        assert 0 < record["wall"] < 60
        assert parts[name].take(name) is None  # a step that is tried again does it alone
    assert engine.asked == [("load_calls_vectorised", 2)] * 2


def test_parts_are_as_large_as_a_kill_may_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph, "SMALL", sum(args[2].data.nbytes for args in calls(Store(tmp_path)).values()) // 4)
    assert into_parts(Store(tmp_path), Counting(1), TRAIN, calls(Store(tmp_path))) == {}


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_step_has_nothing_to_share(tmp_path: Path, count: int):
    store, engine = Store(tmp_path), Counting(2)
    assert into_parts(store, engine, TRAIN, dict([*calls(store).items()][:count])) == {}
    assert engine.asked == []


def test_where_a_worker_dies_each_step_is_done_alone(tmp_path: Path):
    store, engine = Store(tmp_path), Counting(1, failing=1)
    parts = into_parts(store, engine, TRAIN, calls(store))
    assert [parts[name].take(name) for name in calls(store)] == [None] * 4
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
    execute = OnEngine(store, engine, lambda count: None, None)
    found = execute.map(TRAIN, calls(store))
    assert [*found] == [*calls(store)]
    assert {name: bits(result) for name, result in found.items()} == {name: alone(store, name) for name in found}
    assert engine.asked == [("run_side_by_side", 3)] * 2


# Which devices' calls share a step of Prefect.


def calls_shards(*sizes: int) -> dict[str, tuple[Any, ...]]:
    return {f"d{i}": (Ref(f"model {i}", size), {"data": Ref("data", 0)}) for i, size in enumerate(sizes)}


def shared(fn: Any, *sizes: int) -> list[list[str]]:
    given = calls_shards(*sizes)
    shards = into_shards(fn, given)
    assert {unit: args for shard in shards.values() for unit, args in shard.items()} == given
    return [[*shard] for shard in shards.values()]


@pytest.mark.parametrize("fn", [score, deploy, partial(deploy, "how")])
def test_small_models_are_scored_and_deployed_together(fn: Any):
    assert shared(fn, 1, 1, 1) == [["d0", "d1", "d2"]]
    assert shared(fn, graph.SMALL // 2, graph.SMALL // 2, 1) == [["d0", "d1"], ["d2"]]


def test_large_models_are_scored_one_by_one():
    assert shared(score, graph.SMALL, graph.SMALL, 2 * graph.SMALL, 2 * graph.SMALL) == [["d0"], ["d1"], ["d2"], ["d3"]]


def test_a_call_that_scores_many_devices_is_a_step_of_its_own():
    few, many = ({f"d{i}": Ref("data", 0) for i in range(count)} for count in (graph.FEW // 2, graph.FEW))
    shards = into_shards(score, {"a": (few,), "b": (few,), "c": (few,), "d": (many,), "e": (many,)})
    assert [[*shard] for shard in shards.values()] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_devices_that_train_together_share_a_step():
    given = calls_shards(1, 1, 1)
    shards = into_shards(partial(train, training=None), given, together=2)
    assert shards == {"d0 to d1": {unit: given[unit] for unit in ("d0", "d1")}, "d2 to d2": {"d2": given["d2"]}}
    assert into_shards(score, given, together=2) == into_shards(score, given)


def test_training_is_a_step_of_each_device_unless_they_are_many():
    assert shared(partial(train, training=None), 1, 1) == [["d0"], ["d1"]]
    assert [len(part) for part in shared(train, *[graph.SMALL] * (graph.MANY + 1))] == [graph.SHARD] * 4 + [1]
