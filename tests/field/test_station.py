"""A server that stays lends its connections to other processes of its owner, as plain bytes."""

import json
import stat
from threading import Thread

import pytest

from fedcore.field import station


class Echo:
    """Devices that answer a call with itself, but for one that is away."""

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        return None if name == "away" else name.encode() + call

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        return [name for name in names if name == "away"]

    def close(self) -> None:
        pass


@pytest.fixture
def lent(tmp_path):
    thread = Thread(target=station.serve, args=(tmp_path, Echo()))
    thread.start()
    while (found := station.find(tmp_path)) is None:
        pass
    yield found
    found.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_calls_and_answers_go_through_it(lent):
    assert lent.send("a", b"\0" * 70_000, 5.0) == b"a" + b"\0" * 70_000
    assert lent.send("a", b"", 5.0) == b"a"
    assert lent.send("away", b"call", 5.0) is None
    assert lent.wait_for(["a", "away"], 0.0) == ["away"]


def test_only_its_owner_finds_it(lent, tmp_path):
    assert stat.S_IMODE((tmp_path / station.PLACE).stat().st_mode) == 0o600
    words = json.loads((tmp_path / station.PLACE).read_text())
    assert stat.S_IMODE((tmp_path / words["at"]).parent.stat().st_mode) == 0o700
    stranger = station.Lent(lent.path, b"another key", lent.pid)
    with pytest.raises(Exception, match="digest"):
        stranger.wait_for([], 0.0)
    assert lent.send("a", b"1", 5.0) == b"a1"  # it has not ended


def test_what_is_no_request_is_dropped(lent):
    with lent._open() as connection:
        connection.send_bytes(b"\x80\x04\x95 a pickle")
        with pytest.raises(EOFError):
            connection.recv_bytes()
    assert lent.send("a", b"1", 5.0) == b"a1"


def test_a_server_that_was_killed_is_not_found(tmp_path):
    assert station.find(tmp_path) is None
    (tmp_path / station.PLACE).write_text(json.dumps({"at": str(tmp_path / "s"), "key": "00", "pid": 1}))
    assert station.find(tmp_path) is None
    assert station.Lent(str(tmp_path / "s"), b"k", 1).send("a", b"1", 1.0) is None


def test_a_server_that_has_stopped_leaves_nothing_behind(tmp_path):
    thread = Thread(target=station.serve, args=(tmp_path, Echo()))
    thread.start()
    while (found := station.find(tmp_path)) is None:
        pass
    found.stop()
    assert station.wait_until_gone(tmp_path, 20.0)
    thread.join(20)
    assert list(tmp_path.iterdir()) == []
