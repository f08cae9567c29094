r"""The bounds that ST-LF optimises, S_i of a source and T_ij of a target served by a source, and its theorems.

    S_i  = err_i + 2 Rad_i + 3 q_i                                                                   (ST-LF, eq. 17)
    T_ij = err_i + 4 Rad_i + 6 Rad_j + label_ij + d_ij / 2 + 6 (q_i + q_j)   [+ noise]               (eq. 18)
    q_i  = sqrt(log(2 / delta) / (2 D_i))

err_i is the empirical error of i's model on i's data, label_ij the fraction of j's data on which the true labellings of
i and j differ (0 unless known), d_ij in [0, 2] the divergence of their data, D_i the number of examples. Rad_i bounds
the empirical Rademacher complexity:

printed   sqrt(2 log 2) = 1.177, the worst case (47): every labelling of the data is possible; 10 of them are 11.8
decimal   sqrt(2 log10 2) = .776, the same with a decimal logarithm, as in the authors' public code; Table II has it
assumed   sqrt(2 log D_i / D_i), (46) with D_i labellings in place of 2^D_i: an assumption, nothing is measured

With `printed` a target costs at least 59 (phi_T = 5) and a source about 3.5, so that (P) makes every device a source.
The paper's figures need smaller constants, and an error far above 1 for devices without labels. Neither can be measured
on a network: one that fits any labelling has Rademacher complexity 1/2, the share of signs +1.
"""

from typing import Literal, TypeAlias

import numpy as np

from fedcore.errors import InputError
from fedcore.methods.st_lf.problem import Array, check_array

Constants: TypeAlias = Literal["printed", "decimal", "assumed"]


def rademacher(sizes: Array, constants: Constants) -> Array:
    """Return the bound on the empirical Rademacher complexity (7) for samples of these sizes, (N,)."""
    if constants == "printed":
        return np.full(len(sizes), np.sqrt(2 * np.log(2)))
    if constants == "decimal":
        return np.full(len(sizes), np.sqrt(2 * np.log10(2)))
    return np.asarray(np.sqrt(2 * np.log(sizes) / sizes))


def deviation(sizes: Array, delta: float) -> Array:
    """Return q_i = sqrt(log(2 / delta) / (2 D_i)), (N,); each bound holds with probability 1 - delta."""
    return np.asarray(np.sqrt(np.log(2 / delta) / (2 * sizes)))


def empirical_error(wrong: Array, labelled: Array, sizes: Array, *, unlabelled: float) -> Array:
    """Return err_i (N,): the error rate of i's model on i's data, with unlabelled data counted as errors (3).

    wrong: error rate on the labelled examples, (N,), not used if there are none. labelled, sizes: numbers of labelled
    examples and of all examples, (N,). unlabelled: the error of a device without labels: 1 as printed; 1e3 prevents it
    from ever being a source, as in the paper's figures.
    """
    n = len(sizes)
    _counted(sizes)
    check_array("labelled", labelled, (n,))
    check_array("wrong", np.where(labelled > 0, wrong, 0), (n,))
    if (labelled > sizes).any():
        i = int((labelled > sizes).argmax())
        raise InputError(f"labelled: {labelled[i]:g} of device {i}'s {sizes[i]:g} examples; must be at most all")
    if not labelled.any():
        raise InputError("labelled: no device has a label; at least one must have some")
    if not (np.isfinite(unlabelled) and unlabelled >= 0):
        raise InputError(f"unlabelled: {unlabelled}: must be an error rate, finite and 0 or more")
    mixed = (labelled * np.where(labelled > 0, wrong, 0) + (sizes - labelled)) / sizes
    return np.where(labelled > 0, mixed, unlabelled)


def source_bound(error: Array, sizes: Array, *, delta: float, constants: Constants) -> Array:
    """Return S_i (N,), (17), from err_i (N,) and the devices' numbers of examples (N,)."""
    _counted(sizes)
    check_array("error", error, (len(sizes),))
    return error + 2 * rademacher(sizes, constants) + 3 * deviation(sizes, delta)


def target_bound(
    error: Array, sizes: Array, divergence: Array, *, delta: float, constants: Constants, labelling: Array | None = None
) -> Array:
    """Return T_ij (N, N), (18), without the noise, which depends on alpha
    (:class:`fedcore.methods.st_lf.problem.Problem` has it).

    divergence: d_ij in [0, 2], (N, N). labelling: fraction of j's data on which the labellings of i and j differ,
    (N, N); the paper omits it, as it is unknown. error, sizes: as for `source_bound`.
    """
    n = len(sizes)
    _counted(sizes)
    check_array("error", error, (n,))
    check_array("divergence", divergence, (n, n))
    if (divergence > 2).any():
        raise InputError(f"divergence: {divergence.max():g} is too large; must be 0 to 2")
    rad, q = rademacher(sizes, constants), deviation(sizes, delta)
    bound = (error + 4 * rad + 6 * q)[:, None] + (6 * rad + 6 * q) + divergence / 2
    if labelling is not None:
        check_array("labelling", labelling, (n, n))
        bound = bound + labelling
    return np.asarray(bound)


def combination_noise(alpha: Array, disagreement: Array) -> Array:
    """Return sum_k alpha_kj D_ijk (N, N), equal to eps_j(h_j, h_i) or an upper bound of it (61).

    disagreement: D_ijk (N, N, N), the fraction of j's data on which the models of i and k differ (4). The paper's (61)
    has a wrong index, psi_i alpha_ki, but h_j = sum_k alpha_kj h_k.
    """
    return np.asarray(np.einsum("ijk,kj->ij", disagreement, alpha))


def theorem_2(
    alpha: Array, error: Array, divergence: Array, noise: Array | None = None, labelling: Array | None = None
) -> Array:
    """Return the right-hand side of (6) for every target (N,): sum_i alpha_ij (err_i + label_ij + d_ij / 2 + noise_ij).

    It bounds the error of a device only if its column of alpha sums to one (a target).
    """
    inner = error[:, None] + divergence / 2
    for term in (noise, labelling):
        inner = inner if term is None else inner + term
    return np.asarray((alpha * inner).sum(0))


def corollary_1(
    alpha: Array,
    error: Array,
    sizes: Array,
    divergence: Array,
    *,
    delta: float,
    constants: Constants,
    noise: Array | None = None,
    labelling: Array | None = None,
) -> Array:
    """Return the right-hand side of (10) for every target (N,): sum_i alpha_ij T_ij, plus the noise if given.

    (10) prints q_i outside the sum over i; it belongs inside, as in (39).
    """
    bound = target_bound(error, sizes, divergence, delta=delta, constants=constants, labelling=labelling)
    return np.asarray((alpha * (bound if noise is None else bound + noise)).sum(0))


def _counted(sizes: Array) -> None:
    if not (np.isfinite(sizes) & (sizes >= 1)).all():
        i = int((~(sizes >= 1)).argmax())
        raise InputError(f"sizes: device {i} has no data ({sizes[i]:g} examples); must have at least 1")
