"""The settings of a device's training."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from annotated_types import Ge, Lt

from fedcore.core.losses import OwnLoss, find_loss, loss_name, parts_of
from fedcore.errors import InputError
from fedcore.execute.accelerator import using_tf32
from fedcore.types.ranges import Amount, Count, Fraction, Positive

Momentum: TypeAlias = Annotated[float, Ge(0), Lt(1)]
Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""Of a net's products: float32, or fewer bits of the mantissa where the hardware is faster with them."""


@dataclass(frozen=True)
class Training:
    """Settings of a device's training.

    Args:
        optimiser: "sgd", "adam" or "adamw" (both with beta .9 and .999, eps 1e-8).
        lr: learning rate, at the start of the first round.
        momentum: of sgd, from 0 to below 1.
        weight_decay: weight of half the squared norm of the parameters in the loss; of adamw, share of the parameters
            that a step takes away, times the learning rate.
        schedule: of the learning rate over the steps of one round.
        batch: examples per step; the last batch of an epoch may be smaller.
        epochs: passes over a device's examples in each round; each pass has its own order.
        steps: minibatches of a round on every device, however many examples it has, in place of `epochs`.
        loss: "ce" (cross-entropy of classes; of a number as label its squared error; of several labels their mean
            binary cross-entropy), "squared" and "absolute" (of a number), "fedasa_eq12" (FedASA's as printed),
            "fedasa_table3" (as its Table III has it),
            "softmax_twice" (cross-entropy of a net that ends in a softmax), or your own function of a `Batch`, in
            the pipeline by its place, "package.module:function" (fedcore docs losses).
        class_weights: "balanced": an example of class k counts n / (K n_k), for a device's n training examples, the n_k
            of class k among them and the K classes that it has (scikit-learn's rule); a batch's loss is the weighted
            mean, as PyTorch's CrossEntropyLoss(weight) has it. "none": all count alike. For loss "ce" alone.
        precision: of the products in a net's layers: "float32"; "tf32": 10 bits of the mantissa, on NVIDIA's
            accelerators; "bfloat16": 7 bits, there and on processors with AVX-512 BF16 or AMX. Parameters, the sums of
            products, the optimiser and scores stay float32. Raises InputError where the hardware has none.
        optimiser_state: "fresh": each round starts a new optimiser; "keep": a device keeps its moments in its memory
            from round to round (not in a stage without `combine`, where the model takes the place of the memory).
        shared_init: all devices start from one initial model, which the server draws and sends; otherwise each device
            draws its own. A method reads it when it is built; no step does.
        nesterov: whether the momentum of sgd looks ahead.
        clip: greatest norm of a step's gradient, above 0; a longer one is shortened to it. None: any.
        round_decay: factor of the learning rate from one round of a stage to the next, above 0, at most 1.
        patience: a round of local training ends early once the loss "ce" of the device's own validation examples
            has not fallen for so many epochs, from 1 (Prechelt 1998); the model, and its optimiser's moments, are then
            those after the best epoch. None: all epochs; so do devices without validation examples.
    """

    optimiser: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: Amount = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch: Count = 16
    epochs: Count = 20
    steps: Count | None = None
    loss: str | OwnLoss = "ce"
    optimiser_state: Literal["fresh", "keep"] = "fresh"
    shared_init: bool = field(default=False, metadata={"digest": False})
    nesterov: bool = False
    clip: Positive | None = None
    round_decay: Fraction = 1.0
    class_weights: Literal["none", "balanced"] = "none"
    precision: Precision = "float32"
    patience: Count | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", find_loss(self.loss))
        if self.nesterov and not (self.optimiser == "sgd" and self.momentum):
            raise InputError("training.nesterov = true: needs training.optimiser = sgd and a training.momentum above 0")

        if self.patience is not None and self.steps is not None:
            raise InputError(
                f"training.patience = {self.patience}: counts epochs, which training.steps = {self.steps} replaces; "
                "leave one of them out"
            )
        if self.class_weights != "none" and self.loss != "ce":
            raise InputError(
                f"training.class_weights = {self.class_weights!r}: is for training.loss = 'ce', not "
                f"{loss_name(self.loss)!r}"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as a file has them: of a loss of one's own its place."""
        return {**vars(self), "loss": loss_name(self.loss)}


def at_round(training: Training, number: int) -> Training:
    """Return the settings in a round of a stage, from 0: its learning rate."""
    return training if training.round_decay == 1 else replace(training, lr=training.lr * training.round_decay**number)


def require_cross_entropy(name: str, training: Training) -> None:
    """Refuse another loss, and class weights, where a method's own loss contains cross-entropy."""
    if training.loss != "ce":
        raise InputError(
            f"training.loss = {loss_name(training.loss)}: {name} has its own loss, which contains cross-entropy; use ce"
        )
    if training.class_weights != "none":
        raise InputError(
            f"training.class_weights = {training.class_weights!r}: {name} has its own loss, without class weights; "
            f"leave it out, or set {name}.training.class_weights=none"
        )


Unused: TypeAlias = Literal["patience", "parts", "optimiser_state"]


def refuse(name: str, training: Training, *settings: Unused) -> None:
    """Refuse early stopping, a loss's own parts or a kept optimiser, where a method has no use for these settings."""
    if "patience" in settings and training.patience is not None:
        raise InputError(
            f"training.patience = {training.patience}: {name} needs all steps of a round; leave it out, or set "
            f"{name}.training.patience=null"
        )
    if "parts" in settings and parts_of(training.loss) is not None:
        raise InputError(
            f"training.loss = {loss_name(training.loss)}: {name} does not train a loss's own parts; "
            "use a loss without them"
        )
    if "optimiser_state" in settings and training.optimiser_state == "keep":
        raise InputError(f"training.optimiser_state = keep: {name} starts a new optimiser in each round; use fresh")


def computing_in(precision: Precision, kind: str) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes the context in which products have a precision.

    kind: of the device that computes, as PyTorch names it. Raises InputError where it has no such products.
    """
    if precision == "float32":
        return nullcontext
    if precision == "tf32":
        if kind != "cuda":
            here = "a processor" if kind == "cpu" else kind
            raise InputError(f"training.precision = 'tf32': is for NVIDIA's accelerators, not for {here}")
        return partial(using_tf32, True)
    if kind == "cpu" and not has_bfloat16():
        raise InputError(
            "training.precision = 'bfloat16': this processor has neither AVX-512 BF16 nor AMX; use float32"
        )
    return partial(torch.autocast, kind, torch.bfloat16)


def has_bfloat16() -> bool:
    """Tell whether this processor multiplies bfloat16 numbers faster than float32 ones."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
