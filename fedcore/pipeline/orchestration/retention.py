"""What Prefect's own database says of the next flow run, and how long it keeps what it knows of ended ones.

A server of this project deletes what is older than it should keep by itself, every hour (`environment.DEFAULTS`); the
file does not shrink by that, but uses its pages again. `prune` deletes by any age, and gives the pages back.
"""

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from filelock import FileLock

from fedcore.pipeline import environment
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import server

ENDED = "state_type in ('COMPLETED', 'FAILED', 'CRASHED', 'CANCELLED') and coalesce(end_time, updated) < :since"
OLD = f"select id from flow_run where {ENDED}"
DELETE = (
    f"delete from log where flow_run_id in ({OLD}) or (flow_run_id is null and timestamp < :since)",
    f"delete from artifact where flow_run_id in ({OLD})",
    "delete from artifact_collection where latest_id not in (select id from artifact)",
    f"delete from task_run where flow_run_id is null and {ENDED}",
    f"delete from flow_run where {ENDED}",  # and by its foreign keys their states, steps, and the states of these
    "delete from event_resources where occurred < :since",
    "delete from events where occurred < :since",
)
"""Of Prefect's tables. A run that has not ended stays with all that is of it."""


STAMP = "%Y-%m-%d %H:%M:%S.%f"
"""Of a moment in Prefect's database, in UTC."""


def next_run(database: Path) -> datetime | None:
    """Return when the next flow run is scheduled for; None if there is none, or no database that can be read."""
    asked = "select min(expected_start_time) from flow_run where state_type = 'SCHEDULED' and expected_start_time > ?"
    with (
        suppress(sqlite3.Error, ValueError),
        closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as opened,
    ):
        (start,) = opened.execute(asked, [datetime.now(UTC).strftime(STAMP)]).fetchone()
        return None if start is None else datetime.strptime(start, STAMP).replace(tzinfo=UTC)
    return None


@dataclass(frozen=True)
class Freed:
    """The numbers of deleted flow runs and events, and by how many bytes the database shrank."""

    runs: int
    events: int
    nbytes: int


def prune(days: float, dry_run: bool = False) -> Freed | None:
    """Delete what this project's own database knows of runs that ended more than this many days ago.

    Returns None while a server of this project runs, as it has the database open, and where there is no database. A
    server that is started meanwhile waits. No other server's database is touched, whatever PREFECT_API_URL names.
    """
    database = environment.PREFECT / "prefect.db"
    if not database.is_file():
        return None
    with FileLock(server.LOCK):
        return None if server.alive() else prune_database(database, days, dry_run)


def prune_database(database: Path, days: float, dry_run: bool = False) -> Freed:
    """Delete what a database that nobody has open knows of old runs. Raises Failed if it cannot be used."""
    since = {"since": (datetime.now(UTC) - timedelta(days=min(days, 36500))).strftime(STAMP)}
    before = size(database)
    try:
        with closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as opened:
            opened.execute("pragma foreign_keys = on")
            opened.execute("begin immediate")
            (runs,) = opened.execute(f"select count(*) from ({OLD})", since).fetchone()
            (events,) = opened.execute("select count(*) from events where occurred < :since", since).fetchone()
            for statement in () if dry_run else DELETE:
                opened.execute(statement, since)
            opened.execute("commit")
            if not dry_run and opened.execute("pragma freelist_count").fetchone()[0]:
                opened.execute("vacuum")
                opened.execute("pragma wal_checkpoint(truncate)")
    except sqlite3.Error as error:
        raise Failed(f"{database}: Prefect's database cannot be pruned: {error}") from None
    return Freed(runs, events, 0 if dry_run else before - size(database))


def size(database: Path) -> int:
    """Return the bytes of a database with its log of changes."""
    files = (database, database.with_name(f"{database.name}-wal"))
    return sum(file.stat().st_size for file in files if file.is_file())
