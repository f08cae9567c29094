"""Learning from soft targets, one row of logits per label (DFL, Liu et al.; Jeong et al. 2018; Hinton et al. 2015).

A table of soft targets is (K, K) float64: row l holds the mean logits of examples of label l. A label that no
device has sent yet has the row of a one-hot target, 0 at l and -inf elsewhere: its softmax is exactly one-hot at every
temperature, so that such a label is learnt from the hard label alone.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.core.training import LogitGrad, PerExample, predict
from fedcore.types.federation import Device, Params, Public
from fedcore.types.method import Begin, Message, Report, Update

Kind: TypeAlias = Literal["fixed", "dynamic", "threshold"]
Weighting: TypeAlias = Literal["counts", "examples"]
Outputs: TypeAlias = Literal["logits", "probabilities"]
Reduction: TypeAlias = Literal["batchmean", "mean"]

SUMS, COUNTS, SOFT = "soft/sums", "soft/counts", "soft/targets"
"""Entries of updates: a device's label-wise sums (K, K) and counts (K,); of messages: the table (K, K)."""

TOPIC = "distillation"
"""The topic of a report's series."""

FIGURES = ("fedcore.report.figures.reports:soft_targets", "fedcore.report.figures.reports:own_class")


@dataclass(frozen=True)
class Ratio:
    """rho, the hard labels' share of the loss (3): max(1 - r / R, floor) in round r = 1, ..., R (6).

    rounds: R; None: the floor in every round. The first round has no soft targets, its rho is 1.
    """

    floor: float
    rounds: int | None

    def at(self, round: int) -> float:
        """Return rho in a round, counted from 0 as `StepId.round` is."""
        if round == 0:
            return 1.0
        return self.floor if self.rounds is None else max(1 - (round + 1) / self.rounds, self.floor)


def ratio(kind: Kind, threshold: float, rounds: int) -> Ratio:
    """Return DFL's variants (Section IV-C): DFL-FR "fixed", DFL-DRw/T "dynamic", DFL-DRwT "threshold".

    The paper does not print the fixed ratio; here it is the threshold.
    """
    return Ratio(0.0 if kind == "dynamic" else threshold, None if kind == "fixed" else rounds)


def initial_targets(classes: int) -> Tensor:
    """Return the table before the first round, (K, K) float64: every row is a one-hot target's."""
    table = torch.full((classes, classes), -math.inf, dtype=torch.float64)
    return table.fill_diagonal_(0.0)


def begin_with_table(public: Public, seed: int, *, begin: Begin) -> tuple[Params, Mapping[str, Message]]:
    """Begin with the initial models and the soft targets (DFL, Algorithm 1, line 1), which are not sent yet."""
    server, messages = begin(public, seed)
    return server | {SOFT: initial_targets(public.classes)}, messages


