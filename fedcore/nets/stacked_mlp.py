"""The perceptrons of several devices at once: the products of `fedcore.nets.mlp.MLP` with an axis of devices in front.

One call of PyTorch then does what took one for each device, which is most of a small net's time. A device's numbers
have the bits that it gets alone wherever the processor's library sums a product of many as it sums one:
:mod:`fedcore.core.rows` tries that out.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedcore.types.federation import Params


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
            activations.append(forward(activations[-1], params[f"{layer}.weight"], params[f"{layer}.bias"]))
            if layer != self.layers[-1]:
                activations[-1].relu_()
        return activations

    def backward(
        self, params: Params, activations: list[Tensor], logit_grad: Tensor, into: Params, *, keep: float, scale: float
    ) -> None:
        """Backpropagate as `MLP.backward` does; logit_grad: (D, B, K), into: (D, *size) each."""
        for layer, inputs in zip(reversed(self.layers), reversed(activations[:-1]), strict=True):
            below = logit_grad
            if layer != self.layers[0]:
                below = torch.bmm(logit_grad, params[f"{layer}.weight"]).mul_(inputs.sign())
            add_weight(into[f"{layer}.weight"], logit_grad, inputs, keep, scale)
            if keep or layer in self.one_by_one:
                add_bias_one_by_one(into[f"{layer}.bias"], logit_grad, keep, scale)
            else:
                set_bias(into[f"{layer}.bias"], logit_grad, scale)
            logit_grad = below


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return each device's x W' + b: x (D, B, n), weight (D, m, n), bias (D, m)."""
    return torch.bmm(x, weight.transpose(1, 2)).add_(bias[:, None])


def add_weight(into: Tensor, logit_grad: Tensor, inputs: Tensor, keep: float, scale: float) -> None:
    """Compute into <- keep * into + scale * G' X for each device: into (D, m, n), G (D, B, m), X (D, B, n)."""
    across = logit_grad.transpose(1, 2)
    if keep:
        into.baddbmm_(across, inputs, beta=keep, alpha=scale)
    else:  # a product that lies in rows with gaps takes longer than one without, and its copy
        into.copy_(torch.baddbmm(into, across, inputs, beta=0, alpha=scale))


def set_bias(into: Tensor, logit_grad: Tensor, scale: float) -> None:
    """Compute into <- scale * (sum over the examples) for each device: into (D, m), logit_grad (D, B, m)."""
    devices, batch = logit_grad.shape[:2]
    into.copy_(torch.bmm(logit_grad.new_full((devices, 1, batch), scale), logit_grad)[:, 0])


def add_bias_one_by_one(into: Tensor, logit_grad: Tensor, keep: float, scale: float) -> None:
    """Compute into <- keep * into + scale * (sum over the examples), device after device."""
    ones = logit_grad.new_ones(logit_grad.shape[1])
    for bias, gradient in zip(into.unbind(), logit_grad.unbind(), strict=True):
        bias.addmv_(gradient.t(), ones, beta=keep, alpha=scale)


def equal_bits(first: Tensor, second: Tensor) -> bool:
    """Tell whether two float32 tensors have equal bits, also of zeros and of what is no number."""
    return torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))
