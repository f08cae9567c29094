"""Settings of a device's training out of range, or that do not go together, are refused; precisions are close."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from federations import NETS, SGD, bits, device_of

from fedcore import InputError, Message, StepId, Training, nets, train
from fedcore.config.signatures import check, model
from fedcore.core import training_settings
from fedcore.core.losses import LOSSES
from fedcore.types.federation import Params


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


def trained(kind: Any, **settings: Any) -> Params:
    sent = Message(nets.init(NETS["a"], StepId(0, 0, 0, "a").generator("init")))
    training = replace(SGD, precision=kind, **settings)
    return train({}, sent, device_of("a"), StepId(0, 0, 0, "a"), training=training)[1].params


@pytest.mark.skipif(not training_settings.has_bfloat16(), reason="this processor has no bfloat16 products")
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"loss": "fedasa_eq12"}])
def test_bfloat16_is_close_and_the_same_bits_again(settings: dict[str, Any]):
    exact, rough, again = (trained(kind, **settings) for kind in ("float32", "bfloat16", "bfloat16"))
    assert bits(rough) == bits(again)
    assert {tensor.dtype for tensor in rough.values()} == {torch.float32}
    gaps = [(exact[name] - rough[name]).abs().max().item() for name in exact]
    assert 0 < max(gaps) < 0.05


def test_a_processor_without_it_refuses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training_settings, "has_bfloat16", lambda: False)
    with pytest.raises(InputError, match=r"training\.precision = 'bfloat16': this processor has"):
        trained("bfloat16")


def test_tf32_is_for_accelerators():
    with pytest.raises(InputError, match=r"training\.precision = 'tf32': is for"):
        trained("tf32")
