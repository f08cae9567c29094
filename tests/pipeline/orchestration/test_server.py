"""The files by which commands find the project's Prefect server: believed only where they can be right."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import psutil
import pytest
from prefect.server.database import configurations

from fedcore.config import nightly
from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import schedule, server


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server, "STATE", tmp_path / "server.json")
    monkeypatch.setattr(server, "PASSWORD", tmp_path / "password")
    return tmp_path


URL = "http://127.0.0.1:4200/api"


@pytest.mark.parametrize(
    "said",
    [
        None, 3, [], {}, {"url": URL}, {"url": URL, "pid": "1"}, {"url": URL, "pid": 0}, {"url": URL, "pid": -1},
        {"url": URL, "pid": 10**30}, {"url": None, "pid": 1}, {"url": [URL], "pid": 1},
        {"url": "http://127.0.0.1/api", "pid": 1}, {"url": "http://127.0.0.1:0/api", "pid": 1},
        {"url": "http://127.0.0.1:99999/api", "pid": 1}, {"url": "http://127.0.0.1:x/api", "pid": 1},
        {"url": "http://192.0.2.1:4200/api", "pid": 1}, {"url": "http://127.0.0.1:4200@192.0.2.1:80/api", "pid": 1},
        {"url": "file:///etc/passwd", "pid": 1},
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_not_used(state: Path, said: Any):
    """The password goes to this address: it must be on loopback."""
    (state / "server.json").write_text(json.dumps(said))
    assert server._last() == ("", 0)
    assert server.running() is None


@pytest.mark.parametrize("content", [b"", b"text", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_no_address(state: Path, content: bytes):
    assert server._last() == ("", 0)
    (state / "server.json").write_bytes(content)
    assert server._last() == ("", 0)


def test_an_address_is_read(state: Path):
    (state / "server.json").write_text(json.dumps({"url": URL, "pid": 7}))
    assert server._last() == (URL, 7)


@pytest.mark.slow
def test_the_server_of_the_folder_that_was_copied_is_another(state: Path, tmp_path: Path):
    """A copy has the original's server.json; its server is at work in the original's folder."""
    folders = [tmp_path / "original", environment.HOME]
    for here, own in zip(folders, (False, True), strict=True):
        here.mkdir(exist_ok=True)
        words = [sys.executable, "-c", "print(flush=True); input()", server.COMMAND[-1]]
        with subprocess.Popen(words, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            running.stdout.readline()  # it is started
            (state / "server.json").write_text(json.dumps({"url": URL, "pid": running.pid}))
            assert (server.process() is not None) == own
            running.kill()


def test_a_process_that_is_no_server_of_this_project_is_not_ended(state: Path):
    """The server is gone, and its process id is free, or has become another's."""
    for pid in (os.getpid(), 2**31 - 1):
        (state / "server.json").write_text(json.dumps({"url": URL, "pid": pid}))
        assert server.process() is None
        assert server.running() is None
        server._stop()
        assert not (state / "server.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lease", [True, False])
def test_a_server_ends_when_nobody_has_used_it_or_its_folder_is_gone(
    lease: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a process of its own, whose signals end nobody else; after a second without use."""
    if lease:
        (tmp_path / "lease").touch()
    code = (
        "from pathlib import Path; from fedcore.pipeline.orchestration import server\n"
        f"server.LEASE, server.IDLE = Path({str(tmp_path / 'lease')!r}), 0.5\nserver._end_when_idle()"
    )
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -signal.SIGTERM


def test_the_password_is_random_and_stays(state: Path):
    first = server.password()
    assert server.password() == first
    (state / "password").unlink()
    assert server.password() != first
    assert (state / "password").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"fedcore:short", b"fedcore:" + b"a" * 30 + b"\0b"])
def test_a_damaged_password_is_made_anew(state: Path, content: bytes):
    (state / "password").write_bytes(content)
    assert len(server.password()) > 30
    assert server.password() == server.password()


@contextmanager
def speaking(answer: bytes) -> Iterator[str]:
    """Listen on loopback, and answer everything alike."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(10_000)
            self.request.sendall(answer)

    with TCPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}/api"
        listening.shutdown()


