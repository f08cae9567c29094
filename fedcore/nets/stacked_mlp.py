"""The perceptrons of several devices at once: the products of `fedcore.nets.mlp.MLP` with an axis of devices in front.

One call of PyTorch then does what took one for each device, which is most of a small net's time. A device's numbers
have the bits that it gets alone wherever the processor's library sums a product of many as it sums one:
:func:`same_bits` tries that out.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from fedcore.nets.mlp import linear
from fedcore.types.federation import Params

TRIED = 4096
"""Numbers of each product that are compared, at least: another order of a sum may show in one of a hundred."""

ALIGNMENT = 16
"""Each device's part of a stack begins at a multiple of so many numbers (a cache line), where a tensor of its own does.
A library may sum otherwise from another place on.
"""

SCALE = 0.7371
"""The scale that is tried: no power of two, which would not round, and no small one beside what is there."""


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


MakeRows = Callable[[torch.Generator], Params]
"""Makes D models of random numbers, as the real ones lie in memory: their tensors, (D, *size) each, by name."""


def same_bits(layers: Sequence[str], make_rows: MakeRows, batch: int, keep: float) -> StackedMLP | None:
    """Return what computes D of these nets with the bits of one after another; None if some product has other ones.

    Each product is tried with random numbers that lie in memory as the real ones do: B examples of each device. keep:
    as in `MLP.backward`; what is there is as large as what comes to it. A bias whose gradient has other bits is
    computed one by one.
    """
    draws = torch.Generator().manual_seed(0)
    one_by_one = set()
    with torch.no_grad():
        for layer in layers:
            devices, outputs, inputs = make_rows(draws)[f"{layer}.weight"].shape
            if batch * outputs % ALIGNMENT or batch * inputs % ALIGNMENT:
                return None
            for _ in range(-(-TRIED // (devices * min(outputs * min(batch, inputs), batch * inputs)))):
                if not _products_agree(layer, make_rows, batch, keep, draws):
                    return None
            if keep == 0 and not _biases_agree(layer, make_rows, batch, draws):
                one_by_one.add(layer)
    return StackedMLP(layers, one_by_one)


def _products_agree(layer: str, make_rows: MakeRows, batch: int, keep: float, draws: torch.Generator) -> bool:
    params, (into, expected) = make_rows(draws), _twice(make_rows, draws)
    weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
    x = torch.randn(len(weight), batch, weight.shape[2], generator=draws)
    gradient = torch.randn(len(weight), batch, weight.shape[1], generator=draws)
    whole = [forward(x, weight, bias), torch.bmm(gradient, weight)]
    add_weight(into[f"{layer}.weight"], gradient, x, keep, SCALE)
    for row, (inputs, of) in enumerate(zip(x, gradient, strict=True)):
        its, logit_grad = expected[f"{layer}.weight"][row], of.clone()
        alone = [linear(inputs.clone(), weight[row], bias[row]), logit_grad.mm(weight[row])]
        its.addmm_(logit_grad.t(), inputs.clone(), beta=keep, alpha=SCALE)
        if not all(equal_bits(single, stacked[row]) for single, stacked in zip(alone, whole, strict=True)):
            return False
        if not equal_bits(its, into[f"{layer}.weight"][row]):
            return False
    return True


def _biases_agree(layer: str, make_rows: MakeRows, batch: int, draws: torch.Generator) -> bool:
    into, expected = (params[f"{layer}.bias"] for params in _twice(make_rows, draws))
    for _ in range(-(-TRIED // into.numel())):
        gradient = torch.randn(len(into), batch, into.shape[1], generator=draws)
        set_bias(into, gradient, 1 / batch)
        for row, of in zip(expected.unbind(), gradient.unbind(), strict=True):
            row.addmv_(of.clone().t(), torch.ones(batch), beta=0.0, alpha=1 / batch)
        if not equal_bits(into, expected):
            return False
    return True


def _twice(make_rows: MakeRows, draws: torch.Generator) -> tuple[Params, Params]:
    """Return equal models in two places."""
    state = draws.get_state()
    return make_rows(draws), make_rows(draws.set_state(state))


def equal_bits(first: Tensor, second: Tensor) -> bool:
    """Tell whether two float32 tensors have equal bits, also of zeros and of what is no number."""
    return torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))
