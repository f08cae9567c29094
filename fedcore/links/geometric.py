r"""One step of Algorithm 2: (P) around a point as a geometric program, in three forms that must agree.

A posynomial g = sum_k u_k in a denominator is replaced by the monomial below it that touches it at the point z (ST-LF,
Lemma 2, eq. 25):

    g(y) >= prod_k (u_k(y) / w_k)^{w_k},   w_k = u_k(z) / g(z)

F = psi_i + chi_i / S_i                      (19)    G = psi_k + chi_ijk / (psi_j alpha_kj D_ijk)       (20)
H = psi_i + chi_ij / (psi_j alpha_ij A_ij)   (21)    J = alpha_ij + eps_E                               (22)
M+ = chi_j + eps_C + psi_j                   (23)    M- = sum_i alpha_ij + eps_C                        (24)

with A_ij = T_ij + sum_k chi_ijk. All of F, G and H say chi >= (1 - psi) * something, so that one monomial above 1 - psi_i,

    1 - psi_i <= w2 (w1 / psi_i)^{w1 / w2},   w1 = psi_i(z),  w2 = 1 - psi_i(z),

serves the three, and every chi but the slack chi_j can be eliminated: that is done in the log and the cone form.

Departures from the paper: (21) is divided by A_ij first (with the noise that is tighter, without it the same); (20)
has psi_i alpha_ki for psi_j alpha_kj; the chi are taken where they are tight; chi_j is one per column within SLACK, as
(75)-(76) make it only a band; (78)'s -eps_C, which no posynomial can have, stands in M-; i = j is left out; and
psi_i alpha_ij <= SENT, so that a target sends nothing (see `fedcore.links.problem`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedcore.links.problem import EPS_E, Array, Problem, objective

if TYPE_CHECKING:
    import cvxpy as cp

EPS_C = 1e-2
"""eps_C: half the width of the band around sum_i alpha_ij = psi_j."""

SLACK = (1e-8, 1e-4)
"""Bounds of the slack chi_j."""

SENT = 1e-3
"""The most that a target may send, as psi_i alpha_ij."""

PSI = (1e-6, 1 - 1e-4)
"""Bounds of the relaxed psi. Below one, so that 1 - psi has a logarithm, and exponents psi / (1 - psi) stay below 1e4."""

LEAST = 1e-12
"""Stands for a constant of zero, which no posynomial has: a coefficient, as a fraction of the largest."""


@dataclass(frozen=True)
class Point:
    """A point of the relaxed program: psi (N,), alpha (N, N) with a zero diagonal, slack chi (N,)."""

    psi: Array
    alpha: Array
    slack: Array


def penalised(problem: Problem, at: Point) -> float:
    """Return (83): (11) at a relaxed point, where every chi but the slack is tight, and the slack."""
    return objective(problem, at.psi, at.alpha) + float(at.slack.sum())


def start(n: int) -> Point:
    """Return where Algorithm 2 starts: psi .5 and uniform alpha.

    It need not be feasible: the first program's solution is. Sparse starts end higher: "optimal regardless of the
    start" does not hold.
    """
    alpha = np.full((n, n), 0.5 / (n - 1))
    np.fill_diagonal(alpha, 0)
    return Point(np.full(n, 0.5), alpha, np.full(n, float(np.sqrt(SLACK[0] * SLACK[1]))))


def floor(n: int) -> float:
    """Return the least alpha: 1e-3, or less so that the N - 1 of a source's column fit below eps_C."""
    return min(1e-3, 0.9 * EPS_C / (n - 1))


def monomial(terms: Sequence[Array]) -> tuple[list[Array], Array]:
    """Return Lemma 2's exponents w_k and log constant c: log g >= sum_k w_k log u_k + c, with equality at the terms.

    terms: u_k at the point, positive, all of one shape.
    """
    weights = [term / sum(terms) for term in terms]
    return weights, -sum(w * np.log(w) for w in weights)


