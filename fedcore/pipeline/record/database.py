"""MLflow's database as a file: created whole, checked before use, and moved with its project.

MLflow makes a database by dozens of migrations, which takes two seconds of a processor. Their result is kept in the
user's cache folder ($XDG_CACHE_HOME or ~/.cache), by MLflow's version, and a new project's database is a copy of it.
`relocate` writes to MLflow's tables: there is no public way to change where a run's artifacts are.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import mlflow
from mlflow import MlflowClient

from fedcore.pipeline.command import Failed
from fedcore.pipeline.state import write_atomic

EXPERIMENT = "fedcore"

MIGRATIONS = Path("store") / "db_migrations" / "versions"
"""The folder of MLflow's migrations, in its package."""


def create_database(uri: str) -> None:
    """Create MLflow's database atomically, if it is a file that does not exist.

    A database whose migrations were interrupted cannot be opened again. MLflow adds its default experiment to a copy
    of the empty one, as it holds a place in the project.
    """
    path = database_file(uri)
    if path is None or path.exists():
        return
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    ready = ready_file()
    copied = is_usable(ready)
    if copied:
        part.write_bytes(ready.read_bytes())
    MlflowClient(f"sqlite:///{part}")
    if not copied:
        with suppress(OSError, sqlite3.Error, Failed):  # the next project's is made by migrations, too
            _keep(part, ready)
    part.replace(path)


def ready_file() -> Path:
    """Return the place of the empty database of the installed MLflow."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "fedcore" / f"mlflow-{mlflow.__version__}.db"


def is_usable(ready: Path) -> bool:
    """Tell whether a file is a whole, empty database at a revision among the installed MLflow's migrations."""
    try:
        with closing(sqlite3.connect(f"{ready.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as opened:
            ((check,),) = opened.execute("pragma quick_check(1)")
            ((revision,),) = opened.execute("select version_num from alembic_version")
            ((count,),) = opened.execute("select (select count(*) from experiments) + (select count(*) from runs)")
    except (OSError, sqlite3.Error, ValueError):
        return False
    migrations = (Path(mlflow.__file__).parent / MIGRATIONS).glob(f"{revision}_*.py")
    return check == "ok" and count == 0 and any(migrations)


def _keep(created: Path, ready: Path) -> None:
    """Keep a new database for later projects, without the default experiment."""
    with closing(sqlite3.connect(created)) as source, closing(sqlite3.connect(":memory:")) as empty:
        source.backup(empty)
        empty.execute("delete from experiments")
        empty.commit()
        empty.execute("vacuum")
        content = empty.serialize()
    ready.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(ready, content)


def check_database(uri: str) -> None:
    """Raise sqlite3.DatabaseError if MLflow's database is a damaged file; MLflow would try it again for minutes."""
    path = database_file(uri)
    if path is not None:
        with closing(sqlite3.connect(path)) as database:
            ((verdict, *_),) = database.execute("pragma quick_check(1)")
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed ({verdict.splitlines()[-1]})")


def database_file(uri: str) -> Path | None:
    """Return the file of a database; None if it is no file."""
    kind, _, path = uri.partition("sqlite:///")
    return None if kind or not path else Path(path)


PLACES = {
    "experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location",
    "model_versions": "storage_location",
}  # fmt: skip
"""Where MLflow's database holds places of artifacts: table -> column."""


def relocate(uri: str, artifacts: Path) -> None:
    """Point a database to the artifacts beside it, after the project's folder was moved or copied.

    MLflow stores absolute places. Those in the project are in a folder of `artifacts`' name; others stay.
    """
    path = database_file(uri)
    if path is None or not path.is_file():
        return
    with closing(sqlite3.connect(path)) as database, database:
        query = "select artifact_location from experiments where name = ?"
        row = database.execute(query, [EXPERIMENT]).fetchone()
        if row is None or row[0] == artifacts.as_uri() or not row[0].endswith(f"/{artifacts.name}"):
            return
        old, new = row[0], artifacts.as_uri()
        for table, column in PLACES.items():
            change = f"update {table} set {column} = ? || substr({column}, ?) where {column} = ? or {column} like ?"
            database.execute(change, [new, len(old) + 1, old, f"{old}/%"])
