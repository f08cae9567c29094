"""Methods are found in their files, and none imports another one."""

from __future__ import annotations

from importlib import import_module

import grimp
import pytest
from every_method import ROWS
from federations import NETS

from fedcore.methods import METHODS
from fedcore.methods.registry import builder, needs_sums_alone, require_real
from fedcore.types import InputError

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


PAIRS = {"avg_degree", "fada", "fedavg_alpha", "least_error", "rnd_alpha", "st_lf"}
"""Methods with steps that see two devices' examples."""


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_see_what_no_server_gets_are_refused(name: str):
    row = ROWS[name]
    if name in {*PAIRS, "best_source"}:
        with pytest.raises(InputError, match=f"^method {name}: runs in a simulation only: [a-z' ,]+$"):
            require_real(name, row.build(NETS))
    else:
        require_real(name, row.build(NETS))


@pytest.mark.parametrize(
    ("name", "changed", "masked"),
    [
        ("fedavg", {}, False), ("fedavg", {"sums": "masked"}, True), ("analytic", {"sums": "masked"}, True),
        ("analytic", {"clip": 4.0, "epsilon": 8.0}, False), ("dfl", {"sums": "masked"}, False),
    ],
)  # fmt: skip
def test_a_builder_says_with_which_settings_sums_are_enough(name: str, changed: dict[str, object], masked: bool):
    row = ROWS[name]
    assert needs_sums_alone(name, {**row.settings, **changed}) == masked
