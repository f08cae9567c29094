"""The multilayer perceptron of any widths, with backpropagation written by hand; and those of several devices at once.

The latter are the same products with an axis of devices in front. One call of PyTorch then does what took one for each
device, which is most of a small net's time. A device's numbers have the bits that it gets alone wherever the
processor's library sums a product of many as it sums one: :mod:`fedcore.core.rows` tries that out.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcore.errors import InputError
from fedcore.types.federation import Axes, Net, Params
from fedcore.types.ranges import Count

ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

LARGEST = 1 << 28
"""The most parameters of one model: 1 GiB in float32, of which each device has one."""

LARGE = 1 << 22
"""Multiplications above which oneDNN pays off: its conversions cost some 30 microseconds."""


class MLP(nn.Module):
    """fc1, ReLU, fc2, ..., ReLU, fcL on flattened examples: x (B, *shape) -> logits (B, K).

    It computes its gradients itself; a class derived from it, such as `ByAutograd`, may not.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = [f"fc{i}" for i in range(1, len(sizes))]
        for layer, (before, after) in zip(self.layers, pairwise(sizes), strict=True):
            self.add_module(layer, Linear(before, after))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:  # called as modules, so that hooks see their inputs
            x = self.get_submodule(layer)(x)
            if layer != self.layers[-1]:
                x = x.relu_()
        return x

    def activations(self, params: Params, x: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, then the logits: (B, inputs), (B, h1), ..., (B, K)."""
        activations = [x.flatten(1)]
        for layer in self.layers:
            activations.append(linear(activations[-1], params[f"{layer}.weight"], params[f"{layer}.bias"]))
            if layer != self.layers[-1]:
                activations[-1].relu_()
        return activations

    def backward(
        self, params: Params, activations: list[Tensor], logit_grad: Tensor, into: Params, *, keep: float, scale: float
    ) -> None:
        """Backpropagate from the logits to the parameters: into <- keep * into + scale * gradient.

        logit_grad: (B, K), the loss's derivative. into may be `params` itself, which makes a step of plain gradient
        descent one product per parameter: the derivative passes through a weight before that weight changes. The
        derivative of a ReLU is the sign of its output.
        """
        ones = logit_grad.new_ones(len(logit_grad))
        for layer, inputs in zip(reversed(self.layers), reversed(activations[:-1]), strict=True):
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            below = logit_grad.mm(params[weight]).mul_(inputs.sign()) if layer != self.layers[0] else logit_grad
            into[weight].addmm_(logit_grad.t(), inputs, beta=keep, alpha=scale)
            into[bias].addmv_(logit_grad.t(), ones, beta=keep, alpha=scale)
            logit_grad = below


class Linear(nn.Linear):
    """A linear layer that multiplies as `linear` does."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W' + b: x (B, n), weight (m, n), bias (m,).

    Large products without a gradient use oneDNN, in the same precision: on AMD's processors it is twice as fast as
    MKL, PyTorch's default.
    """
    if torch.compiler.is_exporting() or torch.is_grad_enabled():  # an exported graph must take any batch size
        return F.linear(x, weight, bias)
    large = len(x) * weight.numel() >= LARGE and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if large and ONEDNN:
        return F.linear(x.to_mkldnn(), weight, bias).to_dense()
    return F.linear(x, weight, bias)


def mlp(shape: Sequence[int], widths: Sequence[int], classes: int) -> nn.Module:
    """Build the module for examples of `shape`; without widths it is a linear model."""
    return MLP([math.prod(shape), *widths, classes])


class ByAutograd(MLP):
    """One whose layers are not all trained, or are a user's, who may have hooked them."""


def by_autograd(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module; an `MLP` leaves its gradients to autograd."""
    module = build()
    if type(module) is MLP:
        module.__class__ = ByAutograd
    return module


def axes(widths: Sequence[int]) -> Axes:
    """Return the hidden units along each axis: {"fc1.weight": ("h1", None), "fc1.bias": ("h1",), ...}."""
    units = [None, *(f"h{i}" for i in range(1, len(widths) + 1)), None]
    table: Axes = {}
    for i, (before, after) in enumerate(pairwise(units), start=1):
        table |= {f"fc{i}.weight": (after, before), f"fc{i}.bias": (after,)}
    return table


def net(*, shape: Sequence[int], classes: int, widths: Sequence[Count] = (64, 32)) -> Net:
    """Return a multilayer perceptron.

    Args:
        widths: units of each hidden layer, from 1.
    """
    layers = [math.prod(shape), *widths, classes]
    size = sum((first + 1) * second for first, second in pairwise(layers))
    if size > LARGEST:
        raise InputError(f"net.widths: {list(widths)} gives {size:,} parameters, at most {LARGEST:,}")
    return Net(partial(mlp, shape=tuple(shape), widths=tuple(widths), classes=classes), axes(widths), copied=True)


# several devices at once


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
            activations.append(forward_all(activations[-1], params[f"{layer}.weight"], params[f"{layer}.bias"]))
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


def forward_all(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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
