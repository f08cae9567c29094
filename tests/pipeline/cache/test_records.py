"""Records and locks of steps: of processes that ask for one step at once, one computes it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from project import ROOT

from fedcore.pipeline import environment
from fedcore.pipeline.cache import records
from fedcore.pipeline.command import Failed

ASK = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from fedcore.pipeline import environment
environment.STEPS, environment.LOCKS = Path({folder!r}) / "steps", Path({folder!r}) / "locks"
from test_records import compute
print(compute(Path({folder!r}), sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of records and locks."""
    (tmp_path / "steps").mkdir()
    monkeypatch.setattr(environment, "STEPS", tmp_path / "steps")
    monkeypatch.setattr(environment, "LOCKS", tmp_path / "locks")
    return tmp_path


def compute(folder: Path, name: str, seconds: float = 0.2) -> str:
    """Compute a step as a graph does: look for its record under its lock, and write it."""
    with records.lock("key"):
        if (record := records.look_up("key")) is not None:
            return str(record["value"])
        with (folder / "computed").open("a") as told:
            told.write(f"{name}\n")
        time.sleep(seconds)
        return str(records.write("key", {"value": f"the result of {name}", "wall": 0.0, "cpu": 0.0})["value"])


@pytest.mark.slow
def test_one_process_computes_a_step_and_the_other_takes_it(folder: Path):
    script = ASK.format(tests=str(Path(__file__).parent), folder=str(folder))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "end_to_end")])
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)], stdout=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for number in range(2)
    ]  # fmt: skip
    answers = {one.communicate(timeout=120)[0] for one in asked}
    (computed,) = (folder / "computed").read_text().split()
    assert answers == {f"the result of {computed}\n"}
    assert [one.returncode for one in asked] == [0, 0]
    assert list((folder / "locks").iterdir()) == []


@pytest.mark.slow
def test_threads_of_one_flow_wait_for_each_other_too(folder: Path):
    found: list[str] = []
    threads = [threading.Thread(target=lambda one=one: found.append(compute(folder, one, 0.05))) for one in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (computed,) = (folder / "computed").read_text().split()
    assert found == [f"the result of {computed}"] * 8


@pytest.mark.slow
def test_a_killed_process_holds_no_lock(folder: Path):
    """What it leaves is an empty file."""
    (folder / "locks").mkdir()
    hold = f"""
import time
from filelock import FileLock
lock = FileLock({str(folder / "locks" / "key")!r})
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Failed), records.lock("key", lambda: True):
            pass
        holder.send_signal(signal.SIGKILL)
    with records.lock("key"):
        pass
    assert not (folder / "locks" / "key").exists()


@pytest.mark.slow
def test_a_flow_that_ends_waits_no_longer(folder: Path):
    (folder / "locks").mkdir()
    ends, found = threading.Event(), list[str]()

    def ask() -> None:
        try:
            with records.lock("key", ends.is_set):
                found.append("had it")
        except Failed as error:
            found.append(str(error))

    with FileLock(folder / "locks" / "key"):
        waiting = threading.Thread(target=ask)
        waiting.start()
        ends.set()
        waiting.join(60)
    (line,) = found
    assert "another process computes this step, and the run ends" in line


@pytest.mark.parametrize("content", [b"half a rec", b"[]", b"{}", b'{"result": 3}', b"\xff"])
def test_what_is_no_whole_record_is_none_and_is_replaced(folder: Path, content: bytes):
    (folder / "steps" / "key").write_bytes(content)
    assert records.look_up("key") is None
    written = records.write("key", {"value": 1, "wall": 0.0, "cpu": 0.0})
    assert records.look_up("key") == written
    (folder / "steps" / "key").rename(folder / "steps" / "other")
    assert records.look_up("other") is None


def test_a_folder_in_the_place_of_a_record_goes(folder: Path):
    (folder / "steps" / "key" / "inside").mkdir(parents=True)
    assert records.look_up("key") is None
    records.write("key", {"value": 1, "wall": 0.0, "cpu": 0.0})
    assert (records.look_up("key") or {})["value"] == 1
