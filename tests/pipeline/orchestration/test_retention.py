"""What Prefect's database keeps: old runs go with all that is of them, others stay whole."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedcore.pipeline import environment
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import retention, server

environment.prepare()  # Prefect reads its settings when it is imported

from prefect.server.database.orm_models import Base
from sqlalchemy import create_engine
from sqlalchemy.schema import CreateTable


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect's own tables, made by its models."""
    path = tmp_path_factory.mktemp("prefect") / "prefect.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as opened:
        for table in Base.metadata.sorted_tables:
            opened.execute(CreateTable(table))
    engine.dispose()
    return path


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> Path:
    """Runs that ended 40, 20 and 0 days ago, and one that began 40 days ago and still runs."""
    path = tmp_path / "prefect.db"
    path.write_bytes(empty.read_bytes())
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute("insert into flow (id, name) values ('f', 'federate')")
        for run, days, state in (
            ("old", 40, "COMPLETED"),
            ("recent", 20, "FAILED"),
            ("new", 0, "COMPLETED"),
            ("on", 40, "RUNNING"),
        ):
            then = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
            end = None if state == "RUNNING" else then
            for statement, values in (
                ("flow_run (id, flow_id, name, state_type, end_time)", (run, "f", run, state, end)),
                ("flow_run_state (id, flow_run_id, type, name)", (f"{run}-s", run, state, state)),
                ("task_run (id, flow_run_id, name, task_key, dynamic_key)", (f"{run}-t", run, "t", "k", run)),
                ("task_run_state (id, task_run_id, type, name)", (f"{run}-ts", f"{run}-t", state, state)),
                ("log (id, flow_run_id, name, level, message, timestamp)", (run, run, "l", 20, "x" * 9000, then)),
                ("artifact (id, flow_run_id, key)", (run, run, "answer-" + run)),
                ("artifact_collection (id, key, latest_id)", (run, "answer-" + run, run)),
                (
                    "events (id, occurred, event, resource_id, resource, payload, received, recorded)",
                    (run, then, "e", "r", "{}", '"' + "x" * 90000 + '"', then, then),
                ),
                (
                    "event_resources (id, occurred, resource_id, resource_role, resource, event_id)",
                    (run, then, "r", "", "{}", run),
                ),
            ):
                opened.execute(f"insert into {statement} values ({', '.join('?' * len(values))})", values)
    return path


OF_A_RUN = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "artifact_collection")


def left(path: Path) -> dict[str, set[str]]:
    """Table -> the runs of which it knows."""
    with closing(sqlite3.connect(path)) as opened:
        return {
            table: {one.split("-")[0] for (one,) in opened.execute(f"select id from {table}")}
            for table in (*OF_A_RUN, "events", "event_resources")
        }


def test_an_old_run_goes_with_all_that_is_of_it(database: Path):
    before = database.stat().st_size
    freed = retention.prune_database(database, 30)
    assert (freed.runs, freed.events) == (1, 2)
    assert freed.nbytes == before - database.stat().st_size > 90000
    kept = left(database)
    assert all(kept[table] == {"recent", "new", "on"} for table in OF_A_RUN)
    assert kept["events"] == kept["event_resources"] == {"recent", "new"}
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("pragma foreign_key_check").fetchall() == []
    assert retention.prune_database(database, 30) == retention.Freed(0, 0, 0)


def test_a_dry_run_deletes_nothing(database: Path):
    before = left(database)
    assert retention.prune_database(database, 10, dry_run=True) == retention.Freed(2, 3, 0)
    assert left(database) == before
    assert retention.prune_database(database, 1e300) == retention.Freed(0, 0, 0)


def test_a_database_in_use_or_damaged_is_left_alone(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "PREFECT", tmp_path)
    monkeypatch.setattr(server, "LOCK", tmp_path / "server.lock")
    monkeypatch.setattr(server, "alive", lambda: True)
    before = left(database)
    assert retention.prune(0) is None
    assert left(database) == before
    monkeypatch.setattr(server, "alive", lambda: False)
    database.write_bytes(b"no database" * 100)
    with pytest.raises(Failed, match="cannot be pruned: file is not a database"):
        retention.prune(0)
    database.unlink()
    assert retention.prune(0) is None


def test_the_next_run_is_the_first_that_is_still_to_come(database: Path, tmp_path: Path):
    now = datetime.now(UTC)
    assert retention.next_run(database) is None
    with closing(sqlite3.connect(database)) as opened, opened:
        for hours, state in ((-1, "SCHEDULED"), (1, "RUNNING"), (30, "SCHEDULED"), (6, "SCHEDULED")):
            then = (now + timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S.%f")
            opened.execute(
                "insert into flow_run (id, flow_id, name, state_type, expected_start_time) values (?, 'f', 'n', ?, ?)",
                (f"at-{hours}", state, then),
            )
    assert retention.next_run(database) == now + timedelta(hours=6)
    database.write_bytes(b"no database" * 100)
    assert retention.next_run(database) is retention.next_run(tmp_path / "none") is None
