"""Products with fewer bits: close, refused by name where the hardware has none, and without effect on float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from federations import NETS, SGD, bits, device_of

from fedcore import nets
from fedcore.core import precision
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.types.federation import Params
from fedcore.types.method import Message, StepId


def trained(kind: Any, **settings: Any) -> Params:
    sent = Message(nets.init(NETS["a"], StepId(0, 0, 0, "a").generator("init")))
    training = replace(SGD, precision=kind, **settings)
    return train({}, sent, device_of("a"), StepId(0, 0, 0, "a"), training=training)[1].params


@pytest.mark.skipif(not precision.has_bfloat16(), reason="this processor has no bfloat16 products")
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"loss": "fedasa_eq12"}])
def test_bfloat16_is_close_and_the_same_bits_again(settings: dict[str, Any]):
    exact, rough, again = (trained(kind, **settings) for kind in ("float32", "bfloat16", "bfloat16"))
    assert bits(rough) == bits(again)
    assert {tensor.dtype for tensor in rough.values()} == {torch.float32}
    gaps = [(exact[name] - rough[name]).abs().max().item() for name in exact]
    assert 0 < max(gaps) < 0.05


def test_a_processor_without_it_refuses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    with pytest.raises(InputError, match=r"training\.precision = 'bfloat16': this processor has"):
        trained("bfloat16")


def test_tf32_is_for_accelerators():
    with pytest.raises(InputError, match=r"training\.precision = 'tf32': is for"):
        trained("tf32")
