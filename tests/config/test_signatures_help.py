"""Help has a line about each setting of every method, net, partition and dataset, wherever it is declared."""

import re
from importlib import import_module
from inspect import getsource, getsourcefile, signature, unwrap

import pytest

import fedcore as fc
from fedcore.builders import CONTEXT, group_settings, settings_of
from fedcore.config.signatures import method_help, setting_lines
from fedcore.data.registry import DATASETS, loader_of
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.partition import PARTITIONS


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_help_has_a_line_for_every_setting(name: str) -> None:
    doc = getattr(fc, name).__doc__
    shown = re.findall(r"^    (\w+): \S", doc, re.MULTILINE)
    assert shown == [*settings_of(builder(name), CONTEXT), "training", "label"] + ["InputError"] * ("Raises:" in doc)
    assert max(map(len, doc.splitlines())) <= 116


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_no_line_is_about_a_setting_that_is_not_there(name: str) -> None:
    section = re.split(r"^    Args:\n", builder(name).__doc__, flags=re.MULTILINE)[1:]
    assert set(re.findall(r"^        (\w+): ", "".join(section).split("Raises:")[0], re.MULTILINE)) <= {
        *builder(name).__annotations__
    }


@pytest.mark.parametrize("name", [*NETS, *PARTITIONS])
@pytest.mark.slow
def test_a_net_and_a_partition_have_a_line_for_every_setting(name: str) -> None:
    described = getattr(fc, name)
    assert set(signature(described).parameters) == {*setting_lines(described)}


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_has_a_line_for_every_setting(name: str) -> None:
    assert {*settings_of(loader_of(name))} == {*setting_lines(loader_of(name))}


def test_lines_of_a_dataclass_stand_in_its_place() -> None:
    lines = setting_lines(builder("code_ot"))
    assert [*lines][-5:] == ["solver", "reg", "tol", "max_iterations", "p"]
    assert "lambda of (6)" in lines["reg"]
    assert "transport" not in lines


def test_nested_dataclasses_stand_for_their_fields() -> None:
    assert setting_lines(builder("st_lf"))["pair_rounds"] == "    pair_rounds: tau, number of averages, from 1."
    links = group_settings(builder("st_lf"), {"pair_rounds": 7, "solver": "exact", "combine": "outputs"})["links"]
    assert (links.pairs.pair_rounds, links.program.solver, links.pretraining.pretrain) == (7, "exact", 0)


def test_a_docstring_without_settings_keeps_its_words() -> None:
    def build() -> None:
        """Do nothing."""

    assert method_help(build, {"label": "a name."}) == "Do nothing.\n\nArgs:\n    label: a name."


@pytest.mark.parametrize(("name", "setting"), [("code_ot", "rank_by: "), ("dirichlet", "alpha: "), ("mlp", "widths: ")])
def test_a_function_of_settings_shows_the_code_that_it_stands_for(name: str, setting: str) -> None:
    shown = getattr(fc, name)
    assert getsourcefile(unwrap(shown)) == import_module(shown.__module__).__file__
    assert setting in getsource(shown)
