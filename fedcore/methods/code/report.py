"""Reports of transport plans and of how they were computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch

from fedcore.methods.code.transport import Plan
from fedcore.types.method import Report

FIGURES = ("fedcore.report.figures.code:transport_plans",)


def report_plans(folds: Mapping[str, Mapping[str, Plan]]) -> Report:
    """Report plans and how they were computed.

    folds: name of the model that was aligned (or aligned to) -> label of the units -> plan. For each a matrix
    "plan/<fold>/<label>" (n, m) float32. "solver/<number>" (F,) float64 holds the number of each plan, in the same
    order; topic "transport" has them by fold, over its labels: sums of iterations and bounds, means of the rest. The
    numbers are those of NUMBERS that the solver gives.
    """
    flat = {f"{fold}/{label}": plan for fold, labels in folds.items() for label, plan in labels.items()}
    matrices = {f"plan/{name}": plan.plan.float() for name, plan in flat.items()}
    numbers = _numbers(flat.values())
    matrices |= {f"solver/{name}": torch.tensor(of, dtype=torch.float64) for name, of in numbers.items()}
    devices = {fold: _over(labels) for fold, labels in folds.items() if labels}
    return Report(devices={"transport": devices} if devices else {}, matrices=matrices if flat else {})


def _over(plans: Mapping[str, Plan]) -> dict[str, float]:
    """Return the numbers of a fold."""
    values = _numbers(plans.values())
    return {name: sum(of) / (1 if name in ("iterations", "bound") else len(of)) for name, of in values.items()}


def _numbers(plans: Collection[Plan]) -> dict[str, list[float]]:
    """Return each number of every plan, but for those that are not a number for any."""
    values = {name: [float(read(plan)) for plan in plans] for name, read in NUMBERS.items()}
    return {name: of for name, of in values.items() if not all(map(math.isnan, of))}


def partners(plan: Plan) -> float:
    """Return the effective number of units that receive a unit's mass: mean over rows of exp(entropy of the shares).

    1: a permutation; m: the mass is spread evenly.
    """
    shares = plan.plan / plan.plan.sum(1, keepdim=True)
    return float(torch.special.entr(shares).sum(1).exp().mean())


NUMBERS: dict[str, Callable[[Plan], float]] = {
    "iterations": lambda plan: plan.iterations,
    "violation": lambda plan: plan.violation,
    "bound": lambda plan: plan.bound,
    "partners": partners,
    "excess": lambda plan: plan.excess,
}
"""Iterations, marginal violation, Theorem 2's bound on the iterations of Algorithm 2, `partners`, and the excess of
cost (Definition 1)."""
