"""Pruning: deleting the steps and blobs that no run has used for long."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from project import ROOT

from fedcore import InputError, load
from fedcore.cli.main import main
from fedcore.pipeline import environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.shared import Pruned, prune
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.orchestration import server
from fedcore.pipeline.run import partitions
from fedcore.pipeline.state import to_lines

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


def step(cache: Path, key: str, days: float) -> Path:
    """Store a step's result as it was so many days ago; the format is Prefect's own, so it is any text here."""
    (cache / "steps" / key).write_text("of Prefect")
    return aged(cache / "steps" / key, days)


def use(key: str, days: float, *found: Ref) -> None:
    """Note that a run used a step so many days ago."""
    journal.append({"key": key, "blobs": [ref.digest for ref in found]})
    *before, last = journal.read()
    journal.JOURNAL.write_bytes(to_lines([*before, last | {"time": time.time() - days * DAY}]))


def aged(path: Path, days: float) -> Path:
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def pruned(cache: Path, days: float) -> Pruned:
    return prune(cache / "steps", Store(cache / "blobs"), days)


def left(cache: Path) -> set[str]:
    return {path.name for path in (cache / "steps").iterdir()}


def test_a_step_stays_while_a_run_uses_it(cache: Path):
    old, shared, lone = (blob(cache, number, 50) for number in range(3))
    step(cache, "used", 50)
    step(cache, "unused", 50)
    use("unused", 40, shared, lone, old)
    use("used", 45, shared)
    use("used", 3, shared)
    assert pruned(cache, 60) == Pruned(0, 0, 0, sum(p.stat().st_size for p in (cache / "blobs").glob("*/*")))
    store = Store(cache / "blobs")
    freed = sum(store.path(ref).stat().st_size for ref in (lone, old)) + (cache / "steps" / "unused").stat().st_size
    assert pruned(cache, 30) == Pruned(1, 2, freed, store.path(shared).stat().st_size)
    assert left(cache) == {"used"}
    assert [store.holds(ref) for ref in (shared, lone, old)] == [True, False, False]
    assert [line["key"] for line in journal.read()] == ["used"]


def test_recent_files_stay_without_a_line_in_the_journal(cache: Path):
    """A run that was killed leaves steps and blobs of which the journal does not speak."""
    young, old = blob(cache, 1, 1), blob(cache, 2, 50)
    step(cache, "young", 1)
    step(cache, "old", 50)
    removed = pruned(cache, 30)
    assert (removed.steps, removed.blobs) == (1, 1)
    assert left(cache) == {"young"}
    assert [Store(cache / "blobs").holds(ref) for ref in (young, old)] == [True, False]


def test_incomplete_files_of_killed_processes_are_deleted(cache: Path):
    recent = blob(cache, 1, 1)
    half = Store(cache / "blobs").path(recent).parent / ".x.part"
    parts = [half, cache / f".{'0f' * 8}.part"]
    for part in parts:
        part.write_bytes(b"half")
        aged(part, 50)
    (cache / "journal.jsonl").write_text('{"time": 1, "key": "a"}\n{"time": 1, "ke')
    assert pruned(cache, 30).blobs == 1
    assert not any(part.exists() for part in parts)
    assert (cache / "journal.jsonl").read_text() == ""


def test_a_line_after_a_half_written_one_is_lost_alone(cache: Path):
    """The next line is appended to the half that a killed process left; those after it are whole again."""
    (cache / "journal.jsonl").write_text('{"time": 1, "ke')
    for key in "abc":
        journal.append({"key": key})
    assert [line["key"] for line in journal.read()] == ["b", "c"]


def test_lines_of_an_earlier_version_name_no_blobs(cache: Path):
    old = blob(cache, 1, 50)
    step(cache, "used", 50)
    journal.append({"key": "used"})
    removed = pruned(cache, 30)
    assert (removed.steps, removed.blobs) == (0, 1)
    assert not Store(cache / "blobs").holds(old)  # a run that asks for the step computes it again


def test_nothing_is_deleted_while_a_flow_runs(cache: Path):
    lone = blob(cache, 1, 50)
    (cache / "flows").mkdir()
    mark = cache / "flows" / "a-flow-run"
    mark.write_text(str(os.getpid()))
    with pytest.raises(InputError, match="a flow is running"):
        pruned(cache, 30)
    assert Store(cache / "blobs").holds(lone)
    mark.write_text("999999999")  # it was killed
    assert pruned(cache, 30).blobs == 1


def test_a_dry_run_says_what_pruning_deletes_and_deletes_nothing(cache: Path):
    lone, kept = blob(cache, 1, 50), blob(cache, 2, 1)
    step(cache, "unused", 50)
    use("unused", 40, lone)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}
    would = prune(cache / "steps", Store(cache / "blobs"), 30, dry_run=True)
    after = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert before == after
    assert would == pruned(cache, 30)
    assert [Store(cache / "blobs").holds(ref) for ref in (lone, kept)] == [False, True]


@pytest.mark.slow
def test_the_command_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(environment, "STEPS", cache / "steps")
    monkeypatch.setattr(environment, "BLOBS", cache / "blobs")
    monkeypatch.setattr(environment, "PREFECT", cache / "prefect")
    monkeypatch.setattr(server, "process", lambda: None)
    blob(cache, 1, 50)
    monkeypatch.chdir(ROOT)
    main(["prune", "--dry-run", "--days", "30"])
    main(["prune"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("would prune 0 steps and 1 blob not used for 30 days, ")
    assert second == first.replace("would prune", "pruned")


@pytest.mark.slow
def test_the_output_of_a_stage_needs_no_blob(cache: Path):
    """It is a copy, from which the blob comes back."""
    store = Store(cache / "blobs")
    ref = store.put(load("digits"))
    partitions.save_dataset(store, ref, cache / "pipeline")
    aged(store.path(ref), 50)
    assert pruned(cache, 30).blobs == 1
    assert not store.holds(ref)
    assert partitions.import_dataset(store, cache / "pipeline").digest == ref.digest
    assert store.holds(ref)


@pytest.mark.slow
def test_a_flow_that_starts_while_pruning_waits(cache: Path):
    started: list[Path] = []

    def start() -> None:
        with journal.running("a-flow-run") as mark:
            started.append(mark)

    with journal.starting():
        flow = threading.Thread(target=start)
        flow.start()
        flow.join(0.1)
        assert started == []
    flow.join(60)
    assert [mark.name for mark in started] == ["a-flow-run"]


def test_a_flow_that_ends_while_its_mark_is_read_is_not_alive(cache: Path):
    assert not journal.alive(cache / "flows" / "ended")


def test_an_empty_cache_has_nothing_to_delete(cache: Path):
    assert pruned(cache, 0) == Pruned(0, 0, 0, 0)


@pytest.mark.slow
def test_lines_of_processes_that_write_side_by_side_do_not_mix(cache: Path):
    program = (
        "import sys; from pathlib import Path; from fedcore.pipeline.cache import journal\n"
        "journal.JOURNAL = Path(sys.argv[1])\n"
        "for i in range(100): journal.append({'key': sys.argv[2] * 20_000})\n"
    )
    command = [sys.executable, "-c", program, str(cache / "journal.jsonl")]
    writers = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(journal.read()) == 200
