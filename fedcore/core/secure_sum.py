r"""Sums over devices of which the server sees no single term, and noise that hides single examples in them.

**Secure summation** (Bonawitz et al. 2017), simulated: numbers become integers modulo 2^64, each pair of devices adds
and subtracts one random mask, and the masks cancel in the sum over all devices. Here the masks of a pair derive from
the run's seed; on real devices a key agreement takes its place. Devices that drop out are not provided for.

**The Gaussian mechanism.** A sum that changes by at most Delta in Euclidean norm when an example is added or removed is
(epsilon, delta)-differentially private with noise from N(0, sigma^2) on each number if (Balle and Wang 2018, Theorem 8)

    Phi(Delta / (2 sigma) - epsilon sigma / Delta) - e^epsilon Phi(-Delta / (2 sigma) - epsilon sigma / Delta) <= delta
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from fedcore.types import InputError, generator

SCALE = 2.0**32
"""Integers per unit: sums are exact to 2^-32 and may reach 2^31."""


def gaussian_noise(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least standard deviation sigma that gives (epsilon, delta); delta in (0, 1)."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(ratio: float) -> float:
        """Return the left side less delta, for sigma = ratio * Delta."""
        near, far = 1 / (2 * ratio) - epsilon * ratio, -1 / (2 * ratio) - epsilon * ratio
        return math.exp(log_ndtr(near)) - math.exp(epsilon + log_ndtr(far)) - delta

    least = most = 1.0
    while excess(most) > 0:
        most *= 2
    while excess(least) < 0:
        least /= 2
    return sensitivity * float(brentq(excess, least, most, xtol=1e-12, rtol=1e-12))


def to_integers(values: Tensor, name: str, terms: int) -> Tensor:
    """Return values as integers modulo 2^64.

    terms: the devices in the sum. Raises InputError, naming the device, if that may overflow.
    """
    limit = 2.0**63 / SCALE / terms
    if values.numel() and float(values.abs().max()) >= limit:
        raise InputError(
            f"update of {name}: it has the number {float(values.abs().max()):.3g}, masked sums of {terms} devices hold "
            f"numbers below {limit:.3g}; scale the inputs, or use sums: plain"
        )
    return (values.double() * SCALE).round().long()


def from_integers(total: Tensor) -> Tensor:
    """Undo `to_integers`, float64."""
    return total.double() / SCALE


def require_everyone(present: Collection[str], names: Collection[str]) -> None:
    """Refuse a masked sum without a device: its masks would stay in the sum, which were then random numbers."""
    if missing := sorted({*names} - {*present}):
        raise InputError(
            f"sums = masked: {', '.join(missing)} sent nothing, and masks cancel in the sum over all devices alone; "
            "use sums: plain"
        )


def mask(values: Tensor, leaf: str, name: str, names: Collection[str], seed: int) -> Tensor:
    """Return integers with this device's masks: plus one for each later name, minus one for each earlier."""
    masked = values.clone()
    for other in names:
        if other != name:
            draws = generator(seed, "mask", leaf, *sorted((name, other)))
            pair = torch.empty(values.shape, dtype=torch.int64).random_(-(2**63), None, generator=draws)
            masked += pair if name < other else -pair
    return masked
