r"""Kinds of label: what labels are, and all that follows from it.

The labels themselves say it, as PyTorch's losses have it:

    y (N,) int64       classification   the number of a class; a net has an output for each of K classes, its logits
    y (N,) float32     regression       a quantity; a net has one output
    y (N, K) float32   multilabel       0 or 1 for each of K labels; a net has an output for each, its logit
    y (N, T) int64     sequence_labelling   a class for each step, or -1; a net has K outputs for each step, (N, T, K)

A :class:`LabelKind` holds what differs: the loss and its gradient, how the outputs of several models become one answer,
the score by which devices rank models, and the guess that is the control. Everything else is the same code: a method
that needs only parameters, sums or features knows no kind of label. Metrics by kind are in
:mod:`fedcore.core.evaluation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear, logsigmoid, mse_loss, one_hot

from fedcore.errors import InputError
from fedcore.types.federation import Params
from fedcore.types.method import Weights

LabelKindName: TypeAlias = Literal["classification", "regression", "multilabel", "sequence_labelling"]

NO_LABEL = -1
"""The label of a step that has none, such as padding: it counts in no loss and no score."""

Combined: TypeAlias = Callable[[Sequence[Tensor], Weights, float, Params | None], Tensor]
"""The outputs of M members (N, K), their weights, power and head, as in `fedcore.types.method.Model` -> answers."""


@dataclass(frozen=True)
class LabelKind:
    """What labels are.

    name: in settings and files. words: in sentences, of the data. loss: outputs (B, K) and labels -> the mean loss.
    gradient: the derivative of the summed loss at the outputs, (B, K). combine: the members' outputs -> the model's
    answers (N, K). targets: labels as numbers to regress on, (N, K). score: of answers, in [0, 1], the greater the
    better. counts: how many examples speak for each output, (K,). tally: sums over labels, from which `guess` makes the
    outputs (K,) that are best where no input is known. losses: the names that `training.loss` may have.
    has_classes: whether a label is a class, which partitions by label, class weights and some methods need.
    standardised: whether labels are standardised, and errors in their unit.
    predicts_classes: whether an answer is one of K classes, for an example or for each of its steps.
    """

    name: LabelKindName
    words: str
    loss: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    combine: Combined
    targets: Callable[[Tensor, int], Tensor]
    score: Callable[[Tensor, Tensor], float]
    counts: Callable[[Tensor, int], Tensor]
    tally: Callable[[Tensor, int], Tensor]
    guess: Callable[[Tensor], Tensor]
    losses: tuple[str, ...]
    has_classes: bool = False
    standardised: bool = False
    predicts_classes: bool = False

    def probabilities(self, answers: Tensor) -> Tensor:
        """Return the probability of each class, or of each of several labels, (N, K), from a model's answers."""
        return answers.exp() if self.predicts_classes else answers.double().sigmoid().to(answers.dtype)


# classification


def cross_entropy_grad(logits: Tensor, y: Tensor) -> Tensor:
    """Return softmax(logits) - onehot(y), the gradient of cross-entropy at the logits."""
    logit_grad = logits.softmax(1)
    return logit_grad.scatter_add_(1, y[:, None], logit_grad.new_full((len(y), 1), -1.0))


def mix_probabilities(logits: Sequence[Tensor], weights: Weights, power: float, head: Params | None) -> Tensor:
    """Return log-probabilities (N, K) of M members' logits (N, K).

    A single member's are exact log-softmax, so that its loss does not saturate.
    """
    if head is not None:
        return linear(torch.cat([*logits], 1), head["weight"], head["bias"]).log_softmax(1)
    members = [z.log_softmax(1) for z in logits]
    share = torch.tensor(weights, dtype=members[0].dtype).log()
    if share.ndim == 1 and power == 1:
        return members[0] if len(members) == 1 else torch.logsumexp(torch.stack(members) + share[:, None, None], dim=0)
    by_class = share[:, None, :] if share.ndim == 2 else share[:, None, None]
    return torch.logsumexp(power * torch.stack(members) + by_class, dim=0).log_softmax(1)