class Around:
    """The monomials of (19)-(24) around a point, all over pairs (i, j), i != j, or over devices."""

    def __init__(self, problem: Problem, at: Point) -> None:
        n = len(problem)
        self.problem, self.at, self.n = problem, at, n
        self.i, self.j = np.nonzero(~np.eye(n, dtype=bool))

    @cached_property
    def left(self) -> tuple[Array, Array]:
        """Exponent r and log constant b of the monomial above 1 - psi: log(1 - psi) <= b - r log psi, both (N,)."""
        (w1, w2), c = monomial([self.at.psi, 1 - self.at.psi])
        return w1 / w2, -c / w2

    @cached_property
    def link(self) -> tuple[Array, Array]:
        """Exponent w and log constant of J, (P,): log(alpha + eps_E) >= w log alpha + b."""
        alpha = self.at.alpha[self.i, self.j]
        (w, rest), c = monomial([alpha, np.full_like(alpha, EPS_E)])
        return w, c + rest * np.log(EPS_E)

    @cached_property
    def above(self) -> tuple[Array, Array, Array]:
        """Exponents of chi_j and psi_j and log constant of M+, (N,)."""
        (slack, rest, psi), c = monomial([self.at.slack, np.full(self.n, EPS_C), self.at.psi])
        return slack, psi, c + rest * np.log(EPS_C)

    @cached_property
    def under(self) -> tuple[Array, Array]:
        """Exponents (N, N) of alpha_ij, zero diagonal, and log constant (N,) of M-."""
        total = self.at.alpha.sum(0) + EPS_C
        w, rest = self.at.alpha / total, EPS_C / total
        c = -(np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum(0) + rest * np.log(rest))
        return w, c + rest * np.log(EPS_C)


@dataclass(frozen=True)
class Program:
    r"""A geometric program after the change of variables z = log y (50), its objective not under a logarithm.

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


def program(around: Around) -> Program:
    """Write the step's program in z = (log psi, log alpha of all pairs, log chi), every other chi eliminated."""
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
    constraints = [(columns, -c[j], j), (pick(slack) - spread, -least, n + each), (pick(psi) - spread, -least, n + each)]

    logs = np.log([*PSI, floor(n), *SLACK, SENT])
    ends = [(psi, logs[0], logs[1]), (alpha, logs[2], 0.0), (slack, logs[3], logs[4])]
    bounds = [(pick(columns), np.full(len(columns), high)) for columns, _, high in ends]
    bounds += [(pick(columns, -1.0), np.full(len(columns), -low)) for columns, low, _ in ends]
    bounds.append((pick(psi[i]) + pick(alpha), np.full(pairs, logs[5])))
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
    """What a solver returned: a point, its penalised objective in the approximation, and the solver's status.

    point is None where the solver failed.
    """

    point: Point | None
    objective: float
    status: str


def cone(around: Around) -> Step:
    """Solve the step as a cone program built directly for Clarabel: one exponential cone per monomial.

    min s   with   sum_m t_m <= 1,   exp(A_m z + b_m - s) <= t_m,   and sums of e_m >= exp(C_m z + d_m)

    in z less its value at the point. Under the logarithm s the terms stay within a few orders of magnitude: without it
    Clarabel leaves points that break constraints by up to a tenth at N = 40. Its "InsufficientProgress" points are taken
    when finite; equilibration, which loses more digits than it gains here, is the second attempt.
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
        settings.verbose, settings.max_threads, settings.equilibrate_enable = False, 1, equilibrate
        found = clarabel.DefaultSolver(sp.csc_matrix((width, width)), goal, matrix, right, cones, settings).solve()
        step = _step(around, centre + np.array(found.x[:V]), float(np.exp(found.x[V])), str(found.status))
        if step.status in ("Solved", "AlmostSolved"):
            return step
        if best.point is None or (step.point is not None and step.objective < best.objective):
            best = step
    return best


def _step(around: Around, z: Array, value: float, status: str) -> Step:
    """Return what a solver found as a Step: a point within the bounds, or none where it failed."""
    if not (np.isfinite(z).all() and np.isfinite(value)) or "nfeasible" in status or "NumericalError" in status:
        return Step(None, np.inf, status)
    n = around.n
    y = np.exp(z)
    alpha = np.zeros((n, n))
    alpha[around.i, around.j] = y[n:-n].clip(floor(n), 1)
    return Step(Point(y[:n].clip(*PSI), alpha, y[-n:].clip(*SLACK)), value, status)


def log(around: Around) -> Step:
    """Solve the step's convex form (50) by CVXPY: log-sum-exp objective and constraints in z."""
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


