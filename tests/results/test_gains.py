"""The interval of a gain: against scipy's Welch and Student intervals, and what must not change it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedcore.results.gains import Gain, gain_of

RATIO = 0.25
WIDER = (1 + 5 * RATIO / 5) ** 0.5
"""What five seeds' interval is multiplied by for the data that seeds share."""


def gain(changes: np.ndarray, weights: list[float] | None = None, order: list[int] | None = None) -> Gain:
    """Return the gain of changes, seeds x devices, on nothing."""
    run = pd.DataFrame(changes).add_prefix("d")
    shares = pd.Series(weights or [1.0] * run.shape[1], index=run.columns)
    found = gain_of(run.iloc[:, order or [*range(run.shape[1])]], 0.0 * run, shares, RATIO)
    assert found is not None
    return found


def changes_of(devices: int, shared: float = 0.0) -> np.ndarray:
    """Return made changes of five seeds. shared: of what devices vary by together."""
    rng = np.random.default_rng(0)
    return 0.02 + rng.normal(0, 0.05, (5, devices)) + shared * rng.normal(0, 0.05, (5, 1))


def test_devices_that_share_nothing_have_welchs_interval():
    """Half the difference of x and y is the mean of x and -y; their seeds go against each other, so all is alone."""
    x = np.array([0.03, 0.05, 0.01, 0.04, 0.02])
    y = np.array([-0.06, 0.10, -0.20, 0.02, -0.04])
    found = gain(np.column_stack([x, -y]))
    low, high = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    assert found.margin == pytest.approx(WIDER * (high - low) / 4)
    assert found.mean == pytest.approx((low + high) / 4)


def test_one_device_has_students_interval():
    changes = changes_of(1)
    low, high = stats.ttest_1samp(changes[:, 0], 0.0).confidence_interval()
    assert gain(changes).margin == pytest.approx(WIDER * (high - low) / 2)


def test_devices_that_vary_together_have_both_parts():
    """Weighted devices: the squares of scipy's two halves, of s alone with Welch's freedom, of the rest with seeds'."""
    changes, weights = changes_of(6, shared=2.0), [1.0, 2.0, 3.0, 1.0, 1.0, 4.0]
    share = np.array(weights) / sum(weights)
    parts = share**2 * np.var(changes, axis=0, ddof=1)
    freedom = 4 * parts.sum() ** 2 / (parts**2).sum()
    together = np.var(changes @ share, ddof=1) - parts.sum()
    assert together > parts.sum()
    square = stats.t.ppf(0.975, freedom) ** 2 * parts.sum() + stats.t.ppf(0.975, 4) ** 2 * together
    assert gain(changes, weights).margin == pytest.approx(WIDER * (square / 5) ** 0.5)


def test_a_device_that_lacks_a_seed_leaves_the_interval_to_seeds():
    changes = changes_of(3)
    changes[0, 1] = np.nan
    low, high = stats.ttest_1samp(np.nanmean(changes, axis=1), 0.0).confidence_interval()
    assert gain(changes).margin == pytest.approx(WIDER * (high - low) / 2)
    assert gain(changes, [1.0, 0.0, 1.0]) == gain(np.delete(changes, 1, axis=1))


@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_order_and_units_leave_the_interval_as_it_is(shared):
    changes, weights = changes_of(4, shared), [1.0, 2.0, 3.0, 4.0]
    found = gain(changes, weights)
    for other, unit in (
        (gain(changes, weights, [2, 0, 3, 1]), 1.0), (gain(changes[::-1], weights), 1.0),
        (gain(changes, [10 * weight for weight in weights]), 1.0), (gain(7 * changes, weights), 7.0),
    ):  # fmt: skip
        assert (other.low, other.high) == pytest.approx((unit * found.low, unit * found.high))
