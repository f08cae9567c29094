from typing import Any

import pytest
from project_params import copied


@pytest.fixture
def params() -> dict[str, Any]:
    """The project's own parameters, to change at will."""
    return copied()
