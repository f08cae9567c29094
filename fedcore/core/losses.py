"""What training minimises: the losses that have a name, and losses of one's own, which see a whole `Batch`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import signature
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss

from fedcore.builders import describe, import_builder, name_of, unknown_value
from fedcore.data.task import as_numbers, label_kind_of, squared_loss
from fedcore.errors import InputError
from fedcore.nets import shapes
from fedcore.nets.copies import load
from fedcore.nets.inputs import forward_features, require_features
from fedcore.nets.parts import require_last_layer
from fedcore.types.federation import Net, Params
from fedcore.types.method import Message

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, K) and labels (B,) -> the mean loss over them."""


@dataclass(frozen=True)
class Batch:
    """One minibatch, as a loss of one's own sees it.

    Args:
        net: the device's net.
        module: the net as a module, in training mode, with the parameters that are trained.
        x: inputs (B, *shape).
        y: labels (B,), int64; of a number as label float32, standardised; of several labels (B, K) float32, 0 or 1; of
            steps (B, T) int64, -1 where a step has no label.
        message: what the server sent: `message.params` is the model that training starts from, if it sent one.
        memory: the device's own tensors, as they were before this round.
        round: of the stage, from 0, as in a `StepId`.
        parts: the loss's own trainable module, see `with_parts`; None without one.
    """

    net: Net
    module: nn.Module
    x: Tensor
    y: Tensor
    message: Message = field(default_factory=Message)
    memory: Params = field(default_factory=dict)
    round: int = 0
    parts: nn.Module | None = None

    @cached_property
    def _outputs(self) -> tuple[Tensor | None, Tensor]:
        return forward_features(self.module, self.x.clone())  # a loss may change its inputs in place, before and after

    @property
    def logits(self) -> Tensor:
        """The module's outputs (B, K), computed when a loss first asks for them, or for the features."""
        return self._outputs[1].float()

    @property
    def params(self) -> Params:
        """The parameters that are trained, by name; a loss may depend on them."""
        return {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}

    @property
    def features(self) -> Tensor:
        """The input of the net's last layer, (B, d)."""
        require_last_layer(self.net)
        return require_features(*self._outputs)[0]

    def with_params(self, params: Params) -> Batch:
        """Return the same examples as another model of this net sees them, in evaluation mode, without gradients."""
        module = load(self.net, {name: params[name] for name in shapes(self.net)}).eval()
        batch = replace(self, module=module)
        with torch.no_grad():
            vars(batch)["_outputs"] = forward_features(module, self.x.clone())
        return batch


class ReadOnly(dict[str, Tensor]):
    """Tensors that a loss may read: what it put in would be dropped after the round."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InputError(
            "training.loss: puts something into, or takes it from, the tensors of batch.memory or batch.message, which "
            "it may only read; keep it in a buffer of parts: @fc.with_parts"
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[type[Params], tuple[Params]]:
        return dict, (dict(self),)


def read_only(batch_of: Callable[..., Batch]) -> Callable[..., Batch]:
    """Return what makes batches with tensors of their own, which a loss may only read."""
    given: dict[str, Any] = getattr(batch_of, "keywords", {})
    message, memory = copy.deepcopy((given.get("message", Message()), given.get("memory", {})))
    message = replace(message, params=ReadOnly(message.params), extra=ReadOnly(message.extra))
    return partial(batch_of, message=message, memory=ReadOnly(memory))


OwnLoss: TypeAlias = Callable[[Batch], Tensor]
"""A loss of one's own: a minibatch -> a scalar, usually the mean over its examples."""


PARTS = "parts/"
"""Prefix of the tensors in a device's memory that hold the trainable parts of its loss."""

MakeParts: TypeAlias = Callable[[Net], nn.Module]
"""A device's net -> a module that its loss trains beside the net."""


def with_parts(make: MakeParts) -> Callable[[OwnLoss], OwnLoss]:
    """Give a loss trainable parts of its own, such as a projection head: `@with_parts(make)`; it has `batch.parts`.

    They are trained with the net, by the same optimiser, and stay in the device's memory, as tensors "parts/<name>".
    Nothing of them is sent, unless the method puts these tensors into an update's `extra`; training starts from those
    of that name in a message's `extra`, then from those in memory, then from fresh ones.
    """

    def mark(loss: OwnLoss) -> OwnLoss:
        loss.parts = make  # type: ignore[attr-defined]
        return loss

    return mark


