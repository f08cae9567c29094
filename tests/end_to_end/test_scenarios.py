"""Each scenario must complete; one that fails is reported here once, with its output."""

from concurrent.futures import Future
from typing import Any

import pytest
from scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenario_ran(running: dict[str, Future[Any]], scenario: str):
    running[scenario].result()
