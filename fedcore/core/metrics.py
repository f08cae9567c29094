"""The metrics, in one table: what each is called, how it is computed and written, and the labels that it is for.

Evaluation, the answer, the page and the documentation read it. A new metric is a function and an entry here, as
docs/metric.md shows. Definitions are scikit-learn's, with one departure: what is not defined is nan, not 0 or 1: F1,
recall and average precision of a label that does not occur, the area under the ROC curve unless all classes occur, and
R2 where all labels are equal. Nothing here imports PyTorch before it computes, since `fedcore show` does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.types.federation import Scoring


@dataclass(frozen=True)
class Answers:
    """What a model says of N examples, beside what is right.

    y, guess: classes (N,), several labels (N, K) as booleans, or numbers (N,), standardised. loss: the mean loss.
    scoring: the label, the costs and the unit of metrics that have one. scores: returns the probabilities, (N, K).
    hits, truth, guessed: how often each class or label is rightly predicted, is right, is predicted, (K,).
    """

    y: Tensor
    guess: Tensor
    loss: float
    scoring: Scoring
    scores: Callable[[], Tensor]
    hits: Tensor
    truth: Tensor
    guessed: Tensor


def share_right(of: Answers) -> float:
    """Return the share of examples, or of labels, that are right."""
    return (of.guess == of.y).double().mean().item()


def share_all_right(of: Answers) -> float:
    """Return the share of examples whose labels are all right."""
    return (of.guess == of.y).all(1).double().mean().item()


def mean_recall(of: Answers) -> float:
    """Return the mean recall of the classes that occur."""
    return (of.hits / of.truth)[of.truth > 0].mean().item()


def mean_f1(of: Answers) -> float:
    """Return the mean F1 of the classes or labels that occur or are predicted."""
    occurs = of.truth + of.guessed
    return (2 * of.hits / occurs)[occurs > 0].mean().item()


def f1(of: Answers) -> float:
    k = of.scoring.positive
    return (2 * of.hits[k] / (of.truth[k] + of.guessed[k])).item() if of.truth[k] else math.nan


def precision(of: Answers) -> float:
    """Return the precision of a label; 0 if it is never predicted."""
    k = of.scoring.positive
    return (of.hits[k] / of.guessed[k].clamp(min=1)).item()


def recall(of: Answers) -> float:
    k = of.scoring.positive
    return (of.hits[k] / of.truth[k]).item() if of.truth[k] else math.nan


def label_average_precision(of: Answers) -> float:
    k = of.scoring.positive
    return average_precision(of.scores()[:, k], of.y == k)


def mean_average_precision(of: Answers) -> float:
    """Return the mean average precision of the labels that occur."""
    scores = of.scores()
    each = [average_precision(scores[:, k], of.y[:, k]) for k in range(of.y.shape[1]) if of.y[:, k].any()]
    return sum(each) / len(each) if each else math.nan


def mean_roc_auc(of: Answers) -> float:
    """Return the area under the ROC curve; of more than two classes the mean, one against the rest."""
    scores = of.scores()
    classes = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = [roc_auc(scores[:, k], of.y == k) for k in classes]
    return math.nan if any(map(math.isnan, areas)) else sum(areas) / len(areas)


def mean_cost(of: Answers) -> float:
    """Return the mean cost of an example."""
    import torch

    assert of.scoring.costs is not None
    return torch.tensor(of.scoring.costs, dtype=torch.float64)[of.y, of.guess].mean().item()


def mean_absolute_error(of: Answers) -> float:
    return of.scoring.label_scale[1] * (of.guess - of.y).abs().mean().item()


def root_mean_squared_error(of: Answers) -> float:
    return of.scoring.label_scale[1] * math.sqrt((of.guess - of.y).square().mean().item())


def explained(of: Answers) -> float:
    """Return the share of the labels' variance that is explained, R2."""
    about_mean = of.y.var(correction=0).item()
    return 1 - (of.guess - of.y).square().mean().item() / about_mean if about_mean else math.nan