def right(outputs: Tensor, y: Tensor) -> float:
    """Return the fraction of examples whose class has the greatest output."""
    return (outputs.argmax(1) == y).double().mean().item()


def count_classes(y: Tensor, classes: int) -> Tensor:
    """Return the examples of each class, (K,) int64."""
    return torch.bincount(y, minlength=classes)


def log_frequencies(counts: Tensor) -> Tensor:
    """Return the logarithms of the labels' frequencies, (K,), each label counted once more than it occurs."""
    return (counts + 1.0).log() - (counts + 1.0).sum().log()


# regression


def squared_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error of outputs (B, 1)."""
    return mse_loss(*as_numbers(outputs, y))


def as_numbers(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (B, 1) as (B,), and labels in their type: PyTorch's losses of numbers take no other."""
    return outputs[:, 0], y.to(outputs.dtype)


def squared_grad(outputs: Tensor, y: Tensor) -> Tensor:
    """Return 2 (z - y), the gradient of the squared error at the outputs (B, 1)."""
    return 2 * (outputs - y[:, None])


def mean_of_members(outputs: Sequence[Tensor], weights: Weights, power: float, head: Params | None) -> Tensor:
    """Return the weighted mean of M members' outputs (N, K), or what a head makes of them.

    A power is of probabilities, which these are not: it has no effect.
    """
    if head is not None:
        return linear(torch.cat([*outputs], 1), head["weight"], head["bias"])
    if len(outputs) == 1:
        return outputs[0]
    share = torch.tensor(weights, dtype=outputs[0].dtype).view(len(outputs), 1, -1)
    return (torch.stack([*outputs]) * share).sum(0) / share.sum(0)


def closeness(outputs: Tensor, y: Tensor) -> float:
    """Return 1 / (1 + mean squared error): 1 for the truth, about .5 for the mean, since labels have deviation 1."""
    return 1 / (1 + squared_loss(outputs, y).item())


def sum_and_count(y: Tensor, outputs: int) -> Tensor:
    """Return the sum of the labels and their number, (2,) float64."""
    return torch.stack([y.double().sum(), torch.tensor(float(len(y)), dtype=torch.float64)])


# several labels


def binary_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross-entropy of outputs (B, K), mean over examples and labels, nats."""
    return binary_cross_entropy_with_logits(outputs, y)


def binary_grad(outputs: Tensor, y: Tensor) -> Tensor:
    """Return (sigmoid(z) - y) / K, the gradient of the binary cross-entropy at the outputs (B, K)."""
    return (outputs.sigmoid() - y) / y.shape[1]


def mix_labels(logits: Sequence[Tensor], weights: Weights, power: float, head: Params | None) -> Tensor:
    """Return logits (N, K) of M members' logits (N, K): of each label `mix_probabilities` of its two answers, 1 and 0.

    A single member's are its own.
    """
    if head is not None:
        return linear(torch.cat([*logits], 1), head["weight"], head["bias"])
    if len(logits) == 1 and power == 1:
        return logits[0]
    z = torch.stack([*logits])
    share = torch.tensor(weights, dtype=z.dtype).log().view(len(z), 1, -1)
    yes, no = (torch.logsumexp(power * logsigmoid(sign) + share, 0) for sign in (z, -z))
    return yes - no


def labels_right(outputs: Tensor, y: Tensor) -> float:
    """Return the fraction of labels that are right, 1 being said where an output is above 0."""
    return ((outputs > 0) == (y > 0)).double().mean().item()


def ones_and_count(y: Tensor, labels: int) -> Tensor:
    """Return how many examples have each label, and how many there are, (2, K) float64."""
    return torch.stack([y.double().sum(0), torch.full((labels,), float(len(y)), dtype=torch.float64)])


def log_odds(tally: Tensor) -> Tensor:
    """Return the logits of the labels' rates, (K,), each answer counted once more than it occurs."""
    return ((tally[0] + 1).log() - (tally[1] - tally[0] + 1).log()).float()


# sequences


