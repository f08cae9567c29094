"""The bytes that a table's rows send."""

import numpy as np
import pandas as pd
import pytest
from answer_tables import ALONE, CONTROLS, GUESS, plus, table
from scipy import stats

from fedcore.results.answer import answer
from fedcore.results.gains import gain_of
from fedcore.results.scores import SetScores


def test_a_device_that_never_takes_part_shares_the_traffic():
    whole = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    sampled = whole[(whole["split"] != "traffic") | (whole["device"] == "d00") | (whole["method"] != "code")]
    found = answer(sampled, CONTROLS)
    assert (found.up, found.down) == (500, 1000)
    assert answer(whole[whole["split"] != "traffic"], CONTROLS).up == 0


def test_a_new_site_does_not_share_the_traffic():
    whole = table({"local_only": ALONE, "code": plus(0.1)})
    runs = whole[["study", "dataset", "setting", "method", "seed", "stage", "round"]].drop_duplicates()
    values = {"accuracy": 0.7, "examples": 50.0, "classes": 2.0}
    site = [runs.assign(device="site", split="left_out", metric=name, value=value) for name, value in values.items()]
    found = answer(pd.concat([whole, *site]), CONTROLS)
    assert (found.up, found.down) == (1000, 2000)


def test_the_interval_of_a_new_device_is_over_devices():
    """Gains of .1, .2 and .15 on three devices, each without one of three: q is 1 / 2, as two are trained on."""
    code, alone = [0.6, 0.7, 0.65], [0.5] * 3
    whole = table({"local_only": [[0.7] * 3] * 2, "code": [[0.8] * 3] * 2})
    runs = whole[["study", "dataset", "setting", "seed", "stage", "round"]].drop_duplicates()
    values = {"accuracy": None, "examples": 50.0, "classes": 2.0}
    left_out = [
        runs.assign(
            method=name, device=f"d{i:02d}", split="left_out", metric=metric, value=own if held is None else held
        )
        for name, each in (("local_only", alone), ("code", code))
        for i, own in enumerate(each)
        for metric, held in values.items()
    ]
    found = answer(pd.concat([whole, *left_out]), CONTROLS).new_device
    assert found is not None
    gain = found.advice.gain
    assert gain is not None
    half = stats.t.ppf(0.975, 2) * 0.05 * (1 / 3 + 1 / 2 / 5) ** 0.5
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.15, 0.15 - half, 0.15 + half))


def test_bytes_that_prepare_examples_make_no_row_combine():
    whole = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    same = whole[whole["metric"] == "bytes_up"].assign(metric="prepare_up", value=40.0)
    assert answer(pd.concat([whole, same]), CONTROLS) == answer(whole, CONTROLS)


def test_what_is_asked_for_again_is_of_its_own_row_set_and_choice():
    rng = np.random.default_rng(0)
    runs, others = ({name: pd.DataFrame(rng.random((3, 4))) for name in "ab"} for _ in range(2))
    sets = SetScores(runs, others, pd.Series(1.0, index=range(4)), 0.5)
    for _ in range(2):
        for name in "ab":
            assert sets.mean(name) == pytest.approx(runs[name].to_numpy().mean())
            assert sets.mean(name, True) == pytest.approx(others[name].to_numpy().mean())
        for among in (1, 5):
            for one, other in ("ab", "ba"):
                assert sets.gain(one, other, among) == gain_of(runs[one], runs[other], sets.weights, 0.5, among)
