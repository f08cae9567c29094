from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import mlflow

    folder = tmp_path_factory.mktemp("record")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    made = mlflow.MlflowClient()
    made.create_experiment("fedcore", artifact_location=(folder / "runs").as_uri())
    yield made
    mlflow.set_tracking_uri(before)
