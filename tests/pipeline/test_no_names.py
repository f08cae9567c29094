"""The pipeline runs methods and knows none by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedcore.methods import METHODS

TASKS = Path(__file__).parents[2] / "tasks"
SOURCES = {path.relative_to(TASKS).as_posix(): path for path in sorted(TASKS.rglob("*.py"))}


@pytest.mark.parametrize("name", SOURCES)
def test_no_method_is_named_in_the_pipeline(name: str):
    nodes = ast.walk(ast.parse(SOURCES[name].read_text()))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not strings & {*METHODS}
