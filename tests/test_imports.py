"""Imports between modules (import-linter checks those between rooms and packages)."""

import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from project_params import ROOT


def test_modules_form_no_circle():
    """Unlike a contract between siblings this sees a module that imports its package, which imports the module."""
    graph = grimp.build_graph("fedcore", "tasks", "flows")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


RUN = """
from fedcore.pipeline import environment
environment.prepare()
import fedcore.pipeline.record.runs, flows.federate, sys
assert "matplotlib" not in sys.modules
from fedcore.report import figures
assert figures.png.__module__ == "fedcore.report.figures.drawing"
assert all(getattr(figures, name) for name in figures.__all__)
"""


@pytest.mark.slow
def test_a_run_and_its_record_import_matplotlib_when_they_draw(tmp_path: Path):
    """It takes half a second, which the first results need not wait for."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDCORE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, env=environment, check=True)
