"""Run cached steps several times each; returns the results."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import probe_work as work
import torch
from prefect import flow

from fedcore.core import together as placing
from fedcore.execute.workers import Inline, Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store, flatten, refs
from fedcore.pipeline.orchestration import graph
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.orchestration.task_runs import Nodes
from fedcore.types.method import Update

X = {"w": torch.arange(8.0)}


class Probe:
    def __init__(self, workers: Workers) -> None:
        self.store = Store(environment.BLOBS)
        self.workers = workers

    def ask(self, fn: Callable[..., Any], *args: Any, here: bool = False, **options: Any) -> tuple[Any, bool]:
        """Run a step as another run of the flow would; returns its value and whether it was cached."""
        steps = Graph(self.store, self.workers)
        value = steps.run_nested(fn, *args, **options) if here else steps(fn, *args)
        (step,) = steps.done
        return value, step.cached

    def blob(self, spoil: Callable[[Path], object], fn: Callable[..., Any], word: str) -> dict[str, Any]:
        """Damage a blob of a step's result, and run the step twice more."""
        first, _ = self.ask(fn, word, X if fn is work.spread else Update(X))
        path = self.store.path(refs(first)[0])
        whole = path.read_bytes()
        spoil(path)
        answers = [self.ask(fn, word, X if fn is work.spread else Update(X)) for _ in range(2)]
        return {
            "cached": [cached for _, cached in answers],
            "same": [value == first for value, _ in answers],
            "whole": path.read_bytes() == whole,
            "ran": work.said(word),
        }

    def record(self, spoil: Callable[[Path], object], word: str) -> dict[str, Any]:
        """Damage a step's record in the cache, and run the step twice more."""
        steps = Graph(self.store, self.workers)
        first = steps(work.double, word, Update(X))
        spoil(environment.STEPS / steps.done[0].key)
        answers = []
        for _ in range(2):
            try:
                answers.append(self.ask(work.double, word, Update(X)))
            except Exception as error:
                answers.append((type(error).__name__, None))
        return {
            "cached": [cached for _, cached in answers],
            "same": [value == first for value, _ in answers],
            "ran": work.said(word),
        }


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Change what a record says, and write it back as the JSON that it was."""

    def edit(path: Path) -> None:
        record = json.loads(path.read_bytes())
        change(record)
        path.write_text(json.dumps(record))

    return edit


def another_blob(record: dict[str, Any]) -> None:
    """Let the record refer to the blob of another step."""
    other = Graph(Store(environment.BLOBS), Inline())(work.double, "another", Update(X | {"more": torch.ones(1)}))
    record["value"] = flatten(other, "", {})


TRAP = Path("unpickled").absolute()


def folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def file_in_the_place_of(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("text")


def bits(path: Path) -> None:
    """Flip the lowest bit of a digit of the reference."""
    content = bytearray(path.read_bytes())
    place = content.index(b"ref") + 12
    content[place] = ord("1") if content[place] == ord("0") else ord("0")
    path.write_bytes(content)


RECORDS: dict[str, Callable[[Path], object]] = {
    "record cut off": written(b'{"metadata": {"stor'),
    "record empty": written(b""),
    "record of something else": written(b'{"value": 3}'),
    "record is a list": written(b"[]"),
    "record is not text": written(b"\xff\xfe\x00"),
    "record is nested too deep": written(b"[" * 100_000),
    "record is a folder": folder,
    "record has another digit": bits,
    "record of another blob": edited(another_blob),
    "record has another time": edited(lambda record: record.update(wall=1e9)),
    "record without a value": edited(lambda record: record.pop("value")),
    "record without a time": edited(lambda record: record.pop("wall")),
    "record with more": edited(lambda record: record.update(more=1)),
    "record with another type": edited(lambda record: record.update(value=3)),
    "record without a seal": edited(lambda record: record.pop("seal")),
    "record is a pickle": written(b"cos\nmkdir\n(Vunpickled\ntR."),
    "record of Prefect's is half": written(b'{"metadata": {}, "result": "{"}'),
}


def caught(fn: Callable[[], object]) -> list[str]:
    try:
        fn()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def again_in_one_run(probe: Probe) -> dict[str, Any]:
    """Run a step three times in one flow, with its blob deleted before the last; count the tasks."""
    steps, start, tasks = Graph(probe.store, probe.workers), Nodes.start, []

    def counted(self: Nodes, task: Any, parents: Any) -> Any:
        tasks.append(task.name)
        return start(self, task, parents)

    Nodes.start = counted  # type: ignore[method-assign]
    try:
        values = [steps(work.double, "again", Update(X)) for _ in range(2)]
        probe.store.path(refs(values[0])[0]).unlink()
        values.append(steps(work.double, "again", Update(X)))
    finally:
        Nodes.start = start  # type: ignore[method-assign]
    same = all(value == values[0] for value in values)
    return {
        "tasks": len(tasks), "cached": [step.cached for step in steps.done], "same": same, "ran": work.said("again"),
    }  # fmt: skip


def short_steps(probe: Probe) -> dict[str, Any]:
    """Run short steps before any worker has started, then one of them in a worker."""
    started, values = [], []
    for word, start in (("short", False), ("short", True), ("shorter", True)):
        with Workers(2) as pool:
            steps = Graph(probe.store, pool)
            values.append(int(probe.store.get(steps.run_inline(work.who, word, start=start))))
            started.append(len(pool._running))
    _, cached = probe.ask(work.who, "short")
    return {"started": started, "here": [value == os.getpid() for value in values], "cached": cached}


def as_they_end(probe: Probe) -> dict[str, Any]:
    """Run a slow step and a fast one: each is reported when it ends, and which of two errors is raised is fixed."""
    seen: list[str] = []
    steps = Graph(probe.store, probe.workers, on_step=lambda step: seen.append(step.unit))
    found = steps.map(work.rest, {"slow": ("slow", 2.0), "fast": ("fast", 0.0)})
    errors = [
        caught(partial(steps.map, work.refuse_after, {"a": ("a", slow), "b": ("b", 1 - slow)})) for slow in (1.0, 0.0)
    ]
    return {"seen": seen, "units": list(found), "steps": [step.unit for step in steps.done], "errors": errors}


def in_shards(probe: Probe) -> dict[str, Any]:
    """Run a step on nine devices as shards of four, then once more with another argument for one of them."""
    many, shard = graph.MANY, graph.SHARD
    calls = {f"d{i}": ("shards", Update({"w": X["w"] + i})) for i in range(9)}
    alone = Graph(probe.store, probe.workers).map(work.double, calls)
    graph.MANY, graph.SHARD = 8, 4
    try:
        runs = []
        for changed in (calls, {**calls, "d5": ("shards", Update(X))}):
            steps = Graph(probe.store, probe.workers)
            found = steps.map(work.double, changed)
            runs.append((found, [(step.unit, step.cached, step.calls, step.kind) for step in steps.done]))
    finally:
        graph.MANY, graph.SHARD = many, shard
    (first, steps_of_first), (second, steps_of_second) = runs
    return {
        "same": [first == alone, list(first) == list(calls)],
        "changed": [unit for unit in calls if second[unit] != first[unit]],
        "steps": [steps_of_first, steps_of_second],
    }


@flow(persist_result=False)
def find() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Workers(2) as pool:
        probe = Probe(pool)
        first, second = (probe.ask(work.double, "twice", Update(X)) for _ in range(2))
        found["twice"] = {
            "cached": [first[1], second[1]], "same": first[0] == second[0], "ran": work.said("twice"),
            "value": probe.store.get(second[0]).params["w"].tolist(),
        }  # fmt: skip
        found["missing"] = probe.blob(Path.unlink, work.double, "missing")
        found["truncated"] = probe.blob(lambda path: os.truncate(path, 20), work.double, "truncated")
        found["flipped"] = probe.blob(flip, work.double, "flipped")
        found["emptied"] = probe.blob(lambda path: os.truncate(path, 0), work.double, "emptied")
        found["inside"] = probe.blob(flip, work.spread, "inside")
        found["a folder"] = probe.blob(folder, work.double, "a folder")
        found["its folder a file"] = probe.blob(lambda path: file_in_the_place_of(path.parent), work.double, "a file")
        found["killed"] = caught(lambda: probe.ask(work.die, "killed"))
        found["killed ran"] = work.said("killed")
        for harm, spoil in RECORDS.items():
            found[harm] = probe.record(spoil, harm)
        found["unpickled"] = TRAP.exists()

        mixed, _ = probe.ask(work.spread, "mixed", X)
        again, cached = probe.ask(work.spread, "mixed", X)
        loaded = probe.store.get(again)
        found["mixed"] = {
            "cached": cached, "same": mixed == again, "once": again["sent"][0] == again["sent"][1],
            "refs": isinstance(again["sent"][0], Ref), "sent": loaded["sent"][1].params["w"].tolist(),
            "own": loaded["own"]["a"]["w"].tolist(), "empty": loaded["own"]["b"] == {}, "plain": loaded["plain"],
        }  # fmt: skip
        values = [probe.ask(work.plain, "plain") for _ in range(2)]
        found["plain"] = [repr(value) for value, _ in values] + [cached for _, cached in values]
        tensors = [probe.ask(work.bare, "bare") for _ in range(2)]
        found["bare"] = [probe.store.get(value).tolist() for value, _ in tensors] + [cached for _, cached in tensors]

        found["refused"] = [caught(lambda: probe.ask(work.refuse, "refused")) for _ in range(2)]
        found["refused ran"] = work.said("refused")
        found["failed"] = caught(lambda: probe.ask(work.fail, "failed"))
        found["failed ran"] = work.said("failed")
        value, cached = probe.ask(work.die_once, "died")
        found["died"] = [probe.store.get(value).params["w"].tolist(), cached, work.said("died")]

        chunks = [probe.ask(work.chunk, "here", X, here=True, unkeyed=(left,)) for left in (1, 5)]
        keyed, _ = probe.ask(work.chunk, "here", X, 5, here=True)
        found["here"] = {
            "cached": [cached for _, cached in chunks], "same": chunks[0][0] == chunks[1][0],
            "ran": work.said("here"), "parts": work.said("here part"),
            "value": probe.store.get(chunks[0][0])["w"].tolist(), "keyed": probe.store.get(keyed)["w"].tolist(),
        }  # fmt: skip

        found["short"] = short_steps(probe)
        light, heavy = probe.store.put(Update({"w": torch.zeros(3)})), probe.store.put(Update({"w": torch.zeros(3000)}))
        steps = Graph(probe.store, pool)
        sizes = steps.map(
            work.double, {"li{0}ght {": ("order", light), "heavy": ("order", heavy), "same": ("order", light)}
        )
        found["order"] = {
            "units": list(sizes), "steps": [step.unit for step in steps.done],
            "lengths": [len(value.params["w"]) for value in probe.store.get(sizes).values()],
        }  # fmt: skip
        found["as they end"] = as_they_end(probe)
        found["again"] = again_in_one_run(probe)
        found["shards"] = in_shards(probe)
        bound = Graph(probe.store, pool)
        bound(partial(partial(work.double, "bound"), Update(X)))
        found["name"] = bound.done[0].kind
        placing.WORTH_IT = 0
        together = Graph(probe.store, pool, accelerator="cpu", together=2)
        given = {name: (f"together {name}", Update(X)) for name in "abc"}
        values = probe.store.get(together.map(work.double, given))
        found["together"] = {
            "steps": [(step.kind, step.unit, step.calls) for step in together.done],
            "same": [bool((value.params["w"] == 2 * X["w"]).all()) for value in values.values()],
        }  # fmt: skip
        found["there"] = []
        for kind in (None, "cpu", "cpu"):
            there = Graph(probe.store, pool, accelerator=kind)
            there.map(work.double, {"a": ("there", Update(X))})
            there.run_nested(work.chunk, "there here", X, unkeyed=(1,))
            there(work.double, "there too", Update(X))
            found["there"].append([(step.kind, step.cached) for step in there.done])
    found["records"] = [sorted(json.loads(path.read_text())) for path in environment.STEPS.iterdir()]
    return found