def page(content: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: text/html\r\n\r\n".encode() + content


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (page(b'"3.8.8"'), True), (page(b"<html>"), False), (page(b"{}"), False),
        (page(b'"3.8.8"', "401 Unauthorized"), False), (page(b'"3.8.8"', "503 Service Unavailable"), False),
        (b"220 mail\r\n", False), (b"\0\xff", False), (b"", False),
    ],
)  # fmt: skip
def test_only_a_prefect_server_that_takes_the_password_counts(state: Path, answer: bytes, good: bool):
    with speaking(answer) as url:
        assert server.answers(url) is good
        assert server.listens(url)
    assert not server.answers(url)
    assert not server.listens(url)


def test_a_server_that_the_user_names_does_not_get_this_projects_password(monkeypatch: pytest.MonkeyPatch):
    """Prefect takes the address from the environment and would take the password from the project's profile."""
    monkeypatch.setattr(server.environment, "prepare", lambda: None)
    for name, value in server.environment.DEFAULTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PREFECT_API_URL", "http://192.0.2.1/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")  # so that it is put back
    monkeypatch.delenv("PREFECT_API_AUTH_STRING")
    assert server.ensure() == "http://192.0.2.1/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == ""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "mine")
    server.ensure()
    assert os.environ["PREFECT_API_AUTH_STRING"] == "mine"


BEGIN = """
import json, os, sys
from fedcore.pipeline import environment
environment.prepare()
from fedcore.pipeline.orchestration import server
with server.begun():
    print(server._begun.pid if server._begun else 0, flush=True)
    while sys.stdin.readline() == "ensure\\n":
        print(server.ensure(), server._last()[1], flush=True)
"""


class Command:
    """A command in a project's folder that has begun a server's process, `begun`, if none ran; it awaits a word."""

    def __init__(self, folder: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN], cwd=folder, env={**own, "FEDCORE_HOME": str(folder)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.begun = int(self.ask("")[0])

    def ask(self, word: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word)
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self) -> None:
        self.process.communicate("\n")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop = [sys.executable, *server.COMMAND, "stop"]
    subprocess.run(stop, cwd=tmp_path, env={**os.environ, "FEDCORE_HOME": str(tmp_path)}, check=True)


