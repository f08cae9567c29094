"""The record's writer: it writes in a process of its own, in order, and fails the flow where it cannot write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from tasks.record import writer
from tasks.record.writer import RecordWriter

FULL = "no space left on device"


def begun() -> None:
    pass


def noted(place: Path, words: str, title: str) -> None:
    """Note who writes what, after a while."""
    time.sleep(0.2)
    with place.open("a") as file:
        file.write(f"{os.getpid()} {words} {title}\n")


def refused(*_: object) -> None:
    raise OSError(FULL)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A writer that needs no record."""
    monkeypatch.setattr(writer, "warm_up", begun)
    monkeypatch.setattr(writer, "save", noted)
    return monkeypatch


def lines(place: Path) -> list[list[str]]:
    return [line.split() for line in place.read_text().splitlines()]


@pytest.mark.slow
def test_another_process_writes_runs_in_order(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "written"
    with RecordWriter() as book:
        for word in "abc":
            book.save(place, word, "study")
        assert not place.exists()
    written = lines(place)
    assert [words[1:] for words in written] == [["a", "study"], ["b", "study"], ["c", "study"]]
    (writer,) = {words[0] for words in written}
    assert int(writer) != os.getpid()
    assert not Path(f"/proc/{writer}").exists()


@pytest.mark.slow
def test_the_writer_warms_up_once(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "written"
    orders.setattr(writer, "warm_up", partial(noted, place, "ready", "."))
    with RecordWriter() as book:
        for word in "ab":
            book.warm_up()
            book.save(place, word, "study")
    assert [words[1] for words in lines(place)] == ["ready", "a", "b"]


@pytest.mark.slow
def test_the_writer_shows_its_progress_at_the_end(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def watched(written: Iterator[Future[None]], words: str, total: int, **_: object) -> Iterator[Future[None]]:
        for one in written:
            seen.append(len(lines(tmp_path / "written")) if (tmp_path / "written").exists() else 0)
            yield one
        seen.append(f"{words}: {total}")

    orders.setattr(writer, "progress", watched)
    with RecordWriter() as book:
        book.warm_up()
        for word in "abc":
            book.save(tmp_path / "written", word, "study")
    *counts, said = seen
    assert said == f"writing the record: {len(counts)}"
    assert counts[0] < 3 == counts[-1]


@pytest.mark.slow
def test_a_failed_write_ends_the_flow(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders.setattr(writer, "save", refused)
    with pytest.raises(OSError, match=FULL), RecordWriter() as book:
        book.save(tmp_path, "a", "study")


@pytest.mark.slow
def test_a_failed_write_ends_the_flow_at_the_next_call(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders.setattr(writer, "save", refused)
    reached = []

    def flow() -> None:
        with RecordWriter() as book:
            book.save(tmp_path, "a", "study")
            book._pending[-1].exception()  # waits
            book.save(tmp_path, "b", "study")
            reached.append("the next row")

    with pytest.raises(OSError, match=FULL):
        flow()
    assert not reached


@pytest.mark.slow
def test_a_record_that_cannot_be_opened_ends_the_flow(orders: pytest.MonkeyPatch) -> None:
    orders.setattr(writer, "warm_up", refused)
    with pytest.raises(OSError, match=FULL), RecordWriter() as book:
        book.warm_up()


@pytest.mark.slow
def test_an_error_of_the_flow_is_raised_and_the_current_run_completed(
    orders: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has not been begun is left to the run that goes on from there."""
    place = tmp_path / "written"

    def flow() -> None:
        with RecordWriter() as book:
            for word in "abcdef":
                book.save(place, word, "study")
            book._pending[0].result()
            raise ValueError("the body's own")

    with pytest.raises(ValueError, match="the body's own"):
        flow()
    written = [words[1] for words in lines(place)]
    assert written == list("abcdef")[: len(written)]
    assert 1 <= len(written) < 6
