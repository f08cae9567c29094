"""Prefect's database of a new project, from a file with the schema that Prefect's own migrations make.

Prefect makes a database by more than a hundred migrations, which takes 3 s of a processor while a first run waits.
`database.sql` is their result, with its revision. A Prefect that has this revision among its migrations takes such a
database for one of an earlier start, and upgrades it if it is newer itself. Any other Prefect finds no database, and
makes its own.

    python -m fedcore.pipeline.orchestration.database OUT       write the file anew, by the installed Prefect
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fedcore.pipeline.command import Failed
from fedcore.pipeline.state import write_atomic

SCHEMA = Path(__file__).with_suffix(".sql")
HEADER = """\
-- The database that the migrations of Prefect {version} make (https://github.com/PrefectHQ/prefect, Apache-2.0),
-- written by python -m fedcore.pipeline.orchestration.database
"""
REVISION = re.compile(r"""INSERT INTO "alembic_version" VALUES\('(\w+)'\);""")


def create(database: Path) -> None:
    """Create a project's database, unless there is one, or Prefect uses another or does not know its revision.

    Whatever goes wrong is noted on stderr, the server's log: Prefect then makes the database itself.
    """
    try:
        if not any(database.parent.glob(f"{database.name}*")) and _is_known(database, schema := SCHEMA.read_text()):
            with closing(sqlite3.connect(":memory:")) as made:
                made.executescript(schema)
                write_atomic(database, made.serialize())
    except (ImportError, AttributeError, OSError, sqlite3.Error, Failed) as error:
        sys.stderr.write(f"fedcore: Prefect makes its database itself ({error})\n")


def _is_known(database: Path, schema: str) -> bool:
    """Tell whether the installed Prefect uses this database, and has its schema's revision among its migrations."""
    from prefect.server.database import provide_database_interface

    prefect, revision = provide_database_interface(), REVISION.search(schema)
    ours = prefect.database_config.connection_url == f"sqlite+aiosqlite:///{database}"
    return ours and revision is not None and any(prefect.orm.versions_dir.glob(f"*_{revision[1]}_*.py"))


def dump(database: Path) -> str:
    """Return the statements that make a database."""
    with closing(sqlite3.connect(database)) as opened:
        return "\n".join(opened.iterdump()) + "\n"


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        import prefect
        from prefect.server.database import provide_database_interface

        asyncio.run(provide_database_interface().create_db())
        out.write_text(HEADER.format(version=prefect.__version__) + dump(Path(home, "prefect.db")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
