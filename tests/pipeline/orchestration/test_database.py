"""A new project's database of Prefect is the one that Prefect's migrations make, or is left to Prefect."""

from __future__ import annotations

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


@pytest.mark.slow
def test_the_ready_database_is_the_migrated_one(tmp_path: Path):
    """If this fails with another version of Prefect: `python -m fedcore.pipeline.orchestration.database OUT`."""
    ready, migrated = tmp_path / "ready.db", tmp_path / "migrated.db"
    with used_by_prefect(ready):
        database.create(ready)
    assert ready.stat().st_mode & 0o777 == 0o600
    before = content(ready)
    upgrade(ready)
    upgrade(migrated)
    assert before == content(ready) == content(migrated)


def test_a_database_that_is_there_or_half_there_is_left_alone(tmp_path: Path):
    """A log of changes without its database would be played into the new one."""
    for name in ("prefect.db", "prefect.db-wal"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"as it was")
        with used_by_prefect(folder / "prefect.db"):
            database.create(folder / "prefect.db")
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(name, b"as it was")]


def test_a_database_elsewhere_is_not_made(tmp_path: Path):
    with used_by_prefect(tmp_path / "other.db"):
        database.create(tmp_path / "prefect.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "No such file"),
        ("INSERT INTO \"alembic_version\" VALUES('000000000000');", ""),
        ("CREATE TABLE flow (id CHAR(36));", ""),
        ("INSERT INTO \"alembic_version\" VALUES('a3b9c7d2e5f1');", "no such table"),
    ],
)
def test_prefect_makes_its_own_where_the_schema_is_not_right(
    schema: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Without the file, with a revision that this Prefect does not know, without one, with statements that fail."""
    monkeypatch.setattr(database, "SCHEMA", tmp_path / "schema.sql")
    if schema is not None:
        (tmp_path / "schema.sql").write_text(schema)
    path = tmp_path / "prefect.db"
    with used_by_prefect(path):
        database.create(path)
    assert not path.exists()
    assert said in capsys.readouterr().err
