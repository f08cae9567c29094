"""Imports between modules (import-linter checks those between rooms and packages)."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_modules_form_no_circle():
    """Unlike a contract between siblings this sees a module that imports its package, which imports the module."""
    graph = grimp.build_graph("fedcore", "tasks", "flows")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
