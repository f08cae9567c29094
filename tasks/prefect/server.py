"""One Prefect server for a whole run.

The first command that needs it starts it in the background. It keeps running for a while, so that the stages of a
`dvc repro` share one server, and stops when it is no longer used. It listens on loopback only.

    python -m tasks.prefect.server start | stop | keep
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import psutil
from filelock import FileLock

from tasks.config import environment

STATE = environment.STATE / "server.json"
LEASE = environment.STATE / "server.lease"
LOG = environment.STATE / "server.log"
IDLE = 300.0
"""Seconds without use after which the server stops."""
BEAT = 5.0


def ensure() -> str:
    """Return the address of a running Prefect API; starts a server if necessary.

    If the user has set PREFECT_API_URL, that server is used. Raises RuntimeError if no server can be started.
    """
    environment.prepare()
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    touch()
    with FileLock(environment.STATE / "server.lock"):
        url = running()
        if url is None:
            url = _start()
    os.environ["PREFECT_API_URL"] = url
    return url


def running() -> str | None:
    """Return the address of this project's server if it answers."""
    try:
        url = str(json.loads(STATE.read_text())["url"])
    except (OSError, ValueError, KeyError):
        return None
    return url if _healthy(url) else None


@contextlib.contextmanager
def lease() -> Iterator[str]:
    """Keep the server alive while the body runs; yields its address."""
    url = ensure()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        done.set()
        thread.join()
        touch()


def touch() -> None:
    LEASE.touch()


def stop() -> None:
    """Stop this project's server, if it runs."""
    try:
        pid = int(json.loads(STATE.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return
    # The id may belong to another process by now.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.TimeoutExpired):
        process = psutil.Process(pid)
        if "tasks.prefect.server" in process.cmdline():
            process.terminate()
            process.wait(15)
    STATE.unlink(missing_ok=True)


def _start() -> str:
    port = _port()
    url = f"http://127.0.0.1:{port}/api"
    # In its own session, so that Ctrl-C in a run does not stop a server that other runs use.
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.prefect.server", "_watch", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=environment.HOME,
        )  # fmt: skip
    limit = time.monotonic() + 120
    while not _healthy(url):
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"the Prefect server did not start; see {LOG.relative_to(environment.HOME)}")
        time.sleep(0.1)
    STATE.write_text(json.dumps({"url": url, "pid": process.pid}))
    _write_profile(url)
    return url


def _write_profile(url: str) -> None:
    """Make the prefect command use this server in the project's folder (prefect.toml names the file)."""
    environment.PREFECT.mkdir(parents=True, exist_ok=True)
    text = f'active = "fedcore"\n\n[profiles.fedcore]\nPREFECT_API_URL = "{url}"\n'
    (environment.PREFECT / "profiles.toml").write_text(text)


def _port() -> int:
    """Return the last server's port if it is free, else any free port."""
    try:
        return free_port(_last_port())
    except OSError:
        return free_port()


def free_port(wanted: int = 0) -> int:
    """Return a free port on loopback. Raises OSError if `wanted` is in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", wanted))
        return int(probe.getsockname()[1])


def _last_port() -> int:
    try:
        return int(json.loads(STATE.read_text())["url"].split(":")[2].split("/")[0])
    except (OSError, ValueError, KeyError, IndexError):
        return 0


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _watch(port: int) -> None:
    """Run the server until the lease has not been touched for IDLE seconds."""
    environment.prepare()
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"})
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while server.poll() is None:
        time.sleep(1)
        if time.time() - LEASE.stat().st_mtime > IDLE:
            server.terminate()
            break
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(15)
    server.kill()


def main(words: list[str]) -> None:
    match words:
        case ["start"]:
            print(ensure())
        case ["stop"]:
            stop()
        case ["keep"]:
            with lease() as url:
                print(url, flush=True)
                threading.Event().wait()
        case ["_watch", port]:
            _watch(int(port))
        case _:
            sys.exit("usage: python -m tasks.prefect.server start | stop | keep")


if __name__ == "__main__":
    main(sys.argv[1:])
