"""One step of Algorithm 2 as a convex program, (50): every chi but the slack is eliminated.

cone   exponential cones as sparse matrices for Clarabel, without a modelling layer, for any N
log    log-sum-exp in CVXPY, as the paper solves it; slower, for up to some ten devices
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from fedcore.methods.st_lf.geometric import PSI, SENT, SLACK, Monomials, Point
from fedcore.methods.st_lf.problem import Array

if TYPE_CHECKING:
    import cvxpy as cp
    import scipy.sparse as sp

SETTINGS = {"max_threads": 1, "equilibrate_enable": False}
"""Settings of Clarabel. Equilibration loses digits: with it CVXPY's form fails within twenty iterations."""

TOLERANCE = 1e-7
"""Clarabel's tolerance in the cone form: a fifth faster at N = 40 than its default 1e-8, same objective to 1e-5."""


Index: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Program:
    r"""A geometric program after the change of variables z = log y (50), without the logarithm of the objective.

    min sum_m exp(A_m z + b_m)   s.t.   sum_{m in g} exp(C_m z + d_m) <= 1 for every group g,   L z <= l

    A (M0, V), C (M, V), L (I, V) sparse; group (M,) numbers the constraint of each row of C from 0.
    """

    A: sp.csr_array
    b: Array
    C: sp.csr_array
    d: Array
    group: Index
    L: sp.csr_array
    limit: Array


@dataclass(frozen=True)
class SparseRows:
    """Entries of a sparse matrix: row, column and value of each; those of one place are added. count: of the rows."""

    count: int
    row: Index
    column: Index
    value: Array

    def where(self, chosen: npt.NDArray[np.bool_]) -> SparseRows:
        """Return the chosen rows."""
        mask = chosen[self.row]
        row = (np.cumsum(chosen) - 1)[self.row[mask]]
        return SparseRows(int(chosen.sum()), row, self.column[mask], self.value[mask])

    def plus(self, other: SparseRows) -> SparseRows:
        """Return the sum of two matrices of as many rows."""
        row, column = np.concatenate([self.row, other.row]), np.concatenate([self.column, other.column])
        return SparseRows(self.count, row, column, np.concatenate([self.value, other.value]))


def rows_with(*parts: tuple[Index, Array | float]) -> SparseRows:
    """Return rows with a value in one column for each part. parts: each row's column, and its or every value."""
    count = len(parts[0][0])
    values = [np.broadcast_to(value, count).astype(np.float64) for _, value in parts]
    row = np.tile(np.arange(count), len(parts))
    return SparseRows(count, row, np.concatenate([columns for columns, _ in parts]), np.concatenate(values))


def stack(blocks: Sequence[SparseRows], width: int) -> sp.csr_array:
    """Return the rows of all blocks as one matrix: to build one of each and join them takes ten times as long."""
    import scipy.sparse as sp

    first = np.cumsum([0, *(block.count for block in blocks)])
    row = np.concatenate([block.row + at for block, at in zip(blocks, first[:-1], strict=True)])
    column, value = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("column", "value"))
    return sp.csr_array((value, (row, column)), shape=(int(first[-1]), width))


