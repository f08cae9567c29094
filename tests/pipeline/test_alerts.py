"""Alerts reach local receivers: a web server, a program and a mail server; one that fails is a line."""

import errno
import json
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock
from urllib.error import URLError

import pytest

from fedcore.config import nightly
from fedcore.config.nightly import Alerts, Mail
from fedcore.errors import InputError
from fedcore.pipeline import alerts, environment
from fedcore.pipeline.command import Failed


class Post(BaseHTTPRequestHandler):
    """Keeps what it gets; /broken answers 500, /slow not at all."""

    got: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append((self.headers["Content-Type"], content))
        if self.path == "/slow":
            time.sleep(1)
        self.send_response(500 if self.path == "/broken" else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Smtp(socketserver.StreamRequestHandler):
    """Takes a mail."""

    got: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        data = False
        for line in self.rfile:
            if data:
                data = line != b".\r\n"
                self.got.append(line.decode())
                if not data:
                    self.wfile.write(b"250 kept\r\n")
                continue
            self.got.append(line.decode())
            data = line.lower().startswith(b"data")
            leaves = line.lower().startswith(b"quit")
            self.wfile.write(b"354 go on\r\n" if data else b"221 bye\r\n" if leaves else b"250 yes\r\n")
            if leaves:
                return


@contextmanager
def serve(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Post, "got", [])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve(HTTPServer(("127.0.0.1", 0), Post)) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_webhook_gets_the_event(web: str, capsys: pytest.CaptureFixture[str]):
    alerts.notify(Alerts(webhook=f"{web}/secret"), "promoted", "version 3")
    ((kind, content),) = Post.got
    assert kind == "application/json"
    assert (content["event"], content["project"]) == ("promoted", environment.HOME.name)
    assert content["text"].endswith("promoted: version 3")
    assert capsys.readouterr().err == ""


def test_a_command_gets_the_event(tmp_path: Path):
    keeps = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    alerts.notify(Alerts(command=[sys.executable, "-c", keeps]), "drifted", "sensor 3")
    assert json.loads((tmp_path / "got").read_text())["event"] == "drifted"


@pytest.mark.slow
def test_a_mail_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(Smtp, "got", [])
    with serve(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)) as port:
        mail = Mail(to="ops@example.org", sender="fedcore@example.org", host=f"127.0.0.1:{port}")
        alerts.notify(Alerts(mail=mail), "failed", "no room\nto write")
    assert capsys.readouterr().err == ""
    text = "".join(Smtp.got)
    assert "<ops@example.org>" in text
    assert f"Subject: fedcore: failed in {environment.HOME.name}" in text
    assert "no room" in text


def test_an_event_that_nobody_asked_for_is_not_told(web: str):
    alerts.notify(Alerts(webhook=web, events=["failed"]), "promoted", "version 3")
    alerts.notify(Alerts(), "failed", "why")
    assert Post.got == []


@pytest.mark.parametrize(
    "error", [TimeoutError("timed out"), URLError(TimeoutError("timed out")), subprocess.TimeoutExpired("program", 20)]
)
def test_a_way_that_notices_its_limit_says_the_same(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whichever is first, the way or who waits for it."""
    monkeypatch.setattr(alerts, "post", Mock(side_effect=error))
    alerts.notify(Alerts(webhook="http://127.0.0.1:9"), "failed", "why")
    assert capsys.readouterr().err.endswith(f"not sent: no end after {alerts.LIMIT:g} s\n")


@pytest.mark.parametrize(
    ("path", "said"), [("/broken/secret", "HTTP Error 500"), ("/slow", "no end after 0.3 s"), (None, "refused")]
)
@pytest.mark.slow
def test_a_webhook_that_fails_is_a_line(
    web: str, path: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It holds no address, as there may be a secret in it."""
    monkeypatch.setattr(alerts, "LIMIT", 0.3)
    address = "http://127.0.0.1:9/secret" if path is None else f"{web}{path.removesuffix('/secret')}"
    began = time.monotonic()
    alerts.notify(Alerts(webhook=address), "failed", "why")
    line = capsys.readouterr().err
    assert line.startswith("fedcore: alert 'failed' by webhook: not sent: ")
    assert (said in line, "secret" in line, line.count("\n")) == (True, False, 1)
    assert time.monotonic() - began < 2


@pytest.mark.slow
def test_a_command_or_mail_that_fails_is_a_line(capsys: pytest.CaptureFixture[str]):
    mail = Mail(to="a@b", sender="a@b", host="127.0.0.1:9", user="a")
    for one in (Alerts(command=["false"]), Alerts(command=["/no/such/program"]), Alerts(mail=mail)):
        alerts.notify(one, "failed", "why")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith("not sent: false ended with code 1")
    assert "No such file" in second
    assert "refused" in third


def test_a_variable_that_is_missing_is_a_line(capsys: pytest.CaptureFixture[str]):
    alerts.notify(Alerts(webhook="$NOBODY_HAS_IT"), "failed", "why")
    assert capsys.readouterr().err.endswith("not sent: the environment has no NOBODY_HAS_IT\n")


def test_a_full_disk_is_told(web: str):
    alerts.notify_disk(Alerts(webhook=web, least_free=0))
    assert Post.got == []
    alerts.notify_disk(Alerts(webhook=web, least_free=1e9))
    assert Post.got[0][1]["event"] == "disk_low"


@pytest.mark.parametrize(
    ("error", "said"),
    [(Failed("a: no room"), "a: no room"), (InputError("run.size: wrong"), "run.size: wrong"),
     (ValueError("odd\nlines"), "ValueError: odd"), (OSError(errno.ENOSPC, "full", "x"), "x: no room to write")],
)  # fmt: skip
def test_a_failure_is_told_and_goes_on(web: str, tmp_path: Path, monkeypatch: Any, error: Exception, said: str):
    (tmp_path / nightly.NIGHTLY).write_text(f"alerts: {{webhook: '{web}', events: [failed]}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(type(error)), alerts.watch():
        raise error
    ((_, content),) = Post.got
    assert said in content["text"]


def test_who_stops_a_run_is_not_told(web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / nightly.NIGHTLY).write_text(f"alerts: {{webhook: '{web}'}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt), alerts.watch():
        raise KeyboardInterrupt
    assert Post.got == []


def test_a_wrong_setting_is_refused_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / nightly.NIGHTLY).write_text("retries: many\n")
    monkeypatch.chdir(tmp_path)
    began = False
    with pytest.raises(InputError, match="retries"), alerts.watch():
        began = True
    assert not began
