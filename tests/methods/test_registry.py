"""Methods are found in their files, and none imports another one."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import grimp
import pytest
from every_method import ROWS
from federations import NETS

from fedcore.errors import InputError
from fedcore.methods import METHODS
from fedcore.methods.registry import builder, needs_sums_alone, require_real
from fedcore.types.method import PairStage

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


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_see_what_no_server_gets_are_refused(name: str):
    row = ROWS[name]
    if name == "best_source":
        with pytest.raises(InputError, match=f"^method {name}: runs in a simulation only: its links come from test "):
            require_real(name, row.build(NETS))
    else:
        require_real(name, row.build(NETS))


def test_a_step_of_pairs_that_has_no_two_sides_is_refused():
    built = ROWS["st_lf"].build(NETS)
    stages = tuple(replace(stage, sides=None) if isinstance(stage, PairStage) else stage for stage in built.stages)
    with pytest.raises(InputError, match=r"^method st_lf: runs in a simulation only: its steps of pairs see two dev"):
        require_real("st_lf", replace(built, stages=stages))


@pytest.mark.parametrize(
    ("name", "changed", "masked"),
    [
        ("fedavg", {}, False), ("fedavg", {"secure_aggregation": True}, True),
        ("analytic", {"secure_aggregation": True}, True), ("analytic", {"clip": 4.0, "epsilon": 8.0}, False),
        ("dfl", {"secure_aggregation": True}, False),
    ],
)  # fmt: skip
def test_a_builder_says_with_which_settings_sums_are_enough(name: str, changed: dict[str, object], masked: bool):
    row = ROWS[name]
    assert needs_sums_alone(name, {**row.settings, **changed}) == masked
