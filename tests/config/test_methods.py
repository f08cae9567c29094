"""A method with all its settings, from a script and from a study's row."""

from dataclasses import replace
from typing import Any

import pytest
from federations import NETS
from project_params import ask, points, refusal

import fedcore as fc
from fedcore.config.methods import MethodConfig, configure
from fedcore.core.training import Training
from fedcore.methods import METHODS
from fedcore.pipeline.cache.keys import Digest


def test_a_scripts_method_is_a_row_of_a_study(params: dict[str, Any]):
    ask(params, {"slow": {"method": "dfl", "threshold": 0.5, "training": {"epochs": 3}}})
    (row,) = points(params)[0].methods
    assert fc.dfl(threshold=0.5, training={"epochs": 3}, label="slow") == row
    assert fc.method("dfl", threshold=0.5, training={"epochs": 3}, label="slow") == row


def test_its_settings_are_complete_and_flat():
    config = configure("dfl", {"threshold": 0.5}, {"lr": 0.1})
    flat = config.flat()
    assert (flat["method"], flat["threshold"], flat["rounds"], flat["training.lr"]) == ("dfl", 0.5, 10, 0.1)
    assert flat["training.shared_init"] is False
    assert len(flat) == 1 + len(config.settings) + len(Training.__dataclass_fields__)


@pytest.mark.parametrize(
    ("training", "shared"),
    [(None, True), ({"epochs": 2}, True), (Training(epochs=2), True), ({"shared_init": False}, False)],
)
def test_a_method_starts_as_its_builder_says_unless_it_is_told_otherwise(training: Any, shared: bool):
    assert fc.dfl(training=training).training.shared_init is shared
    assert fc.fedavg(training=training).training.shared_init is shared
    assert fc.local_only(training=training).training.shared_init is False


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_that_average_or_have_rounds_start_from_a_common_model(name: str):
    """Those that align models first, train alone, or combine outputs need not."""
    apart = {
        "code_ot", "lmf", "no_alignment", "half_best", "best_local", "local_only", "majority", "majority_per_device",
        "analytic", "ensemble", "stack", "gaussian_distillation", "personal_distillation",
    }  # fmt: skip
    assert fc.method(name).training.shared_init is (name not in apart)


def test_what_its_nets_do_not_allow_names_its_label():
    config = fc.dfl(label="mine", training={"shared_init": False})
    line = refusal(config.build, NETS)
    assert line.startswith("training.shared_init = false: dfl averages changes to one model")
    assert line.endswith(" (method mine)")


def test_rounds_have_a_bound_that_is_told_at_once():
    assert refusal(fc.fedavg(rounds=10**9).build, NETS) == (
        "1,000,000,000 rounds: at most 1,000,000 are allowed (method fedavg)"
    )
    assert fc.fedavg(rounds=10**6).build(NETS).stages[0].rounds == 10**6


def test_a_builder_of_ones_own_has_its_name():
    def own(*, training: Training, rounds: int = 2) -> fc.Method:
        raise NotImplementedError

    config = fc.method(own, rounds=3)
    assert config == MethodConfig("own", own, Training(), {"rounds": 3})
    assert config.flat()["method"] == "own"


def test_no_step_depends_on_where_models_start():
    """The server's first message says so; the training of a given model is the same."""
    digest = Digest()
    assert digest.of(replace(Training(), shared_init=True)) == digest.of(Training())
    assert digest.of(replace(Training(), optimiser_state="keep")) != digest.of(Training())