def until(ready: Callable[[], bool], seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < limit
        time.sleep(0.05)


def has_imported_the_server(pid: int) -> bool:
    return any("sqlalchemy" in one.path for one in psutil.Process(pid).memory_maps())


def servers(folder: Path) -> set[int]:
    """Return the processes of a project's servers, with an address or without."""
    found = set()
    for one in psutil.process_iter():
        try:
            if server.COMMAND[-1] in one.cmdline() and one.cwd() == str(folder):
                found.add(one.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_what_needs_no_server_leaves_no_process_and_no_file(project: Path, killed: bool):
    """Though one was begun: the command is refused, or killed."""
    command = Command(project)
    until(lambda: has_imported_the_server(command.begun))
    assert servers(project) == {command.begun}
    if killed:
        command.process.kill()
    command.end()
    until(lambda: not servers(project), 10)
    assert [*project.rglob("*")] == [project / ".fedcore"]


@pytest.mark.slow
def test_of_two_servers_that_were_begun_one_is_used_by_both(project: Path):
    first, second = Command(project), Command(project)
    assert servers(project) == {first.begun, second.begun}
    (url, pid), other = first.ask("ensure\n"), second.ask("ensure\n")
    assert other == [url, pid]
    assert servers(project) == {first.begun} == {int(pid)}
    third = Command(project)
    assert third.begun == 0
    for command in (first, second, third):
        command.end()
    assert servers(project) == {first.begun}


@pytest.mark.slow
def test_a_server_that_died_unused_is_started_anew_and_collected(project: Path):
    """Collected by the command that started it and still runs: who stops it may wait until it is gone."""
    command = Command(project)
    psutil.Process(command.begun).kill()
    until(lambda: psutil.Process(command.begun).status() == psutil.STATUS_ZOMBIE)
    _, pid = command.ask("ensure\n")
    assert servers(project) == {int(pid)} != {command.begun}
    subprocess.run([sys.executable, *server.COMMAND, "stop"], env={**os.environ, "FEDCORE_HOME": str(project)})
    until(lambda: not psutil.pid_exists(int(pid)), 10)
    command.end()


def test_where_the_user_names_a_server_none_is_begun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", URL)
    with server.begun():
        assert server._begun is None


def test_the_date_of_the_lease_may_be_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A clock that is set back ten years gives the lease an old date; it counts as use whenever it changes."""
    lease, passed = tmp_path / "lease", [0.0]
    lease.touch()

    def sleep(seconds: float) -> None:
        passed[0] += 100 * seconds
        if passed[0] <= 2000:
            os.utime(lease, (1e9 - passed[0],) * 2)

    monkeypatch.setattr(server, "LEASE", lease)
    monkeypatch.setattr(server.time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(server.time, "sleep", sleep)
    monkeypatch.setattr(server.os, "kill", lambda *_: None)
    monkeypatch.setattr(os, "_exit", lambda _: None)
    server._end_when_idle()
    assert 2000 + server.IDLE < passed[0] < 2000 + server.IDLE + 2000


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with all that a run writes."""
    tracking = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name, value in {
        "HOME": tmp_path, "STATE": tmp_path / ".fedcore", "ARTIFACTS": tmp_path / "mlruns", "TRACKING": tracking,
    }.items():  # fmt: skip
        monkeypatch.setattr(environment, name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    monkeypatch.chdir(tmp_path)
    for folder in (*(f".fedcore/{name}" for name in environment.FOLDERS), "mlruns", "runs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mlflow.db").touch()
    environment.require_writable()
    return tmp_path


@pytest.mark.parametrize("name", ["blobs", "steps", "mlruns", "mlflow.db", "runs", ""])
def test_what_a_run_cannot_write_is_refused_before_it(home: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Prefect would keep nothing, and say nothing; the record would fail at the end."""
    place = home / ".fedcore" / name if name in environment.FOLDERS else home / name
    monkeypatch.setattr(environment.os, "access", lambda path, _: Path(path).resolve() != place)  # root may always
    with pytest.raises(Failed, match=rf"{place.name}: cannot be written, so that "):
        environment.require_writable()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blobs", "mlruns", "mlflow.db"])
def test_a_read_only_mount_is_refused(home: Path, name: str):
    """Of root, too, who may write whatever its mode."""
    place = home / ".fedcore" / name if name in environment.FOLDERS else home / name
    bind = ["mount", "--bind", str(place), str(place)]
    if os.getuid() or subprocess.run(bind, capture_output=True).returncode:
        pytest.skip("nothing can be mounted read-only here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        with pytest.raises(Failed, match=rf"{name}: cannot be written"):
            environment.require_writable()
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_without_a_folder_for_temporary_files_no_run_begins(home: Path, monkeypatch: pytest.MonkeyPatch):
    def none() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(environment.tempfile, "gettempdir", none)
    with pytest.raises(Failed, match="set TMPDIR to one"):
        environment.require_writable()


def test_a_servers_failure_has_the_words_of_its_database(home: Path, monkeypatch: pytest.MonkeyPatch):
    log = home / ".fedcore" / "server.log"
    monkeypatch.setattr(server, "LOG", log)
    assert server.failure(500).startswith("the Prefect server: status 500; see .fedcore/server.log; ")
    log.write_text("sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database or disk is full\n[SQL: ...]\n")
    assert server.failure(500).startswith("the Prefect server: database or disk is full; see .fedcore/server.log; ")


# What holds for a flow that a deployment runs.


def test_a_run_by_hand_has_no_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    assert schedule.options() == {}


@pytest.mark.parametrize("error", [InputError("study = 'x': no such study"), Failed("no room")])
def test_a_deployment_tries_what_failed_again_but_not_what_was_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a")
    monkeypatch.setattr(schedule, "runtime", SimpleNamespace(flow_run=SimpleNamespace(id="a")))
    monkeypatch.setattr(schedule, "get_client", client := MagicMock())
    with pytest.raises(type(error)), schedule.refusing():
        raise error
    update = client.return_value.__enter__.return_value.update_flow_run
    tries = [call.kwargs["empirical_policy"].retries for call in update.mock_calls]
    assert tries == ([0] if isinstance(error, InputError) else [])


def test_a_deployment_has_those_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a")
    keeps = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    command = json.dumps([sys.executable, "-c", keeps])
    (tmp_path / nightly.NIGHTLY).write_text(
        f"retries: 2\ntime_limit: 3600\nalerts: {{events: [failed], command: {command}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = schedule.options()
    hooks = found.pop("on_failure")
    error = InputError("study = 'x': no such study")
    lines = [logging.LogRecord("", logging.ERROR, "", 0, "it failed", (), (InputError, error, None)) for _ in range(2)]
    assert [schedule._shorten(line) for line in lines] == [True, False]  # Prefect tells it twice
    assert (lines[0].getMessage(), lines[0].exc_info) == ("study = 'x': no such study", None)
    assert hooks == found.pop("on_crashed")
    assert found == {"retries": 2, "retry_delay_seconds": 300, "timeout_seconds": 3600.0}
    from prefect import flow

    assert flow(**found, on_failure=hooks)(lambda: None).retries == 2
    run: Any = SimpleNamespace(name="my_data, small")
    monkeypatch.setattr(schedule, "get_client", Mock(side_effect=OSError))
    state: Any = SimpleNamespace(message="Flow run exceeded timeout of 3600.0 second(s)\nmore", name="TimedOut")
    hooks[0](flow=None, flow_run=run, state=state)  # by these names where Prefect tells of a killed process
    told = json.loads((tmp_path / "got").read_text())
    assert told["text"].endswith("failed: my_data, small: Flow run exceeded timeout of 3600.0 second(s)")


@pytest.mark.parametrize("gone", [False, True])
def test_an_alert_names_a_killed_run_as_the_page_does(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """Who sees that a process was killed knows the flow run's first name only."""
    sent, client = Mock(), MagicMock()
    client.__enter__().read_flow_run = {1: SimpleNamespace(name="code, seed 0")}.get
    monkeypatch.setattr(schedule.alerts, "notify_failure", lambda _, text: sent(text))
    monkeypatch.setattr(schedule, "get_client", Mock(side_effect=OSError) if gone else lambda sync_client: client)
    flow: Any = None
    killed: Any = SimpleNamespace(id=1, name="first-name")
    state: Any = SimpleNamespace(message="killed\nat once", name="Crashed")
    schedule.notify_failure(flow, killed, state)
    sent.assert_called_once_with("first-name: killed" if gone else "code, seed 0: killed")


def test_mlflows_page_ends_with_the_process_that_a_stopped_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes, such as the record's, end by themselves."""
    monkeypatch.setattr(os, "_exit", exits := Mock())
    wait = "import time; time.sleep(60)"
    page, record = (subprocess.Popen([sys.executable, "-c", wait, name]) for name in ("uvicorn", "record"))
    try:
        server._leave("was stopped")
        assert page.wait(20) == -signal.SIGTERM
        assert record.poll() is None
    finally:
        for process in (page, record):
            process.kill()
            process.wait()
    exits.assert_called_once_with(1)


def test_transactions_of_the_server_wait_for_one_another_from_their_begin(monkeypatch: pytest.MonkeyPatch):
    configuration = configurations.AioSqliteConfiguration
    monkeypatch.setattr(configuration, "begin_transaction", configuration.begin_transaction)
    server._take_turns()
    session: Any = SimpleNamespace(begin=nullcontext)

    async def mode() -> str | None:
        async with configuration("sqlite+aiosqlite:///x.db").begin_transaction(session, with_for_update=False):
            return configurations.SQLITE_BEGIN_MODE.get()

    assert asyncio.run(mode()) == "IMMEDIATE"
