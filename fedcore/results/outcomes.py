"""Counts of what models do with examples: which classes they confuse, and whether they are right when they are sure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedcore.types.federation import Params


@dataclass(frozen=True)
class Outcomes:
    """Counts of :mod:`fedcore.core.evaluation`, which add up over devices and seeds.

    classes: the names of the K classes. confusion: (K, K), examples by their class (down) and the predicted one
    (across); (0, 0) if it was not counted. calibration: (B, 3), for each bin of confidence the examples, the sum of
    their confidence, and those that are right.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    calibration: NDArray[np.float64]

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(self.classes, self.confusion + other.confusion, self.calibration + other.calibration)

    @property
    def examples(self) -> int:
        return int(self.calibration[:, 0].sum())

    @property
    def curve(self) -> NDArray[np.float64]:
        """Mean confidence, share that is right, and share of all examples in each bin that has some, (at most B, 3)."""
        counts = self.calibration[self.calibration[:, 0] > 0]
        return np.stack([counts[:, 1] / counts[:, 0], counts[:, 2] / counts[:, 0], counts[:, 0] / self.examples], 1)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (Guo et al. 2017, eq. 3), a fraction: sum_b n_b / n |right_b - confidence_b|.

        nan without examples.
        """
        if not self.examples:
            return math.nan
        confidence, right, share = self.curve.T
        return float((share * abs(right - confidence)).sum())

    def to_json(self) -> dict[str, Any]:
        return {
            "classes": self.classes, "confusion": self.confusion.tolist(), "calibration": self.calibration.tolist(),
        }  # fmt: skip


def from_json(numbers: Mapping[str, Any]) -> Outcomes:
    """Undo :meth:`Outcomes.to_json`."""
    confusion = np.array(numbers["confusion"], dtype=np.int64)
    square = confusion.reshape(len(confusion), len(confusion))
    return Outcomes(tuple(numbers["classes"]), square, np.array(numbers["calibration"], dtype=np.float64))


def total(parts: Iterable[Params], classes: Sequence[str]) -> Outcomes | None:
    """Return the sum of counts; None if there is no example. classes: their names."""
    outcomes = [Outcomes(tuple(classes), part["confusion"].numpy(), part["calibration"].numpy()) for part in parts]
    whole = sum(outcomes[1:], outcomes[0])
    return whole if whole.examples else None
