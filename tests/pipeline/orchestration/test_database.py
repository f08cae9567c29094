"""A new project's database of Prefect is the one that Prefect's migrations make, or is left to Prefect."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedcore.pipeline import environment
from fedcore.pipeline.orchestration import database

environment.prepare()  # Prefect reads its settings when it is imported

from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import temporary_database_config


@contextmanager
def used_by_prefect(path: Path) -> Iterator[None]:
    with temporary_database_config(AioSqliteConfiguration(f"sqlite+aiosqlite:///{path}")):
        yield


def upgrade(path: Path) -> None:
    """Let Prefect make a database, or bring it to its newest revision."""

    async def play() -> None:
        prefect = provide_database_interface()
        await prefect.create_db()
        await (await prefect.engine()).dispose()

    with used_by_prefect(path):
        asyncio.run(play())


def content(path: Path) -> tuple[dict[tuple[str, str], list[str]], dict[str, list[object]]]:
    """Return the definition of each table and index, line by line, and the rows of each table.

    The order of a table's constraints differs from one migration to the next.
    """
    with closing(sqlite3.connect(path)) as opened:
        made = opened.execute("select type, name, coalesce(sql, '') from sqlite_master").fetchall()
        rows = {name: opened.execute(f'select * from "{name}"').fetchall() for kind, name, _ in made if kind == "table"}
    return {(kind, name): sorted(line.strip(", ") for line in sql.splitlines()) for kind, name, sql in made}, rows


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.mark.slow
def test_a_second_project_has_a_copy_of_the_migrated_database(tmp_path: Path):
    first, second, migrated = (tmp_path / f"{name}.db" for name in ("first", "second", "migrated"))
    for path in (first, second):
        with used_by_prefect(path):
            database.create(path)
        assert path.stat().st_mode & 0o777 == 0o600
    assert second.read_bytes() == database.ready_file().read_bytes()
    before = content(second)
    upgrade(second)
    upgrade(migrated)
    assert content(first) == before == content(second) == content(migrated)


def test_a_database_that_is_there_or_half_there_is_left_alone(tmp_path: Path):
    """A log of changes without its database would be played into the new one."""
    for name in ("prefect.db", "prefect.db-wal"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"as it was")
        with used_by_prefect(folder / "prefect.db"):
            database.create(folder / "prefect.db")
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(name, b"as it was")]


@pytest.mark.slow
def test_a_database_elsewhere_is_not_made(tmp_path: Path):
    with used_by_prefect(tmp_path / "other.db"):
        database.create(tmp_path / "prefect.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "statements",
    [
        None,
        "",
        "create table flow_run (id); create table alembic_version (version_num);",
        "create table flow_run (id); create table alembic_version (version_num);"
        "insert into alembic_version values ('000000000000');",
        "create table alembic_version (version_num); insert into alembic_version values ('{revision}');",
        "create table flow_run (id); insert into flow_run values (1);"
        "create table alembic_version (version_num); insert into alembic_version values ('{revision}');",
    ],
    ids=["no file", "empty", "no revision", "an unknown revision", "no tables", "runs of somebody"],
)
def test_a_database_that_is_not_right_is_not_copied(statements: str | None, tmp_path: Path):
    path = tmp_path / "ready.db"
    if statements is not None:
        with closing(sqlite3.connect(path)) as made:
            made.executescript(statements.format(revision=newest_revision()))
    assert not database.is_usable(path)


def test_a_damaged_database_is_not_copied(tmp_path: Path):
    path = tmp_path / "ready.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript(
            "create table flow_run (id); create table alembic_version (version_num);"
            f"insert into alembic_version values ('{newest_revision()}');"
        )
    assert database.is_usable(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert not database.is_usable(path)


def newest_revision() -> str:
    versions = provide_database_interface().orm.versions_dir
    return max(path.name for path in versions.glob("*_*.py")).split("_")[4]


def test_without_a_cache_folder_the_project_has_its_database(
    tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "prefect.db"

    async def play() -> None:
        path.write_bytes(b"as Prefect makes it")

    monkeypatch.setattr(database, "_play_migrations", play)
    with used_by_prefect(path):
        database.create(path)
    assert path.read_bytes() == b"as Prefect makes it"
    assert "left to Prefect" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "not a folder"
