"""The gradient of a loss on a minibatch: by hand where a net brings its own chain rule, otherwise by autograd."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedcore.core.flat_nets import FlatNet
from fedcore.core.function_trial import try_loss
from fedcore.core.losses import LOSSES, Batch, OwnLoss, loss_name, own_gradient, parts_of, read_only, require_scalar
from fedcore.core.training_settings import Precision, Training, computing_in
from fedcore.data.task import cross_entropy_grad
from fedcore.errors import InputError
from fedcore.nets.mlp import MLP
from fedcore.types.federation import Data, Params

Step: TypeAlias = Callable[[Tensor, Tensor], None]
"""A training step on one minibatch: inputs (B, *shape) float32 and labels (B,)."""

LogitGrad: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, K) and labels (B,) -> the derivative of the loss, summed over them, at the logits (B, K)."""


@dataclass(frozen=True)
class PerExample:
    """A `LogitGrad` whose row for an example depends on that example alone, by operations on tensors alone.

    Devices that train together may then fill up smaller batches, and an accelerator may record a step and replay it.
    """

    compute: LogitGrad

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.compute(logits, y)


def gradient_step(
    flat: FlatNet, loss: str | OwnLoss = "ce", logit_grad: LogitGrad | None = None,
    batch_of: Callable[..., Batch] = Batch, precision: Precision = "float32",
) -> Step:  # fmt: skip
    """Return a step that writes the gradient of the mean loss to `flat.gradient`.

    logit_grad: of a loss to use instead. batch_of: makes the `Batch` for a loss of one's own. precision: as in
    `Training`.
    """
    module: Any = flat.module
    at_logits = logit_grad or (own_gradient if loss == "ce" else None)
    if parts_of(loss) is not None and "parts" not in getattr(batch_of, "keywords", {}):
        raise InputError(f"training.loss: {loss_name(loss)} has trainable parts, which this method does not train")
    if type(module) is MLP and at_logits is not None and precision == "float32":
        return lambda x, y: manual_step(
            module, flat.parameters, x, y, flat.gradients, keep=0.0, scale=1.0, logit_grad=at_logits
        )

    computing = computing_in(precision, flat.vector.device.type)
    batch_of = read_only(batch_of) if callable(loss) else batch_of

    def gradient(x: Tensor, y: Tensor) -> None:
        note_idle = flat.zero_gradient()
        with computing():
            if logit_grad is not None:
                logits = module(x).float()
                torch.autograd.backward(logits, logit_grad(logits.detach(), y) / len(y))
            elif isinstance(loss, str):
                torch.autograd.backward(LOSSES[loss](module(x).float(), y))
            else:
                try_loss(loss, flat, x, y, batch_of)
                own = batch_of(flat.net, module, x.clone(), y.clone())  # a method may take more steps on the same rows
                torch.autograd.backward(require_scalar(loss, loss(own)))
        note_idle()

    return gradient


def manual_step(
    module: MLP, params: Params, x: Tensor, y: Tensor, into: Params, *, keep: float, scale: float,
    logit_grad: LogitGrad,
) -> None:  # fmt: skip
    """Compute into <- keep * into + scale * (gradient of the mean loss), without autograd.

    logit_grad: of the summed loss; the mean's 1/B is part of the scale.
    """
    with torch.no_grad():
        activations = module.activations(params, x)
        module.backward(params, activations, logit_grad(activations[-1], y), into, keep=keep, scale=scale / len(y))


def class_weights(y: Tensor) -> Tensor:
    """Return n / (K n_k) for each class k up to the last one in y, (K,) float32; 0 for a class that y lacks.

    y: (n,). K counts the classes in y.
    """
    counts = torch.bincount(y)
    weights = len(y) / ((counts > 0).sum() * counts).double()
    return weights.where(counts > 0, 0.0).float()


def balanced_grad(training: Training, data: Data) -> LogitGrad | None:
    """Return the gradient of cross-entropy weighted by the classes of `data`; None where all examples count alike.

    It is that of sum_i w_i CE_i / sum_i w_i over a batch, times its size B.
    """
    if training.class_weights == "none":
        return None
    weights = class_weights(data.y)

    def logit_grad(logits: Tensor, y: Tensor) -> Tensor:
        share = weights[y] * (len(y) / weights[y].sum())
        return cross_entropy_grad(logits, y).mul_(share[:, None])

    return logit_grad


def clip_norm(gradient: Tensor, norm: float) -> None:
    """Shorten a gradient to a norm, in place."""
    gradient.mul_((norm / (gradient.norm() + 1e-6)).clamp(max=1))


def proximal_grad_hook(flat: FlatNet, anchor: Tensor, weight: float) -> Callable[[], None] | None:
    """Return a function that adds the gradient of weight/2 ||w - anchor||^2 to `flat.gradient`; None for weight 0.

    anchor: (P,), in the layout of `flat.vector`.
    """
    if weight == 0:
        return None
    away = torch.empty_like(anchor)

    def grad_hook() -> None:
        flat.gradient.add_(torch.sub(flat.vector, anchor, out=away), alpha=weight)

    return grad_hook
