"""Methods are found in their files, and none imports another one."""

from __future__ import annotations

from importlib import import_module

import grimp
import pytest
from every_method import ROWS
from federations import NETS

from fedcore.methods import METHODS
from fedcore.methods.registry import builder, require_real
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
            require_real(name, row.build(NETS), row.settings)
    else:
        require_real(name, row.build(NETS), row.settings)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("fedavg", {"sums": "masked"}, "^fedavg.sums = masked: is possible in a simulation only: the masks come from"),
        ("analytic", {"sums": "masked"}, "^analytic.sums = masked: "),
        ("analytic", {"clip": 4.0, "epsilon": 8.0}, "^analytic.epsilon = 8.0: "),
    ],
)
def test_settings_whose_secrets_the_server_knows_are_refused_too(name: str, changed: dict[str, object], said: str):
    row = ROWS[name]
    with pytest.raises(InputError, match=said):
        require_real(name, row.build(NETS), {**row.settings, **changed})
