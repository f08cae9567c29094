"""How often the interval of the answer for a new device covers the truth, on made sites.

The sites of a federation and the new ones are draws from one population: a site's law is a common one and a deviation
of its own, and its inputs have a mean of their own. Linear classifiers stand for nets. Each site in turn is left out;
its gain is the accuracy of the model of the others' pooled rows, minus the mean accuracy of their own models, on all of
its rows. The truth is the mean gain on 60 new sites of 300 rows, of models of all sites.

    python -m benchmarks.new_device [federations]

Printed are the shares of federations whose interval, mean ± t s sqrt(1 / D + c / (D - 1)), covers the truth: plain
Student (c = 0), the answer's (c = 1 / 5), and Nadeau and Bengio's (c = 1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.false_recommendations import INPUTS, Array, fit, score
from fedcore.results.intervals import SHARED_DATA, half_width

Rows = tuple[Array, NDArray[np.int64]]
APART, DEVICES = (0.3, 1.0, 2.0), (4, 8, 16)
"""The deviation of a site's law from the common one; the numbers of sites."""


def population(rng: np.random.Generator, distance: float) -> Callable[[int], Rows]:
    """Return a function that draws a site with so many rows."""
    common = rng.normal(0, 1, INPUTS)

    def site(rows: int) -> Rows:
        law = common + distance * rng.normal(0, 1, INPUTS)
        shift = rng.normal(0, 0.5, INPUTS)
        x = rng.normal(0, 1, (rows, INPUTS)) + shift
        return x, (rng.random(rows) < 1 / (1 + np.exp(-(x @ law)))).astype(np.int64)

    return site


def gain(held: list[Rows], x: Array, y: NDArray[np.int64]) -> float:
    """Return the gain of the model of pooled rows on one device's model, on some rows."""
    alone = [score(fit([part]), x, y, False) for part in held]
    return score(fit(held), x, y, False) - float(np.mean(alone))


def covers(number: int, devices: int, distance: float) -> tuple[bool, ...]:
    """Tell whether the intervals with c = 0, 1 / 5 and 1 cover the truth, for one federation."""
    rng = np.random.default_rng([number, devices, int(distance * 10)])
    site = population(rng, distance)
    held = [site(int(rng.integers(60, 200))) for _ in range(devices)]
    gains = np.array([gain(held[:i] + held[i + 1 :], *held[i]) for i in range(devices)])
    truth = np.mean([gain(held, *site(300)) for _ in range(60)])
    ratios = [c / SHARED_DATA / (devices - 1) for c in (0.0, 0.2, 1.0)]
    widths = [half_width(float(gains.std(ddof=1)), devices, ratio) for ratio in ratios]
    return tuple(bool(abs(gains.mean() - truth) <= width) for width in widths)


def main(federations: int = 300) -> None:
    """Print a row for each number of sites and each deviation."""
    print("apart,devices,student,answer,nadeau_bengio")
    for distance in APART:
        for devices in DEVICES:
            covered = np.mean([covers(number, devices, distance) for number in range(federations)], axis=0)
            print(f"{distance},{devices}," + ",".join(f"{share:.3f}" for share in covered), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
