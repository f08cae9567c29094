"""Deleting what no run has used for long."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch

from fedcore.types import InputError
from tasks.cache import journal, prune
from tasks.cache.store import Ref, Store, flatten

DAY = 86400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "FLOWS", tmp_path / "flows")
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "journal.jsonl")
    (tmp_path / "steps").mkdir()
    return tmp_path


def blob(cache: Path, number: int, days: float) -> Ref:
    """Store a blob as it was written so many days ago."""
    ref: Ref = Store(cache / "blobs").put(torch.tensor([number]))
    return aged(Store(cache / "blobs").path(ref), days) and ref


def step(cache: Path, key: str, days: float, *found: Ref, used: float | None = None) -> Path:
    """Record a step as Prefect does; used: how many days ago the journal says it was."""
    record = {"metadata": {}, "result": json.dumps({"value": flatten(list(found), "", {}), "wall": 1, "cpu": 1})}
    (cache / "steps" / key).write_text(json.dumps(record))
    if used is not None:
        with (cache / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time() - used * DAY, "key": key}) + "\n")
    return aged(cache / "steps" / key, days)


def aged(path: Path, days: float) -> Path:
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def sweep(cache: Path, days: float) -> prune.Pruned:
    return prune.sweep(cache / "steps", Store(cache / "blobs"), days)


def left(cache: Path) -> set[str]:
    return {path.name for path in (cache / "steps").iterdir()}


def test_a_step_stays_while_a_run_uses_it(cache: Path):
    old, shared, lone = (blob(cache, number, 50) for number in range(3))
    step(cache, "used", 50, shared, used=3)
    step(cache, "unused", 50, shared, lone, old, used=40)
    assert sweep(cache, 60) == prune.Pruned(0, 0, 0, sum(p.stat().st_size for p in (cache / "blobs").glob("*/*")))
    store = Store(cache / "blobs")
    freed = sum(store.path(ref).stat().st_size for ref in (lone, old)) + (cache / "steps" / "unused").stat().st_size
    assert sweep(cache, 30) == prune.Pruned(1, 2, freed, store.path(shared).stat().st_size)
    assert left(cache) == {"used"}
    assert [store.holds(ref) for ref in (shared, lone, old)] == [True, False, False]
    assert [line["key"] for line in journal.lines()] == ["used"]


def test_what_is_young_stays_without_a_word_in_the_journal(cache: Path):
    """A run that was killed leaves steps and blobs of which the journal does not speak."""
    young, old = blob(cache, 1, 1), blob(cache, 2, 50)
    step(cache, "young", 1, old)
    step(cache, "old", 50, young)
    assert sweep(cache, 30).steps == 1
    assert left(cache) == {"young"}
    assert all(Store(cache / "blobs").holds(ref) for ref in (young, old))


def test_half_written_files_of_killed_processes_go(cache: Path):
    kept = blob(cache, 1, 1)
    half = Store(cache / "blobs").path(kept).parent / ".x.part"
    half.write_bytes(b"half")
    aged(half, 50)
    (cache / "journal.jsonl").write_text('{"time": 1, "key": "a"}\n{"time": 1, "ke')
    assert sweep(cache, 30).blobs == 1
    assert not half.exists()
    assert (cache / "journal.jsonl").read_text() == ""


def test_a_record_that_cannot_be_read_hinders_nothing(cache: Path):
    (cache / "steps" / "spoilt").write_text("{")
    assert sweep(cache, 30).steps == 0
    assert sweep(cache, 0).steps == 1


def test_nothing_is_deleted_while_a_flow_runs(cache: Path):
    lone = blob(cache, 1, 50)
    (cache / "flows").mkdir()
    mark = cache / "flows" / "a-flow-run"
    mark.write_text(str(os.getpid()))
    with pytest.raises(InputError, match="a flow is running"):
        sweep(cache, 30)
    assert Store(cache / "blobs").holds(lone)
    mark.write_text("999999999")  # it was killed
    assert sweep(cache, 30).blobs == 1


def test_a_flow_that_ends_while_its_mark_is_read_is_not_alive(cache: Path):
    assert not journal.alive(cache / "flows" / "ended")


def test_an_empty_cache_has_nothing_to_delete(cache: Path):
    assert sweep(cache, 0) == prune.Pruned(0, 0, 0, 0)
