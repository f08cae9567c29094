"""What Prefect's own database says of the next flow run; its server deletes old ones (`environment.DEFAULTS`)."""

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

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
