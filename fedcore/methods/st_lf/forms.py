"""One step of Algorithm 2 as a geometric program, in three equivalent forms.

cone   exponential cones as sparse matrices for Clarabel, without a modelling layer, for any N
log    (50) in CVXPY, every chi but the slack eliminated
gp     (83)-(93) as printed, by CVXPY's geometric programming: the reference
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedcore.methods.st_lf.geometric import EPS_C, PSI, SENT, SLACK, Monomials, Point, monomial
from fedcore.methods.st_lf.problem import EPS_E, Array

if TYPE_CHECKING:
    import cvxpy as cp

Factor: TypeAlias = "tuple[npt.NDArray[np.int64], Array | float]"
"""Indices of variables and their powers in a row of monomials."""

SETTINGS = {"max_threads": 1, "equilibrate_enable": False}
"""Settings of Clarabel. Equilibration loses digits: with it CVXPY's forms fail within twenty iterations."""

TOLERANCE = 1e-7
"""Clarabel's tolerance in the cone form: a fifth faster at N = 40 than its default 1e-8, same objective to 1e-5."""

LEAST = 1e-12
"""Replaces coefficients of zero, which a posynomial cannot have."""


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
    group: npt.NDArray[np.int64]
    L: sp.csr_array
    limit: Array


def program(around: Monomials) -> Program:
    """Return the step's program in z = (log psi, log alpha of all pairs, log slack), every other chi eliminated."""
    problem, n, i, j = around.problem, around.n, around.i, around.j
    pairs, variables = len(i), 2 * n + len(i)

    def pick(columns: npt.NDArray[np.int64], scale: Array | float = 1.0) -> sp.csr_array:
        values = np.broadcast_to(scale, columns.shape).astype(np.float64)
        return sp.csr_array((values, (np.arange(len(columns)), columns)), shape=(len(columns), variables))

    each = np.arange(n)
    psi, alpha, slack = each, n + np.arange(pairs), n + pairs + each
    r, b = around.left
    flow = pick(psi[j]) + pick(alpha) - pick(psi[i], r[i])  # above log((1 - psi_i) psi_j alpha_ij), less b_i

    terms: list[tuple[sp.csr_array, Array, Array]] = [(pick(slack), np.zeros(n), np.ones(n))]
    terms.append((pick(psi, -r), b, problem.phi_s * problem.source))
    terms.append((flow, b[i], problem.phi_t * problem.target[i, j]))
    w, c = around.link
    terms.append((pick(alpha, 1 - w), -c, problem.phi_e * problem.energy[i, j]))
    if problem.noise is not None:
        first, second = np.nonzero((j[:, None] == j) & (np.arange(pairs)[:, None] < np.arange(pairs)))
        both = problem.noise + problem.noise.transpose(2, 1, 0)  # i with k and k with i are the same product
        coefficient = problem.phi_t * both[i[first], j[first], i[second]]
        terms.append((flow[first] + flow[second], b[i[first]] + b[i[second]], coefficient))
    kept = [(rows[k > 0], c[k > 0] + np.log(k[k > 0])) for rows, c, k in terms]

    on_slack, on_psi, c = around.above
    columns = pick(alpha) - pick(slack[j], on_slack[j]) - pick(psi[j], on_psi[j])
    weights, least = around.under
    spread = sp.csr_array((weights[i, j], (j, alpha)), shape=(n, variables))
    constraints = [
        (columns, -c[j], j),
        (pick(slack) - spread, -least, n + each),
        (pick(psi) - spread, -least, n + each),
    ]

    logs = np.log([*PSI, *SLACK, SENT])
    lows = [np.full(n, logs[0]), np.log(around.least[i, j]), np.full(n, logs[2])]
    ends = list(zip((psi, alpha, slack), lows, (logs[1], 0.0, logs[3]), strict=True))
    bounds = [(pick(columns), np.full(len(columns), high)) for columns, _, high in ends]
    bounds += [(pick(columns, -1.0), -low) for columns, low, _ in ends]
    bounds.append((pick(psi[i]) + pick(alpha), np.full(pairs, logs[4])))
    return Program(
        sp.vstack([rows for rows, _ in kept], format="csr"),
        np.concatenate([constant for _, constant in kept]),
        sp.vstack([rows for rows, _, _ in constraints], format="csr"),
        np.concatenate([constant for _, constant, _ in constraints]),
        np.concatenate([group for _, _, group in constraints]),
        sp.vstack([rows for rows, _ in bounds], format="csr"),
        np.concatenate([limit for _, limit in bounds]),
    )


@dataclass(frozen=True)
class Step:
    """A solver's point, its penalised objective in the approximation, and the solver's status.

    point is None if the solver failed.
    """

    point: Point | None
    objective: float
    status: str


