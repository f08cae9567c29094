"""One Prefect server for all tests of the pipeline, and what a person does with the project, done once.

Scenarios take long and often wait, so those that the collected tests ask for run three at a time from the start; a
test gets what its scenario left, or what it failed with.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "1")

import scenarios
from project import Project, wait

SCENARIOS = {
    name: getattr(scenarios, name)
    for name in ("repro", "deployed", "tables", "killed", "long", "sampled", "own", "probed")
}
"""In the order in which they are started: the longest first."""

HERE = Path(__file__).parent

LIMIT = 900
"""Seconds that a test may wait for its scenario."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _served(item):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(LIMIT))
    # Scenarios start with the first test of this folder; those that look at them come last, to wait least.
    items.sort(key=lambda item: 2 if _served(item) else 0 if HERE in item.path.parents else 1)


def _served(item: pytest.Item) -> bool:
    return "served" in _fixtures(item)


def _fixtures(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def _started(request: pytest.FixtureRequest) -> None:
    if any(name in SCENARIOS for item in request.session.items for name in _fixtures(item)):
        request.getfixturevalue("running")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, list[str]]]:
    """A project whose server serves all others, and the addresses that two who asked for it at once were told."""
    project = Project.copy(tmp_path_factory.mktemp("house"), change=scenarios.lone)
    try:
        yield project, scenarios.serve(project)
    finally:
        project.stop()
        project.run("python", "-m", "tasks.prefect.server", "stop")
    wait("the server gone", lambda: not project.processes(), 20)


@pytest.fixture(scope="session")
def house(served: tuple[Project, list[str]]) -> Project:
    return served[0]


@pytest.fixture(scope="session")
def running(
    request: pytest.FixtureRequest, house: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    asked = {name for item in request.session.items for name in _fixtures(item)}
    pool = ThreadPoolExecutor(3)
    places = {name: scenarios.Place(tmp_path_factory.mktemp(name), house) for name in SCENARIOS if name in asked}
    try:
        yield {name: pool.submit(SCENARIOS[name], place) for name, place in places.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for place in places.values():
            place.leave()
        pool.shutdown()


@pytest.fixture(scope="session")
def repro(running: dict[str, Future[Any]]) -> scenarios.Repro:
    return running["repro"].result()


@pytest.fixture(scope="session")
def deployed(running: dict[str, Future[Any]]) -> scenarios.Deployed:
    return running["deployed"].result()


@pytest.fixture(scope="session")
def killed(running: dict[str, Future[Any]]) -> scenarios.Killed:
    return running["killed"].result()


@pytest.fixture(scope="session")
def long(running: dict[str, Future[Any]]) -> scenarios.Long:
    return running["long"].result()


@pytest.fixture(scope="session")
def sampled(running: dict[str, Future[Any]]) -> scenarios.Sampled:
    return running["sampled"].result()


@pytest.fixture(scope="session")
def tables(running: dict[str, Future[Any]]) -> scenarios.Tables:
    return running["tables"].result()


@pytest.fixture(scope="session")
def own(running: dict[str, Future[Any]]) -> scenarios.Own:
    return running["own"].result()


@pytest.fixture(scope="session")
def probed(running: dict[str, Future[Any]]) -> dict[str, Any]:
    return running["probed"].result()
