"""MLflow's database as a file: created whole, checked before use, and moved with its project.

`relocate` writes to MLflow's tables: there is no public way to change where a run's artifacts are.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from fedcore.pipeline.command import Failed

EXPERIMENT = "fedcore"


def open_database(uri: str) -> None:
    """Create MLflow's database if it is a file that does not exist, atomically: cut short, it could not be opened.

    Raises sqlite3.DatabaseError for a damaged file, which MLflow would try again for minutes; Failed for a folder.
    """
    path = database_file(uri)
    if path is None:
        return
    if path.is_dir():
        raise Failed(f"{path}: is a folder, where MLflow's database must be a file; move it away")
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        from mlflow import MlflowClient  # takes seconds, which a command that only moves addresses does without

        MlflowClient(f"sqlite:///{part}")
        part.replace(path)
    with closing(sqlite3.connect(path)) as database:
        ((verdict, *_),) = database.execute("pragma quick_check(1)")
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed ({verdict.splitlines()[-1]})")


def database_file(uri: str) -> Path | None:
    """Return the file of a database; None if it is no file."""
    kind, _, path = uri.partition("sqlite:///")
    return None if kind or not path else Path(path)


PLACES = ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location")
"""Where MLflow's database holds places of artifacts: tables and columns."""


def relocate(uri: str, artifacts: Path) -> None:
    """Make a database's places of artifacts in the project relative to its folder, so that a copy names its own.

    MLflow stores absolute ones, of which it reads relative ones from the current folder. Registered versions are read
    from elsewhere, and deleted by nobody: theirs are absolute, and move with the project. Places elsewhere stay.
    """
    path = database_file(uri)
    if path is None or not path.is_file():
        return
    name, here = artifacts.name, artifacts.as_uri()
    with closing(sqlite3.connect(path)) as database, database:
        places = dict(database.execute("select name, artifact_location from experiments"))
        own = places.get(EXPERIMENT, "")
        if own != name and not (own.startswith("file:") and own.endswith(f"/{name}")):
            return
        for old in {own, here, str(artifacts)} - {name}:
            if any(f"{place}/".startswith(f"{old}/") for place in places.values()):
                for table, column in (*PLACES, ("model_versions", "source")):
                    change = f"update {table} set {column} = ? || substr({column}, ?)"
                    database.execute(f"{change} where instr({column} || '/', ?) = 1", [name, len(old) + 1, f"{old}/"])
        query = (
            "select version.rowid, storage_location, ifnull(artifact_location, source) from model_versions version "
            "left join logged_models on source = 'models:/' || model_id"
        )
        for row, stored, place in database.execute(query).fetchall():
            if place.startswith(f"{name}/") and stored != (there := f"{here}{place.removeprefix(name)}"):
                database.execute("update model_versions set storage_location = ? where rowid = ?", [there, row])