def mean_loss(of: Answers) -> float:
    return of.loss


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs, a positive and a negative example, in the right order; ties count half."""
    import torch

    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    _, index, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0) - (ties - 1).double() / 2)[index]  # of equal scores the mean
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Return sum_n (R_n - R_{n-1}) P_n over the thresholds n, from the highest score down."""
    import torch

    if not positive.any():
        return math.nan
    values, index = torch.unique(scores, return_inverse=True)
    hits = values.new_zeros(len(values)).double().index_add(0, index, positive.double()).flip(0)
    taken = index.bincount(minlength=len(values)).flip(0).cumsum(0)
    return float((hits / positive.sum() * hits.cumsum(0) / taken).sum())


CLASSES: tuple[str, ...] = ("classification", "sequence_labelling")
NUMBERS: tuple[str, ...] = ("regression",)
LABELS: tuple[str, ...] = ("multilabel",)


@dataclass(frozen=True)
class Metric:
    """A metric of the tidy table, and how it is written.

    name: in settings. meaning: in a few words, for the documentation. compute: of a model's answers. labels: the tasks
    that it is for. sklearn: scikit-learn's function of the same value. words: its name in sentences. column: its name
    in the tidy table. less: whether less is better. per: what a value is multiplied by to be shown: 100 (per cent and
    points) or 1,000 (cost); 1 for a plain number. in_label_unit: whether it is in the unit of a number as label.
    of_positive: whether it is of one label, which `run.positive` names. always: whether every model is measured by it.
    decides: whether it may decide.
    """

    name: str
    meaning: str = ""
    compute: Callable[[Answers], float] = mean_loss
    labels: tuple[str, ...] = CLASSES
    sklearn: str = ""
    words: str = ""
    column: str = ""
    less: bool = False
    per: int = 100
    in_label_unit: bool = False
    of_positive: bool = False
    always: bool = False
    decides: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.words or self.name.replace("_", " "))
        object.__setattr__(self, "column", self.column or self.name)

    @property
    def sign(self) -> int:
        """1, or -1 where less is better: a value times its sign is better the greater it is."""
        return -1 if self.less else 1

    def value(self, value: float) -> str:
        """Return a value without its name: 87.3%, 0.412, 143 per 1,000 rows."""
        if self.per == 100:
            return f"{value:.1%}"
        if self.in_label_unit:
            return _digits(value)
        return f"{_digits(1000 * value)} per 1,000 rows" if self.per == 1000 else f"{value:.3f}"

    def scaled(self, value: float) -> str:
        """Return a value in the unit in which it is shown, as a cell of a table; "-" for nan."""
        if math.isnan(value):
            return "-"
        return f"{100 * value:.1f}" if self.per == 100 else _digits(self.per * value)

    def named(self, value: float) -> str:
        """Return a value with its name: 87.3% right, macro F1 71.0%."""
        return f"{self.value(value)} right" if self.name == "accuracy" else f"{self.words} {self.value(value)}"

    def difference(self, gain: float) -> str:
        """Return the difference that a gain stands for, with its sign: +4.3 (points), -0.041, -12 (per 1,000 rows)."""
        change = self.sign * self.per * gain
        if self.per == 100:
            return f"{round(change, 1) + 0.0:+.1f}"
        return f"{'-' if change < 0 else '+'}{_digits(abs(change))}"

    def interval(self, low: float, high: float) -> str:
        """Return the ends of an interval of gains, the lower number first: +3.1 to +5.5.

        Where an end would be 0.0 and is not, both have one more digit.
        """
        ends = sorted((low, high), key=lambda end: self.sign * end)
        if self.per == 100 and any(end and abs(end) < 0.0005 for end in ends):
            return " to ".join(f"{100 * self.sign * end:+.2f}" for end in ends)
        return " to ".join(map(self.difference, ends))

    @property
    def unit(self) -> str:
        """The unit of a difference, in the plural."""
        return {100: "points", 1000: "per 1,000 rows"}.get(self.per, "")

    def amount(self, gain: float) -> str:
        """Return a difference that matters, with its unit: 1 point, 0.01, 10 per 1,000 rows."""
        if self.in_label_unit:
            return _digits(gain)
        unit = "point" if self.per == 100 and gain == 0.01 else self.unit
        return f"{self.per * gain:g} {unit}".strip()