def cone(around: Monomials) -> Step:
    """Solve the step as a cone program by Clarabel, with one exponential cone per monomial.

    min s   with   sum_m t_m <= 1,   exp(A_m z + b_m - s) <= t_m,   and sums of e_m >= exp(C_m z + d_m)

    in z minus its value at the point. With the logarithm s the terms stay within a few orders of magnitude; without it
    Clarabel's points violate constraints by up to a tenth at N = 40. After "InsufficientProgress" or a failure it runs
    again with equilibration; the better finite point is returned.
    """
    import clarabel  # only this form needs it

    made, at = program(around), around.at
    off = (around.i, around.j)
    centre = np.log(np.concatenate([at.psi, at.alpha[off], at.slack]))
    V, m0, m = len(centre), len(made.b), len(made.d)
    width = V + 1 + m0 + m  # z, s, t, e

    def exponentials(rows: sp.csr_array, constant: Array, height: int, first: int) -> tuple[sp.csr_array, Array]:
        """Rows (x, 1, bound) of the cones exp(x) <= bound, as constant - matrix @ variables; height: 1 with s, or 0."""
        k = len(constant)
        minus = sp.hstack([rows, sp.csr_array(np.full((k, 1), -float(height)))], format="coo")
        row = np.concatenate([3 * minus.coords[0], 3 * np.arange(k) + 2])
        column = np.concatenate([minus.coords[1], first + np.arange(k)])
        values = np.concatenate([-minus.data, np.full(k, -1.0)])
        right = np.zeros((k, 3))
        right[:, 0], right[:, 1] = constant + rows @ centre, 1
        return sp.csr_array((values, (row, column)), shape=(3 * k, width)), right.ravel()

    groups = int(made.group.max()) + 1
    sums = sp.block_diag([np.ones((1, m0)), sp.csr_array((np.ones(m), (made.group, np.arange(m))), shape=(groups, m))])
    linear = sp.vstack(
        [
            sp.hstack([made.L, sp.csr_array((len(made.limit), width - V))]),
            sp.hstack([sp.csr_array((groups + 1, V + 1)), sums]),
        ]
    )
    costs, rows = exponentials(made.A, made.b, 1, V + 1), exponentials(made.C, made.d, 0, V + 1 + m0)
    matrix = sp.csc_matrix(sp.vstack([linear, costs[0], rows[0]]))
    right = np.concatenate([made.limit - made.L @ centre, np.ones(groups + 1), costs[1], rows[1]])
    cones = [clarabel.NonnegativeConeT(len(made.limit) + groups + 1)] + [clarabel.ExponentialConeT()] * (m0 + m)
    goal = np.zeros(width)
    goal[V] = 1

    best = Step(None, np.inf, "")
    for equilibrate in (False, True):
        settings = clarabel.DefaultSettings()
        for name, value in (SETTINGS | {"verbose": False, "equilibrate_enable": equilibrate}).items():
            setattr(settings, name, value)
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
        found = clarabel.DefaultSolver(sp.csc_matrix((width, width)), goal, matrix, right, cones, settings).solve()
        step = _step(around, centre + np.array(found.x[:V]), float(np.exp(found.x[V])), str(found.status))
        if step.status in ("Solved", "AlmostSolved"):
            return step
        if best.point is None or (step.point is not None and step.objective < best.objective):
            best = step
    return best


def _step(around: Monomials, z: Array, value: float, status: str) -> Step:
    """Return a solver's result as a Step: a point within the bounds, or None after a failure."""
    if not (np.isfinite(z).all() and np.isfinite(value)) or "nfeasible" in status or "NumericalError" in status:
        return Step(None, np.inf, status)
    n = around.n
    y = np.exp(z)
    alpha = np.zeros((n, n))
    alpha[around.i, around.j] = y[n:-n].clip(around.least[around.i, around.j], 1)
    return Step(Point(y[:n].clip(*PSI), alpha, y[-n:].clip(*SLACK)), value, status)


def log(around: Monomials) -> Step:
    """Solve the step's convex form (50) in CVXPY: log-sum-exp objective and constraints in z."""
    import cvxpy as cp  # takes a second, and only these two forms need it

    made = program(around)
    z = cp.Variable(made.A.shape[1])
    constraints = [made.L @ z <= made.limit]
    for g in range(int(made.group.max()) + 1):
        mine = np.flatnonzero(made.group == g)
        constraints.append(cp.log_sum_exp(made.C[mine] @ z + made.d[mine]) <= 0)
    task = cp.Problem(cp.Minimize(cp.log_sum_exp(made.A @ z + made.b)), constraints)
    status = _cvxpy(task)
    if z.value is None:
        return Step(None, np.inf, status)
    return _step(around, z.value, float(np.exp(task.value)), status)


