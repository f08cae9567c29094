"""The record's writer: it writes in a process of its own, in order, and fails the flow where it cannot write."""

import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedcore.errors import InputError
from fedcore.execute.workers import Workers
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.record import writer
from fedcore.pipeline.record.writer import RecordWriter

FULL = "no space left on device"


def test_a_database_without_its_driver_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+pg8000://user:secret@127.0.0.1/mlflow")
    monkeypatch.setitem(sys.modules, "pg8000", None)
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI: the database's driver is not installed: ") as refused:
        RecordWriter()
    assert "secret" not in str(refused.value)


def begun() -> None:
    pass


def noted(_: str, place: Path, words: str, title: str) -> None:
    """Note who writes what, after a while."""
    time.sleep(0.2)
    with place.open("a") as file:
        file.write(f"{os.getpid()} {words} {title}\n")


def refused(*_: object) -> None:
    raise OSError(FULL)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A writer that needs no record."""
    monkeypatch.setattr(writer, "open_record", begun)
    monkeypatch.setattr(writer, "write", noted)
    return monkeypatch


@pytest.fixture(scope="module")
def process() -> Iterator[Workers]:
    with Workers(1) as one:
        yield one


@pytest.fixture
def lent(orders: pytest.MonkeyPatch, process: Workers) -> pytest.MonkeyPatch:
    """The same, in a process that goes on: a new one takes two seconds."""
    orders.setattr(writer, "Workers", lambda *_, **__: Lent(process))
    return orders


class Lent:
    """A pool that its user does not end."""

    def __init__(self, process: Workers) -> None:
        self.call, self.start = process.call, process.start

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


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


def drew(place: Path, words: str) -> dict[str, bytes]:
    return {words: str(os.getpid()).encode()}


def noted_with(_: str, place: Path, words: str, title: str, drawn: dict[str, bytes] | None = None) -> None:
    noted(_, place, words, "-" if drawn is None else drawn[words].decode())


@pytest.mark.slow
def test_new_runs_are_drawn_in_a_further_process(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "written"
    orders.setattr(writer, "write", noted_with)
    orders.setattr(writer, "draw", drew)
    with RecordWriter() as book:
        for word in "abc":
            book.save(place, word, "study", computed=word != "b")
    written = lines(place)
    assert [words[1] for words in written] == ["a", "b", "c"]
    assert written[1][2] == "-"
    (writes,), (draws,) = {words[0] for words in written}, {written[0][2], written[2][2]}
    assert len({writes, draws, str(os.getpid())}) == 3
    assert not Path(f"/proc/{draws}").exists()


@pytest.mark.slow
def test_a_picture_that_fails_ends_the_flow(lent: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lent.setattr(writer, "draw", refused)
    with pytest.raises(OSError, match=FULL), RecordWriter() as book:
        book.save(tmp_path / "written", "a", "study", computed=True)


@pytest.mark.slow
def test_the_writer_warms_up_once(lent: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "written"
    lent.setattr(writer, "open_record", partial(noted, "", place, "ready", "."))
    with RecordWriter() as book:
        for word in "ab":
            book.warm_up()
            book.save(place, word, "study")
    assert [words[1] for words in lines(place)] == ["ready", "a", "b"]


@pytest.mark.slow
def test_the_writer_shows_its_progress_at_the_end(
    lent: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal as a bar; in a log, where the wait is long, as a line."""
    seen = []

    def watched(written: Iterator[Future[None]], words: str, total: int, **_: object) -> Iterator[Future[None]]:
        for one in written:
            seen.append(len(lines(tmp_path / "written")) if (tmp_path / "written").exists() else 0)
            yield one
        seen.append(f"{words}: {total}")

    lent.setattr(writer, "progress", watched)
    lent.setattr(writer, "SILENT", 0.0)
    with RecordWriter() as book:
        book.warm_up()
        for word in "abc":
            book.save(tmp_path / "written", word, "study")
    *counts, said = seen
    assert said == f"saving the record: {len(counts)}"
    assert counts[0] < 3 == counts[-1]
    assert capsys.readouterr().out == "saving the record: 3 of 3 methods and seeds left\nsaving the record: done\n"


