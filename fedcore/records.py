"""What the server remembers for the record alone: leaves named "record/..." in its memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedcore.transport import Plan
from fedcore.types import Params

PREFIX = "record/"


def plans(folds: Mapping[str, Mapping[str, Plan]]) -> Params:
    """Return transport plans as leaves.

    folds: name of the model that was aligned (or aligned to) -> label of the units -> plan. For each a leaf
    "record/plan/<fold>/<label>" (n, m) float32, and one "record/solver" (F, 4) float64 with a row per plan in the same
    order: iterations, marginal violation, 1 if it converged, Theorem 2's bound on Algorithm 2's iterations.
    """
    flat = {f"{fold}/{label}": plan for fold, labels in folds.items() for label, plan in labels.items()}
    rows = [[plan.iterations, plan.violation, plan.converged, plan.bound] for plan in flat.values()]
    matrices = {f"{PREFIX}plan/{name}": plan.plan.float() for name, plan in flat.items()}
    return matrices | {f"{PREFIX}solver": torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)}
