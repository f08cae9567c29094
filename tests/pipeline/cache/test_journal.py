"""The journal of steps and the marks of running flows: what is damaged does not count, and stops nobody."""

import json
import os
from pathlib import Path

import pytest

from fedcore.pipeline.cache import journal

WHOLE = {"time": 1.0, "key": "k", "blobs": ["b"]}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "FLOWS", tmp_path / "flows")
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "journal.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        b"3",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"key": "k"}',
        b'{"time": 1.0}',
        b'{"time": null, "key": "k"}',
        b'{"time": "soon", "key": "k"}',
        b'{"time": 1.0, "key": "k", "blobs": [3]}',
        b'{"time": 1.0, "key": "k", "blobs": null}',
        b'{"time": 1.0, "key": "k"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"",
    ],
)
def test_a_damaged_line_is_left_out(state: Path, line: bytes):
    whole = json.dumps(WHOLE).encode()
    (state / "journal.jsonl").write_bytes(b"\n".join([whole, line, whole, b""]))
    assert journal.read() == [WHOLE, WHOLE]


def test_there_is_nothing_to_read_before_the_first_line(state: Path):
    assert journal.read() == []
    journal.append({"key": "k"})
    (line,) = journal.read()
    assert line["key"] == "k"


@pytest.mark.parametrize("content", [b"", b"text", b"\xff", b"1.5", b"-3", b"9" * 30, b"9" * 5000])
def test_a_damaged_mark_is_of_no_running_flow(state: Path, content: bytes):
    (state / "flows").mkdir()
    mark = state / "flows" / "not-a-uuid"
    mark.write_bytes(content)
    assert journal.marks() == [mark]
    assert not journal.alive(mark)
    journal.remove_mark(mark)
    assert journal.marks() == []


def test_a_folder_in_the_place_of_a_mark_is_of_no_running_flow(state: Path):
    (state / "flows" / "a" / "b").mkdir(parents=True)
    (mark,) = journal.marks()
    assert not journal.alive(mark)
    journal.remove_mark(mark)
    assert journal.marks() == []


def test_a_mark_is_of_this_process_and_lies_there_whole(state: Path):
    mark = journal.write_mark("run")
    assert journal.alive(mark)
    assert mark.read_text() == str(os.getpid())
    assert [path.name for path in (state / "flows").iterdir()] == ["run"]
