"""The threshold on a probability, against scikit-learn's metrics at every threshold that there is."""

import numpy as np
import pytest
import sklearn.metrics as sklearn

from fedcore.core.metrics import METRICS
from fedcore.results.threshold import DECIDED, best_threshold

COSTS = (7.0, 2.0)


def value(metric: str, truth: np.ndarray, guess: np.ndarray) -> float:
    """A metric, the greater the better, of rows whose label is True."""
    match metric:
        case "accuracy":
            return sklearn.accuracy_score(truth, guess)
        case "balanced_accuracy":
            return sklearn.balanced_accuracy_score(truth, guess)
        case "macro_f1":
            return sklearn.f1_score(truth, guess, average="macro", zero_division=0)
        case "cost":
            return -float(np.where(truth, COSTS[0] * ~guess, COSTS[1] * guess).mean())
    measure = {"f1": sklearn.f1_score, "precision": sklearn.precision_score, "recall": sklearn.recall_score}[metric]
    return measure(truth, guess, zero_division=0)


@pytest.mark.parametrize("metric", DECIDED)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_no_other_threshold_is_better(metric: str, seed: int):
    draw = np.random.default_rng(seed)
    truth = draw.random(60) < 0.25
    scores = (draw.integers(0, 12, 60) / 16 + 0.2 * truth).astype(np.float32)  # with ties
    found = best_threshold(scores, truth, metric, COSTS)
    assert found is not None
    tried = {t: value(metric, truth, scores >= t) for t in np.unique([*scores, 0.5, 1.0]).tolist()}
    best = max(tried.values())
    assert tried[found] == pytest.approx(best)
    assert abs(found - 0.5) == min(abs(t - 0.5) for t, of in tried.items() if of == pytest.approx(best, abs=1e-12))


def test_recall_alone_takes_the_highest_that_misses_nothing():
    scores, truth = np.array([0.1, 0.3, 0.6, 0.9], np.float32), np.array([False, True, False, True])
    assert best_threshold(scores, truth, "recall") == scores[1]
    assert best_threshold(scores, truth, "cost", (1.0, 100.0)) == scores[3]


@pytest.mark.parametrize("kind", [True, False])
def test_rows_of_one_kind_choose_nothing(kind: bool):
    assert best_threshold(np.array([0.2, 0.9], np.float32), np.array([kind, kind]), "f1") is None


def test_metrics_without_a_threshold_are_those_of_probabilities():
    assert {*METRICS} - {*DECIDED} == {"roc_auc", "average_precision", "log_loss"} | {
        name for name, metric in METRICS.items() if "classification" not in metric.labels
    }
