r"""Cost of links: K_ij = M / R_ij * P_i, the energy to send a model from device i to device j (ST-LF, Sec. V)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.methods.st_lf.problem import Array, check_array

POWERS = (23.0, 25.0)
"""The paper's range of transmission powers, dBm."""

RATES = (63e6, 85e6)
"""The paper's range of transmission rates, bits per second."""

MODEL = 1e9
"""The paper's size of a model, bits."""


def energy(powers: Array, rates: Array, bits: float = MODEL) -> Array:
    """Return K_ij in joules, (N, N), zero from a device to itself.

    powers: P_i in dBm, (N,). rates: R_ij from i to j in bits per second, (N, N); the diagonal is not used. bits: M.
    """
    n = len(powers)
    if not np.isfinite(powers).all():
        raise InputError("powers: some values are infinite or nan; must be finite, in dBm")
    if not (np.isfinite(bits) and bits > 0):
        raise InputError(f"bits: {bits}: a model's size must be finite and above 0")
    check_array("rates", rates, (n, n))
    others = ~np.eye(n, dtype=bool)
    if not rates[others].all():
        raise InputError("rates: some links have rate 0; must be finite and above 0, in bits per second")
    watts = 10 ** (powers / 10 - 3)
    return np.divide(bits * watts[:, None], rates, out=np.zeros((n, n)), where=others)


def draw_energy(
    n: int, generator: torch.Generator, *, powers: Sequence[float] = POWERS, rates: Sequence[float] = RATES,
    bits: float = MODEL,
) -> Array:  # fmt: skip
    """Return K_ij (N, N) in joules with powers (dBm) and rates (bits per second) uniform in the given ranges."""

    def even(size: tuple[int, ...], low: float, high: float) -> Array:
        draw: Tensor = torch.rand(size, generator=generator, dtype=torch.float64)
        return np.asarray(low + (high - low) * draw.numpy())

    for name, (low, high) in (("powers", powers), ("rates", rates)):
        if not low <= high:
            raise InputError(f"{name}: {low:g} to {high:g}: must be a low end and a high end")
    return energy(even((n,), *powers), even((n, n), *rates), bits)


def check_costs(costs: Array, n: int) -> Array:
    """Check a user's costs of links (latency, trust, ...) and return them as K_ij, (N, N) float64."""
    matrix = np.array(costs, dtype=np.float64)
    check_array("energy", matrix, (n, n))
    np.fill_diagonal(matrix, 0)
    return matrix
