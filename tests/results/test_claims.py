"""A claim's rule is read, or refused in one line."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sklearn
import torch
from answer_tables import ALONE, CONTROLS, plus, table
from scipy import stats

from fedcore import Claim, InputError
from fedcore.core.evaluation import calibration, confusion
from fedcore.core.metrics import METRICS
from fedcore.results.advice import Action
from fedcore.results.answer import answer
from fedcore.results.outcomes import from_json, total
from fedcore.results.threshold import DECIDED, best_threshold


@pytest.mark.parametrize(
    "rule",
    [
        *("", "good", "good >", "good beats fair", "good > fair and", "good ~ fair", "good rises", "a - b - c > d"),
        *("good stays within 1 with net pairwise", "good > fair pairwise", "good pairwise falls with net"),
        *("0.9 > 0.8", "0.9 rises with round", "good > 0.9 - 0.1", "good > .", "0.5 < good"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(InputError, match="must be one of"):
        Claim("said", rule)


@pytest.mark.parametrize("of", ["", "accuracy", "mean of test.accuracy", "std test.accuracy", "worst of accuracy"])
def test_an_of_that_cannot_be_read_is_refused(of):
    with pytest.raises(InputError, match="must be a split and a metric"):
        Claim("said", "good > fair", metric=of)


def test_labels():
    assert Claim("said", "0.5 > a - b").labels == {"a", "b"}
    assert Claim("said", "10_rounds > 10").labels == {"10_rounds"}
    assert Claim("said", "a - b ~ c - d within 1e-3").labels == {"a", "b", "c", "d"}
    assert Claim("said", "a rises with round").labels == {"a"}
    assert Claim("said", "mu=0.1 > fedprox/mu=1 - mu=0").labels == {"mu=0.1", "fedprox/mu=1", "mu=0"}


# Confusion and calibration, added up.
CLASSES = ("dog", "cat", "cow")


def counted(count: int, seed: int, scale: float = 3.0):
    g = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(count, 3, generator=g)).log_softmax(1)
    return logits, torch.randint(0, 3, (count,), generator=g)


def counts(logits, y):
    return {"confusion": confusion(logits, y), "calibration": calibration(logits, y)}


def test_parts_add_up_to_the_whole():
    parts = [counted(n, n) for n in (0, 1, 40)]
    whole = total([counts(*map(torch.cat, zip(*parts, strict=True)))], CLASSES)
    summed = total([counts(*part) for part in parts], CLASSES)
    assert whole is not None
    assert summed is not None
    assert summed.examples == 41
    np.testing.assert_array_equal(whole.confusion, summed.confusion)
    np.testing.assert_allclose(whole.calibration, summed.calibration)
    again = from_json(json.loads(json.dumps(summed.to_json())))
    np.testing.assert_array_equal(again.confusion, summed.confusion)
    np.testing.assert_array_equal(again.calibration, summed.calibration)
    assert again.classes == CLASSES
    assert total([counts(*counted(0, 0))], CLASSES) is None


def test_uncounted_confusion_survives_a_file():
    none = {"confusion": torch.zeros(0, 0, dtype=torch.int64), "calibration": calibration(*counted(5, 0))}
    found = total([none, none], CLASSES)
    assert found is not None
    assert from_json(found.to_json()).confusion.shape == (0, 0)


def test_calibration_error_by_hand():
    # Four rows with confidence .9, three of them right; two with .6, both right: 4/6 * .15 + 2/6 * .4.
    p = torch.tensor([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 2, dtype=torch.float64)
    found = total([counts(p.log(), torch.tensor([0, 0, 0, 1, 0, 0]))], ("a", "b"))
    assert found is not None
    assert found.calibration_error == pytest.approx(4 / 6 * 0.15 + 2 / 6 * 0.4)
    np.testing.assert_allclose(found.curve, [[0.6, 1, 2 / 6], [0.9, 0.75, 4 / 6]])


# The threshold on a probability, against scikit-learn's metrics at every threshold that there is.
def value(metric: str, truth: np.ndarray, guess: np.ndarray) -> float:
    """A metric, the greater the better, of rows whose label is True."""
    match metric:
        case "accuracy":
            return sklearn.accuracy_score(truth, guess)
        case "balanced_accuracy":
            return sklearn.balanced_accuracy_score(truth, guess)
        case "macro_f1":
            return sklearn.f1_score(truth, guess, average="macro", zero_division=0)
    measure = {"f1": sklearn.f1_score, "precision": sklearn.precision_score, "recall": sklearn.recall_score}[metric]
    return measure(truth, guess, zero_division=0)


@pytest.mark.parametrize("metric", DECIDED)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_no_other_threshold_is_better(metric: str, seed: int):
    draw = np.random.default_rng(seed)
    truth = draw.random(60) < 0.25
    scores = (draw.integers(0, 12, 60) / 16 + 0.2 * truth).astype(np.float32)  # with ties
    if seed == 2:  # with exact zeros and ones
        scores = (scores > 0.5).astype(np.float32)
    found = best_threshold(scores, truth, metric)
    assert found is not None
    never = np.nextafter(np.float32(1), np.float32(2)) if scores.max() >= 1 else 1.0
    tried = {t: value(metric, truth, scores >= t) for t in np.unique([*scores, 0.5, 1.0, never]).tolist()}
    best = max(tried.values())
    assert tried[found] == pytest.approx(best)
    assert abs(found - 0.5) == min(abs(t - 0.5) for t, of in tried.items() if of == pytest.approx(best, abs=1e-12))


def test_recall_alone_takes_the_highest_that_misses_nothing():
    scores, truth = np.array([0.1, 0.3, 0.6, 0.9], np.float32), np.array([False, True, False, True])
    assert best_threshold(scores, truth, "recall") == scores[1]


def test_a_label_is_never_predicted_where_that_is_best():
    scores, truth = np.array([0.0, 0.2, 1.0], np.float32), np.array([True, False, False])
    found = best_threshold(scores, truth, "accuracy")
    assert found is not None
    assert not (scores >= found).any()


@pytest.mark.parametrize("kind", [True, False])
def test_rows_of_one_kind_choose_nothing(kind: bool):
    assert best_threshold(np.array([0.2, 0.9], np.float32), np.array([kind, kind]), "f1") is None


def test_metrics_without_a_threshold_are_those_of_probabilities():
    assert {*METRICS} - {*DECIDED} == {"cost", "roc_auc", "average_precision", "log_loss"} | {
        name for name, metric in METRICS.items() if "classification" not in metric.labels
    }


# The gain of one row on another and its interval, computed by hand.


@pytest.mark.slow
def test_the_interval_counts_seeds_and_what_they_share():
    """Gains by seed: .04, .02, .03 -> .03, standard deviation .01; t of 2 degrees of freedom; a test row for three."""
    found = answer(table({"local_only": ALONE, "a": [[0.74, 0.64], [0.74, 0.62], [0.71, 0.63]]}), CONTROLS).advice
    margin = 4.30265273 * 0.01 * math.sqrt(1 / 3 + 1 / 15)
    assert found.gain is not None
    assert (found.gain.mean, found.gain.spread, found.gain.low) == pytest.approx((0.03, 0.01, 0.03 - margin))
    assert found.action is Action.USE
    wide = table({"local_only": ALONE, "a": [[0.76, 0.64], [0.73, 0.61], [0.71, 0.63]]})  # .05, .01, .03
    assert answer(wide, CONTROLS).advice.action is Action.UNSURE


@pytest.mark.slow
def test_where_seeds_test_the_same_rows_devices_tell_of_their_luck():
    """Gains by device .02 and .04 in every seed: s = .01414, t of one degree of freedom; seeds alone would be sure."""
    made = table({"local_only": [[0.6, 0.6]] * 3, "a": [[0.62, 0.64]] * 3})
    assert answer(made, CONTROLS).advice.action is Action.USE
    runs = made[["study", "dataset", "setting", "method", "seed", "stage", "round", "device"]].drop_duplicates()
    marked = pd.concat([made, runs.assign(split="data", metric="same_test", value=1.0)])
    found = answer(marked, CONTROLS).advice
    assert found.gain is not None
    assert (found.action, found.gain.margin) == (Action.UNSURE, pytest.approx(12.70620474 * 0.01))


@pytest.mark.slow
def test_without_validation_data_the_best_of_many_is_held_to_more():
    """Bonferroni: with M rows to choose from, the quantile is that of 1 - .025 / M."""
    made = table({"local_only": ALONE, "a": [[0.74, 0.64], [0.74, 0.62], [0.71, 0.63]], "b": plus(-0.1)})
    made = made[made["split"] != "val"]
    found = answer(made, CONTROLS).advice
    assert found.gain is not None
    assert not found.validated
    assert found.gain.margin == pytest.approx(stats.t.ppf(1 - 0.0125, 2) * 0.01 * math.sqrt(1 / 3 + 1 / 15))
