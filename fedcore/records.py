"""What the server remembers for the record alone: leaves named "record/..." in its memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedcore.transport import Plan
from fedcore.types import Params

PREFIX = "record/"


def plans(folds: Mapping[str, Mapping[str, Plan]]) -> Params:
    """Return transport plans, and how their problems were solved, as leaves.

    folds: name of the model that was aligned (or aligned to) -> label of the units -> plan. For each a leaf
    "record/plan/<fold>/<label>" (n, m) float32. "record/solver/..." (F,) float64 holds for each plan, in the same
    order, its iterations, its marginal violation, and Theorem 2's bound on the iterations of Algorithm 2.
    """
    flat = {f"{fold}/{label}": plan for fold, labels in folds.items() for label, plan in labels.items()}
    matrices = {f"{PREFIX}plan/{name}": plan.plan.float() for name, plan in flat.items()}
    numbers = {
        f"{PREFIX}solver/{name}": torch.tensor([getattr(plan, name) for plan in flat.values()], dtype=torch.float64)
        for name in ("iterations", "violation", "bound")
    }
    return matrices | numbers
