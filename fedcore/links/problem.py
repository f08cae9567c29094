r"""What ST-LF optimises: which devices are sources, and who sends whom how much of a model.

    min_{psi, alpha}  phi_S sum_i (1 - psi_i) S_i
                    + phi_T sum_j psi_j sum_i (1 - psi_i) alpha_ij (T_ij + sum_k (1 - psi_k) alpha_kj D_ijk)
                    + phi_E sum_ij K_ij alpha_ij / (alpha_ij + eps_E)                                    (ST-LF, eq. 11)
    s.t.  sum_i alpha_ij = psi_j,  alpha_ij = 0 where i is a target                              (eqs. 13-16, and below)

psi_i is 0 for a source and 1 for a target; alpha_ij runs from source i to target j. D_ijk is how often the models of
sources i and k differ on target j's data: the last sum is the hypothesis-combination noise (61), left out where
`noise` is None, as the paper does in its simulations.

As printed a target may "send": its term is multiplied by 1 - psi_i = 0, so that "everyone is a target" costs only
energy. Here nothing is sent by a target, so that there is at least one source.

Reference: Wang, Hosseinalipour, Brinton, "Multi-Source to Multi-Target Decentralized Federated Domain Adaptation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedcore.types import InputError

Array: TypeAlias = npt.NDArray[np.float64]

EPS_E = 1e-3
"""eps_E of (14): a link that carries this share of a model counts half of its energy."""


@dataclass(frozen=True)
class Problem:
    """The constants of (11).

    source: S_i (N,), the bound on a source's error (17). target: T_ij (N, N) without the noise, what target j's error
    is bounded by when source i alone serves it (18). energy: K_ij (N, N), joules or any cost of the link from i to j.
    phi_s, phi_t, phi_e: the weights of the three terms. noise: D_ijk (N, N, N) indexed source, target, other source,
    fractions, zero where i = k; or None. Diagonals of target and energy are not used.
    """

    source: Array
    target: Array
    energy: Array
    phi_s: float = 1.0
    phi_t: float = 5.0
    phi_e: float = 1.0
    noise: Array | None = None

    def __post_init__(self) -> None:
        n = len(self.source)
        if n == 0:
            raise InputError("source: there is no device, at least one is needed")
        check_array("source", self.source, (n,))
        check_array("target", self.target, (n, n))
        check_array("energy", self.energy, (n, n))
        if self.noise is not None:
            check_array("noise", self.noise, (n, n, n))
            if np.einsum("iji->ij", self.noise).any():
                raise InputError("noise: a model differs from itself, allowed is 0 where both sources are the same")
        for name in ("phi_s", "phi_t", "phi_e"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name}: {value} is not a weight, allowed are finite numbers from 0")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def link(self) -> Array:
        """What it costs in (11) that source i alone serves target j, (N, N): phi_T T_ij + phi_E K_ij / (1 + eps_E)."""
        return self.phi_t * self.target + self.phi_e * self.energy / (1 + EPS_E)


@dataclass(frozen=True)
class Solution:
    """Sources, targets and links, and how they were found.

    psi: (N,), 0 for a source and 1 for a target. alpha: (N, N), columns of targets on the simplex over the sources,
    columns of sources and rows of targets zero. objective: (11) there. gap: how far above the best possible one, as a
    fraction of it (nan where that is not known). trace: the penalised objective after each iteration of Algorithm 2.
    seconds: of the program itself, without the search for the gap. status: what the solver said; where it failed, also
    the fallback that gave this answer.
    """

    psi: Array
    alpha: Array
    objective: float
    gap: float
    iterations: int
    seconds: float
    status: str
    trace: tuple[float, ...] = ()


def objective(problem: Problem, psi: Array, alpha: Array) -> float:
    """Return (11) at any psi in [0, 1] (N,) and alpha in [0, 1] (N, N) with a zero diagonal."""
    sent = (1 - psi)[:, None] * alpha * psi
    bound = np.where(sent > 0, problem.target, 0.0)
    if problem.noise is not None:
        bound = bound + np.einsum("ijk,kj->ij", problem.noise, sent)
    energy = problem.energy * alpha / (alpha + EPS_E)
    errors = problem.phi_s * ((1 - psi) * problem.source).sum() + problem.phi_t * (sent * bound).sum()
    return float(errors + problem.phi_e * energy.sum())


def energy_of_links(energy: Array, alpha: Array) -> float:
    """Return what the links in use cost: the sum of K_ij over alpha_ij > 0 (joules where K is)."""
    return float(energy[alpha > 0].sum())


def best_links(problem: Problem, psi: Array) -> Array:
    """Return the best alpha (N, N) for whole psi: every target listens to the one source that serves it at least cost.

    (11) is concave in a target's column of alpha without the noise, so that a vertex of the simplex is optimal; the
    noise is never negative and vanishes at the vertices, so that it changes nothing. Ties go to the first device.
    """
    sources = np.flatnonzero(psi == 0)
    targets = np.flatnonzero(psi)
    alpha = np.zeros((len(psi), len(psi)))
    alpha[sources[problem.link[np.ix_(sources, targets)].argmin(0)], targets] = 1
    return alpha


def check_array(name: str, values: Array, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape, or with values that are negative or not finite."""
    if values.shape != shape:
        raise InputError(f"{name}: shape {values.shape} does not fit {shape[0]} devices, allowed is {shape}")
    if not np.isfinite(values).all():
        raise InputError(f"{name}: some values are infinite or nan, allowed are finite values from 0")
    if (values < 0).any():
        raise InputError(f"{name}: {values.min():g} is negative, allowed are finite values from 0")
