r"""Optimal transport between two weighted sets of units.

    min_T <T, C> - lambda Omega(T)   with  T 1 = a,  T' 1 = b,  T >= 0            (CODE, eq. 6)

    Omega(T) = -sum_ij T_ij (log T_ij - 1)                                        (eq. 7)

C (n, m) costs, a (n,) and b (m,) positive weights that sum to one, T (n, m); everything in float64. The answer has the
form T = diag(e^(f/lambda)) exp(-C/lambda) diag(e^(g/lambda)) (eqs. 8 to 12). `solve_transport` checks the problem and
calls a solver:

newton      the default: the semi-dual by damped Newton steps along a decreasing lambda
sinkhorn    the paper's Algorithm 2
exact       lambda = 0, by a network simplex
identity    unit i goes to unit i, whatever the cost

`report_plans` tells the plans and how they were computed.

Reference: "CODE", Algorithm 2 and Section V; Dvurechensky, Gasnikov, Kroshnin 2018 for the bound.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, nan
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.method import Report
from fedcore.types.ranges import Count, Positive

Solver: TypeAlias = Literal["newton", "sinkhorn", "exact", "identity"]

FIGURES = ("fedcore.report.figures.reports:transport_plans",)
"""Of a method that reports plans."""

GAP, NOISE = 1e-6, 1e-13
"""An exact plan may cost more than the least by this share of its cost, or by this share of the greatest cost, which is
the simplex's own precision."""

SPAN = 1e9
"""Greatest cost over the plan's cost, above which NOISE would hide a wrong plan."""

SHARPEST = 1e-8
"""Smallest lambda / max C that `newton` tells from zero: float64 places exp((g - C) / lambda) to 2e-16 / SHARPEST."""


@dataclass(frozen=True)
class Transport:
    """Settings of the alignment of units.

    Args:
        solver: "newton", "sinkhorn" (the paper's Algorithm 2), "exact" (lambda = 0) or "identity" (no alignment).
        reg: lambda of (6), in units of the cost, above 0.
        tol: epsilon, the violation of the marginals (27) at which a solver stops, in [0, 2]; Algorithm 2, line 3.
        max_iterations: cap on a solver's steps (half-steps of Algorithm 2, Newton steps), from 1.
        p: power of the distance between two units, 1 as printed in (24), or 2 as in Table II and (4).
    """

    solver: Solver = "newton"
    reg: Positive = 0.01
    tol: Positive = 1e-7
    max_iterations: Count = 10000
    p: Literal[1, 2] = 1


@dataclass(frozen=True)
class Plan:
    """A transport matrix and how it was computed.

    plan: (n, m) float64, nonnegative. iterations: what the solver counts (see its docstring).
    violation: ||T 1 - a||_1 + ||T' 1 - b||_1, in [0, 2] (eq. 27). converged: violation <= tol.
    bound: half-steps after which Algorithm 2 must have reached tol on this problem (see `bound`).
    excess: <T, C> - <T*, C>, T* of least cost (Definition 1 allows epsilon); only Algorithm 2's is computed, else nan.
    """

    plan: Tensor
    iterations: int
    violation: float
    converged: bool
    bound: float
    excess: float = nan


