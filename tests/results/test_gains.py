"""The gain of one row on another and its interval, computed by hand."""

import math

import pandas as pd
import pytest
from answer_tables import ALONE, CONTROLS, plus, table
from scipy import stats

from fedcore.results.advice import Action
from fedcore.results.answer import answer


def test_the_interval_counts_seeds_and_what_they_share():
    """Gains by seed: .04, .02, .03 -> .03, standard deviation .01; t of 2 degrees of freedom; a test row for three."""
    found = answer(table({"local_only": ALONE, "a": [[0.74, 0.64], [0.74, 0.62], [0.71, 0.63]]}), CONTROLS).advice
    margin = 4.30265273 * 0.01 * math.sqrt(1 / 3 + 1 / 15)
    assert found.gain is not None
    assert (found.gain.mean, found.gain.spread, found.gain.low) == pytest.approx((0.03, 0.01, 0.03 - margin))
    assert found.action is Action.USE
    wide = table({"local_only": ALONE, "a": [[0.76, 0.64], [0.73, 0.61], [0.71, 0.63]]})  # .05, .01, .03
    assert answer(wide, CONTROLS).advice.action is Action.UNSURE


def test_where_seeds_test_the_same_rows_devices_tell_of_their_luck():
    """Gains by device .02 and .04 in every seed: s = .01414, t of one degree of freedom; seeds alone would be sure."""
    made = table({"local_only": [[0.6, 0.6]] * 3, "a": [[0.62, 0.64]] * 3})
    assert answer(made, CONTROLS).advice.action is Action.USE
    runs = made[["study", "dataset", "setting", "method", "seed", "stage", "round", "device"]].drop_duplicates()
    marked = pd.concat([made, runs.assign(split="data", metric="same_test", value=1.0)])
    found = answer(marked, CONTROLS).advice
    assert found.gain is not None
    assert (found.action, found.gain.margin) == (Action.UNSURE, pytest.approx(12.70620474 * 0.01))


def test_without_validation_data_the_best_of_many_is_held_to_more():
    """Bonferroni: with M rows to choose from, the quantile is that of 1 - .025 / M."""
    made = table({"local_only": ALONE, "a": [[0.74, 0.64], [0.74, 0.62], [0.71, 0.63]], "b": plus(-0.1)})
    made = made[made["split"] != "val"]
    found = answer(made, CONTROLS).advice
    assert found.gain is not None
    assert not found.validated
    assert found.gain.margin == pytest.approx(stats.t.ppf(1 - 0.0125, 2) * 0.01 * math.sqrt(1 / 3 + 1 / 15))
