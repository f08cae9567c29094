"""Sources and links without a program: what ST-LF is compared with (Section V-B).

psi (N,) is 0 for a source and 1 for a target; alpha (N, N) runs from source i to target j, columns of targets on the
simplex, columns of sources zero.
"""

from __future__ import annotations

import numpy as np
import torch

from fedcore.links.problem import Array


def random_roles(n: int, generator: torch.Generator) -> Array:
    """Make every device a source or a target at random, evenly; where all are targets, one of them is a source."""
    draws = torch.rand(n, generator=generator, dtype=torch.float64).numpy()
    psi = np.asarray(draws < 0.5, dtype=np.float64)
    psi[draws.argmax()] = 0
    return psi


def random_halves(n: int, generator: torch.Generator) -> Array:
    """Make half of the devices targets, at random; the odd one is a source."""
    psi = np.zeros(n)
    psi[torch.randperm(n, generator=generator)[: n // 2].numpy()] = 1
    return psi


def random_weights(psi: Array, generator: torch.Generator) -> Array:
    """Link every source to every target, weights of a target from Dir(1, ..., 1) (Rnd-alpha)."""
    return _columns(_draws(len(psi), generator) * (psi == 0)[:, None] * psi)


def size_weights(psi: Array, sizes: Array) -> Array:
    """Link every source to every target, weights by the sources' numbers of examples (FedAvg)."""
    return _columns(sizes[:, None] * (psi == 0)[:, None] * psi)


def even_weights(psi: Array) -> Array:
    """Link every source to every target with equal weights."""
    return size_weights(psi, np.ones(len(psi)))


def one_source(psi: Array, error: Array) -> Array:
    """Link the source of least error to every target, with weight one; of equal ones the first."""
    sources, alpha = np.flatnonzero(psi == 0), np.zeros((len(psi), len(psi)))
    alpha[sources[error[sources].argmin()]] = psi
    return alpha


def average_degree(psi: Array, alpha: Array, generator: torch.Generator) -> Array:
    """Give every source as many links as it has in alpha on average, to random targets with random weights (AvgD).

    The average is rounded, at least one. The paper does not say what a target without any link does: here it draws one
    source more.
    """
    sources, targets = np.flatnonzero(psi == 0), np.flatnonzero(psi)
    if not len(targets):
        return np.zeros_like(alpha)
    degree = int(np.clip(round((alpha > 0).sum() / len(sources)), 1, len(targets)))
    links = np.zeros_like(alpha)
    for i in sources:
        links[i, targets[torch.randperm(len(targets), generator=generator)[:degree].numpy()]] = 1
    for j in targets:
        drawn = sources[int(torch.randint(len(sources), (1,), generator=generator))]
        if not links[:, j].any():
            links[drawn, j] = 1
    return _columns(_draws(len(psi), generator) * links)


def match_sources(psi: Array, energy: Array) -> Array:
    """Match every target with a source of its own, at the least energy in all (SM). There are no fewer sources."""
    from scipy.optimize import linear_sum_assignment

    sources, targets = np.flatnonzero(psi == 0), np.flatnonzero(psi)
    alpha = np.zeros_like(energy)
    i, j = linear_sum_assignment(energy[np.ix_(sources, targets)])
    alpha[sources[i], targets[j]] = 1
    return alpha


def _draws(n: int, generator: torch.Generator) -> Array:
    """Return numbers above 0, exponentially distributed: scaled to one they are from Dir(1, ..., 1)."""
    draws: Array = torch.rand(n, n, generator=generator, dtype=torch.float64).numpy()
    return np.asarray(-np.log1p(-draws) + np.finfo(np.float64).tiny)


def _columns(weights: Array) -> Array:
    total = weights.sum(0)
    return np.asarray(weights / np.where(total > 0, total, 1))
