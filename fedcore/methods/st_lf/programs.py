r"""Solvers of (P): the paper's, the paper's with repaired links, and an exact one.

successive   Algorithm 2: geometric programs, each around the previous solution, until convergence; then rounding
cvxpy        the same, with every program posed in CVXPY, as in the paper; takes two to five times as long
repaired     its sources, with the best source for every target
exact        the optimum, as a facility-location program

(P) has this form, as a single source per target is optimal for every psi (`problem.best_links`): with y_i = 1 - psi_i,

    min phi_S sum_i S_i y_i + sum_ij c_ij x_ij   s.t.   sum_{i != j} x_ij = 1 - y_j,  0 <= x_ij <= y_i,  y_i in {0, 1}

with c_ij = phi_T T_ij + phi_E K_ij / (1 + eps_E). x is integral if y is. If there are several optima, the solver
chooses.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from fedcore.methods.st_lf.forms import StepSolution, cone, log
from fedcore.methods.st_lf.geometric import EPS_C, Monomials, Point, initial_point, penalised_objective
from fedcore.methods.st_lf.problem import Array, Problem, Solution, best_links, objective
from fedcore.types.ranges import Count, Positive

Solver: TypeAlias = Literal["successive", "cvxpy", "repaired", "exact"]

SolveStep: TypeAlias = Callable[[Monomials], StepSolution]
"""A solver of one step of Algorithm 2, of `fedcore.methods.st_lf.forms`."""

RISE = 1e-6
"""Largest relative rise of the penalised objective in an iteration, a solver's tolerance."""


@dataclass(frozen=True)
class SolverSettings:
    """Settings of the solver of (P).

    Args:
        solver: "successive" is Algorithm 2; "cvxpy" the same by CVXPY, as in the paper, for up to some ten devices;
            "repaired" gives its targets their best sources; "exact" is the optimum. The last two link one source to
            each target.
        tol: the change of every psi and alpha at which Algorithm 2 has converged, above 0.
        max_iterations: cap on the iterations of Algorithm 2, from 1.
    """

    solver: Solver = "successive"
    tol: Positive = 0.003
    max_iterations: Count = 60


def solve_program(problem: Problem, settings: SolverSettings) -> Solution:
    """Solve (P); `exact` computes the gap to the optimum for all solvers."""
    answer = SOLVERS[settings.solver](problem, settings)
    best = answer if settings.solver == "exact" else solve_exactly(problem)
    return replace(answer, gap=gap(answer.objective, best.objective) if best.status == OPTIMAL else np.nan)


def gap(value: float, best: float) -> float:
    """Return the relative excess of an objective over the best one; infinite if the best one is 0."""
    above = value - best
    if abs(above) <= 1e-9 * best:  # HiGHS's tolerance, about
        return 0.0
    return above / best if best > 0 else np.inf


def solve_successively(
    problem: Problem, settings: SolverSettings, *, solve_step: SolveStep = cone, begin: Point | None = None
) -> Solution:
    """Run Algorithm 2 until no psi or alpha changes by more than the tolerance, or for the maximum of iterations.

    begin: the starting point, by default `fedcore.methods.st_lf.geometric.initial_point`. A step that fails, or whose
    point is worse than the previous one, ends the iteration; if the first step fails, the result is that of
    `local_search`. trace: the penalised objective (83) of every iterate.
    """
    n = len(problem)
    if n == 1:
        return _solution(problem, np.zeros(1), np.zeros((1, 1)), 0, "Solved")
    form = solve_step.__name__
    at, status = begin or initial_point(n), f"{form}: max_iterations"
    trace: list[float] = []
    for iteration in range(1, settings.max_iterations + 1):
        step = solve_step(Monomials(problem, at))
        value = np.inf if step.point is None else penalised_objective(problem, step.point)
        if step.point is None or (trace and value > trace[-1] * (1 + RISE)):
            status = f"{form}: {step.status} at iteration {iteration}"
            if not trace:
                return _fallback(problem, status)
            status += f"; fallback: iteration {iteration - 1}"
            break
        moved = max(abs(step.point.psi - at.psi).max(), abs(step.point.alpha - at.alpha).max())
        at = step.point
        trace.append(value)
        if moved <= settings.tol:
            status = f"{form}: {step.status}"
            break
    psi, alpha = round_point(at)
    return replace(_solution(problem, psi, alpha, len(trace), status), trace=tuple(trace))


