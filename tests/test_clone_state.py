"""The guard of tests/clone_state.py sees what would use the clone's own state."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import clone_state
import pytest
from clone_state import STATE, CloneState, is_clone_state
from process_forks import run

from fedcore.pipeline import environment

ROOT = Path(clone_state.ROOT)
USES: dict[str, Callable[[], object]] = {
    "read": lambda: (ROOT / ".fedcore" / "journal.jsonl").read_text(),
    "relative": lambda: Path("pipeline/compare/table.parquet").read_bytes(),
    "descriptor": lambda: os.open(bytes(ROOT / "runs" / "history.jsonl"), os.O_RDONLY),
    "above": lambda: (ROOT / "docs" / ".." / "results" / "report.html").read_text(),
    "database": lambda: sqlite3.connect(ROOT / "mlflow.db"),
    "address": lambda: sqlite3.connect(f"file:{ROOT}/mlflow.db?mode=ro", uri=True),
    "listed": lambda: [*(ROOT / "mlruns").iterdir()],
    "written": lambda: (ROOT / ".fedcore" / "locks").mkdir(),
    "dvc": lambda: os.listdir(ROOT / ".dvc" / "cache"),
    "program": lambda: subprocess.run([sys.executable, "-c", "", "fedcore"], cwd=ROOT, env={}),
    "program here": lambda: subprocess.run([sys.executable, "-c", ""], env={}),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_of_the_clones_state_is_refused_and_noted(use: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    noted: list[str] = []
    monkeypatch.setattr(clone_state, "used", noted)
    with pytest.raises(CloneState):
        USES[use]()
    assert len(noted) == 1  # so that a test fails which catches it


@pytest.mark.slow
def test_forks_refuse_it_too(tmp_path: Path):
    program = tmp_path / "read.py"
    program.write_text(f"open({str(ROOT / '.fedcore' / 'journal.jsonl')!r})")
    said = run(str(program), folder=tmp_path)
    assert said.code == 1
    assert "CloneState" in said.err


def test_other_files_are_not_the_clones_state(tmp_path: Path):
    assert all(is_clone_state(f"{ROOT}/{name}") for name in STATE)
    others = ["fedcore/pipeline/state.py", "docs/results/code.md", "runs.py", ".dvc/config", "params.yaml"]
    assert not any(is_clone_state(f"{ROOT}/{name}") for name in others)
    assert not is_clone_state(str(tmp_path / ".fedcore" / "journal.jsonl"))


def test_the_state_of_tests_is_in_a_folder_of_their_own():
    assert not environment.HOME.is_relative_to(ROOT)
    assert Path(os.environ["FEDCORE_HOME"]) == environment.HOME
