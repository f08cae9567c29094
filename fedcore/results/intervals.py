"""The interval of a mean over seeds that divide the same data."""

import math
from functools import cache

LEVEL = 0.95
"""The confidence of the answer's intervals."""

SHARED_DATA = 0.2
"""The part of Nadeau and Bengio's correction for data that seeds have in common: see :func:`half_width`."""


def half_width(spread: float, seeds: int, ratio: float, level: float = LEVEL, among: int = 1) -> float:
    """Return half of the two-sided interval of a mean over seeds.

    t s sqrt(1 / S + q / 5), with Student's distribution with S - 1 degrees of freedom, and s and q as below; S seeds.

    spread: s, the standard deviation over seeds. ratio: q, test examples for each training example (after Nadeau and
    Bengio 2003, whose correction, all of q, covers 98 % of made tables; a fifth covers 95 to 96 %). level: its
    confidence. among: the comparisons of which it is one (Bonferroni).
    """
    return _quantile(seeds - 1, level, among) * spread * math.sqrt(1 / seeds + SHARED_DATA * ratio)


@cache
def _quantile(freedom: int, level: float, among: int) -> float:
    from scipy.special import stdtrit  # a quarter of a second, which `fedcore show` does not need

    return float(stdtrit(freedom, 1 - (1 - level) / 2 / among))
