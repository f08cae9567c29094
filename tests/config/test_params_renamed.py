"""Words of earlier versions are refused in one line that names the new one."""

from __future__ import annotations

from typing import Any

import pytest
from project_params import ask, points, refusal

import fedcore as fc
from fedcore.builders import RENAMED
from fedcore.config.params import change
from fedcore.config.studies import find_study, run_section

KEYS = {
    "exam": "code_ot.exam", "shots": "lmf.shots", "mixing": "fedavg.mixing", "matters": "run.matters",
    "init": "training.init", "moments": "fedavg.training.moments", "sums": "analytic.sums", "sends": "fedavg.sends",
}  # fmt: skip
IN_STUDIES: dict[str, dict[str, Any]] = {
    "along": {"along": "net.name"},
    "show": {"show": []},
    "says": {"claims": [{"says": "?", "rule": "lmf > lmf"}]},
    "of": {"claims": [{"statement": "?", "rule": "lmf > lmf", "of": "test.accuracy"}]},
    "at": {"claims": [{"statement": "?", "rule": "lmf > lmf", "at": 1}]},
    "when": {"valid": [{"when": "lmf > 0", "reason": "?"}]},
    "why": {"valid": [{"require": "lmf > 0", "why": "?"}]},
}
VALUES = {
    "printed": {"training.loss": "printed"}, "table3": {"training.loss": "table3"},
    "kept": {"training.optimiser_state": "kept"}, "change": {"fedavg.upload": "change"},
}  # fmt: skip


@pytest.mark.parametrize("old", KEYS)
def test_an_old_key_is_refused(params: dict[str, Any], old: str):
    line = f"{KEYS[old]}: no such key; it is now called {RENAMED[old]}"
    assert refusal(change, params, {KEYS[old]: 1}) == line


def test_an_old_key_in_a_file_is_refused(params: dict[str, Any]):
    params["run"]["matters"] = 0.1
    assert refusal(run_section, params).endswith("; it is now called min_effect")


@pytest.mark.parametrize("old", IN_STUDIES)
def test_an_old_key_of_a_study_is_refused(params: dict[str, Any], old: str):
    ask(params, {"lmf": {}})
    params["studies"]["asked"] |= IN_STUDIES[old]
    line = refusal(find_study, params, "asked")
    assert f"{old}: no such key" in line
    assert f"it is now called {RENAMED[old]}" in line


@pytest.mark.parametrize("old", VALUES)
def test_an_old_value_is_refused(params: dict[str, Any], old: str):
    line = refusal(points, change(ask(params, {"lmf": {}, "fedavg": {}}), VALUES[old]))
    assert line.endswith(f"; it is now called {RENAMED[old]}")


def test_old_methods_and_studies_are_refused(params: dict[str, Any]):
    assert refusal(fc.method, "recommended").endswith("; it is now called personal_distillation")
    assert refusal(find_study, params, "mine").endswith("; it is now called my_data")
    assert refusal(find_study, params, "field").endswith("; it is now called published")


def test_every_old_word_is_tested():
    assert {*KEYS, *IN_STUDIES, *VALUES, "recommended", "mine", "field"} == {*RENAMED}
