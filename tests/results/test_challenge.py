"""The gain of one model on another, on the same rows: an exact interval, its coverage, and the verdict's words."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedcore.core.metrics import METRICS
from fedcore.results.challenge import PARTS, Paired, challenge, difference, differences, verdict
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Scoring

CRITERION = Criterion(min_effect=0.01)


def says(right: np.ndarray, y: np.ndarray) -> torch.Tensor:
    """Log-probabilities of two classes whose more probable one is right, or not."""
    guess = torch.from_numpy(np.where(right, y, 1 - y))
    return torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()[guess]


def paired(one: np.ndarray, other: np.ndarray, y: np.ndarray | None = None) -> Paired:
    y = np.arange(len(one)) % 2 if y is None else y
    return Paired(says(one, y), says(other, y), torch.from_numpy(y), np.arange(len(one)) % PARTS)


def test_with_a_row_in_each_part_it_is_students_interval():
    """Of the differences by row: the delete-one jackknife of a mean is exact."""
    one, other = np.arange(20) % 4 != 0, np.arange(20) % 3 == 0
    found = challenge({"a": paired(one, other)}, CRITERION)
    assert found is not None
    change = one.astype(float) - other
    exact = stats.t.interval(0.95, 19, change.mean(), stats.sem(change))
    assert (found.mean, found.low, found.high) == pytest.approx((change.mean(), *exact), abs=1e-9)


@pytest.mark.parametrize("rows", [7, 20, 61])
def test_counts_of_right_rows_give_the_accuracies(rows: int):
    """To the last bit those of the metric on the rows that are left; with 7 rows, parts are empty."""
    rng = np.random.default_rng(rows)
    held = paired(rng.random(rows) < 0.9, rng.random(rows) < 0.6)
    for parts in (range(PARTS), [0]):
        expected = {without: difference(held, without, CRITERION, Scoring()) for without in (None, *parts)}
        assert differences(held, parts, CRITERION, Scoring()) == expected
    held = paired(np.full(2, True), np.full(2, False))
    alone = Paired(held.challenger, held.champion, held.y, np.full(2, 3))
    assert np.isnan(differences(alone, [3], CRITERION, Scoring())[3])


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.9, 0.9), (0.9, 0.8)])
def test_it_covers_the_truth(rates: tuple[float, float]):
    """Devices of 60, 90 and 150 rows, each counting alike; 300 tables: 95 %, and 91.6 % at the least by chance."""
    rng, covered, tables = np.random.default_rng(0), 0, 300
    for _ in range(tables):
        rows = {
            name: paired(rng.random(n) < rates[0], rng.random(n) < rates[1])
            for name, n in (("a", 60), ("b", 90), ("c", 150))
        }
        found = challenge(rows, CRITERION)
        assert found is not None
        covered += found.low <= rates[0] - rates[1] <= found.high
    assert covered / tables > 0.916


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "log_loss", "roc_auc"])
@pytest.mark.slow
def test_the_gain_changes_its_sign_with_the_models(name: str):
    criterion, scoring = Criterion(METRICS[name]), Scoring("roc_auc" if name == "roc_auc" else None)
    rng = np.random.default_rng(0)
    one, other = rng.random(100) < 0.9, rng.random(100) < 0.6
    there, back = (challenge({"a": paired(*two)}, criterion, scoring) for two in ((one, other), (other, one)))
    assert there is not None and back is not None  # noqa: PT018
    assert there.low > 0
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))


def test_each_model_predicts_by_the_costs_that_it_is_served_with():
    """A missed fault costs 10, a false alarm 1: one model tells it from probability 1/11 on, the other from 1/2.

    Of 22 rows half are faults, each with probability .3 to either model.
    """
    costs = ((0.0, 1.0), (10.0, 0.0))
    y = torch.arange(22) % 2
    says = torch.tensor([[0.7, 0.3]]).log().expand(22, 2)
    cost, today = Criterion(METRICS["cost"]), Scoring("cost", costs=costs)
    for decides, gain in ((None, 0.0), (Scoring(), 4.5)):  # (11 x 10 - 11 x 1) / 22
        rows = Paired(says, says, y, np.arange(22) % PARTS, decides)
        assert difference(rows, None, cost, today) == pytest.approx(gain)
    rows = Paired(says, says, y * 0, np.arange(22) % PARTS, Scoring(costs=costs))
    assert differences(rows, [3], CRITERION, Scoring()) == {None: 1.0, 3: 1.0}  # where accuracy decides today


def test_a_difference_by_rounding_is_none():
    one, other = (torch.full((20, 1), number, dtype=torch.float64) for number in (0.3, 0.1 + 0.2))
    rows = Paired(one, other, one[:, 0] * 0, np.arange(20))
    assert difference(rows, None, Criterion(METRICS["rmse"]), Scoring()) == 0


def test_devices_with_few_rows_have_no_part():
    rows = {"a": paired(np.full(40, True), np.full(40, False)), "b": paired(np.full(5, False), np.full(5, True))}
    found = challenge(rows, Criterion(least_test=20))
    assert found is not None
    assert found.mean == 1
    everyone = challenge(rows, Criterion(least_test=0))
    assert everyone is not None
    assert everyone.mean == 0


@pytest.mark.parametrize(
    ("one", "other", "better", "reason"),
    [
        (range(400), range(360), True, ""),
        (range(360), range(400), False, "worse"),
        (range(380), range(380), False, "no difference of 1 point"),
        (range(0, 400, 2), range(1, 400, 2), False, "too close to say"),
        (range(365), range(5, 374), False, "not better by 1 point"),
    ],
)
def test_it_is_better_by_the_rule_of_the_answer(one: range, other: range, better: bool, reason: str):
    rows = paired(*(np.isin(np.arange(400), right) for right in (one, other)))
    assert verdict(challenge({"a": rows}, CRITERION), CRITERION) == (better, reason)


def test_a_few_rows_say_nothing():
    few = {"a": paired(np.full(19, True), np.full(19, False))}
    assert verdict(challenge(few, CRITERION), CRITERION) == (False, "too few test rows, fewer than 20")
    assert challenge({}, CRITERION) is None