def program(around: Monomials) -> Program:
    """Return the step's program in z = (log psi, log alpha of all pairs, log slack), every other chi eliminated."""
    problem, n, i, j = around.problem, around.n, around.i, around.j
    pairs, variables = len(i), 2 * n + len(i)

    each = np.arange(n)
    psi, alpha, slack = each, n + np.arange(pairs), n + pairs + each
    r, b = around.left

    def flow(chosen: Index) -> list[tuple[Index, Array | float]]:
        """Rows above log((1 - psi_i) psi_j alpha_ij), less b_i, of some pairs."""
        return [(psi[j[chosen]], 1.0), (alpha[chosen], 1.0), (psi[i[chosen]], -r[i[chosen]])]

    terms: list[tuple[SparseRows, Array, Array]] = [(rows_with((slack, 1.0)), np.zeros(n), np.ones(n))]
    terms.append((rows_with((psi, -r)), b, problem.phi_s * problem.source))
    terms.append((rows_with(*flow(np.arange(pairs))), b[i], problem.phi_t * problem.target[i, j]))
    w, c = around.link
    terms.append((rows_with((alpha, 1 - w)), -c, problem.phi_e * problem.energy[i, j]))
    if problem.noise is not None:
        first, second = np.nonzero((j[:, None] == j) & (np.arange(pairs)[:, None] < np.arange(pairs)))
        both = problem.noise + problem.noise.transpose(2, 1, 0)  # i with k and k with i are the same product
        coefficient = problem.phi_t * both[i[first], j[first], i[second]]
        terms.append((rows_with(*flow(first), *flow(second)), b[i[first]] + b[i[second]], coefficient))
    positive = [(rows.where(k > 0), c[k > 0] + np.log(k[k > 0])) for rows, c, k in terms]

    on_slack, on_psi, c = around.above
    columns = rows_with((alpha, 1.0), (slack[j], -on_slack[j]), (psi[j], -on_psi[j]))
    weights, least = around.under
    spread = SparseRows(n, j, alpha, -weights[i, j])
    constraints = [
        (columns, -c[j], j),
        (rows_with((slack, 1.0)).plus(spread), -least, n + each),
        (rows_with((psi, 1.0)).plus(spread), -least, n + each),
    ]

    logs = np.log([*PSI, *SLACK, SENT])
    lows = [np.full(n, logs[0]), np.log(around.least[i, j]), np.full(n, logs[2])]
    ends = list(zip((psi, alpha, slack), lows, (logs[1], 0.0, logs[3]), strict=True))
    bounds = [(rows_with((columns, 1.0)), np.full(len(columns), high)) for columns, _, high in ends]
    bounds += [(rows_with((columns, -1.0)), -low) for columns, low, _ in ends]
    bounds.append((rows_with((psi[i], 1.0), (alpha, 1.0)), np.full(pairs, logs[4])))
    return Program(
        stack([rows for rows, _ in positive], variables),
        np.concatenate([constant for _, constant in positive]),
        stack([rows for rows, _, _ in constraints], variables),
        np.concatenate([constant for _, constant, _ in constraints]),
        np.concatenate([group for _, _, group in constraints]),
        stack([rows for rows, _ in bounds], variables),
        np.concatenate([limit for _, limit in bounds]),
    )


@dataclass(frozen=True)
class StepSolution:
    """A solver's point, its penalised objective in the approximation, and the solver's status.

    point is None if the solver failed.
    """

    point: Point | None
    objective: float
    status: str