def gp(around: Around) -> Step:
    """Solve the step as the paper writes it, (83)-(93), by CVXPY's geometric programs: the reference, for small N.

    One positive variable y = (psi, alpha, slack, chi_S, chi_T, chi_G) and every constraint a sum of monomials <= 1.
    """
    import cvxpy as cp

    problem, at, n = around.problem, around.at, around.n
    by_column = np.lexsort((around.i, around.j))
    i, j = around.i[by_column], around.j[by_column]
    pairs, each = len(i), np.arange(n)
    first, second = np.nonzero((j[:, None] == j) & (i[:, None] != i))  # the pairs (i, j) and (k, j) of chi_ijk
    if problem.noise is None:
        first, second = first[:0], second[:0]
    ends = np.cumsum([0, n, pairs, n, n, pairs, len(first)])
    psi, alpha, slack, chi_s, chi_t, chi_g = (np.arange(a, b) for a, b in pairwise(ends))
    y = cp.Variable(int(ends[-1]), pos=True)

    def product(constant: Array, *factors: tuple[npt.NDArray[np.int64], Array | float]) -> cp.Expression:
        """Return the monomials exp(constant) prod y[index] ** exponent, one per row."""
        exponents = np.zeros((len(constant), ends[-1]))
        for index, exponent in factors:
            exponents[np.arange(len(constant)), index] += exponent
        return cp.multiply(np.exp(constant), cp.gmatmul(exponents, y))

    def amount(values: Array) -> Array:
        return np.log(values.clip(LEAST))  # a posynomial has no zero coefficients

    constraints = [y[psi] >= PSI[0], y[psi] <= PSI[1], y[slack] >= SLACK[0], y[slack] <= SLACK[1]]
    constraints += [y[alpha] >= floor(n), y[alpha] <= 1, product(np.zeros(pairs), (psi[i], 1), (alpha, 1)) <= SENT]

    # (19): psi_i + chi_i / S_i >= its monomial >= 1
    (w1, w2), c = monomial([at.psi, 1 - at.psi])
    constraints.append(product(c - w2 * amount(problem.source), (psi, w1), (chi_s, w2)) >= 1)
    # (20): the same with chi_ijk / (psi_j alpha_kj D_ijk) for k
    if len(first):
        k, D = i[second], amount(problem.noise[i[first], j[first], i[second]])
        flow = ((psi[j[second]], -w2[k]), (alpha[second], -w2[k]))
        constraints.append(product(c[k] - w2[k] * D, (psi[k], w1[k]), (chi_g, w2[k]), *flow) >= 1)
    # (21): the same with chi_ij / (psi_j alpha_ij A_ij); solved for A_ij = T_ij + sum_k chi_ijk
    per = ((psi[i], -w1[i] / w2[i]), (psi[j], 1), (alpha, 1), (chi_t, -1))
    needed = product(amount(problem.target[i, j]) - c[i] / w2[i], *per)
    if len(first):
        noise = product(-c[i[first]] / w2[i[first]], *((index[first], power if np.isscalar(power) else power[first])
                        for index, power in per), (chi_g, 1))
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
    (*w, rest), c = monomial([*at.alpha[i, j].reshape(n, n - 1).T, np.full(n, EPS_C)])
    sent = [(alpha.reshape(n, n - 1)[:, row], -exponent) for row, exponent in enumerate(w)]
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
    """Solve by CVXPY with Clarabel; return the status in CVXPY's words, its errors included."""
    import cvxpy as cp

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the status says so
            task.solve(solver=cp.CLARABEL, **how)
    except cp.SolverError as error:
        return f"NumericalError ({error})".splitlines()[0]
    return STATUS.get(task.status, task.status)


STATUS = {"optimal": "Solved", "optimal_inaccurate": "AlmostSolved", "infeasible": "PrimalInfeasible"}
"""CVXPY's words in Clarabel's."""

FORMS: dict[str, Callable[[Around], Step]] = {"cone": cone, "log": log, "gp": gp}
"""The three forms of a step: a cone program built directly, CVXPY in log form, CVXPY's geometric programs."""