def cost(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Return C_ij = ||x_i - y_j||_2^p for units x (n, d) and y (m, d).

    p = 1 is equation (24) as printed; p = 2, the order named in the paper's Table II, squares it (eq. 4).
    """
    return torch.cdist(x.double(), y.double()).pow(p)


def bound(cost: Tensor, a: Tensor, b: Tensor, reg: float, tol: float) -> float:
    r"""Return the number of half-steps of Algorithm 2 that suffices for tol.

    t <= 2 + 4 R / epsilon,   R = -ln(e^(-||C||_inf / lambda) min_ij(a_i, b_j))

    Equation (49) names psi at the first step, which is not known. Its first case loses a negative term and its
    second, where psi <= R epsilon, is at most 2 + 2 R / epsilon, so that this one form covers both. It needs C >= 0,
    and f / lambda is what R bounds (the appendices leave out lambda). Theorem 2's O(R / epsilon) is this per problem.
    """
    radius = cost.max().item() / reg - log(min(a.min().item(), b.min().item()))
    return 2 + 4 * radius / tol


def sinkhorn(cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    r"""Algorithm 2: scale rows and columns in turn, in the log domain; iterations counts half-steps t.

    f <- f + lambda (log a - log T 1),  t even                                    (eq. 28)
    g <- g + lambda (log b - log T' 1), t odd                                     (eq. 29)
    T <- diag(e^(f/lambda)) exp(-C/lambda) diag(e^(g/lambda))                     (eq. 30)

    Departures, all misprints: (28)-(29) lack lambda, (30) ends in a stray vector of ones, and line 3 loops *until*
    (27). Here `duals` holds f / lambda and g / lambda. From t = 1 on one side is met exactly, so that (27) is the
    other side's. At most max_iterations half-steps: small lambda or nearly equal units can need over 100,000.

    epsilon is the tolerance of (27) alone. Definition 1 allows the cost as much, but the solution of (6) for a fixed
    lambda costs more than the least, however small epsilon is: `excess` tells by how much.
    """
    reg, max_iterations = settings.reg, settings.max_iterations
    kernel = -cost / reg
    if not kernel.isfinite().all():
        raise InputError(f"reg: {reg} is too small for costs up to {cost.max().item():.3g}, allowed with solver newton")
    duals, logs = [torch.zeros_like(a), torch.zeros_like(b)], [a.log(), b.log()]
    for t in range(max_iterations + 1):
        side = t % 2
        logT = kernel + duals[0][:, None] + duals[1]
        marginal = logT.logsumexp(1 - side)
        violation = (marginal.exp() - logs[side].exp()).abs().sum()
        if t == max_iterations or (t > 0 and violation <= settings.tol):
            break
        duals[side] += logs[side] - marginal
    plan, least = _plan(logT.exp(), t, cost, a, b, settings), exact(cost, a, b, settings)
    return replace(plan, excess=((plan.plan - least.plan) * cost).sum().item())


def newton(cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    r"""Maximise the semi-dual over g by damped Newton steps; iterations counts them (cap: max_iterations).

    T_ij = a_i softmax_j((g_j - C_ij) / lambda)            rows are exact (14), f is eliminated from the dual (21)
    c = T' 1,   gradient b - c                             0 where the columns are exact (15)
    H = (diag(c) - T' diag(1/a) T) / lambda                minus the Hessian: a graph Laplacian, H 1 = 0
    g <- g + (H + delta diag(b) / lambda)^-1 (b - c)

    lambda falls by thirds from a tenth of the cost's range, each time after a few Sinkhorn sweeps
    g <- g + lambda log(b / c); g is nearly linear in a small lambda, so the next start is extrapolated from the last
    two. A step is taken unless the slope along it ends below minus half of what it was (the semi-dual is concave, so
    this is an overshoot); then delta grows tenfold, as it does where Cholesky fails. H's diagonal is summed from its
    other entries: c - diag would cancel where units hardly compete.

    Below lambda = SHARPEST * max C the plan is `exact`'s: it meets the marginals, and its objective exceeds the
    smallest by at most lambda log(min(n, m)), which float64 does not resolve. Works on the smaller side.
    """
    reg, tol, max_iterations = settings.reg, settings.tol, settings.max_iterations
    if reg < SHARPEST * cost.max().item():
        return exact(cost, a, b, settings)
    if len(a) < len(b):
        flipped = newton(cost.T.contiguous(), b, a, settings)
        return _plan(flipped.plan.T, flipped.iterations, cost, a, b, settings)

    def plan(g: Tensor) -> tuple[Tensor, Tensor]:
        T = torch.softmax((g - cost) / lam, 1).mul_(a[:, None])
        return T, T.sum(0)

    def sweep(g: Tensor, c: Tensor) -> Tensor:
        return g + lam * (b / c.clamp_min(1e-300)).log()

    g, steps, delta = torch.zeros_like(b), 0, 1e-3
    lam, before = max(reg, (cost.max() - cost.min()).item() / 10), (inf, g)
    while True:
        goal = tol if lam == reg else max(tol, 5e-3)
        T, c = plan(g)
        for _ in range(8):
            if marginal_error(c, b) > goal:
                T, c = plan(g := sweep(g, c))
        while marginal_error(c, b) > goal and steps < max_iterations and delta < 1e6:
            laplacian = T.T @ (T / a[:, None])
            degree = laplacian.fill_diagonal_(0).sum(1)
            laplacian.neg_()
            while delta < 1e6:
                laplacian.diagonal().copy_(degree + delta * b)
                factor, failed = torch.linalg.cholesky_ex(laplacian)
                step = lam * torch.cholesky_solve((b - c)[:, None], factor)[:, 0]
                ahead, reached = plan(g + step)
                if not failed and step @ (b - reached) >= -0.5 * (step @ (b - c)):
                    g, T, c, steps = g + step, ahead, reached, steps + 1
                    delta = max(delta / 10, 1e-13)
                    break
                delta *= 10
        if lam == reg:
            return _plan(T, steps, cost, a, b, settings)
        lower = max(lam / 3, reg)
        slope = (g - before[1]) / (lam - before[0])
        before, g, lam = (lam, g), g + slope * (lower - lam), lower


def exact(cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    r"""Return a plan of least cost (problem P0, eq. 3) by POT's network simplex.

    lambda and the cap are not used; iterations is 0, as the simplex does not report its pivots. Among tied plans
    it returns one vertex, so that n = m units with equal weights are matched one to one.

    The dual certifies it:  <T, C> >= u' a + v' b  for every T, if  u_i + v_j <= C_ij. Where costs span so many orders
    that this gap is not small, costs above a limit are lowered to it, and the limit rises until the plan uses no
    lowered cost and the gap is small: the dual is then one of the whole problem.

    Raises InputError if no plan has a certificate.
    """
    plan, gap = _simplex(cost, cost, a, b)
    value, top = (plan * cost).sum().item(), cost.max().item()
    if gap > GAP * value and (gap > NOISE * top or top > SPAN * value > 0):
        plan = _below_a_limit(cost, a, b)
    return _plan(plan, 0, cost, a, b, settings)


def _simplex(cost: Tensor, lowered: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, float]:
    """Return the network simplex's plan for the lowered costs, and by how much it may exceed the least cost."""
    import ot  # takes a second, and only this solver needs it

    plan, log = ot.emd(a.numpy(), b.numpy(), lowered.numpy(), numItermax=100_000_000, log=True)
    plan, u, v = (torch.from_numpy(x) for x in (plan, log["u"], log["v"]))
    excess = (u[:, None] + v - lowered).max().clamp_min(0)
    return plan, ((plan * cost).sum() - (u @ a + v @ b - excess)).item()


def _below_a_limit(cost: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a certified plan of costs that span many orders, see `exact`."""
    top = cost.max().item()
    unavoidable = max(cost.min(0).values.max().item(), cost.min(1).values.max().item())
    limit = max(unavoidable, cost[cost > 0].min().item()) * len(cost)
    while limit < 1e3 * top:
        plan, gap = _simplex(cost, cost.clamp(max=limit), a, b)
        if gap <= max(GAP * (plan * cost).sum().item(), NOISE * limit):
            return plan
        limit *= 1e3
    raise InputError(f"cost: entries up to {top:.3g} span too many orders for float64, no plan can be certified")


def identity(cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    """Return diag(a): unit i goes to unit i. For comparison with methods that do not align."""
    if len(a) != len(b):
        raise InputError(f"solver: identity cannot align {len(a)} units to {len(b)}: widths must be equal")
    return _plan(torch.diag(a), 0, cost, a, b, settings)


SOLVERS: dict[str, Callable[[Tensor, Tensor, Tensor, Transport], Plan]] = {
    "newton": newton,
    "sinkhorn": sinkhorn,
    "exact": exact,
    "identity": identity,
}


def solve_transport(cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    """Check the problem and solve it. cost (n, m) >= 0; a (n,) and b (m,) > 0, each summing to one."""
    if cost.shape != (len(a), len(b)) or cost.numel() == 0:
        raise InputError(f"cost: shape {tuple(cost.shape)} does not fit {len(a)} by {len(b)} units")
    cost, a, b = cost.double(), a.double(), b.double()
    if not (cost.isfinite().all() and (cost >= 0).all()):
        raise InputError("cost: some entries are negative, infinite or nan; must be finite and 0 or more")
    for name, weights in (("a", a), ("b", b)):
        if not ((weights > 0).all() and abs(weights.sum().item() - 1) < 1e-9):
            raise InputError(f"{name}: weights must be positive and sum to one")
    return SOLVERS[settings.solver](cost, a, b, settings)


def marginal_error(marginal: Tensor, target: Tensor) -> float:
    """Return the L1 distance between a marginal and its target."""
    return (marginal - target).abs().sum().item()


def _plan(plan: Tensor, iterations: int, cost: Tensor, a: Tensor, b: Tensor, settings: Transport) -> Plan:
    violation = marginal_error(plan.sum(1), a) + marginal_error(plan.sum(0), b)
    limit = bound(cost, a, b, settings.reg, settings.tol)
    return Plan(plan.contiguous(), iterations, violation, violation <= settings.tol, limit)


def report_plans(folds: Mapping[str, Mapping[str, Plan]], of: Sequence[tuple[str, str, float]] = ()) -> Report:
    """Report plans and how they were computed. of: each fold's device, that it is folded into, and its weight.

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
    words = {"folds": json.dumps(dict(zip(devices, of, strict=True)))} if of and devices else {}
    return Report(devices={"transport": devices} if devices else {}, matrices=matrices if flat else {}, words=words)


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
