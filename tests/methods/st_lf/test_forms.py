"""The two forms of a step of Algorithm 2 against a third, the program as it is printed."""

from itertools import pairwise
from typing import TypeAlias

import cvxpy as cp
import links
import numpy as np
import numpy.typing as npt
import pytest

from fedcore.methods.st_lf.forms import StepSolution, cone, log, solve_by_cvxpy, to_step
from fedcore.methods.st_lf.geometric import EPS_C, PSI, SENT, SLACK, Monomials, initial_point, monomial
from fedcore.methods.st_lf.problem import EPS_E, Array

Factor: TypeAlias = tuple[npt.NDArray[np.int64], Array | float]
"""Indices of variables and their powers in a row of monomials."""

LEAST = 1e-12
"""Replaces coefficients of zero, which a posynomial cannot have."""


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_both_forms_have_the_objective_of_the_printed_program(n: int, noisy: bool) -> None:
    problem, at = links.random(n, 1, noisy=noisy), initial_point(n)
    for _ in range(4):
        direct, by_cvxpy, printed = (solve_step(Monomials(problem, at)) for solve_step in (cone, log, gp))
        assert direct.objective == pytest.approx(printed.objective, rel=1e-5)
        assert by_cvxpy.objective == pytest.approx(printed.objective, rel=1e-5)
        at = direct.point


def gp(around: Monomials) -> StepSolution:
    """Solve the step as printed, (83)-(93), by CVXPY's geometric programming, for small N.

    It has one positive variable y = (psi, alpha, slack, chi_S, chi_T, chi_G); constraints are sums of monomials <= 1.
    """
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
    status = solve_by_cvxpy(task, gp=True)
    if y.value is None:
        return StepSolution(None, np.inf, status)
    z = np.log(y.value[: ends[3]])
    z[alpha] = z[alpha][np.argsort(by_column)]
    return to_step(around, z, float(task.value), status)
