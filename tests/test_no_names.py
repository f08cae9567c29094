"""The pipeline runs methods and knows none by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedcore.methods import METHODS

PIPELINE = Path(__file__).parents[1] / "fedcore" / "pipeline"
SOURCES = {path.relative_to(PIPELINE).as_posix(): path for path in sorted(PIPELINE.rglob("*.py"))}


def words(source: str) -> set[str]:
    """Return the strings of a module, and all names that it imports or uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name):
                found |= {*name.split(".")}
            case ast.ImportFrom(module=str(module)):
                found |= {*module.split(".")}
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_no_method_is_named_in_the_pipeline(name: str):
    assert not words(SOURCES[name].read_text()) & {*METHODS}
