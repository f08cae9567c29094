"""One Prefect server for all tests of the pipeline, and the scenarios, each run once.

Scenarios take long and often wait, so those that the collected tests ask for run five at a time from the start. A test
gets what its scenario left. Where a scenario failed, `test_the_scenario_ran` says so, and tests that look at it are
skipped.
"""

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
from scenarios import SCENARIOS

HERE = Path(__file__).parent

LIMIT = 3600
"""Seconds that a test may wait for its scenario, which may wait for others: a guard against hanging, no more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items += _tests_of_scenarios(items)
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


def _scenarios(item: pytest.Item) -> set[str]:
    """Return the scenarios that a test inspects; tests elsewhere may have fixtures of the same names."""
    if not _served(item):
        return set()
    named = item.callspec.params.get("scenario") if hasattr(item, "callspec") else None
    return ({*_fixtures(item)} | {named}) & SCENARIOS.keys()


def _tests_of_scenarios(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that say whether a scenario ran, for each that the collected tests look at but do not test."""
    here = next((item for item in items if item.path.parent == HERE), None)
    if here is None:
        return []
    folder, tested = here.getparent(pytest.Module).parent, {item.nodeid for item in items}
    wanted = {name for item in items for name in _scenarios(item)}
    tests = pytest.Module.from_parent(folder, path=HERE / "test_scenarios.py").collect()
    return [test for test in tests if _scenarios(test) <= wanted and test.nodeid not in tested]


@pytest.fixture(scope="session", autouse=True)
def _started(request: pytest.FixtureRequest) -> None:
    if any(_scenarios(item) for item in request.session.items):
        request.getfixturevalue("running")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, list[str]]]:
    """A project whose server serves all others, and the addresses that two concurrent commands print."""
    project = Project.copy(tmp_path_factory.mktemp("host"), change=scenarios.lone, pictures=False)
    try:
        yield project, scenarios.serve(project)
    finally:
        project.stop()
        project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop")
    wait("the server gone", lambda: not project.processes())


@pytest.fixture(scope="session")
def host(served: tuple[Project, list[str]]) -> Project:
    return served[0]


@pytest.fixture(scope="session")
def running(
    request: pytest.FixtureRequest, host: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    asked = {name for item in request.session.items for name in _scenarios(item)}
    pool = ThreadPoolExecutor(5)
    record = scenarios.empty_record(tmp_path_factory.mktemp("record") / "mlflow.db")
    places = {name: scenarios.Place(tmp_path_factory.mktemp(name), host, record) for name in SCENARIOS if name in asked}
    try:
        yield {name: pool.submit(SCENARIOS[name], place) for name, place in places.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for place in places.values():
            place.leave()
        pool.shutdown()


def _left_by(scenario: str) -> Any:
    """Return a fixture: the results of a scenario."""

    @pytest.fixture(scope="session", name=scenario)
    def left(running: dict[str, Future[Any]]) -> Any:
        if running[scenario].exception():
            pytest.skip(f"the scenario {scenario} failed: see test_the_scenario_ran[{scenario}]")
        return running[scenario].result()

    return left


for _name in SCENARIOS:
    globals()[_name] = _left_by(_name)
