"""MLflow's database as a file: created whole, checked before use, and moved with its project.

`relocate` writes to MLflow's tables: there is no public way to change where a run's artifacts are.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

EXPERIMENT = "fedcore"


def create_database(uri: str) -> None:
    """Create MLflow's database atomically, if it is a file that does not exist.

    A database whose migrations were interrupted cannot be opened again.
    """
    path = database_file(uri)
    if path is not None and not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        from mlflow import MlflowClient  # takes seconds, which a command that only moves addresses does without

        MlflowClient(f"sqlite:///{part}")
        part.replace(path)


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