def gp(around: Monomials) -> Step:
    """Solve the step as printed, (83)-(93), by CVXPY's geometric programming: the reference, for small N.

    It has one positive variable y = (psi, alpha, slack, chi_S, chi_T, chi_G); constraints are sums of monomials <= 1.
    """
    import cvxpy as cp

    problem, at, n = around.problem, around.at, around.n
    by_column = np.lexsort((around.i, around.j))
    i, j = around.i[by_column], around.j[by_column]
    pairs = len(i)
    first, second = np.nonzero((j[:, None] == j) & (i[:, None] != i))  # the pairs (i, j) and (k, j) of chi_ijk
    if problem.noise is None:
        first, second = first[:0], second[:0]
    ends = np.cumsum([0, n, pairs, n, n, pairs, len(first)])
    psi, alpha, slack, chi_s, chi_t, chi_g = (np.arange(a, b) for a, b in pairwise(ends))
    y = cp.Variable(int(ends[-1]), pos=True)

    def product(constant: Array, *factors: Factor) -> cp.Expression:
        """Return the monomials exp(constant) prod y[index] ** exponent, one per row."""
        exponents = np.zeros((len(constant), ends[-1]))
        for index, exponent in factors:
            exponents[np.arange(len(constant)), index] += exponent
        return cp.multiply(np.exp(constant), cp.gmatmul(exponents, y))

    def amount(values: Array) -> Array:
        return np.asarray(np.log(values.clip(LEAST)))  # a posynomial has no zero coefficients

    constraints = [y[psi] >= PSI[0], y[psi] <= PSI[1], y[slack] >= SLACK[0], y[slack] <= SLACK[1]]
    constraints += [
        y[alpha] >= around.least[i, j],
        y[alpha] <= 1,
        product(np.zeros(pairs), (psi[i], 1), (alpha, 1)) <= SENT,
    ]

    # (19): psi_i + chi_i / S_i >= its monomial >= 1
    (w1, w2), c = monomial([at.psi, 1 - at.psi])
    constraints.append(product(c - w2 * amount(problem.source), (psi, w1), (chi_s, w2)) >= 1)
    # (20): the same with chi_ijk / (psi_j alpha_kj D_ijk) for k
    if problem.noise is not None and len(first):
        k, D = i[second], amount(problem.noise[i[first], j[first], i[second]])
        flow = ((psi[j[second]], -w2[k]), (alpha[second], -w2[k]))
        constraints.append(product(c[k] - w2[k] * D, (psi[k], w1[k]), (chi_g, w2[k]), *flow) >= 1)
    # (21): the same with chi_ij / (psi_j alpha_ij A_ij); solved for A_ij = T_ij + sum_k chi_ijk
    per: tuple[Factor, ...] = ((psi[i], -w1[i] / w2[i]), (psi[j], 1), (alpha, 1), (chi_t, -1))
    needed = product(amount(problem.target[i, j]) - c[i] / w2[i], *per)
    if len(first):
        there = [(index[first], np.broadcast_to(power, pairs)[first]) for index, power in per]
        noise = product(-c[i[first]] / w2[i[first]], *there, (chi_g, 1))
        needed = needed + cp.sum(cp.reshape(noise, (pairs, n - 2), order="C"), axis=1)
    constraints.append(needed <= 1)
    # (22): the objective has K alpha / J
    (w, rest), c = monomial([at.alpha[i, j], np.full(pairs, EPS_E)])
    energy = product(amount(problem.energy[i, j]) - c - rest * np.log(EPS_E), (alpha, 1 - w))
    # (23)-(24): the band around sum_i alpha_ij = psi_j
    (w1, w2, w3), c = monomial([at.slack, np.full(n, EPS_C), at.psi])
    constant = c + w2 * np.log(EPS_C)
    filled = product(-constant[j], (alpha, 1), (slack[j], -w1[j]), (psi[j], -w3[j]))
    constraints.append(cp.sum(cp.reshape(filled, (n, n - 1), order="C"), axis=1) <= 1)
    (*shares, rest), c = monomial([*at.alpha[i, j].reshape(n, n - 1).T, np.full(n, EPS_C)])
    sent = [(alpha.reshape(n, n - 1)[:, row], -exponent) for row, exponent in enumerate(shares)]
    constant = -c - rest * np.log(EPS_C)
    constraints.append(product(constant, (slack, 1), *sent) + product(constant, (psi, 1), *sent) <= 1)

    terms = ((problem.phi_s, y[chi_s]), (problem.phi_t, y[chi_t]), (problem.phi_e, energy), (1.0, y[slack]))
    task = cp.Problem(cp.Minimize(sum(phi * cp.sum(term) for phi, term in terms if phi > 0)), constraints)
    status = _cvxpy(task, gp=True)
    if y.value is None:
        return Step(None, np.inf, status)
    z = np.log(y.value[: ends[3]])
    z[alpha] = z[alpha][np.argsort(by_column)]
    return _step(around, z, float(task.value), status)


def _cvxpy(task: cp.Problem, **how: bool) -> str:
    """Solve by CVXPY with Clarabel and return Clarabel's name of the status; errors count as NumericalError."""
    import cvxpy as cp

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the status says so
            task.solve(solver=cp.CLARABEL, **SETTINGS, **how)
    except cp.SolverError as error:
        return f"NumericalError ({error})".splitlines()[0]
    return str(STATUS.get(task.status, task.status))


STATUS = {"optimal": "Solved", "optimal_inaccurate": "AlmostSolved", "infeasible": "PrimalInfeasible"}
"""CVXPY's status -> Clarabel's"""

FORMS: dict[str, Callable[[Monomials], Step]] = {"cone": cone, "log": log, "gp": gp}
"""name -> solver of a step in that form"""