def labelled_steps(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (M, K) and labels (M,) of the M steps that have a label, as those of examples with classes.

    outputs: (N, T, K); y: (N, T). What is no sequence is returned as it is.
    """
    if label_kind_of(y) is not SEQUENCES:
        return outputs, y
    labelled = y != NO_LABEL
    if not labelled.any():
        return outputs.new_empty(0, outputs.shape[-1]), y.new_empty(0)
    return outputs[labelled], y[labelled]


def masked_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of the steps of a batch that have a label; 0 where none has."""
    total = cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=NO_LABEL, reduction="sum")
    return total / (y != NO_LABEL).sum().clamp(min=1)


def masked_grad(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of B times `masked_loss` at the outputs (B, T, K)."""
    labelled = (y != NO_LABEL).flatten()
    grad = cross_entropy_grad(outputs.flatten(0, 1), y.flatten().clamp(min=0))
    return grad.mul_((labelled * (len(y) / labelled.sum().clamp(min=1)))[:, None]).view_as(outputs)


def mix_steps(outputs: Sequence[Tensor], weights: Weights, power: float, head: Params | None) -> Tensor:
    """Return log-probabilities (N, T, K) of M members' logits (N, T, K), of each step as `mix_probabilities`."""
    shape = (*outputs[0].shape[:2], -1)
    return mix_probabilities([z.flatten(0, 1) for z in outputs], weights, power, head).view(shape)


CLASSIFICATION = LabelKind(
    "classification", "classes", cross_entropy, cross_entropy_grad, mix_probabilities, one_hot, right, count_classes,
    count_classes, log_frequencies, ("ce", "fedasa_eq12", "fedasa_table3", "softmax_twice"), has_classes=True,
    predicts_classes=True,
)  # fmt: skip
REGRESSION = LabelKind(
    "regression", "a number", squared_loss, squared_grad, mean_of_members, lambda y, outputs: y[:, None], closeness,
    lambda y, outputs: torch.tensor([len(y)]), sum_and_count,
    lambda tally: (tally[:1] / tally[1:].clamp(min=1)).float(), ("ce", "squared", "absolute"), standardised=True,
)  # fmt: skip
MULTILABEL = LabelKind(
    "multilabel", "0 or 1 for each of several labels", binary_loss, binary_grad, mix_labels,
    lambda y, outputs: 2 * y - 1, labels_right, lambda y, outputs: torch.full((outputs,), len(y)), ones_and_count,
    log_odds, ("ce",),
)  # fmt: skip
SEQUENCES = LabelKind(
    "sequence_labelling", "a class for each step, not for each example", masked_loss, masked_grad, mix_steps,
    lambda y, outputs: one_hot(y.clamp(min=0), outputs), lambda outputs, y: right(*labelled_steps(outputs, y)),
    lambda y, outputs: count_classes(y[y != NO_LABEL], outputs),
    lambda y, outputs: count_classes(y[y != NO_LABEL], outputs), log_frequencies, ("ce",), predicts_classes=True,
)  # fmt: skip

LABEL_KINDS: dict[str, LabelKind] = {kind.name: kind for kind in (CLASSIFICATION, REGRESSION, MULTILABEL, SEQUENCES)}


def label_kind_of(y: Tensor) -> LabelKind:
    """Return the task whose labels these are; there may be none of them."""
    if not y.is_floating_point():
        return SEQUENCES if y.ndim == 2 else CLASSIFICATION
    return MULTILABEL if y.ndim == 2 else REGRESSION


def count_different(y: Tensor) -> int:
    """Return how many different labels there are; of several how many combinations, of steps how many classes."""
    return len(torch.unique(y[y != NO_LABEL] if label_kind_of(y) is SEQUENCES else y, dim=0))


def require_classes(name: str, what: str) -> None:
    """Refuse `what`, such as "run.positive = 'a':", for data whose labels are no classes. name: of their kind."""
    if not LABEL_KINDS[name].has_classes:
        words = LABEL_KINDS[name].words
        raise InputError(f"{what} needs classes; the label of these data is {words} (data.task = {name})")