def cone(around: Monomials) -> StepSolution:
    """Solve the step as a cone program by Clarabel, with one exponential cone per monomial.

    min s   with   sum_m t_m <= 1,   exp(A_m z + b_m - s) <= t_m,   and sums of e_m >= exp(C_m z + d_m)

    in z minus its value at the point. With the logarithm s the terms stay within a few orders of magnitude; without it
    Clarabel's points violate constraints by up to a tenth at N = 40. After "InsufficientProgress" or a failure it runs
    again with equilibration; the better finite point is returned.
    """
    import clarabel  # only this form needs it
    import scipy.sparse as sp

    form, at = program(around), around.at
    off = (around.i, around.j)
    centre = np.log(np.concatenate([at.psi, at.alpha[off], at.slack]))
    V, m0, m = len(centre), len(form.b), len(form.d)
    width = V + 1 + m0 + m  # z, s, t, e

    def exponentials(rows: sp.csr_array, constant: Array, height: int, first: int) -> tuple[SparseRows, Array]:
        """Rows (x, 1, bound) of the cones exp(x) <= bound, as constant - matrix @ variables; height: 1 with s, or 0."""
        k = len(constant)
        each = 3 * np.arange(k)
        minus = rows.tocoo()
        entries = [(3 * minus.coords[0], minus.coords[1], -minus.data), (each + 2, first + np.arange(k), -np.ones(k))]
        if height:
            entries.append((each, np.full(k, V), np.ones(k)))
        right = np.zeros((k, 3))
        right[:, 0], right[:, 1] = constant + rows @ centre, 1
        row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
        return SparseRows(3 * k, row, column, value), right.ravel()

    groups = int(form.group.max()) + 1
    limits = form.L.tocoo()
    sums = np.concatenate([np.zeros(m0, np.int64), 1 + form.group]), V + 1 + np.arange(m0 + m), np.ones(m0 + m)
    bounds = SparseRows(len(form.limit), limits.coords[0], limits.coords[1], limits.data)
    linear = [bounds, SparseRows(groups + 1, *sums)]
    costs, rows = exponentials(form.A, form.b, 1, V + 1), exponentials(form.C, form.d, 0, V + 1 + m0)
    matrix = sp.csc_matrix(stack([*linear, costs[0], rows[0]], width))
    right = np.concatenate([form.limit - form.L @ centre, np.ones(groups + 1), costs[1], rows[1]])
    cones = [clarabel.NonnegativeConeT(len(form.limit) + groups + 1)] + [clarabel.ExponentialConeT()] * (m0 + m)
    goal = np.zeros(width)
    goal[V] = 1

    best = StepSolution(None, np.inf, "")
    for equilibrate in (False, True):
        settings = clarabel.DefaultSettings()
        for name, value in (SETTINGS | {"verbose": False, "equilibrate_enable": equilibrate}).items():
            setattr(settings, name, value)
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
        result = clarabel.DefaultSolver(sp.csc_matrix((width, width)), goal, matrix, right, cones, settings).solve()
        step = to_step(around, centre + np.array(result.x[:V]), float(np.exp(result.x[V])), str(result.status))
        if step.status in ("Solved", "AlmostSolved"):
            return step
        if best.point is None or (step.point is not None and step.objective < best.objective):
            best = step
    return best


def to_step(around: Monomials, z: Array, value: float, status: str) -> StepSolution:
    """Return a solver's result: a point within the bounds, or none after a failure."""
    if not (np.isfinite(z).all() and np.isfinite(value)) or "nfeasible" in status or "NumericalError" in status:
        return StepSolution(None, np.inf, status)
    n = around.n
    y = np.exp(z)
    alpha = np.zeros((n, n))
    alpha[around.i, around.j] = y[n:-n].clip(around.least[around.i, around.j], 1)
    return StepSolution(Point(y[:n].clip(*PSI), alpha, y[-n:].clip(*SLACK)), value, status)


def log(around: Monomials) -> StepSolution:
    """Solve the step in CVXPY: log-sum-exp objective and constraints in z."""
    import cvxpy as cp  # takes a second, and only this form needs it

    form = program(around)
    z = cp.Variable(form.A.shape[1])
    constraints = [form.L @ z <= form.limit]
    for g in range(int(form.group.max()) + 1):
        rows = np.flatnonzero(form.group == g)
        constraints.append(cp.log_sum_exp(form.C[rows] @ z + form.d[rows]) <= 0)
    problem = cp.Problem(cp.Minimize(cp.log_sum_exp(form.A @ z + form.b)), constraints)
    status = solve_by_cvxpy(problem)
    if z.value is None:
        return StepSolution(None, np.inf, status)
    return to_step(around, z.value, float(np.exp(problem.value)), status)


def solve_by_cvxpy(problem: cp.Problem, **how: bool) -> str:
    """Solve by CVXPY with Clarabel and return Clarabel's name of the status; errors count as NumericalError."""
    import cvxpy as cp

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the status says so
            problem.solve(solver=cp.CLARABEL, **SETTINGS, **how)
    except cp.SolverError as error:
        return f"NumericalError ({error})".splitlines()[0]
    return str(STATUS.get(problem.status, problem.status))


STATUS = {"optimal": "Solved", "optimal_inaccurate": "AlmostSolved", "infeasible": "PrimalInfeasible"}
"""CVXPY's status -> Clarabel's"""