def label_wise(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the logits of each label's examples, (K, K) float64, and their number, (K,) int64.

    logits: (N, K). y: (N,). The row of a label without examples is zero. (Algorithm 2, line 8; sums and counts in place
    of averages, so that the server can tell a label that a device lacks.)
    """
    classes = logits.shape[1]
    sums = torch.zeros(classes, classes, dtype=torch.float64).index_add_(0, y, logits.double())
    return sums, torch.bincount(y, minlength=classes)


def summarise_logits(params: Params, device: Device, outputs: Outputs = "logits") -> Params:
    """Return the label-wise sums and counts of a device's training outputs, in evaluation mode."""
    logits = predict(params, device.net, device.data.train.x)
    sums, counts = label_wise(logits.softmax(1) if outputs == "probabilities" else logits, device.data.train.y)
    return {SUMS: sums, COUNTS: counts}


def update_targets(
    table: Tensor, updates: Iterable[Update], weighting: Weighting, outputs: Outputs = "logits"
) -> Tensor:
    r"""Return the new table of soft targets, (K, K); the row of a label without examples does not change.

    counts:   Y_l = sum_k n_kl Y_kl / sum_k n_kl      n_kl: device k's examples of label l
    examples: Y_l = sum_k |D_k| Y_kl / sum_k |D_k|    (2) as printed

    The two agree where devices hold labels in equal shares. As printed, every device counts in every row: the row of a
    label that it lacks is an average over nothing, taken as zero here, which flattens that soft target. Of
    probabilities the table holds logarithms: its softmax is the mean, scaled to 1.
    """
    sent = list(updates)
    sums, counts = (torch.stack([update.extra[name] for update in sent]) for name in (SUMS, COUNTS))
    has_examples = counts.sum(0) > 0
    if weighting == "examples":
        sizes = torch.tensor([update.size for update in sent], dtype=torch.float64)
        means = sums / counts.clamp(min=1)[:, :, None]
        new = (sizes[:, None, None] * means).sum(0) / sizes.sum().clamp(min=1)
    else:
        new = sums.sum(0) / counts.sum(0).clamp(min=1)[:, None]
    return torch.where(has_examples[:, None], new.log() if outputs == "probabilities" else new, table)


def likelihoods(table: Tensor, temperature: float) -> Tensor:
    """Return the soft targets as probabilities, softmax(Y / tau): (K, K), rows on the simplex."""
    return (table / temperature).softmax(1)


def level_targets(table: Tensor, temperature: float) -> Tensor:
    """Return soft targets with the table's mean diagonal and the rest spread evenly: (K, K), rows on the simplex.

    The control of what a table tells about classes. The mean is over the labels that some device has sent; the others'
    rows stay one-hot.
    """
    soft, sent = likelihoods(table, temperature), table.isfinite().all(1)
    own = soft.diagonal()[sent].mean()
    level = ((1 - own) / (len(soft) - 1)).expand_as(soft).clone().fill_diagonal_(float(own))
    return torch.where(sent[:, None], level, soft)


def distillation_grad(targets: Tensor, hard: float, soft: float, temperature: float = 1.0) -> LogitGrad:
    r"""Return the gradient of hard * CE(y) + soft * tau^2 KL(p_y || softmax(z / tau)) at the logits z.

    hard (softmax(z) - onehot(y)) + soft tau (softmax(z / tau) - p_y)

    targets: p, (K, K), rows on the simplex, looked up by label; at temperature tau. Summed over the examples, so that
    the mean is PyTorch's `batchmean`; tau^2 keeps the soft part's gradient at the scale of the hard one's (Hinton et
    al.). At temperature 1 with hard + soft = 1 this is the gradient of cross-entropy against hard I + soft p.
    """
    table = (hard * torch.eye(len(targets), dtype=torch.float64) + soft * temperature * targets.double()).float()

    def logit_grad(logits: Tensor, y: Tensor) -> Tensor:
        if temperature == 1:
            return logits.softmax(1).mul_(hard + soft).sub_(table.index_select(0, y))
        sharp, flat = logits.softmax(1), (logits / temperature).softmax(1)
        return sharp.mul_(hard).add_(flat, alpha=soft * temperature).sub_(table.index_select(0, y))

    return PerExample(logit_grad)


def smoothing_grad(share: float) -> LogitGrad:
    """Return the gradient of cross-entropy against (1 - share) onehot(y) + share / K: softmax(z) less these targets."""

    def logit_grad(logits: Tensor, y: Tensor) -> Tensor:
        gradient = logits.softmax(1).sub_(share / logits.shape[1])
        return gradient.scatter_add_(1, y[:, None], gradient.new_full((len(y), 1), share - 1))

    return PerExample(logit_grad)


def report_targets(table: Tensor, temperature: float, **numbers: float) -> Report:
    """Report a table and any other numbers of the round.

    Matrix "soft_targets" (K, K) float32: the table as probabilities. diagonal: the mean probability that a label's soft
    target gives that label. right: how many soft targets are largest at their own label.
    """
    soft = likelihoods(table, temperature)
    right = (soft.argmax(1) == torch.arange(len(soft))).sum()
    course = report_series(**numbers, diagonal=float(soft.diagonal().mean()), right=float(right))
    return replace(course, matrices={"soft_targets": soft.float()})


def report_series(**numbers: float) -> Report:
    """Report numbers of a round, in single precision."""
    return Report(series={TOPIC: {name: float(torch.tensor(x).float()) for name, x in numbers.items()}})
