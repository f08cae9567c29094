"""Methods are found in their files, and none imports another one."""

from __future__ import annotations

from importlib import import_module

import grimp
import pytest

from fedcore.methods import METHODS
from fedcore.methods.registry import builder

MODULES = sorted({*METHODS.values()})
GRAPH = grimp.build_graph("fedcore")


@pytest.mark.parametrize("module", MODULES)
def test_a_method_imports_no_other_one(module: str):
    assert not GRAPH.find_upstream_modules(module) & {*MODULES}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_in_a_room_of_its_family(name: str):
    assert builder(name).__name__ == name
    assert METHODS[name].split(".")[:2] == ["fedcore", "methods"]
    assert len(METHODS[name].split(".")) == 4
    module = import_module(METHODS[name])
    assert name in getattr(module, "__all__", [METHODS[name].rpartition(".")[2]])
