"""How a command ends early: one line on stderr and an exit code."""

import errno
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from project import ROOT
from safetensors import SafetensorError
from safetensors.torch import save_file

from fedcore.errors import InputError, is_installed, shorten_traceback
from fedcore.pipeline.cache.store import DamagedBlob, Store
from fedcore.pipeline.command import CONTINUE, Failed, Stopped, cause, naming, report_bad_input
from fedcore.pipeline.state import find_home, quarantine, write_atomic


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("lr = -1: must be above 0"), 2, "lr = -1: must be above 0"),
        (Failed("the worker died; " + CONTINUE), 1, f"the worker died; {CONTINUE}"),
        (Failed("a\nb\x1b[2J"), 1, r"a\nb\x1b[2J"),
        (OSError(errno.EACCES, "", "a\nb"), 1, rf"a\nb: {os.strerror(errno.EACCES)}; {CONTINUE}"),
        (KeyboardInterrupt(), 130, f"stopped; {CONTINUE}"),
        (Stopped(signal.SIGTERM), 143, f"stopped; {CONTINUE}"),
    ],
)
def test_an_early_end_is_one_line(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str):
    with pytest.raises(SystemExit) as left, report_bad_input():
        raise error
    assert left.value.code == code
    assert capsys.readouterr() == ("", f"fedcore: {line}\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line_and_the_run_can_go_on(number: int, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left, report_bad_input():
        raise OSError(number, os.strerror(number), "blobs/a")
    assert left.value.code == 1
    assert capsys.readouterr().err == f"fedcore: blobs/a: no room to write: {os.strerror(number)}; {CONTINUE}\n"


def test_a_file_without_room_ends_a_flow_in_a_line_and_leaves_no_part(tmp_path: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Failed, match="a/b: no room to write"):
            write_atomic(tmp_path / "a" / "b", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*(tmp_path / "a").iterdir()]


READ_BY_NOBODY = """
from fedcore.pipeline.command import report_bad_input
with report_bad_input():
    {what}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["print('row\\n' * 99999)", "print('row')", "print('row'); raise SystemExit", "import os; os.write(1, b'row')"],
)
def test_a_command_whose_reader_has_left_ends_quietly(what: str):
    """As `| head` does; a short output is written as the command ends."""
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-c", READ_BY_NOBODY.format(what=what)]
    done = subprocess.run(call, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def broken() -> None:
    json.loads("{")


def cut_off() -> None:
    raise BrokenPipeError(errno.EPIPE, "a worker's")


@pytest.mark.parametrize(
    ("fail", "last"),
    [
        (broken, "json.decoder.JSONDecodeError: Expecting property name"),
        (cut_off, "BrokenPipeError: [Errno 32] a worker's"),
        (partial(os.stat, "no such file"), "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"),
    ],
)
def test_an_error_of_the_code_has_a_traceback(
    fail: Callable[[], object], last: str, capsys: pytest.CaptureFixture[str]
):
    """It names the lines of the caller, and none of json."""
    with pytest.raises(SystemExit) as left, report_bad_input():
        fail()
    said = capsys.readouterr().err
    assert left.value.code == 1
    assert said.splitlines()[-1].startswith(last)
    assert "test_command.py" in said
    assert "decoder.py" not in said


def test_a_traceback_of_other_packages_alone_stays_whole():
    error = ValueError("shape")
    trace = None
    try:
        json.loads("{")
    except json.JSONDecodeError as found:
        trace = found.__traceback__.tb_next if found.__traceback__ else None
    error.__traceback__ = trace
    shorten_traceback(error)
    assert len(traceback.extract_tb(error.__traceback__)) == len(traceback.extract_tb(trace)) > 1


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        (json.__file__, True), (pytest.__file__, True), ("/home/me/.local/lib/python3.11/site-packages/a/b.py", True),
        ("/usr/lib/python3/dist-packages/a.py", True), (f"{sys.prefix}/work/nets.py", False), (__file__, False),
    ],
)  # fmt: skip
def test_what_is_installed_is_known_by_its_folder(file: str, installed: bool):
    """A project may lie in Python's own prefix, and packages in a user's folder."""
    assert is_installed(Path(file)) is installed


def test_signals_are_as_before_after_the_command():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with report_bad_input():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


PROGRAM = """
import signal, time
from fedcore.pipeline.command import report_bad_input
with report_bad_input():
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        print("tidied", flush=True)
        {after}
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after", ["pass", "time.sleep(600)"])
def test_a_signal_ends_a_command_tidily_and_a_second_one_at_once(number: signal.Signals, after: str):
    command = [sys.executable, "-c", PROGRAM.format(after=after)]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has the tests ignore SIGHUP
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "tidied\n"
        if after != "pass":
            process.send_signal(number)
        _, said = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert said == ("" if after != "pass" else f"fedcore: stopped; {CONTINUE}\n")


FREED = """
import os, signal, time
from fedcore.pipeline.command import report_bad_input


class TerminationSignal(BaseException):
    pass


def theirs(number, frame):
    raise TerminationSignal


class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(.01)


with report_bad_input():
    before = signal.getsignal(signal.SIGTERM)
    if {prefect}:
        signal.signal(signal.SIGTERM, theirs)
    try:
        freed = Freed()
        del freed
        time.sleep(600)
    except TerminationSignal:
        before(signal.SIGTERM, None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("prefect", [False, True])
def test_a_signal_that_comes_while_an_object_is_freed_is_not_lost(prefect: bool):
    said = subprocess.run(
        [sys.executable, "-c", FREED.format(prefect=prefect)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (143, f"fedcore: stopped; {CONTINUE}\n")


@pytest.mark.slow
def test_a_signal_that_was_ignored_stays_ignored():
    """nohup starts a command with SIGHUP ignored."""
    program = (
        "import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from fedcore.pipeline.command import report_bad_input\n"
        "with report_bad_input():\n    os.kill(os.getpid(), signal.SIGHUP); print('on')"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "on\n", "")


def wrapped(inner: BaseException) -> RuntimeError:
    """Return an error of a library with another one as its cause."""
    outer = RuntimeError("in a library")
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        *((OSError(number, "", "blobs/a"), "blobs/a: no room to write") for number in (errno.ENOSPC, errno.EDQUOT)),
        *((OSError(number, "", "mlruns/1"), "mlruns/1: ") for number in (errno.EROFS, errno.EACCES, errno.EPERM)),
        (OSError(errno.ENOSPC, "", "code/mlp.py", None, "mlruns/1"), "mlruns/1: no room to write"),
        (shutil.Error([("a", "tmp/a", "[Errno 28] No space left on device: 'a'")]), "tmp/a: no room to write"),
        (MemoryError(), "no memory left"),
        (OSError(errno.ENOMEM, ""), "no memory left"),
        (sqlite3.OperationalError("database is locked"), "a database of this project: database is locked"),
    ],
)
@pytest.mark.slow
def test_a_cause_outside_of_the_code_is_one_line(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for raised in (error, wrapped(error)):
        with pytest.raises(SystemExit) as left, report_bad_input():
            raise raised
        said = capsys.readouterr().err
        assert left.value.code == 1
        assert said.startswith(f"fedcore: {words}")
        assert said.endswith(f"{CONTINUE}\n")
        assert said.count("\n") == 1


@pytest.mark.parametrize(("named", "words"), [(None, "runs: no room"), ("runs/a", "runs/a: no room")])
def test_an_error_in_the_midst_of_a_file_names_its_folder(named: str | None, words: str):
    error = OSError(errno.ENOSPC, "", *filter(None, [named]))
    with pytest.raises(OSError, match=r"Errno 28"), naming("runs"):
        raise error
    assert cause(error).startswith(words)


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may be larger than a kilobyte: not around a test, which pytest may write of to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_blob_that_was_deleted_beside_a_run_is_one_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as leaving, report_bad_input():
        raise DamagedBlob("blob f00 is missing or damaged")
    assert leaving.value.code == 1
    line = "blob f00 is missing or damaged, deleted beside this run; the same command computes it again"
    assert capsys.readouterr().err == f"fedcore: .fedcore/blobs: {line}\n"


def test_a_cause_that_a_library_has_as_text_is_one_line(tmp_path: Path):
    """PyTorch and safetensors raise exceptions of their own: of 4 PB of memory, and of a file without room."""
    with pytest.raises(RuntimeError) as none:
        torch.empty(1 << 50)
    assert cause(wrapped(none.value)).startswith("no memory left: ")
    with pytest.raises(SafetensorError) as full, small_files():
        save_file({"tensor": torch.zeros(1000)}, tmp_path / "tensors")
    assert cause(wrapped(full.value)).startswith("a file: no room to write: File too large; ")


def test_an_error_of_the_code_keeps_its_traceback(capsys: pytest.CaptureFixture[str]):
    unlike = shutil.Error([("a", "b", "no such thing")])
    for raised in (KeyError("a"), FileNotFoundError(errno.ENOENT, "", "b"), wrapped(ValueError("c")), unlike):
        with pytest.raises(SystemExit) as left, report_bad_input():
            raise raised
        assert left.value.code == 1
        assert "Traceback" in capsys.readouterr().err


# State files: written whole, healed where something else lies in their place.


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


def test_an_experiment_of_dvcs_queue_uses_the_projects_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """DVC runs it in a copy, which it deletes."""
    monkeypatch.delenv("FEDCORE_HOME")
    for copy in (".", ".dvc/tmp/exps/tmp1", ".dvc/tmp/exps/standalone/tmp2"):
        (tmp_path / copy).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / copy)
        assert find_home() == tmp_path.resolve()
    (tmp_path / ".dvc" / "own").mkdir()
    monkeypatch.chdir(tmp_path / ".dvc" / "own")
    assert find_home() == tmp_path.resolve() / ".dvc" / "own"
