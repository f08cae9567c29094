"""One Prefect server for a whole run.

The first command that needs it starts it in the background. It keeps running for a while, so that the stages of a
`dvc repro` share one server, and stops when it is no longer used. A flow that finds it gone starts it again. It listens
on loopback only and wants a password (docs/security.md): whoever may speak to it can run commands. Prefect's own
`server start --background` is not used: it never stops by itself, takes one port for all projects, writes no log, ends
with Ctrl-C in its terminal, and refuses to start after a kill (Prefect 3.8: "already running", until `server stop`). It
answered after 23 s, with 226 MB and 2.2 % of a core while idle.

    python -m fedcore.pipeline.orchestration.server start | stop | keep
"""

import base64
import contextlib
import json
import os
import re
import runpy
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil
from filelock import FileLock

from fedcore.pipeline import environment
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.state import write_atomic

STATE = environment.STATE / "server.json"
PASSWORD = environment.STATE / "password"
LEASE = environment.STATE / "server.lease"
LOCK = environment.STATE / "server.lock"
LOG = environment.STATE / "server.log"
COMMAND = ("-P", "-m", "fedcore.pipeline.orchestration.server")
IMPORTS = ("prefect.main", "prefect.cli.server", "prefect.cli._server_utils", "prefect.server.api.server")
"""What a server's process imports before it has an address."""
IDLE = 300.0
"""Seconds without use after which the server stops."""
BEAT = 2.0
DATABASE_ERROR = re.compile(r"sqlite3\.\w+\) (.*)")
TAIL = 20_000
"""Characters at the end of the server's log in which the cause of a failure is looked for."""
RESTARTS = 3
STAMP = "%Y-%m-%d %H:%M:%S.%f"
"""Of a moment in Prefect's database, in UTC."""
_begun: subprocess.Popen[bytes] | None = None
"""A server's process without an address, see `begun`."""


def ensure() -> str:
    """Return the address of a running Prefect API; starts a server if necessary.

    If the user has set PREFECT_API_URL, that server is used. Raises Failed if no server can be started.
    """
    environment.prepare()
    environment.require_writable()
    if url := os.environ.get("PREFECT_API_URL"):
        if os.environ["PREFECT_PROFILES_PATH"] == environment.DEFAULTS["PREFECT_PROFILES_PATH"]:
            os.environ.setdefault("PREFECT_API_AUTH_STRING", "")  # the profile's password is for another server
        return url
    LEASE.touch()
    with FileLock(LOCK):
        url = running() or _restart()
    _end_begun()  # another command was faster
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": password()}
    return url


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Begin a server's process beside the body, unless a server runs or starts: its imports take seconds.

    Without an address it writes nothing. `ensure` gives it one; otherwise it ends with the body, or with this process.
    """
    global _begun
    if "PREFECT_API_URL" not in os.environ and not process():
        _begun = _launch(subprocess.DEVNULL)
    try:
        yield
    finally:
        _end_begun()


def _take_begun() -> subprocess.Popen[bytes] | None:
    """Return the process that was begun, once, if it still runs."""
    global _begun
    taken, _begun = _begun, None
    return taken if taken and taken.poll() is None else None


def _end_begun() -> None:
    if unused := _take_begun():
        with unused:
            unused.kill()


def password() -> str:
    """Return the password of this project's server, a random one made on first use: user name, colon, secret."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        stored = PASSWORD.read_text("ascii").strip()
        if re.fullmatch(r"fedcore:[\w-]{20,}", stored):
            return stored
    write_atomic(PASSWORD, f"fedcore:{secrets.token_urlsafe(24)}\n".encode())
    return password()


def running() -> str | None:
    """Return the address of this project's server if it answers, and will stop when it is no longer used."""
    url, _ = _last()
    return url if process() and answers(url) else None


def process() -> psutil.Process | None:
    """Return the process of this project's server, whether it answers or not; None if its id is free or another's.

    A copy of the project's folder has the same file: the server of the other one is at work in that.
    """
    with contextlib.suppress(psutil.Error, OSError):
        last = psutil.Process(_last()[1])
        own = COMMAND[-1] in last.cmdline() and Path(last.cwd()).samefile(environment.HOME)
        return last if own else None
    return None


