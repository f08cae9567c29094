"""The probability from which on a label is predicted, chosen on validation rows of data with two classes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcore.core.metrics import METRICS

HALF = 0.5

LEAST_OF_KIND = 20
"""The least validation rows of either class that choose a threshold: of fewer it would be that of a row or two."""

DECIDED = ("accuracy", "balanced_accuracy", "macro_f1", "f1", "precision", "recall")
"""The metrics that depend on a threshold; the others measure probabilities or their order, or have costs."""


RESTS_ON_CLASSES = ("balanced_accuracy", "macro_f1", "f1", "precision", "recall", "average_precision", "roc_auc")
"""The metrics that rest on the rows of a class, however few these are."""


def few_of_class(classes: Sequence[str], counts: Sequence[int], metric: str) -> tuple[str, int] | None:
    """Return the class with the fewest test rows and their number, if a metric rests on them and they are too few."""
    few = min(counts) if any(counts) and metric in RESTS_ON_CLASSES else LEAST_OF_KIND
    return (classes[[*counts].index(few)], few) if few < LEAST_OF_KIND else None


def best_threshold(scores: NDArray[np.float32], positive: NDArray[np.bool_], metric: str) -> float | None:
    """Return the threshold with the best value of a metric on some rows; of several the one that is nearest to .5.

    A row is taken for the label if its probability is at least the threshold, which is one of the rows' probabilities,
    .5 or 1; the next number above, which no probability reaches, if one is 1. None unless there are rows of both kinds.

    scores: (N,), probabilities of the label. positive: (N,), whether a row has it. metric: one of DECIDED.
    """
    if positive.all() or not positive.any():
        return None
    highest = np.maximum(scores.max(), scores.dtype.type(1))
    above = [np.nextafter(highest, scores.dtype.type(2))] * int((scores >= 1).any())
    thresholds = np.unique(np.append(scores, np.array([HALF, 1.0, *above], scores.dtype)))
    tp, fp = (kind.size - np.searchsorted(np.sort(kind), thresholds) for kind in (scores[positive], scores[~positive]))
    values = METRICS[metric].sign * _values(metric, tp, fp, int(positive.sum()), int((~positive).sum()))
    best = thresholds[np.isclose(values, values.max(), rtol=0, atol=1e-12)]
    return float(best[np.abs(best - HALF).argmin()])


def _values(
    metric: str, tp: NDArray[np.int64], fp: NDArray[np.int64], positives: int, negatives: int
) -> NDArray[np.float64]:
    """Return a metric from the rows of the label and the others that are taken for it, scikit-learn's definitions."""
    fn, tn = positives - tp, negatives - fp
    f1, other = 2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fp + fn)
    values: dict[str, NDArray[np.float64]] = {
        "accuracy": (tp + tn) / (positives + negatives),
        "balanced_accuracy": (tp / positives + tn / negatives) / 2,
        "macro_f1": (f1 + other) / 2,
        "f1": f1,
        "precision": tp / np.maximum(tp + fp, 1),
        "recall": tp / positives,
    }
    return values[metric]
