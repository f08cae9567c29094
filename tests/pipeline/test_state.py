"""State files: written whole, healed where something else lies in their place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from project import ROOT

from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.command import Failed
from fedcore.pipeline.state import quarantine, write_atomic


def test_what_lies_in_the_place_of_a_file_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a" / "kept").mkdir(parents=True)
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a.damaged" / "kept").is_dir()
    write_atomic(tmp_path / "a" / "b", b"deeper")
    assert (tmp_path / "a" / "b").read_bytes() == b"deeper"
    assert (tmp_path / "a.damaged1").read_bytes() == b"new"
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"fedcore: a is a folder, not a file; set aside as {tmp_path / 'a.damaged'}"
    assert second == f"fedcore: a is a file, not a folder; set aside as {tmp_path / 'a.damaged1'}"


def test_only_the_owner_may_read_a_state_file(tmp_path: Path):
    write_atomic(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_nothing_is_overwritten_by_what_is_set_aside(tmp_path: Path):
    for content in "abc":
        (tmp_path / "x").write_text(content)
        quarantine(tmp_path / "x", "is odd")
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["a", "b", "c"]


def prepared(home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fedcore.pipeline.environment import prepare; prepare()"]
    return subprocess.run(
        command, env={"PYTHONPATH": str(ROOT), "FEDCORE_HOME": str(home)}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_damaged_state_is_set_aside_before_a_run(tmp_path: Path):
    for name in ("journal.jsonl", "server.json", "mlflow.lock"):
        (tmp_path / ".fedcore" / name).mkdir(parents=True)
    for name in ("blobs", "flows"):
        (tmp_path / ".fedcore" / name).write_text("text")
    said = prepared(tmp_path)
    assert said.returncode == 0
    assert len(said.stderr.splitlines()) == 5
    assert {path.suffix for path in (tmp_path / ".fedcore").iterdir()} == {".damaged"}
    assert prepared(tmp_path).stderr == ""


@pytest.mark.slow
def test_a_state_that_is_no_folder_is_one_line(tmp_path: Path):
    (tmp_path / ".fedcore").write_text("text")
    said = prepared(tmp_path)
    assert said.returncode == 1
    assert said.stderr == f"fedcore: {tmp_path / '.fedcore'}: no folder for the cache (File exists)\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_a_line_and_leaves_what_was_there(small_disk: Path):
    write_atomic(small_disk / "kept", b"before")
    for path in (small_disk / "kept", small_disk / "new" / "file"):
        with pytest.raises(Failed, match=r"no room to write: No space left on device"):
            write_atomic(path, bytes(1 << 20))
    assert (small_disk / "kept").read_bytes() == b"before"
    assert [path for path in small_disk.rglob("*") if path.is_file()] == [small_disk / "kept"]


@pytest.mark.slow
def test_a_store_on_a_full_disk_fails_in_a_line_and_goes_on_later(small_disk: Path):
    """What is half written is no blob."""
    store = Store(small_disk / "blobs")
    with pytest.raises(Failed, match="no room to write"):
        store.put({"tensor": torch.zeros(1 << 16)})
    ref = store.put({"tensor": torch.ones(16)})
    assert torch.equal(store.get(ref)["tensor"], torch.ones(16))
    assert len([path for path in small_disk.rglob("*") if path.is_file()]) == 1
