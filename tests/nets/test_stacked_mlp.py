"""Perceptrons of several devices at once have the bits of one after another, and what has not is found out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.flat_nets import FlatNet, flatten_net
from fedcore.core.side_by_side import rows_of
from fedcore.nets import stacked_mlp
from fedcore.nets.stacked_mlp import StackedMLP, same_bits
from fedcore.types import Params

DEVICES, BATCH = 3, 6


def flat_net(classes: int = 2) -> FlatNet:
    net = nets.net("mlp", shape=(5,), classes=classes, widths=[16, 8])
    return flatten_net(net, nets.init(net, torch.Generator().manual_seed(1)))


def tried(flat: FlatNet, keep: float = 0.0, scale: float = 1 / BATCH) -> StackedMLP | None:
    def make_rows(draws: torch.Generator) -> Params:
        return rows_of(flat, torch.randn(DEVICES, len(flat.vector), generator=draws))

    return same_bits(flat.module, make_rows, BATCH, keep=keep, scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [0.0, 1.0, 0.99])
def test_the_gradient_is_that_of_autograd(keep: float):
    flat, draws = flat_net(), torch.Generator().manual_seed(2)
    models, into = (torch.randn(DEVICES, len(flat.vector), generator=draws) for _ in range(2))
    before, x = into.clone(), torch.randn(DEVICES, BATCH, 5, generator=draws)
    logit_grad = torch.randn(DEVICES, BATCH, 2, generator=draws)
    stacked = StackedMLP(flat.module.layers, {"fc2"})  # type: ignore[arg-type]
    with torch.no_grad():
        activations = stacked.activations(rows_of(flat, models), x)
        stacked.backward(rows_of(flat, models), activations, logit_grad, rows_of(flat, into), keep=keep, scale=0.3)
    for row in range(DEVICES):
        params = {name: tensor[row].clone().requires_grad_() for name, tensor in rows_of(flat, models).items()}
        logits = torch.func.functional_call(flat.module, params, (x[row],))
        torch.testing.assert_close(activations[-1][row], logits.detach())
        gradients = torch.autograd.grad(logits, [*params.values()], logit_grad[row])
        for name, gradient in zip(params, gradients, strict=True):
            expected = keep * rows_of(flat, before)[name][row] + 0.3 * gradient
            torch.testing.assert_close(rows_of(flat, into)[name][row], expected)


class OtherSums(StackedMLP):
    """Sums a product from the last factor to the first."""

    def activations(self, params: Params, x: Tensor) -> list[Tensor]:
        turned = {
            name: tensor.flip(2).contiguous() if name == "fc1.weight" else tensor for name, tensor in params.items()
        }
        return super().activations(turned, x.flip(2))


class OtherBias(StackedMLP):
    """Rounds a bias's gradient twice."""

    def backward(
        self, params: Params, activations: list[Tensor], logit_grad: Tensor, into: Params, **rest: Any
    ) -> None:
        super().backward(params, activations, logit_grad, into, **rest)
        if "fc3" not in self.one_by_one:
            into["fc3.bias"].mul_(1 / 3).mul_(3)


def test_products_that_sum_otherwise_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacked_mlp, "StackedMLP", OtherSums)
    assert tried(flat_net()) is None


def test_a_bias_that_sums_otherwise_goes_one_by_one(monkeypatch: pytest.MonkeyPatch):
    usual = tried(flat_net())
    monkeypatch.setattr(stacked_mlp, "StackedMLP", OtherBias)
    found = tried(flat_net())
    assert (found is None) == (usual is None)
    assert found is None or "fc3" in found.one_by_one


def test_small_results_are_tried_often(monkeypatch: pytest.MonkeyPatch):
    trials: list[int] = []
    real = stacked_mlp._one_by_one
    monkeypatch.setattr(stacked_mlp, "_one_by_one", lambda *args: [trials.append(1), real(*args)][1])
    for classes in (2, 30):
        trials.clear()
        if tried(flat_net(classes)) is not None:
            assert len(trials) == -(-stacked_mlp.TRIED // (DEVICES * classes))
