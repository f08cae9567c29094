"""Settings for all tests, made before PyTorch is imported; worker processes are forks (forks.py)."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests run beside scenarios and in several processes: PyTorch's threads would wait for one another, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Prefect makes its home below this folder (prefect.toml), but not the folder.
(Path(__file__).parents[1] / ".fedcore").mkdir(exist_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Search for no garbage in what imports and collection make: it stays, and a search takes half a second."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    from forks import Apart

    from fedcore.execute import template

    apart = Apart()
    template._open = apart
    yield
    template._open = None
    apart.close()
