r"""The problem (P) of ST-LF: choose the sources, and the weights of the links from sources to targets.

    min_{psi, alpha}  phi_S sum_i (1 - psi_i) S_i
                    + phi_T sum_j psi_j sum_i (1 - psi_i) alpha_ij (T_ij + sum_k (1 - psi_k) alpha_kj D_ijk)
                    + phi_E sum_ij K_ij alpha_ij / (alpha_ij + eps_E)                                    (ST-LF, eq. 11)
    s.t.  sum_i alpha_ij = psi_j,  alpha_ij = 0 where i is a target                              (eqs. 13-16, and below)

psi_i is 0 for a source and 1 for a target; alpha_ij is the weight of the link from source i to target j. D_ijk is the
fraction of target j's data on which the models of sources i and k differ: the sum over k is the hypothesis-combination
noise (61), omitted if `noise` is None, as in the paper's simulations.

As printed, a target may send: its term is multiplied by 1 - psi_i = 0, so that making every device a target costs only
energy. Here targets send nothing, so that there is at least one source.

Reference: Wang, Hosseinalipour, Brinton, "Multi-Source to Multi-Target Decentralized Federated Domain Adaptation".
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedcore.errors import InputError

Array: TypeAlias = npt.NDArray[np.float64]

EPS_E = 1e-3
"""eps_E of (14): a link of this weight counts half of its energy."""


@dataclass(frozen=True)
class Problem:
    """The constants of (11).

    source: S_i (N,), the bound on a source's error (17). target: T_ij (N, N), the bound on target j's error with source
    i alone, without the noise (18). energy: K_ij (N, N), joules or any cost of the link from i to j. phi_s, phi_t,
    phi_e: weights of the three terms. noise: D_ijk (N, N, N) indexed source, target, other source, fractions, zero
    where i = k; or None. Diagonals of target and energy are not used. Raises InputError for invalid values.
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
            raise InputError("source: needs at least one device")
        check_array("source", self.source, (n,))
        check_array("target", self.target, (n, n))
        check_array("energy", self.energy, (n, n))
        if self.noise is not None:
            check_array("noise", self.noise, (n, n, n))
            if np.einsum("iji->ij", self.noise).any():
                raise InputError("noise: a model differs from itself; must be 0 where both sources are the same")
        for name in ("phi_s", "phi_t", "phi_e"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name}: {value}: a weight must be finite and 0 or more")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def link(self) -> Array:
        """Cost in (11) of source i alone serving target j, (N, N): phi_T T_ij + phi_E K_ij / (1 + eps_E)."""
        return self.phi_t * self.target + self.phi_e * self.energy / (1 + EPS_E)


@dataclass(frozen=True)
class Solution:
    """Sources, targets and links, with the solver's report.

    psi: (N,), 0 for a source and 1 for a target. alpha: (N, N), columns of targets on the simplex over the sources,
    columns of sources and rows of targets zero. objective: (11) at this point. gap: relative excess over the optimum
    (nan if unknown). trace: the penalised objective after each iteration of Algorithm 2. status: the solver's status;
    after a failure, also the fallback used.
    """

    psi: Array
    alpha: Array
    objective: float
    gap: float
    iterations: int
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


def best_links(problem: Problem, psi: Array) -> Array:
    """Return the best alpha (N, N) for integral psi: every target has one source, the one of least cost.

    Without the noise (11) is concave in a target's column of alpha, so that a vertex of the simplex is optimal; the
    noise is non-negative and vanishes at the vertices, so that it changes nothing. Ties go to the first device.
    """
    sources = np.flatnonzero(psi == 0)
    targets = np.flatnonzero(psi)
    alpha = np.zeros((len(psi), len(psi)))
    alpha[sources[problem.link[np.ix_(sources, targets)].argmin(0)], targets] = 1
    return alpha


def check_array(name: str, values: Array, shape: tuple[int, ...]) -> None:
    """Raise InputError for an array of another shape, or with negative or non-finite values."""
    if values.shape != shape:
        raise InputError(f"{name}: shape {values.shape} does not fit {shape[0]} devices; must be {shape}")
    if not np.isfinite(values).all():
        raise InputError(f"{name}: some values are infinite or nan; must be finite and 0 or more")
    if (values < 0).any():
        raise InputError(f"{name}: {values.min():g} is negative; must be 0 or more")
