"""Heuristic sources and links, the baselines of ST-LF (Section V-B).

psi (N,) is 0 for a source and 1 for a target; alpha (N, N) weights the links from source i to target j, with columns of
targets on the simplex and columns of sources zero.
"""

import numpy as np
import torch

from fedcore.methods.st_lf.planning import LinkInputs
from fedcore.methods.st_lf.problem import Array
from fedcore.types.method import RoundInfo

DEMOTED = 0.25
"""Probability that a labelled device becomes a target in the authors' public code."""


def random_roles(may: Array, generator: torch.Generator) -> Array:
    """Draw targets among the devices that may be sources, at least one of which is; all others are targets.

    may: (N,), 1 for a device that may be a source. Of all devices half become targets (the paper: "randomly classifies
    each device"), of some of them DEMOTED.
    """
    draws = torch.rand(len(may), generator=generator, dtype=torch.float64).numpy()
    psi = np.where(may, draws < (0.5 if may.all() else DEMOTED), 1).astype(np.float64)
    psi[np.where(may, draws, -1).argmax()] = 0
    return psi


def random_halves(may: Array, generator: torch.Generator) -> Array:
    """Make the devices that may not be sources targets; if all may, a random half, the smaller one.

    may: (N,), 1 for a device that may be a source.
    """
    if not may.all():
        return np.asarray(1 - may)
    psi = np.zeros(len(may))
    psi[torch.randperm(len(may), generator=generator)[: len(may) // 2].numpy()] = 1
    return psi


def random_weights(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Link every source to every target, with a target's weights drawn from Dir(1, ..., 1) (Rnd-alpha)."""
    psi = inputs.psi
    return _columns(_draws(len(psi), round_info.generator("alpha")) * (psi == 0)[:, None] * psi)


def size_weights(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Link every source to every target, with weights proportional to the sources' example counts (FedAvg)."""
    return _columns(inputs.size[:, None] * (inputs.psi == 0)[:, None] * inputs.psi)


def even_weights(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Link every source to every target with equal weights."""
    return _columns((inputs.psi == 0)[:, None] * inputs.psi)


def one_source(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Link the source of least error (the first, if tied) to every target, with weight one."""
    psi, error = inputs.psi, inputs.error
    sources, alpha = np.flatnonzero(psi == 0), np.zeros((len(psi), len(psi)))
    alpha[sources[error[sources].argmin()]] = psi
    return alpha


def nearest_source(psi: Array, divergence: Array) -> Array:
    """Link every target to the source of least divergence from it (the first, if tied), with weight one.

    divergence: (N, N), rows of sources: a divergence, or any other measure of which the least is best.
    """
    sources, targets = np.flatnonzero(psi == 0), np.flatnonzero(psi)
    alpha = np.zeros_like(divergence)
    alpha[sources[divergence[np.ix_(sources, targets)].argmin(0)], targets] = 1
    return alpha


def average_degree(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Give every source the program's average number of links, to random targets with random weights (AvgD).

    The average is rounded, at least one. The paper does not treat targets without any link: here each draws one source.
    """
    assert inputs.alpha is not None
    psi, alpha, generator = inputs.psi, inputs.alpha, round_info.generator("alpha")
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


def match_sources(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    """Match every target with a different source at the least total energy (SM).

    If there are fewer sources than targets, each source is matched at most ceil(targets / sources) times.
    """
    from scipy.optimize import linear_sum_assignment

    psi, energy = inputs.psi, inputs.energy
    sources, targets = np.flatnonzero(psi == 0), np.flatnonzero(psi)
    alpha = np.zeros_like(energy)
    repeated = np.tile(sources, -(-len(targets) // len(sources)))
    i, j = linear_sum_assignment(energy[np.ix_(repeated, targets)])
    alpha[repeated[i], targets[j]] = 1
    return alpha


def _draws(n: int, generator: torch.Generator) -> Array:
    """Return positive exponential draws; columns scaled to sum to one are from Dir(1, ..., 1)."""
    draws: Array = torch.rand(n, n, generator=generator, dtype=torch.float64).numpy()
    return np.asarray(-np.log1p(-draws) + np.finfo(np.float64).tiny)


def _columns(weights: Array) -> Array:
    total = weights.sum(0)
    return np.asarray(weights / np.where(total > 0, total, 1))
