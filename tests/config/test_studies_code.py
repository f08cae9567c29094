"""CODE's studies at the paper's size have the paper's settings (Table II and Section VI)."""

from __future__ import annotations

from typing import Any

import pytest
from project_params import PARAMS

from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import grid_points

OPTIMISERS = {"sgd": 0.1, "adam": 0.001}
"""Table II: optimiser -> learning rate."""


def settings(study: str, **changes: Any) -> list[Setting]:
    return grid_points(PARAMS, study, "paper", changes, [])


def row(setting: Setting, label: str) -> MethodConfig:
    return next(one for one in setting.methods if one.label == label)


@pytest.mark.parametrize("study", ["code", "code_fig5", "code_fig8", "code_fig9"])
def test_devices_and_net_are_those_of_table_ii(study: str):
    for setting in settings(study):
        assert setting.data["name"] == "mnist"
        assert setting.net == {"name": "mlp", "widths": [400, 200, 100]}
        assert setting.federation["partition"] == "dirichlet"
        assert setting.federation["devices"] == setting.point.get("federation.devices", 16)
    alphas = {setting.federation["alpha"] for setting in settings(study)}
    assert alphas == {1e20, 1.0, 0.1}


@pytest.mark.parametrize("study", ["code", "code_fig8"])
def test_training_and_transport_are_those_of_table_ii(study: str):
    for setting in settings(study):
        code = row(setting, "code_ot")
        assert (code.training.batch, code.training.epochs) == (64, 10)
        assert code.training.lr == OPTIMISERS[code.training.optimiser]
        assert (code.settings["reg"], code.settings["tol"], code.settings["order"]) == (0.01, 1e-7, "ascending")


@pytest.mark.parametrize("study", ["code_fig8", "code_fig9"])
def test_fedavg_trains_as_long_in_each_round_as_code_does(study: str):
    """Table II has one number of epochs, and Fig. 9 varies it for all; FedAvg-1 is a vanilla mean (Section VI)."""
    for setting in settings(study):
        epochs = row(setting, "code_ot").training.epochs
        assert epochs == setting.point.get("training.epochs", 10)
        for rounds in (1, 10, 30, 50):
            fedavg = row(setting, f"fedavg_{rounds}")
            assert (fedavg.settings["rounds"], fedavg.training.epochs) == (rounds, epochs)
        assert row(setting, "fedavg_1").settings["weights"] == "even"


def test_lambda_of_table_ii_is_among_those_of_figures_6_and_7():
    for study, label in (("code_fig6", "code_ot"), ("code_fig7", "code_ot")):
        assert 0.01 in [row(setting, label).settings["reg"] for setting in settings(study)]
