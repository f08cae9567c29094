"""The help of every method has a line about each of its settings, wherever the setting is declared."""

from __future__ import annotations

import re

import pytest

import fedcore as fc
from fedcore.builders import CONTEXT, group_settings, settings_of
from fedcore.config.help import method_help, setting_lines
from fedcore.methods import METHODS, builder


@pytest.mark.parametrize("name", METHODS)
def test_help_has_a_line_for_every_setting(name: str) -> None:
    doc = getattr(fc, name).__doc__
    shown = re.findall(r"^    (\w+): \S", doc, re.MULTILINE)
    assert shown == [*settings_of(builder(name), CONTEXT), "training", "label"] + ["InputError"] * ("Raises:" in doc)
    assert max(map(len, doc.splitlines())) <= 116


@pytest.mark.parametrize("name", METHODS)
def test_no_line_is_about_a_setting_that_is_not_there(name: str) -> None:
    section = re.split(r"^    Args:\n", builder(name).__doc__, flags=re.MULTILINE)[1:]
    assert set(re.findall(r"^        (\w+): ", "".join(section).split("Raises:")[0], re.MULTILINE)) <= {
        *builder(name).__annotations__
    }


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