def round_point(at: Point) -> tuple[Array, Array]:
    """Round a relaxed point to integral psi and feasible alpha.

    psi is rounded; without a source, the device of least psi becomes one. Links of at most eps_C, half the width of the
    band around (53), are dropped, but a target keeps at least its strongest link. Columns of targets then sum to one.
    """
    psi = np.asarray(at.psi >= 0.5, dtype=np.float64)
    psi[at.psi.argmin()] = 0
    alpha = at.alpha * (psi == 0)[:, None] * psi
    strongest = alpha.max(0)
    alpha = np.where((alpha > EPS_C) | ((alpha == strongest) & (strongest <= EPS_C)), alpha, 0) * (alpha > 0)
    return psi, alpha / np.where(psi, alpha.sum(0), 1)


def repair_links(problem: Problem, settings: SolverSettings) -> Solution:
    """Return Algorithm 2's sources with every target's best link (`best_links`)."""
    relaxed = solve_successively(problem, settings)
    answer = _solution(problem, relaxed.psi, best_links(problem, relaxed.psi), relaxed.iterations, relaxed.status)
    return replace(answer, trace=relaxed.trace)


def solve_exactly(problem: Problem, settings: SolverSettings | None = None, *, time_limit: float = np.inf) -> Solution:
    """Return the optimum of (P), also with the noise, by HiGHS. iterations: its branch-and-bound nodes.

    settings: not used. time_limit: of HiGHS, seconds. If HiGHS fails, the result is that of `local_search`.
    """
    import scipy.sparse as sp
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second

    n = len(problem)
    if n == 1:
        return _solution(problem, np.zeros(1), np.zeros((1, 1)), 0, OPTIMAL)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    pairs = np.arange(len(i))
    ones = np.ones(len(i))
    served = sp.hstack([sp.eye_array(n), sp.csr_array((ones, (j, pairs)), shape=(n, len(i)))])
    opened = sp.hstack([sp.csr_array((-ones, (pairs, i)), shape=(len(i), n)), sp.eye_array(len(i))])
    costs = np.concatenate([problem.phi_s * problem.source, problem.link[i, j]])
    alone = problem.phi_s * problem.source + np.where(np.eye(n, dtype=bool), 0, problem.link).sum(1)
    high = min(alone.min(), problem.phi_s * problem.source.sum())  # one source, or all
    result = milp(
        costs * (1e4 / high if high > 0 else 1),  # HiGHS's tolerances are absolute
        integrality=np.concatenate([np.ones(n), np.zeros(len(i))]),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(served, 1, 1), LinearConstraint(opened, -np.inf, 0)],
        options={"mip_rel_gap": 0.0, "time_limit": time_limit},
    )
    if result.status != 0:
        return _fallback(problem, f"HiGHS: {result.message.split('.')[0].strip()}")
    psi = np.asarray(result.x[:n] < 0.5, dtype=np.float64)
    return _solution(problem, psi, best_links(problem, psi), int(result.mip_node_count), OPTIMAL)


OPTIMAL = "HiGHS: optimal"


def local_search(problem: Problem) -> Array:
    """Return a local optimum psi (N,) under changes of one device, from all sources: the fallback of the solvers."""
    psi = np.zeros(len(problem))

    def value(psi: Array) -> float:
        return objective(problem, psi, best_links(problem, psi)) if (psi == 0).any() else np.inf

    now = value(psi)
    while True:
        flips = [value(np.where(np.arange(len(psi)) == device, 1 - psi, psi)) for device in range(len(psi))]
        device = int(np.argmin(flips))
        if flips[device] >= now:
            return psi
        psi[device], now = 1 - psi[device], flips[device]


def _solution(problem: Problem, psi: Array, alpha: Array, iterations: int, status: str) -> Solution:
    return Solution(psi, alpha, objective(problem, psi, alpha), np.nan, iterations, status)


def _fallback(problem: Problem, status: str) -> Solution:
    psi = local_search(problem)
    return _solution(problem, psi, best_links(problem, psi), 0, f"{status}; fallback: local search")


SOLVERS: dict[str, Callable[[Problem, SolverSettings], Solution]] = {
    "successive": solve_successively,
    "cvxpy": partial(solve_successively, solve_step=log),
    "repaired": repair_links,
    "exact": solve_exactly,
}
