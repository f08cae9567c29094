"""Locks of steps: of processes that ask for one step at once, one computes it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from prefect.filesystems import LocalFileSystem
from prefect.locking.protocol import LockManager
from prefect.results import ResultStore
from prefect.transactions import IsolationLevel, transaction
from project import ROOT

from fedcore.pipeline.orchestration.records import StepLocks

ASK = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_records_locks import compute
print(compute(Path({folder!r}), sys.argv[1]))
"""


def compute(folder: Path, name: str, seconds: float = 0.2) -> str:
    """Compute a step as Prefect's engine does: look for its record under its lock, and write it."""
    locks = StepLocks(folder / "locks", folder / "none")
    store = ResultStore(
        result_storage=LocalFileSystem(basepath=str(folder / "steps")), lock_manager=locks, cache_result_in_memory=False
    )
    with transaction("key", store=store, isolation_level=IsolationLevel.SERIALIZABLE, write_on_commit=True) as here:
        if here.is_committed():
            record = here.read()
            assert record is not None
            return str(record.result)
        with (folder / "computed").open("a") as told:
            told.write(f"{name}\n")
        time.sleep(seconds)
        here.stage(f"the result of {name}")
        return f"the result of {name}"


def test_prefect_takes_it_for_a_lock_manager(tmp_path: Path):
    assert isinstance(StepLocks(tmp_path), LockManager)


@pytest.mark.slow
def test_one_process_computes_a_step_and_the_other_takes_it(tmp_path: Path):
    script = ASK.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "end_to_end")])
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for number in range(2)
    ]  # fmt: skip
    answers = {one.communicate(timeout=120)[0] for one in asked}
    (computed,) = (tmp_path / "computed").read_text().split()
    assert answers == {f"the result of {computed}\n"}
    assert [one.returncode for one in asked] == [0, 0]
    assert list((tmp_path / "locks").iterdir()) == []


def test_threads_of_one_flow_wait_for_each_other_too(tmp_path: Path):
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(compute(tmp_path, name, 0.05))) for name in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (computed,) = (tmp_path / "computed").read_text().split()
    assert found == [f"the result of {computed}"] * 8


@pytest.mark.slow
def test_a_killed_process_holds_no_lock(tmp_path: Path):
    """What it leaves is an empty file."""
    hold = f"""
import sys, time
from filelock import FileLock
lock = FileLock({str(tmp_path / "key")!r})
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""
    locks = StepLocks(tmp_path, tmp_path / "none")
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not locks.acquire_lock("key", "me", acquire_timeout=0.01)
        holder.send_signal(signal.SIGKILL)
    assert locks.acquire_lock("key", "me", acquire_timeout=10)
    locks.release_lock("key", "me")
    assert not (tmp_path / "key").exists()


def test_a_flow_that_ends_waits_no_longer(tmp_path: Path):
    locks, found = StepLocks(tmp_path, tmp_path / "none"), []
    with FileLock(tmp_path / "key"):
        waiting = threading.Thread(target=lambda: found.append(locks.acquire_lock("key", "me")))
        waiting.start()
        locks.close()
        waiting.join(60)
    assert found == [False]
    assert not locks.is_locked("key")


def test_only_its_holder_releases_a_lock(tmp_path: Path):
    locks = StepLocks(tmp_path, tmp_path / "none")
    assert locks.acquire_lock("key", "me")
    assert locks.acquire_lock("key", "me")
    assert not locks.acquire_lock("key", "you", acquire_timeout=0.01)
    locks.release_lock("key", "you")
    assert locks.is_lock_holder("key", "me")
    locks.release_lock("key", "me")
    assert locks.acquire_lock("key", "you")


def test_a_damaged_record_goes_while_the_lock_is_held(tmp_path: Path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "key").write_text("half a rec")
    locks = StepLocks(tmp_path / "locks", tmp_path / "steps")
    with FileLock(tmp_path / "other"):
        assert locks.acquire_lock("key", "me")
    assert not (tmp_path / "steps" / "key").exists()
