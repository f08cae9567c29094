r"""The monomials that make (P) a geometric program around a point (ST-LF, eqs. 19-24).

A posynomial g = sum_k u_k in a denominator is replaced by a monomial lower bound that is tight at the point z (ST-LF,
Lemma 2, eq. 25):

    g(y) >= prod_k (u_k(y) / w_k)^{w_k},   w_k = u_k(z) / g(z)

F = psi_i + chi_i / S_i                      (19)    G = psi_k + chi_ijk / (psi_j alpha_kj D_ijk)       (20)
H = psi_i + chi_ij / (psi_j alpha_ij A_ij)   (21)    J = alpha_ij + eps_E                               (22)
M+ = chi_j + eps_C + psi_j                   (23)    M- = sum_i alpha_ij + eps_C                        (24)

with A_ij = T_ij + sum_k chi_ijk. F, G and H all bound a chi below by a multiple of 1 - psi, so that one monomial upper
bound,

    1 - psi_i <= w2 (w1 / psi_i)^{w1 / w2},   w1 = psi_i(z),  w2 = 1 - psi_i(z),

serves all three, and every chi but the slack chi_j can be eliminated, as in the log and the cone form of
`fedcore.methods.st_lf.forms`.

Departures from the paper: (21) is divided by A_ij first (tighter with the noise, the same without); (20) prints
psi_i alpha_ki for psi_j alpha_kj; the chi are at their bounds; chi_j is one per column within SLACK, as (75)-(76) make
it only a band; (78)'s -eps_C, impossible in a posynomial, is in M-; i = j is omitted; and psi_i alpha_ij <= SENT, so
that a target sends nothing (see `fedcore.methods.st_lf.problem`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcore.methods.st_lf.problem import EPS_E, Array, Problem, objective

EPS_C = 1e-2
"""eps_C: half the width of the band around sum_i alpha_ij = psi_j."""

SLACK = (1e-8, 1e-4)
"""Bounds of the slack chi_j."""

SENT = 1e-3
"""Upper bound of psi_i alpha_ij, by which a target sends (almost) nothing."""

LEAST_ALPHA = 1e-6
"""Lower bound of alpha. Far below eps_E, so that a closed link pays next to nothing: at 1e-3 it pays half."""

LARGEST_FALL = 1e3
"""Factor by which alpha falls in one step at most. Clarabel makes no progress in some steps that are longer."""

PSI = (1e-6, 1 - 1e-4)
"""Bounds of the relaxed psi. Below one, log(1 - psi) is finite and exponents psi / (1 - psi) stay below 1e4."""


@dataclass(frozen=True)
class Point:
    """A point of the relaxed program: psi (N,), alpha (N, N) with a zero diagonal, slack chi (N,)."""

    psi: Array
    alpha: Array
    slack: Array


def penalised_objective(problem: Problem, at: Point) -> float:
    """Return (83): (11) at a relaxed point, with every chi but the slack at its bound, plus the slack."""
    return objective(problem, at.psi, at.alpha) + float(at.slack.sum())


def initial_point(n: int) -> Point:
    """Return the starting point of Algorithm 2: psi .5 and uniform alpha.

    It need not be feasible; the first program's solution is. Sparse starts end at higher objectives: the paper's
    "optimal regardless of the start" does not hold.
    """
    alpha = np.full((n, n), 0.5 / (n - 1))
    np.fill_diagonal(alpha, 0)
    return Point(np.full(n, 0.5), alpha, np.full(n, float(np.sqrt(SLACK[0] * SLACK[1]))))


def monomial(terms: Sequence[Array]) -> tuple[list[Array], Array]:
    """Return Lemma 2's exponents w_k and log constant c: log g >= sum_k w_k log u_k + c, with equality at the terms.

    terms: u_k at the point, positive, all of one shape.
    """
    weights = [term / sum(terms) for term in terms]
    return weights, -np.sum([w * np.log(w) for w in weights], axis=0)


class Monomials:
    """The monomials of (19)-(24) around a point, for all P pairs (i, j), i != j, or for the N devices."""

    def __init__(self, problem: Problem, at: Point) -> None:
        n = len(problem)
        self.problem, self.at, self.n = problem, at, n
        self.i, self.j = np.nonzero(~np.eye(n, dtype=bool))

    @cached_property
    def least(self) -> Array:
        """Lower bounds of alpha in this step, (N, N)."""
        return np.maximum(LEAST_ALPHA, self.at.alpha / LARGEST_FALL)

    @cached_property
    def left(self) -> tuple[Array, Array]:
        """Exponent r and log constant b of the upper bound log(1 - psi) <= b - r log psi, both (N,)."""
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
