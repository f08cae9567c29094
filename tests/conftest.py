"""Settings for all tests, made before PyTorch is imported; worker processes are forks (process_forks.py)."""

import atexit
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import clone_state
import pytest

# Tests run beside scenarios and in several processes: PyTorch's threads would wait for one another, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A database on a disk waits for it at each commit, more than a third of the time of tests that record runs.
MEMORY, SPACE = Path("/dev/shm"), 8e9
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > SPACE
):
    os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None

# The clone may have been used: its state is none of a test's (clone_state.py).
HOME = tempfile.mkdtemp(prefix="fedcore-tests-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["FEDCORE_HOME"] = os.path.realpath(HOME)
os.environ["PREFECT_HOME"] = os.path.join(HOME, ".fedcore", "prefect")
os.environ["PREFECT_PROFILES_PATH"] = os.path.join(
    HOME, ".fedcore", "prefect", "profiles.toml"
)  # before prefect.toml's
os.mkdir(os.path.join(HOME, ".fedcore"))
clone_state.refuse()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Search for no garbage in what imports and collection make: it stays, and each search took .1 s; later seldom."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


@pytest.fixture(autouse=True)
def _clone_state() -> Iterator[None]:
    """Fail a test that has used the clone's state, also where what was said of it went unheard."""
    before = len(clone_state.used)
    yield
    assert clone_state.used[before:] == []


COMPILED = sys.pycache_prefix, sys.dont_write_bytecode


@pytest.fixture(autouse=True)
def _compiled_modules() -> Iterator[None]:
    """Read compiled modules again: a process that has loaded a model of the record compiles what it imports anew."""
    yield
    sys.pycache_prefix, sys.dont_write_bytecode = COMPILED


class Logged(logging.Handler):
    """The records of a test and their text. pytest's own goes through all loggers six times a test: 2 of 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.emit = self.records.append  # type: ignore[method-assign]

    @property
    def text(self) -> str:
        return "".join(f"{self.format(record)}\n" for record in self.records)


@pytest.fixture
def logged() -> Iterator[Logged]:
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    from process_forks import Apart

    from fedcore.execute import template

    apart = Apart()
    template._open = apart
    yield
    template._open = None
    apart.close()
