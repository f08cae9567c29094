"""Prefect's database of a new project: a copy of the empty one that Prefect made for the user's first project.

Prefect makes a database by more than a hundred migrations, which takes 3 s of a processor while a first run waits.
Their result is kept in the user's cache folder ($XDG_CACHE_HOME or ~/.cache), by Prefect's version.
"""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from fedcore.pipeline.command import Failed
from fedcore.pipeline.state import write_atomic


def create(database: Path) -> None:
    """Create a project's database, unless there is one, or Prefect uses another.

    Whatever goes wrong is noted on stderr, the server's log: Prefect then makes the database itself or goes on with it.
    """
    try:
        if any(database.parent.glob(f"{database.name}*")) or not _is_used(database):
            return
        if is_usable(ready := ready_file()):
            write_atomic(database, ready.read_bytes())
            return
        asyncio.run(_play_migrations())
        database.chmod(0o600)
        ready.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(sqlite3.connect(database)) as connection:
            write_atomic(ready, connection.serialize())
    except (ImportError, AttributeError, OSError, RuntimeError, sqlite3.Error, Failed) as error:
        sys.stderr.write(f"fedcore: a new project's database is left to Prefect ({error})\n")


def ready_file() -> Path:
    """Return the place of the empty database of the installed Prefect."""
    import prefect

    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "fedcore" / f"prefect-{prefect.__version__}.db"


def is_usable(ready: Path) -> bool:
    """Tell whether a file is a whole database at a revision that the installed Prefect has among its migrations."""
    from prefect.server.database import provide_database_interface

    try:
        with closing(sqlite3.connect(f"file:{ready}?mode=ro&immutable=1", uri=True)) as opened:
            ((check,),) = opened.execute("pragma quick_check(1)")
            ((revision,),) = opened.execute("select version_num from alembic_version")
            ((flows,),) = opened.execute("select count(*) from flow_run")
    except (sqlite3.Error, ValueError):
        return False
    migrations = provide_database_interface().orm.versions_dir.glob(f"*_{revision}_*.py")
    return check == "ok" and flows == 0 and any(migrations)


def _is_used(database: Path) -> bool:
    from prefect.server.database import provide_database_interface

    url: str = provide_database_interface().database_config.connection_url
    return url == f"sqlite+aiosqlite:///{database}"


async def _play_migrations() -> None:
    from prefect.server.database import provide_database_interface

    prefect = provide_database_interface()
    await prefect.create_db()
    await (await prefect.engine()).dispose()
