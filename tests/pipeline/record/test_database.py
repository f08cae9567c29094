"""MLflow's database: whole or not at all, noticed when damaged, and moved with its project."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedcore.pipeline.command import Failed
from fedcore.pipeline.record import database as sqlite_file


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def test_a_database_whose_making_is_cut_short_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut_short(uri: str) -> Any:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("mlflow.MlflowClient", cut_short)
    with pytest.raises(KeyboardInterrupt):
        sqlite_file.open_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert [file.name for file in tmp_path.iterdir()] == ["record.db.part"]


@pytest.mark.slow
def test_an_incomplete_database_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "record.db.part").write_bytes(b"half")
    sqlite_file.open_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert tables(tmp_path / "record.db") >= {"runs", "metrics", "model_versions", "logged_models"}
    assert [file.name for file in tmp_path.iterdir()] == ["record.db"]


def test_a_damaged_database_is_noticed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table runs (name text)")
        database.executemany("insert into runs values (?)", [("x" * 100,)] * 1000)
    sqlite_file.open_database(f"sqlite:///{path}")
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"text" * 1000, whole[:5000] + b"\0" * (len(whole) - 5000)):
        path.write_bytes(content)
        with pytest.raises(sqlite3.DatabaseError):
            sqlite_file.open_database(f"sqlite:///{path}")
        assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    with pytest.raises(Failed, match="is a folder"):
        sqlite_file.open_database(f"sqlite:///{path}")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "postgresql://record"])
def test_a_server_that_the_user_names_is_not_touched(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow.MlflowClient", lambda uri: pytest.fail(f"{uri} was opened"))
    sqlite_file.open_database(uri)
