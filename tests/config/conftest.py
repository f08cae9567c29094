from __future__ import annotations

from typing import Any

import pytest
from asked import copied


@pytest.fixture
def params() -> dict[str, Any]:
    """The project's own parameters, to change at will."""
    return copied()
