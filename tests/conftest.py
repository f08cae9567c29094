"""Settings for all tests, made before PyTorch is imported; worker processes are forks (forks.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests run beside scenarios and in several processes: PyTorch's threads would wait for one another, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Prefect makes its home below this folder (prefect.toml), but not the folder.
(Path(__file__).parents[1] / ".fedcore").mkdir(exist_ok=True)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    from forks import Apart

    from fedcore.execute import template

    apart = Apart()
    template._open = apart
    yield
    template._open = None
    apart.close()
