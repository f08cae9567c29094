"""Masked sums and the noise of the Gaussian mechanism."""

import mpmath
import pytest
import torch

from fedcore.core.secure_sum import from_integers, gaussian_noise, mask, require_everyone, to_integers
from fedcore.errors import InputError
from fedcore.types.method import generator

NAMES = ("a", "b", "c")


def values(name):
    return 100 * torch.randn(50, dtype=torch.float64, generator=generator("sums", name))


def masked(seed=0):
    return {name: mask(to_integers(values(name), name, len(NAMES)), "tensor", name, NAMES, seed) for name in NAMES}


def test_masks_cancel_in_the_sum_bit_by_bit():
    plain = sum(to_integers(values(name), name, len(NAMES)) for name in NAMES)
    assert torch.equal(sum(masked().values()), plain)


def test_the_masked_sum_is_the_plain_sum_to_the_resolution():
    found = from_integers(sum(masked().values()))
    torch.testing.assert_close(found, sum(values(name) for name in NAMES), rtol=0, atol=len(NAMES) * 2.0**-33)


def test_a_masked_update_tells_nothing_and_seeds_mask_differently():
    """It is spread over all integers: half of them are negative, and their size is that of 2^63."""
    one, again, other = masked()["a"], masked()["a"], masked(1)["a"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert 10 < int((one < 0).sum()) < 40
    assert one.double().abs().median() > 2.0**60


def test_sums_that_overflow_are_refused():
    with pytest.raises(InputError, match=r"^update of a: it has the number 1e\+09, masked sums of 3 devices hold"):
        to_integers(torch.tensor([1.0e9]), "a", 3)


def test_a_masked_sum_without_a_device_is_refused_by_its_name():
    require_everyone({"b": 1, "a": 2}, ("a", "b"))
    with pytest.raises(
        InputError, match=r"^secure_aggregation = true: a, c sent nothing, and masks cancel in the sum over all"
    ):
        require_everyone({"b": 1}, ("a", "b", "c"))


def profile(sigma, epsilon):
    """The least delta of noise sigma at sensitivity 1 (Balle and Wang 2018, Theorem 8), to 50 digits."""
    with mpmath.workdps(50):
        sigma, epsilon = mpmath.mpf(sigma), mpmath.mpf(epsilon)
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return mpmath.ncdf(near) - mpmath.exp(epsilon) * mpmath.ncdf(far)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_the_noise_meets_the_exact_formula(epsilon, delta):
    assert float(profile(gaussian_noise(epsilon, delta, 1.0), epsilon)) == pytest.approx(delta, rel=1e-6)


def test_known_noise():
    """Less than the 4.84 of the classical formula, sqrt(2 ln(1.25 / delta)) / epsilon."""
    assert gaussian_noise(1.0, 1e-5, 1.0) == pytest.approx(3.7306, abs=1e-4)
    assert gaussian_noise(1.0, 1e-5, 7.0) == pytest.approx(7 * gaussian_noise(1.0, 1e-5, 1.0))