def _last() -> tuple[str, int]:
    """Return the address and the process id of the server last started; "" and 0 if that is not known.

    The password is sent to this address, so it must be one on loopback.
    """
    try:
        stored = json.loads(STATE.read_text())
        url, pid, port = stored["url"], stored["pid"], urlsplit(stored["url"]).port
        valid = port and url == f"http://127.0.0.1:{port}/api" and type(pid) is int and 0 < pid < 2**31
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        valid = False
    return (url, pid) if valid else ("", 0)


@contextlib.contextmanager
def lease() -> Iterator[str]:
    """Keep the server alive while the body runs; yields its address.

    A server of this project that is gone is started again, at most RESTARTS times. If that fails, or someone has
    stopped it, this process ends at once: Prefect would ask for it again for minutes, in hundreds of lines.
    """
    ours = "PREFECT_API_URL" not in os.environ
    url = ensure()
    done = threading.Event()

    def beat() -> None:
        left = RESTARTS
        while not done.wait(BEAT):
            LEASE.touch()
            if ours and not listens(url):
                left -= 1
                reason = "is gone again and again" if left < 0 else _revive(url)
                if reason and not done.is_set():
                    _leave(reason)
                sys.stderr.write("fedcore: the Prefect server was gone; it was started again\n")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        done.set()
        thread.join()
        LEASE.touch()


def listens(url: str) -> bool:
    """Tell whether anything listens at an address on loopback, however busy it is."""
    try:
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=BEAT).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _revive(url: str) -> str:
    """Start the server again at its address; returns the reason if that is impossible."""
    with FileLock(LOCK):
        if running() == url:  # another process was faster
            return ""
        if not STATE.exists():
            return "was stopped"
        try:
            there = _restart()
        except (Failed, OSError) as error:
            return f"is gone and cannot be started again ({error})"
    return "" if there == url else "is gone, and its port is taken"


def _leave(reason: str) -> None:
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{show_cursor}fedcore: the Prefect server {reason}; {CONTINUE}\n")
    sys.stderr.flush()
    for page in psutil.Process().children():  # MLflow's, of `fedcore ui`; what else a flow started ends by itself
        with contextlib.suppress(psutil.Error):  # the server's own process is dead
            if "uvicorn" in page.cmdline():
                page.terminate()
    os._exit(1)


def stop() -> None:
    """Stop this project's server, if it runs; flows that use it end."""
    if STATE.exists():
        with FileLock(LOCK):
            _stop()


def _stop() -> None:
    if last := process():
        for end in (last.terminate, last.kill):
            with contextlib.suppress(psutil.Error):
                end()
                last.wait(15)
    STATE.unlink(missing_ok=True)


