"""Settings of a device's training that do not go together are refused, and those out of range."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from federations import SGD

from fedcore.config.signatures import check, model
from fedcore.core.losses import LOSSES
from fedcore.core.training_settings import Training
from fedcore.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [("optimiser", "sdg"), ("optimiser", ["sgd"]), ("lr", 0), ("lr", "fast"), ("lr", math.inf),
     ("momentum", 1.0), ("weight_decay", -1e-4), ("schedule", "step"), ("batch", 0), ("batch", 1.5), ("epochs", 0)],
)  # fmt: skip
def test_unusable_settings_are_refused(name, value):
    with pytest.raises(InputError, match=rf"^training\.{name} = "):
        check(model(Training), "training", {name: value})


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"optimiser": "sgd"}])
def test_nesterov_needs_a_momentum_of_sgd(settings):
    with pytest.raises(InputError, match=r"^training.nesterov = true: needs"):
        replace(SGD, nesterov=True, **settings)


@pytest.mark.parametrize("loss", sorted({*LOSSES} - {"ce"}))
def test_class_weights_of_another_loss_are_refused(loss):
    line = f"^training.class_weights = 'balanced': is for training.loss = 'ce', not '{loss}'$"
    with pytest.raises(InputError, match=line):
        Training(loss=loss, class_weights="balanced")
