"""MLflow's database: whole or not at all, noticed when damaged, and moved with its project."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import pytest

from fedcore.pipeline.record import database as sqlite_file


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def test_a_database_whose_making_is_cut_short_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut_short(uri: str) -> Any:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(sqlite_file, "MlflowClient", cut_short)
    with pytest.raises(KeyboardInterrupt):
        sqlite_file.create_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert [file.name for file in tmp_path.iterdir()] == ["record.db.part"]


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def content(path: Path) -> tuple[set[tuple[str, str, str]], dict[str, list[Any]]]:
    """Return the definition of each table and index, and the rows of each table but for dates."""
    with closing(sqlite3.connect(path)) as opened:
        made = opened.execute("select type, name, coalesce(sql, '') from sqlite_master").fetchall()
        rows = {name: opened.execute(f'select * from "{name}"').fetchall() for kind, name, _ in made if kind == "table"}
    rows["experiments"] = [
        [cell for cell in row if not isinstance(cell, int) or cell == 0] for row in rows["experiments"]
    ]
    return {*made}, rows


@pytest.mark.slow
def test_a_second_project_has_a_copy_of_the_migrated_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    sqlite_file.create_database(f"sqlite:///{first}")
    assert sqlite_file.is_usable(sqlite_file.ready_file())
    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", lambda engine: pytest.fail("migrations"))
    sqlite_file.create_database(f"sqlite:///{second}")
    assert content(first) == content(second)
    assert content(second)[1]["experiments"]


@pytest.mark.slow
def test_a_full_or_missing_cache_folder_costs_the_copy_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    sqlite_file.create_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert "runs" in tables(tmp_path / "record.db")
    assert (tmp_path / "file").read_text() == "not a folder"


TABLES = "create table experiments (id); create table runs (id); create table alembic_version (version_num);"


def newest_revision() -> str:
    folder = Path(mlflow.__file__).parent / sqlite_file.MIGRATIONS
    return next(folder.glob("*_*.py")).name.partition("_")[0]


@pytest.mark.parametrize(
    "statements",
    [
        None, "", TABLES, f"{TABLES} insert into alembic_version values ('000000000000');",
        "create table alembic_version (version_num); insert into alembic_version values ('{revision}');",
        f"{TABLES} insert into alembic_version values ('{{revision}}'); insert into runs values (1);",
        f"{TABLES} insert into alembic_version values ('{{revision}}'); insert into experiments values (1);",
    ],
    ids=["no file", "empty", "no revision", "an unknown revision", "no tables", "somebody's runs", "an experiment"],
)  # fmt: skip
def test_a_database_that_is_not_right_is_not_copied(statements: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ready.db"
    if statements is not None:
        with closing(sqlite3.connect(path)) as made:
            made.executescript(statements.format(revision=newest_revision()))
    assert not sqlite_file.is_usable(path)


def test_a_damaged_database_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "ready.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript(f"{TABLES} insert into alembic_version values ('{newest_revision()}');")
    assert sqlite_file.is_usable(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert not sqlite_file.is_usable(path)


@pytest.mark.slow
def test_an_incomplete_database_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "record.db.part").write_bytes(b"half")
    sqlite_file.create_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert tables(tmp_path / "record.db") >= {"runs", "metrics", "model_versions", "logged_models"}
    assert [file.name for file in tmp_path.iterdir()] == ["record.db"]


def test_an_existing_database_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    path.write_bytes(b"the user's")
    sqlite_file.create_database(f"sqlite:///{path}")
    assert path.read_bytes() == b"the user's"


def test_a_damaged_database_is_noticed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table runs (name text)")
        database.executemany("insert into runs values (?)", [("x" * 100,)] * 1000)
    sqlite_file.check_database(f"sqlite:///{path}")
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"text" * 1000, whole[:5000] + b"\0" * (len(whole) - 5000)):
        path.write_bytes(content)
        with pytest.raises(sqlite3.DatabaseError):
            sqlite_file.check_database(f"sqlite:///{path}")
    path.unlink()
    path.mkdir()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        sqlite_file.check_database(f"sqlite:///{path}")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "postgresql://record"])
def test_a_server_that_the_user_names_is_not_touched(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "MlflowClient", lambda uri: pytest.fail(f"{uri} was opened"))
    sqlite_file.create_database(uri)


def places(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [
            place
            for table, column in sqlite_file.PLACES.items()
            for (place,) in database.execute(f"select {column} from {table} order by rowid")
        ]


def test_a_copied_folder_shows_its_own_artifacts(tmp_path: Path) -> None:
    """Places in the project's folder move with it; a place elsewhere stays, and so does a record that did not move."""
    old, new = tmp_path / "old" / "mlruns", tmp_path / "new" / "mlruns"
    path = tmp_path / "record.db"
    with closing(sqlite3.connect(path)) as database, database:
        for table, column in sqlite_file.PLACES.items():
            database.execute(f"create table {table} (name text, {column} text)")
            database.executemany(
                f"insert into {table} values (?, ?)",
                [("fedcore", old.as_uri()), ("inside", f"{old.as_uri()}/1/artifacts"), ("other", "s3://store/mlruns")],
            )
    for artifacts in (old, new, new):
        sqlite_file.relocate(f"sqlite:///{path}", artifacts)
        here = [artifacts.as_uri(), f"{artifacts.as_uri()}/1/artifacts", "s3://store/mlruns"]
        assert places(path) == here * len(sqlite_file.PLACES)