def _restart() -> str:
    """Start the server, at the address of the last one if possible; ends one that does not answer to the password."""
    port, secret = urlsplit(_last()[0]).port or 0, password()
    _stop()
    try:
        port = free_port(port)
    except OSError:
        port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    settings = {
        "PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": secret, "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_API_PORT": str(port), "PREFECT_HOME": os.environ["PREFECT_HOME"],
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }  # fmt: skip
    with LOG.open("ab") as log:
        started = _take_begun() or _launch(log)
    # A flow that is killed meanwhile leaves a server that the next one finds.
    write_atomic(STATE, json.dumps({"url": url, "pid": started.pid}).encode())
    profile = [f"{name} = {json.dumps(settings[name])}" for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")]
    text = "\n".join(['active = "fedcore"', "", "[profiles.fedcore]", *profile, ""])  # prefect.toml names the file
    write_atomic(environment.PREFECT / "profiles.toml", text.encode())
    assert started.stdin is not None
    with contextlib.suppress(BrokenPipeError), started.stdin as pipe:
        pipe.write(f"{json.dumps(settings)}\n".encode())
    threading.Thread(target=started.wait, daemon=True).start()  # who stops it waits until it is collected
    limit = time.monotonic() + 120
    while not answers(url):
        if started.poll() is not None or time.monotonic() > limit:
            noted, pages = (path.relative_to(environment.HOME) for path in (LOG, environment.PREFECT))
            raise Failed(
                f"the Prefect server did not start; see {noted}, or rename {pages}, which holds its pages only"
            )
        time.sleep(0.1)
    return url


def _launch(output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a server's process, which waits for its address on standard input.

    It is in its own session, so that Ctrl-C in a run does not stop a server that other runs use.
    """
    # Prefect makes its home when it is imported. It is to be made by a server that is used.
    exists = Path(os.environ["PREFECT_HOME"]).exists()
    return subprocess.Popen(
        [sys.executable, *COMMAND, "prefect", "server", "start", "--host", "127.0.0.1"],
        stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, cwd=environment.HOME,
        env={**os.environ, **({} if exists else {"PREFECT_HOME": str(environment.STATE)})},
    )  # fmt: skip


def failure(status: int) -> str:
    """Return the line for a server that cannot do what it was asked to, with the last words of its database."""
    errors = DATABASE_ERROR.findall(LOG.read_text(errors="replace")[-TAIL:]) if LOG.is_file() else []
    reason = errors[-1] if errors else f"status {status}"
    return f"the Prefect server: {reason}; see {LOG.relative_to(environment.HOME)}; {CONTINUE}"


def next_run(database: Path) -> datetime | None:
    """Return when the next flow run is scheduled for; None if there is none, or no database that can be read."""
    asked = "select min(expected_start_time) from flow_run where state_type = 'SCHEDULED' and expected_start_time > ?"
    with (
        contextlib.suppress(sqlite3.Error, ValueError),
        contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as opened,
    ):
        (start,) = opened.execute(asked, [datetime.now(UTC).strftime(STAMP)]).fetchone()
        return None if start is None else datetime.strptime(start, STAMP).replace(tzinfo=UTC)
    return None


def free_port(wanted: int = 0) -> int:
    """Return a free port on loopback. Raises OSError if `wanted` is in use."""
    with socket.socket() as probe:
        # A port whose last server was killed has connections that time out; a server can listen there all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", wanted))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Tell whether a Prefect API answers there, and to this project's password."""
    token = base64.b64encode(password().encode()).decode()
    request = urllib.request.Request(f"{url}/admin/version", headers={"Authorization": f"Basic {token}"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return isinstance(json.loads(answer.read(1000)), str)
    except (OSError, HTTPException, ValueError):
        return False


def _serve(arguments: list[str]) -> None:
    """Run Prefect's command in this process, with an address, until the lease has not been touched for IDLE seconds."""
    environment.prepare()
    for module in IMPORTS:
        import_module(module)
    if not (line := sys.stdin.readline()):
        return  # the command that began this process has ended, and needed no server
    with LOG.open("ab") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    os.environ |= json.loads(line)
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    _take_turns()
    threading.Thread(target=_end_when_idle, daemon=True).start()
    os.umask(0o077)  # Prefect makes its database for whoever may read the folder
    sys.argv = arguments
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


def _take_turns() -> None:
    """Have Prefect's transactions on SQLite wait for one another from their begin.

    Those that read first fail at once if another has written before they write. Its clients then
    get 503 and try again five times in a minute, which is not always enough on a busy machine.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction
    AioSqliteConfiguration.begin_transaction = lambda self, session, **_: begin(self, session, with_for_update=True)


def _end_when_idle() -> None:
    """End this process once the lease's date has not changed for IDLE seconds, whatever date the clock gives it."""
    seen, since = 0, time.monotonic()
    with contextlib.suppress(FileNotFoundError):  # the project's folder is gone
        while time.monotonic() - since <= IDLE:
            if (touched := LEASE.stat().st_mtime_ns) != seen:
                seen, since = touched, time.monotonic()
            time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(15)
    os._exit(1)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["start"]:
            print(ensure())
        case ["stop"]:
            stop()
        case ["keep"]:
            with lease() as url:
                print(f"{url}\nits page asks for a password: cat {PASSWORD}", flush=True)
                threading.Event().wait()
        case ["prefect", *_]:
            _serve(arguments)
        case _:
            sys.exit("usage: python -m fedcore.pipeline.orchestration.server start | stop | keep")


if __name__ == "__main__":
    main(sys.argv[1:])