@pytest.mark.slow
def test_a_failed_write_ends_the_flow(lent: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lent.setattr(writer, "write", refused)
    with pytest.raises(OSError, match=FULL), RecordWriter() as book:
        book.save(tmp_path, "a", "study")


@pytest.mark.slow
def test_a_failed_write_ends_the_flow_at_the_next_call(lent: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lent.setattr(writer, "write", refused)
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
def test_a_record_that_cannot_be_opened_ends_the_flow(lent: pytest.MonkeyPatch) -> None:
    lent.setattr(writer, "open_record", refused)
    with pytest.raises(OSError, match=FULL), RecordWriter() as book:
        book.warm_up()


@pytest.mark.slow
def test_an_error_of_the_flow_is_raised_and_the_current_run_completed(lent: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def killed(times: int, _: str, place: Path, words: str, title: str) -> None:
    """Write, and end as if killed, the first times."""
    noted(_, place, words, title)
    if len(lines(place)) <= times:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_writer_that_is_killed_writes_again(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders.setattr(writer, "write", partial(killed, 1))
    place = tmp_path / "written"
    with RecordWriter() as book:
        for word in "ab":
            book.save(place, word, "study")
    assert [words[1] for words in lines(place)] == ["a", "a", "b"]


@pytest.mark.slow
def test_a_writer_that_is_killed_twice_ends_the_flow_in_one_line(orders: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders.setattr(writer, "write", partial(killed, 9))
    with pytest.raises(Failed) as failed, RecordWriter() as book:
        book.save(tmp_path / "written", "a", "study")
    line = str(failed.value)
    assert line.startswith("the record in MLflow: a worker was ended by SIGKILL")
    assert line.endswith(f", twice; {CONTINUE}")
    assert "\n" not in line
    assert len(lines(tmp_path / "written")) == 2


# a database that cannot be used


class Database:
    """Fails so many times with an error of the database, as SQLAlchemy and MLflow pass it on."""

    def __init__(self, words: str, times: int) -> None:
        self.words, self.left = words, times

    def write(self) -> None:
        if self.left:
            self.left -= 1
            try:
                raise sqlite3.OperationalError(self.words)
            except sqlite3.Error as error:
                raise RuntimeError("a page of SQL") from error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only waiting moves."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_a_locked_record_is_waited_for(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    database = Database("database is locked", 60)
    writer.with_patience(database.write)
    assert database.left == 0
    assert clock == [60]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "fedcore: waiting up to 120 s for the record in MLflow: database is locked"


@pytest.mark.filterwarnings("ignore")  # MLflow's own
@pytest.mark.slow
def test_mlflow_prints_no_error_of_a_locked_record(monkeypatch: pytest.MonkeyPatch, logged: Any) -> None:
    """Else a locked record is two pages of traceback before the one line, and again at each try."""
    from mlflow.store.db import utils
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import sessionmaker

    from fedcore.pipeline.record import runs

    monkeypatch.setattr(runs, "Record", object)
    monkeypatch.setattr(writer.environment, "prepare", lambda: None)
    monkeypatch.setattr(logging.getLogger("mlflow"), "propagate", True)  # so that what it logs is seen here
    monkeypatch.setattr(logging.getLogger(utils.__name__), "level", logging.WARNING)
    writer.record.cache_clear()
    writer.record()
    writer.record.cache_clear()
    session = utils._get_managed_session_maker(sessionmaker(create_engine("sqlite://")), "sqlite")
    with pytest.raises(Exception, match="no such table") as failed, session() as opened:
        opened.execute(text("select * from runs"))
    assert writer.database_fault(failed.value) == "no such table: runs"
    assert logged.text == ""


def test_a_record_that_stays_locked_is_one_line(clock: list[float]) -> None:
    with pytest.raises(Failed) as failed:
        writer.with_patience(Database("database is locked", 1000).write)
    assert str(failed.value) == f"the record in MLflow: database is locked; {CONTINUE}"
    assert clock[0] <= writer.PATIENCE + 2


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("file is not a database", writer.ASIDE),
        ("database disk image is malformed", writer.ASIDE),
        ("database or disk is full", CONTINUE),
        ("unable to open database file", writer.ASIDE),
    ],
)
def test_a_record_that_cannot_be_used_is_one_line(clock: list[float], words: str, advice: str) -> None:
    with pytest.raises(Failed) as failed:
        writer.with_patience(Database(words, 1).write)
    assert str(failed.value) == f"the record in MLflow: {words}; {advice}"
    assert clock == [0]


def test_another_error_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match=FULL):
        writer.with_patience(refused)
