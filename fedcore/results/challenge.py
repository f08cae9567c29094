"""A challenge: two models on the same test rows, on which neither was trained, device by device.

The gain is the challenger's value less the champion's, mean over the devices that count. Both models are what they are:
chance is in the rows alone. Each row is in one of PARTS parts, and the gain d is computed anew without each of them,
d_g (the delete-a-group jackknife, Kott 2001, for any metric). The interval is that of the answer with the G parts in
place of seeds and q = 0: d ± t s / sqrt(G), with the standard deviation s of the values G d - (G - 1) d_g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core.evaluation import metrics
from fedcore.core.metrics import ACCURACY
from fedcore.data.task import CLASSIFICATION, count_different, label_kind_of
from fedcore.results.advice import Action
from fedcore.results.answer import decide
from fedcore.results.criterion import LEAST_TEST, Criterion, half_width, measured_by
from fedcore.results.gains import Gain
from fedcore.types.federation import Scoring

PARTS = 20


@dataclass(frozen=True)
class Paired:
    """What two models say of a device's N rows: answers (N, K). y: (N,). part: of each row, below PARTS.

    Where labels are numbers answers and y are in their unit; of several labels y is (N, K).
    decides: by whose costs the champion predicts a class; None: by today's, as the challenger does.
    """

    challenger: Tensor
    champion: Tensor
    y: Tensor
    part: NDArray[np.int64]
    decides: Scoring | None = None


def challenge(rows: Mapping[str, Paired], criterion: Criterion, scoring: Scoring = Scoring()) -> Gain | None:
    """Return the challenger's gain on the champion; None with fewer than LEAST_TEST rows.

    rows: of each device. criterion: its metric, and the devices that count, as in means over devices.
    """
    weights = weights_of(rows, criterion)
    parts = sorted({part for name in weights for part in rows[name].part.tolist()})
    if sum(len(rows[name].y) for name in weights) < LEAST_TEST or len(parts) < 2:
        return None

    changes = {name: differences(rows[name], parts, criterion, scoring) for name in weights}

    def gain(without: int | None) -> float:
        defined = {name: change[without] for name, change in changes.items() if not math.isnan(change[without])}
        total = sum(weights[name] for name in defined)
        return sum(weights[name] * value for name, value in defined.items()) / total if total else math.nan

    mean, count = gain(None), len(parts)
    values = pd.Series([count * mean - (count - 1) * gain(part) for part in parts])
    if math.isnan(mean) or values.isna().any():
        return None
    spread = float(values.std())
    margin = half_width(spread, count, 0.0)
    return Gain(mean, mean - margin, mean + margin, spread, float(values.min()), count)


def weights_of(rows: Mapping[str, Paired], criterion: Criterion) -> Mapping[str, float]:
    """Return the devices that a challenge counts, and their weights."""
    sizes = pd.Series({name: len(paired.y) for name, paired in rows.items()}, dtype=int)
    classes = pd.Series({name: count_different(paired.y) for name, paired in rows.items()}, dtype=int)
    return measured_by(sizes, classes, criterion).weights


def differences(rows: Paired, parts: Sequence[int], criterion: Criterion, scoring: Scoring) -> dict[int | None, float]:
    """Return a device's gain on all its rows, at None, and without those of each part."""
    if criterion.metric != ACCURACY or label_kind_of(rows.y) is not CLASSIFICATION or rows.decides is not None:
        return {without: difference(rows, without, criterion, scoring) for without in (None, *parts)}
    sizes = np.bincount(rows.part, minlength=PARTS)
    candidate, champion = (
        np.bincount(rows.part[(answers.argmax(1) == rows.y).numpy()], minlength=PARTS)
        for answers in (rows.challenger, rows.champion)
    )

    def accuracy(right: NDArray[np.int64], without: int | None) -> float:
        left_out = 0 if without is None else right[without]
        rest = sizes.sum() - (0 if without is None else sizes[without])
        return float((right.sum() - left_out) / rest) if rest else math.nan

    return {without: accuracy(candidate, without) - accuracy(champion, without) for without in (None, *parts)}


def difference(rows: Paired, without: int | None, criterion: Criterion, scoring: Scoring) -> float:
    """Return a device's gain on its rows, without those of one part."""
    chosen = torch.from_numpy(rows.part != (-1 if without is None else without))
    candidate, champion = (
        metrics(answers[chosen], rows.y[chosen], scoring, decides)[criterion.metric.column]
        for answers, decides in ((rows.challenger, None), (rows.champion, rows.decides))
    )
    return 0.0 if math.isclose(candidate, champion) else criterion.metric.sign * (candidate - champion)


def verdict(gain: Gain | None, criterion: Criterion) -> tuple[bool, str]:
    """Return whether the challenger is better by the answer's rule, and the reason if it is not."""
    if gain is None:
        return False, f"too few test rows, fewer than {LEAST_TEST}"
    amount = criterion.metric.amount(criterion.min_effect)
    match decide(gain, criterion.min_effect):
        case Action.USE:
            return True, ""
        case Action.SAME:
            return False, f"no difference of {amount}"
        case Action.ALONE:
            return False, "worse" if gain.high < 0 else f"not better by {amount}"
    return False, "too close to say"