def _digits(value: float) -> str:
    """Return a number with three digits, and all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


CATALOGUE = (
    Metric("accuracy", "the share of rows that are right", share_right, CLASSES, "accuracy_score", always=True),
    Metric(
        "balanced_accuracy", "the mean recall of the classes: what counts where one is rare", mean_recall, CLASSES,
        "balanced_accuracy_score", always=True,
    ),
    Metric(
        "mae", "the mean absolute error", mean_absolute_error, NUMBERS, "mean_absolute_error",
        words="mean absolute error", less=True, per=1, in_label_unit=True, always=True,
    ),
    Metric(
        "rmse", "the root mean squared error", root_mean_squared_error, NUMBERS, "root_mean_squared_error",
        words="root mean squared error", less=True, per=1, in_label_unit=True, always=True,
    ),
    Metric("r2", "the explained share of the variance", explained, NUMBERS, "r2_score", "R2", per=1, always=True),
    Metric(
        "subset_accuracy", "the share of rows whose labels are all right", share_all_right, LABELS, "accuracy_score",
        always=True,
    ),
    Metric(
        "hamming_accuracy", "the share of labels that are right", share_right, LABELS, "accuracy_score",
        words="Hamming accuracy", always=True,
    ),
    Metric(
        "macro_f1", "the mean F1 of the classes, or of the labels", mean_f1, (*CLASSES, *LABELS), "f1_score",
        words="macro F1", always=True,
    ),
    Metric(
        "mean_average_precision", "the mean average precision of the labels", mean_average_precision, LABELS,
        "average_precision_score", always=True,
    ),
    Metric(
        "log_loss", "the mean negative log-probability of what is right, nats", mean_loss, (*CLASSES, *LABELS),
        "log_loss", column="loss", less=True, per=1, always=True,
    ),
    Metric("loss", "the squared error, standardised", mean_loss, NUMBERS, less=True, per=1, always=True, decides=False),
    Metric("f1", "the F1 of the label", f1, CLASSES, "f1_score", "F1", of_positive=True),
    Metric("precision", "the precision of the label", precision, CLASSES, "precision_score", of_positive=True),
    Metric("recall", "the recall of the label", recall, CLASSES, "recall_score", of_positive=True),
    Metric(
        "roc_auc", "the area under the ROC curve, mean of one class against the rest", mean_roc_auc, CLASSES,
        "roc_auc_score", "area under the ROC curve",
    ),
    Metric(
        "average_precision", "the average precision of the label", label_average_precision, CLASSES,
        "average_precision_score", of_positive=True,
    ),
    Metric("cost", "the mean cost of a row, from `run.costs`", mean_cost, CLASSES, less=True, per=1000),
)  # fmt: skip
"""All metrics, in the order of the tidy table: those that are always measured before those that may be asked for."""

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in CATALOGUE if metric.decides}
"""The metrics that may decide, by name."""

if TYPE_CHECKING:
    MetricName: TypeAlias = str
else:
    MetricName = Literal[tuple(METRICS)]

ACCURACY, RMSE, MACRO_F1 = METRICS["accuracy"], METRICS["rmse"], METRICS["macro_f1"]


def recorded(name: str) -> Metric:
    """Return the metric of a record; one that fedcore no longer has, or a colleague's does not, is a plain number."""
    return METRICS.get(name) or Metric(name, per=1)


def measured_by(task: str, asked: str | None = None) -> tuple[Metric, ...]:
    """Return the metrics of a kind of label that every model is measured by, then the one that is asked for."""
    return tuple(metric for metric in CATALOGUE if task in metric.labels and (metric.always or metric.name == asked))
