r"""Sums over devices of which the server sees no single term, and noise that hides single examples in them.

**Secure summation** (Bonawitz et al. 2017), simulated: numbers become integers modulo 2^64, each pair of devices adds
and subtracts one random mask, and the masks cancel in the sum over all devices. Here the masks of a pair derive from
the run's seed, and everybody takes part; on real devices (:mod:`fedcore.field.keys`) a key agreement takes the seed's
place, and a round is repeated among those who are left (`ROSTER`).

**The Gaussian mechanism.** A sum that changes by at most Delta in Euclidean norm when an example is added or removed is
(epsilon, delta)-differentially private with noise from N(0, sigma^2) on each number if (Balle and Wang 2018, Theorem 8)

    Phi(Delta / (2 sigma) - epsilon sigma / Delta) - e^epsilon Phi(-Delta / (2 sigma) - epsilon sigma / Delta) <= delta
"""

import math
import os
from collections.abc import Callable, Collection
from contextvars import ContextVar

import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.method import generator

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
            f"numbers below {limit:.3g}; scale the inputs, or use secure_aggregation: false"
        )
    return (values.double() * SCALE).round().long()


def from_integers(total: Tensor) -> Tensor:
    """Undo `to_integers`, float64."""
    return total.double() / SCALE


MASKED = "and masks cancel in the sum over all devices alone; use secure_aggregation: false"
"""Why a masked sum needs every device: else masks stay in the sum, which are then random numbers."""


def require_everyone(
    present: Collection[str], names: Collection[str], step: str = "secure_aggregation = true", why: str = MASKED
) -> None:
    """Refuse a step of the server that needs the updates of all devices, where one has sent nothing."""
    if missing := sorted({*(ROSTER.get() or names)} - {*present}):
        raise InputError(f"{step}: {', '.join(missing)} sent nothing, {why}")


def mask(values: Tensor, tensor_name: str, name: str, names: Collection[str], seed: int) -> Tensor:
    """Return integers with this device's masks: plus one for each later name, minus one for each earlier."""
    return MASK.get()(values, tensor_name, name, names, seed)


def mask_from_seed(values: Tensor, tensor_name: str, name: str, names: Collection[str], seed: int) -> Tensor:
    """Mask as a simulation does, by numbers that everybody knows who knows the seed."""

    def draw(pair: tuple[str, str]) -> Tensor:
        draws = generator(seed, "mask", tensor_name, *pair)
        return torch.empty(values.shape, dtype=torch.int64).random_(-(2**63), None, generator=draws)

    return add_masks(values, name, names, draw)


def add_masks(values: Tensor, name: str, names: Collection[str], draw: Callable[[tuple[str, str]], Tensor]) -> Tensor:
    """Return integers with a device's masks. draw: the mask of a pair, whose names are sorted."""
    masked = values.clone()
    for other in names:
        if other != name:
            pair = draw((name, other) if name < other else (other, name))
            masked += pair if name < other else -pair
    return masked


def noise_like(values: Tensor, draws: torch.Generator) -> Tensor:
    """Return standard normal numbers. draws: a simulation's; a real device draws its own."""
    return NOISE.get()(values, draws)


def noise_from_seed(values: Tensor, draws: torch.Generator) -> Tensor:
    """Draw noise as a simulation does."""
    return torch.randn(values.shape, dtype=values.dtype, generator=draws)


def own_noise(values: Tensor, draws: torch.Generator) -> Tensor:
    """Return standard normal numbers of the operating system's randomness, which no seed gives, by Box and Muller."""
    count = values.numel()
    raw = torch.frombuffer(bytearray(os.urandom(16 * max(1, count))), dtype=torch.int64).reshape(2, -1)
    uniform = ((raw & (2**53 - 1)).double() + 0.5) * 2.0**-53
    drawn = (-2 * uniform[0].log()).sqrt() * (2 * math.pi * uniform[1]).cos()
    return drawn[:count].reshape(values.shape).to(values.dtype)


MASK: ContextVar[Callable[[Tensor, str, str, Collection[str], int], Tensor]] = ContextVar(
    "mask", default=mask_from_seed
)
NOISE: ContextVar[Callable[[Tensor, torch.Generator], Tensor]] = ContextVar("noise", default=noise_from_seed)
"""How a device masks, and where it takes noise from: of the seed in a simulation, of its own secrets in the field."""

ROSTER: ContextVar[Collection[str]] = ContextVar("roster", default=())
"""The devices whose masks cancel, where these are not all."""
