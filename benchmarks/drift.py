"""How often new rows alarm: quiet ones, which are like those of training, and those of a month whose sensors shifted.

Sites have levels of their own; twelve columns: seven normal, two skewed, one of whole numbers, a boolean, a text with a
rare category. Two per cent of the cells are missing, 6 % of the rows are faults. In the shifted month three sensors
read one standard deviation more, and 20 % of the rows are faults. Predictions are right.

    python -m benchmarks.drift [batches]

Printed are, by sites, training rows of each and new rows in all, the shares of batches in which something is said to
have moved, which for quiet ones should be at most 5 %.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from fedcore.data import drift
from fedcore.data.schema import Column, Schema

NUMBERS, CATEGORIES = 10, ("a", "b", "c", "d")
SCHEMA = Schema(
    (NUMBERS + 1 + len(CATEGORIES),), "float32", ("ok", "fault"),
    (*(Column(f"sensor {i}", "number") for i in range(NUMBERS)), Column("on", "boolean"),
     Column("kind", "text", CATEGORIES)),
    "state", "site",
)  # fmt: skip
SIZES = ((1, 300, 50), (1, 300, 1000), (6, 100, 50), (6, 100, 400), (20, 30, 50), (20, 300, 2000))
"""Sites, training rows of each, new rows in all."""

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def draw(rng: np.random.Generator, rows: int, site: int, shift: float = 0.0, faults: float = 0.06) -> Rows:
    """Return rows of a site, and their classes."""
    x = rng.normal(site, 1, (rows, NUMBERS))
    x[:, :3] += shift
    x[:, 5:7] = np.exp(x[:, 5:7] - site)
    x[:, 7] = np.floor(x[:, 7])
    on = rng.random((rows, 1)) < 0.3
    x, kind = np.hstack([x, on]), np.eye(len(CATEGORIES))[rng.choice(len(CATEGORIES), rows, p=[0.7, 0.2, 0.07, 0.03])]
    x[rng.random(x.shape) < 0.02] = np.nan
    kind[rng.random(rows) < 0.02] = 0
    return np.hstack([x, kind]).astype(np.float32), (rng.random(rows) < faults).astype(np.int64)


def alarms(number: int, sites: int, rows: int, new: int, shift: float = 0.0, faults: float = 0.06) -> bool:
    """Tell whether a batch alarms."""
    rng = np.random.default_rng([number, sites, rows, new])
    held = {f"site {i}": draw(rng, rows, i) for i in range(sites)}
    x, y = ({site: part[i] for site, part in held.items()} for i in range(2))
    reference = drift.summarise(SCHEMA, x, y, y)
    counts = rng.multinomial(new, [1 / sites] * sites)
    parts = [draw(rng, int(count), i, shift, faults) for i, count in enumerate(counts)]
    inputs, classes = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return bool(drift.compare(reference, SCHEMA, inputs, np.repeat([*held], counts).tolist(), classes))


def main(batches: int) -> None:
    print("sites  training rows  new rows  quiet  shifted")
    for size in SIZES:
        quiet = np.mean([alarms(number, *size) for number in range(batches)])
        shifted = np.mean([alarms(number, *size, shift=1.0, faults=0.2) for number in range(batches // 10)])
        print(f"{size[0]:5}  {size[1]:13}  {size[2]:8}  {quiet:5.1%}  {shifted:7.1%}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
