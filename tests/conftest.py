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


LONGEST = (
    "cli/test_init.py", "test_commands.py", "field/test_cells.py", "methods/st_lf/test_st_lf_sources.py",
    "execute/test_cluster.py", "cli/test_field.py", "methods/st_lf/test_programs.py", "methods/test_contract.py",
    "pipeline/cache/test_keys.py", "execute/test_workers.py", "config/test_studies.py", "test_front_door.py",
    "execute/test_accelerator.py", "pipeline/record/test_writer.py", "methods/fedasa/test_fedasa.py",
    "core/test_new_device.py", "pipeline/record/test_runs.py", "pipeline/record/test_models.py", "test_examples.py",
)  # fmt: skip
"""Files whose tests take ten seconds of a core and more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that processes which take file after file end at about the same time."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


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
