"""Prefect's and MLflow's databases on a PostgreSQL server, where the environment names one.

FEDCORE_TEST_POSTGRES: postgresql://USER:PASSWORD@HOST:PORT, of a user who may create databases.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from project import Project, digests

SERVER = os.environ.get("FEDCORE_TEST_POSTGRES", "")
WORDS = ("methods=[local_only,code_ot]", "federation.devices=2", "training.epochs=1")
EXACT = ("table.parquet", "models.json")


async def ask(database: str, *questions: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(f"{SERVER}/{database}")
    try:
        return [await connection.fetchval(question) for question in questions]
    finally:
        await connection.close()


@pytest.fixture
def databases() -> Iterator[tuple[str, str]]:
    """Two empty databases, which are dropped at the end."""
    prefect, mlflow = (f"fedcore_{kind}_{uuid4().hex[:8]}" for kind in ("prefect", "mlflow"))
    for name in (prefect, mlflow):
        asyncio.run(ask("postgres", f"create database {name}"))
    yield prefect, mlflow
    for name in (prefect, mlflow):
        asyncio.run(ask("postgres", f"drop database {name} with (force)"))


@pytest.mark.slow
@pytest.mark.skipif(not SERVER, reason="FEDCORE_TEST_POSTGRES names no PostgreSQL server")
def test_the_services_databases_may_be_on_postgresql(databases: tuple[str, str], tmp_path: Path):
    pytest.importorskip("psycopg2", reason="MLflow needs psycopg2")
    prefect, mlflow = databases
    there, here = (Project.copy(tmp_path / name) for name in ("there", "here"))
    urls = {
        "PREFECT_API_DATABASE_CONNECTION_URL": f"{SERVER}/{prefect}".replace("postgresql:", "postgresql+asyncpg:"),
        "MLFLOW_TRACKING_URI": f"{SERVER}/{mlflow}",
        "PYTHONPATH": os.pathsep.join([str(there.folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    try:
        there.run("python", "-m", "fedcore.pipeline.orchestration.server", "start", **urls)
        there.federate(*WORDS, **urls)
        there.federate(*WORDS, **urls)
        here.federate(*WORDS)
    finally:
        for project in (there, here):
            project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop")
            project.stop()
    found = [
        {path: digest for path, digest in digests(one.folder / "runs").items() if path.endswith(EXACT)}
        for one in (there, here)
    ]
    assert found[0] == found[1] != {}
    assert not (there.folder / "mlflow.db").exists()
    assert not (there.folder / ".fedcore" / "prefect" / "prefect.db").exists()
    computed = [step for step in there.journal() if not step["cached"]]
    flows, steps = asyncio.run(ask(prefect, "select count(*) from flow_run", "select count(*) from task_run"))
    assert flows == 2
    assert 0 < len(computed) < steps <= len(there.journal())
    assert asyncio.run(ask(mlflow, "select count(*) from runs")) == [3]  # two methods, and the study
