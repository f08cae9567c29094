"""Tidy tables of a few methods, made so that the answer to their comparison is known."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from tables import frame, rows

Accuracy = Sequence[Sequence[float]]
CONTROLS = frozenset({"majority", "best_local", "pooled"})
ALONE = [[0.70, 0.60], [0.72, 0.60], [0.68, 0.60]]  # means by seed: .65, .66, .64
GUESS = [[0.3, 0.3]] * 3


def table(
    methods: Mapping[str, Accuracy], up: Mapping[str, float] | None = None, shared: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """A tidy table of one round; only local_only sends nothing, unless `up` says otherwise."""
    sent = {name: 0.0 if name == "local_only" else 1000.0 for name in methods} | dict(up or {})
    parts = [
        rows({name: runs}, up=sent[name], shared=(shared or {}).get(name, math.nan)) for name, runs in methods.items()
    ]
    return frame(*parts)


def plus(change: float, runs: Accuracy = ALONE) -> Accuracy:
    """Accuracies that all differ by `change`."""
    return [[value + change for value in devices] for devices in runs]
