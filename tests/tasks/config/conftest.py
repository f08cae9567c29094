from __future__ import annotations

import copy
from typing import Any

import pytest
from asked import PARAMS


@pytest.fixture
def params() -> dict[str, Any]:
    """The project's own parameters, to change at will."""
    return copy.deepcopy(PARAMS)
