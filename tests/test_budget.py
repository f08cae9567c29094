"""A room or a suite of tests that grows above its budget is named."""

from __future__ import annotations

import sys
from pathlib import Path

import budget
import pytest
import yaml

LINES = {"fedcore/one.py": 4, "fedcore/core/a.py": 10, "fedcore/core/deep/b.py": 2, "tests/core/test_a.py": 31}


@pytest.fixture
def lines(tmp_path: Path) -> dict[str, budget.Counter[str]]:
    for path, count in LINES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x\n" * count)
    return budget.rooms([*LINES, "fedcore/core/deleted.py"], tmp_path)


def test_lines_above_their_budget_are_named(lines: dict[str, budget.Counter[str]]):
    assert lines == {"fedcore": {".": 4, "core": 12}, "tests": {"core": 31}}
    shown, above = budget.table(lines, {"fedcore": {".": 4, "core": 11}, "tests": {}})
    assert above == ["fedcore/core: 12 lines", "tests/core: 31 lines"]
    assert [line.split() for line in shown[1:]] == [
        [".", "4", "4"], ["core", "12", "11", "31", "0"], ["sum", "16", "15", "31", "0"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "here", "late"), [(901, "this", 1), (900, "this", 0), (901, "that", 0), (None, "this", 0)]
)
def test_seconds_above_their_budget_count_on_its_processor(seconds: float | None, here: str, late: int):
    line, above = budget.time_of(seconds, {"seconds": 900, "processor": "this"}, here)
    assert above == [line] * late
    assert ("not measured" in line) == (seconds is None)


def test_what_is_written_is_a_budget_that_holds(lines: dict[str, budget.Counter[str]]):
    old = {"fedcore": {"gone": 3}, "tests": {}, "seconds": 900, "processor": "this"}
    new = yaml.safe_load(budget.write(lines, None, old, "that"))
    assert new == {**old, "fedcore": {".": 10, "core": 20}, "tests": {"core": 40}}
    assert budget.table(lines, new)[1] == []
    now = yaml.safe_load(budget.write(lines, 812.0, old, "that"))
    assert (now["seconds"], now["processor"]) == (900, "that")


@pytest.mark.slow
def test_the_seconds_of_a_command_that_succeeds_are_noted(tmp_path: Path):
    work = "import time\nwhile time.process_time() < {}: pass\nraise SystemExit({})"
    assert budget.measure([sys.executable, "-Sc", work.format(0.6, 0)], tmp_path / "noted") == 0
    assert float((tmp_path / "noted").read_text()) >= 1
    assert budget.measure([sys.executable, "-Sc", work.format(0, 3)], tmp_path / "failed") == 3
    assert not (tmp_path / "failed").exists()


def test_the_budget_of_the_project_has_all_its_parts():
    parts = yaml.safe_load((budget.ROOT / "tests/budget.yaml").read_text())
    assert [*parts] == [*budget.TREES, "seconds", "processor"]
    assert all(type(n) is int for n in [*parts["fedcore"].values(), *parts["tests"].values(), parts["seconds"]])
