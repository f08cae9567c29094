"""Perceptrons of several devices at once have the bits of one after another, and what has not is found out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.flat_nets import FlatNet, flatten_net
from fedcore.core.side_by_side import rows_of
from fedcore.nets import stacked_mlp
from fedcore.nets.stacked_mlp import StackedMLP, equal_bits, same_bits
from fedcore.types.federation import Params

DEVICES, BATCH = 3, 16
LAYERS = ("fc1", "fc2", "fc3")

with_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")


def flat_net(classes: int = 2) -> FlatNet:
    net = nets.net("mlp", shape=(5,), classes=classes, widths=[64, 32])
    return flatten_net(net, nets.init(net, torch.Generator().manual_seed(1)))


def tried(flat: FlatNet, keep: float = 0.0, batch: int = BATCH) -> StackedMLP | None:
    def make_rows(draws: torch.Generator) -> Params:
        return rows_of(flat, torch.randn(DEVICES, len(flat.vector), generator=draws))

    return same_bits(LAYERS, make_rows, batch, keep)


@pytest.mark.parametrize("one_by_one", [(), ("fc1", "fc3")])
@pytest.mark.parametrize("keep", [0.0, 1.0, 0.99])
def test_the_gradient_is_that_of_autograd(keep: float, one_by_one: tuple[str, ...]):
    flat, draws = flat_net(), torch.Generator().manual_seed(2)
    models, into = (torch.randn(DEVICES, len(flat.vector), generator=draws) for _ in range(2))
    before, x = into.clone(), torch.randn(DEVICES, BATCH, 5, generator=draws)
    logit_grad = torch.randn(DEVICES, BATCH, 2, generator=draws)
    stacked = StackedMLP(LAYERS, one_by_one)
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
            torch.testing.assert_close(rows_of(flat, into)[name][row], expected, rtol=1e-4, atol=1e-5)


@with_mkl
@pytest.mark.parametrize("keep", [0.0, 1.0, 0.5])
def test_products_of_mkl_have_the_same_bits(keep: float):
    assert tried(flat_net(), keep) is not None


def other_sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Sum from the last factor to the first."""
    return torch.bmm(x.flip(2), weight.flip(2).transpose(1, 2)).add_(bias[:, None])


def rarely_other(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute one in 500 outputs of the net otherwise."""
    whole = torch.stack([stacked_mlp.linear(each, w, b) for each, w, b in zip(x, weight, bias, strict=True)])
    changed = torch.rand(whole.shape, generator=RARE) < 0.002 * (weight.shape[1] == 2)
    return torch.where(changed, whole.nextafter(torch.tensor(torch.inf)), whole)


RARE = torch.Generator().manual_seed(3)


def small_beside(into: Tensor, logit_grad: Tensor, inputs: Tensor, keep: float, scale: float) -> None:
    """Round what comes to the weight, before it is added."""
    into.mul_(keep).add_((scale * torch.bmm(logit_grad.transpose(1, 2), inputs)).bfloat16())


@pytest.mark.parametrize(
    ("name", "other"), [("forward", other_sums), ("forward", rarely_other), ("add_weight", small_beside)]
)
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_products_that_sum_otherwise_are_found(name: str, other: Any, keep: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacked_mlp, name, other)
    assert tried(flat_net(), keep) is None


def test_a_bias_that_sums_otherwise_goes_one_by_one(monkeypatch: pytest.MonkeyPatch):
    real = stacked_mlp.set_bias
    if (usual := tried(flat_net())) is None:
        pytest.skip("products have other bits in a stack here")
    assert "fc2" not in usual.one_by_one

    def set_bias(into: Tensor, logit_grad: Tensor, scale: float) -> None:
        real(into, logit_grad, scale)
        if into.shape[1] == 32:
            into[0, 0] = into[0, 0].nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(stacked_mlp, "set_bias", set_bias)
    found = tried(flat_net())
    assert found is not None
    assert "fc2" in found.one_by_one


def test_stacks_whose_parts_lie_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacked_mlp, "_products_agree", lambda *args: True)
    monkeypatch.setattr(stacked_mlp, "_biases_agree", lambda *args: True)
    assert tried(flat_net(), batch=10) is None
    assert tried(flat_net()) is not None


def test_a_zero_has_a_sign():
    assert equal_bits(torch.tensor([0.0, torch.nan]), torch.tensor([0.0, torch.nan]))
    assert not equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
