import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcore.pipeline import environment


@pytest.fixture(scope="package", autouse=True)
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An address of MLflow's, unless there is one: asked for it, MLflow would look for the clone's ./mlruns."""
    with pytest.MonkeyPatch.context() as patched:
        if "MLFLOW_TRACKING_URI" not in os.environ:
            patched.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('none') / 'mlflow.db'}")
        yield


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without runs, to copy: a second of processor time each, all of them migrations."""
    import mlflow

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}")
    return path


@pytest.fixture
def database(absent: Path, empty: Path) -> Path:
    """MLflow's database during a test, without runs."""
    shutil.copyfile(empty, absent)
    return absent


@pytest.fixture
def absent(tmp_path: Path) -> Iterator[Path]:
    """The place of MLflow's database during a test; none is there yet."""
    import mlflow

    before, path = mlflow.get_tracking_uri(), tmp_path / "record.db"
    mlflow.set_tracking_uri(f"sqlite:///{path}")
    yield path
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, empty: Path) -> Iterator[Any]:
    import mlflow

    folder = tmp_path_factory.mktemp("record")
    shutil.copyfile(empty, folder / "mlflow.db")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    made = mlflow.MlflowClient()
    made.create_experiment("fedcore", artifact_location=(folder / "runs").as_uri())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment, "ARTIFACTS", folder / "runs")
        patched.setattr(environment, "REGISTERED", folder / "registered")
        yield made
    mlflow.set_tracking_uri(before)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what MLflow adds to the path when it loads a model: a part of fedcore, which workers would import."""
    monkeypatch.setattr(sys, "path", [*sys.path])
