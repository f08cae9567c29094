"""The perceptrons of several devices at once: the products of `fedcore.nets.mlp.MLP` with an axis of devices in front.

One call of PyTorch then does what took one for each device, which is most of a small net's time. A device's numbers
have the bits that it gets alone wherever the processor's library sums a product of many as it sums one of a few;
:func:`same_bits` tries that out, with tensors that lie in memory as the real ones do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedcore.nets.mlp import MLP
from fedcore.types import Params

TRIED = 64
"""Numbers of the smallest result that are compared, at least."""


class StackedMLP:
    """Computes D equal perceptrons. one_by_one: the layers whose bias takes a product for each device."""

    def __init__(self, layers: Sequence[str], one_by_one: Collection[str] = ()) -> None:
        self.layers = layers
        self.one_by_one = one_by_one

    def activations(self, params: Params, x: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, then the logits: (D, B, inputs), (D, B, h1), ..., (D, B, K).

        params: (D, *size) each. x: (D, B, *shape).
        """
        activations = [x.flatten(2)]
        for layer in self.layers:
            weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
            activations.append(torch.bmm(activations[-1], weight.transpose(1, 2)).add_(bias[:, None]))
            if layer != self.layers[-1]:
                activations[-1].relu_()
        return activations

    def backward(
        self, params: Params, activations: list[Tensor], logit_grad: Tensor, into: Params, *, keep: float, scale: float
    ) -> None:
        """Backpropagate as `MLP.backward` does; logit_grad: (D, B, K), into: (D, *size) each."""
        devices, batch = logit_grad.shape[:2]
        ones, scaled = logit_grad.new_ones(batch), logit_grad.new_full((devices, 1, batch), scale)
        for layer, inputs in zip(reversed(self.layers), reversed(activations[:-1]), strict=True):
            weight, bias = into[f"{layer}.weight"], into[f"{layer}.bias"]
            below = logit_grad
            if layer != self.layers[0]:
                below = torch.bmm(logit_grad, params[f"{layer}.weight"]).mul_(inputs.sign())
            across = logit_grad.transpose(1, 2)
            if keep:
                weight.baddbmm_(across, inputs, beta=keep, alpha=scale)
            else:  # a product that lies in rows with gaps takes longer than one without, and its copy
                weight.copy_(torch.baddbmm(weight, across, inputs, beta=0, alpha=scale))
            if layer in self.one_by_one:
                for one, its in zip(bias.unbind(), across.unbind(), strict=True):
                    one.addmv_(its, ones, beta=keep, alpha=scale)
            elif keep:
                bias[:, None].baddbmm_(scaled, logit_grad, beta=keep)
            else:
                bias.copy_(torch.bmm(scaled, logit_grad)[:, 0])
            logit_grad = below


class MakeRows(Protocol):
    """Makes D models of random numbers, as the real ones lie in memory: their tensors, (D, *size) each, by name."""

    def __call__(self, draws: torch.Generator) -> Params: ...


def same_bits(module: MLP, make_rows: MakeRows, batch: int, *, keep: float, scale: float) -> StackedMLP | None:
    """Return what computes D of these nets with the bits of one after another; None if some product has other ones.

    Random examples are trained on both ways, forward and backward: B of them on each device, keep and scale as in
    `MLP.backward`. Only sums differ, and these not for some numbers but for most, if they are formed in another order.
    """
    draws = torch.Generator().manual_seed(0)
    stacked = StackedMLP(module.layers)
    with torch.no_grad():
        tried = 0
        while tried < TRIED:
            params, place = make_rows(draws), draws.get_state()
            into, expected = make_rows(draws), make_rows(draws.set_state(place))
            first, last = params[f"{module.layers[0]}.weight"], params[f"{module.layers[-1]}.bias"]
            x = torch.randn(len(first), batch, first.shape[2], generator=draws)
            gradient = torch.randn(len(first), batch, last.shape[1], generator=draws)
            alone = _one_by_one(module, params, x, gradient, expected, keep, scale)
            together = stacked.activations(params, x)
            stacked.backward(params, together, gradient, into, keep=keep, scale=scale)
            other = {name for name, tensor in into.items() if not torch.equal(tensor, expected[name])}
            biases = {layer for layer in module.layers if f"{layer}.bias" in other}
            if not all(map(torch.equal, alone, together)) or len(other) > len(biases):
                return None
            stacked.one_by_one = {*stacked.one_by_one, *biases}
            tried += last.numel()
    return stacked


def _one_by_one(
    module: MLP, params: Params, x: Tensor, gradient: Tensor, into: Params, keep: float, scale: float
) -> list[Tensor]:
    """Backpropagate one model after another; returns their activations as `StackedMLP.activations` does."""
    every = []
    for row, examples in enumerate(x):
        own = {name: tensor[row] for name, tensor in params.items()}
        activations = module.activations(own, examples.clone())
        its = {name: tensor[row] for name, tensor in into.items()}
        module.backward(own, activations, gradient[row].clone(), its, keep=keep, scale=scale)
        every.append(activations)
    return [torch.stack(layer) for layer in zip(*every, strict=True)]
