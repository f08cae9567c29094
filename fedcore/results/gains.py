"""The gain of one row on another: paired within device and seed, with the answer's interval (docs/answer.md)."""

import math
from dataclasses import dataclass

import pandas as pd

from fedcore.results.criterion import half_width
from fedcore.results.summary import mean_over_devices


@dataclass(frozen=True)
class Gain:
    """A difference, paired over seeds and devices: mean and interval, spread and least over seeds.

    Positive is better, in the unit of the metric: a fraction, nats, or cost per row. seeds: their number; for devices
    that took no part it is that of these devices, as are spread and least over them.
    """

    mean: float
    low: float
    high: float
    spread: float
    least: float
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether the interval is above zero."""
        return self.low > 1e-12

    @property
    def margin(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2

    def within(self, min_effect: float) -> bool:
        """Whether it is so small, interval included, that it does not matter."""
        return self.low >= -min_effect - 1e-12 and self.high <= min_effect + 1e-12


def gain_of(
    run: pd.DataFrame, other: pd.DataFrame, weights: pd.Series, ratio: float, among: int = 1, same_test: bool = False
) -> Gain | None:
    """Return the gain of a run on another, seeds x devices; None without two common seeds.

    weights: of the devices. ratio: test examples for each training example. among: the runs that it was chosen from for
    its values here. same_test: whether every seed tests the same examples, so that devices tell of their luck.
    """
    gains = mean_over_devices(run - other, weights).dropna()
    seeds = len(gains)
    if seeds < 2:
        return None
    mean, spread = float(gains.mean()), float(gains.std())
    margin = half_width(spread, seeds, ratio, among=among)
    if same_test:
        margin = max(margin, _half_width_by_device((run - other).mean(), weights, among))
    return Gain(mean, mean - margin, mean + margin, spread, float(gains.min()), seeds)


def gain_over_devices(gains: pd.Series) -> Gain:
    """Return the mean gain over devices, each alike, with its interval over them. gains: means over seeds."""
    mean, count = float(gains.mean()), len(gains)
    margin = _half_width_by_device(gains, pd.Series(1.0, gains.index), 1)
    return Gain(mean, mean - margin, mean + margin, float(gains.std()), float(gains.min()), count)


def _half_width_by_device(gains: pd.Series, weights: pd.Series, among: int) -> float:
    """Return half of the interval of a mean over devices; 0 for one device. gains: of the devices, mean over seeds."""
    gains = gains.dropna()
    count, share = len(gains), weights.reindex(gains.index).fillna(0.0)
    if count < 2:
        return 0.0
    share = share / share.sum()
    spread = math.sqrt(float((share**2 * (gains - (share * gains).sum()) ** 2).sum()) * count**2 / (count - 1))
    return half_width(spread, count, 0.0, among=among)
