"""Whether each scenario came to its end; one that did not fails here once, with all that it said."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenario_ran(running: dict[str, Future[Any]], scenario: str):
    running[scenario].result()
