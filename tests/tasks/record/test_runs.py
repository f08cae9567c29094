"""What is made before there is a run: MLflow's database, whole or not at all, and a model exported to nowhere."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore import nets
from fedcore.evaluate import outputs
from fedcore.nets.features import net as features_net
from fedcore.types import Model
from tasks.record import runs


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def test_a_database_whose_making_is_cut_short_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut_short(uri: str) -> Any:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "MlflowClient", cut_short)
    with pytest.raises(KeyboardInterrupt):
        runs.create_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert [file.name for file in tmp_path.iterdir()] == ["record.db.part"]


@pytest.mark.slow
def test_an_incomplete_database_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "record.db.part").write_bytes(b"half")
    runs.create_database(f"sqlite:///{tmp_path / 'record.db'}")
    assert tables(tmp_path / "record.db") >= {"runs", "metrics", "model_versions", "logged_models"}
    assert [file.name for file in tmp_path.iterdir()] == ["record.db"]


def test_an_existing_database_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    path.write_bytes(b"the user's")
    runs.create_database(f"sqlite:///{path}")
    assert path.read_bytes() == b"the user's"


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "postgresql://record"])
def test_a_server_that_the_user_names_is_not_touched(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MlflowClient", lambda uri: pytest.fail(f"{uri} was opened"))
    runs.create_database(uri)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's own
def test_warming_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("temporary", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'record.db'}")
    monkeypatch.chdir(tmp_path / "here")
    runs.warm_up()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_recorded_model_runs_on_its_own_net_where_it_has_one() -> None:
    net = features_net(4, 7, 3)
    model = Model((nets.init(net, torch.Generator().manual_seed(0)),), net=net)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    other = nets.net("mlp", shape=(4,), classes=3)
    with torch.no_grad():
        torch.testing.assert_close(runs.Deployed(other, model)(x), outputs(model, other, x))