def parts_of(loss: str | OwnLoss) -> MakeParts | None:
    """Return what makes a loss's own parts, whatever settings are bound to it; None if it has none."""
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, "parts", None)


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits) in nats: (B, K) -> (B,)."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def fedasa_eq12_loss(logits: Tensor, y: Tensor) -> Tensor:
    """FedASA's loss as printed (Deng et al. 2024, eq. 12): CE(s, y) + exp(entropy of s), s = softmax(logits) (10).

    The softmax is applied twice, so that no class can exceed e / (e + K - 1): it trains badly. The hard label (11)
    occurs in no formula. Departure: the mean over the examples; (12) prints no sum.
    """
    return cross_entropy(logits.softmax(1), y) + entropies(logits).exp().mean()


def fedasa_table3_loss(logits: Tensor, y: Tensor) -> Tensor:
    """FedASA's loss as its Table III has it: CE(s, y) with softmax taken twice, plus the entropy of s in bits.

    Of the readings with softmax once or twice and with entropy in nats, in bits or as exp(entropy), this is the only
    one that some soft labels of four classes bring to the cross-entropy and the loss of both examples.
    """
    return cross_entropy(logits.softmax(1), y) + entropies(logits).mean() / math.log(2)


def softmax_twice(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the softmax, which takes another: what a net that ends in a softmax is trained with.

    The public code of ST-LF's authors does. No class can exceed e / (e + K - 1), so that learning is slow.
    """
    return cross_entropy(logits.softmax(1), y)


def own_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of the labels' own task: cross-entropy of classes or labels, squared error of a number."""
    return label_kind_of(y).loss(outputs, y)


def own_gradient(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of the summed `own_loss` at the outputs, (B, K)."""
    return label_kind_of(y).gradient(outputs, y)


def absolute_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Absolute error of a number, whose best constant is the median: mean |z - y|."""
    return l1_loss(*as_numbers(outputs, y))


LOSSES: dict[str, Loss] = {
    "ce": own_loss, "squared": squared_loss, "absolute": absolute_loss, "fedasa_eq12": fedasa_eq12_loss,
    "fedasa_table3": fedasa_table3_loss, "softmax_twice": softmax_twice,
}  # fmt: skip


def find_loss(loss: str | OwnLoss, key: str = "training.loss") -> str | OwnLoss:
    """Return the name of a loss, or the function itself; "package.module:function" is imported.

    Raises InputError, naming the key, for another name, and for a function that does not take one `Batch`.
    """
    if isinstance(loss, str) and loss in LOSSES:
        return loss
    if callable(loss) or ":" in loss:
        found: OwnLoss = loss if callable(loss) else import_builder(loss, key)
        place = name_of(found)
        if isinstance(loss, str) and "<" not in place and import_builder(place, key) is not found:
            raise InputError(f"{key} = {loss!r}: has the name of {place}, another function (by wraps); write it by def")
        try:
            signature(found.forward if isinstance(found, nn.Module) else found).bind(None)
        except TypeError:
            how = "def mine(batch): return LOSS(batch.logits, batch.y)"
            raise InputError(f"{key} = {describe(loss)}: must take one argument, a minibatch; write: {how}") from None
        except ValueError:  # a compiled function does not say what it takes
            pass
        return found
    raise unknown_value(key, loss, (*LOSSES, "package.module:function"))


def loss_name(loss: str | OwnLoss) -> str:
    """Return the name of a loss, of one's own its place, "package.module:function"."""
    return loss if isinstance(loss, str) else name_of(loss)


def require_scalar(loss: OwnLoss, value: object) -> Tensor:
    """Return what a loss of one's own returned; raises InputError if no parameter can be trained by it."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.requires_grad:
        return value
    if not isinstance(value, Tensor):
        what = type(value).__name__
    elif value.dim():
        what = f"a tensor of shape {tuple(value.shape)}"
    else:
        what = "one that depends on no parameter"
    raise InputError(f"training.loss: {loss_name(loss)} must return a scalar tensor, returned {what}")
