"""The bounds and energies by hand, and against the numbers that the paper prints."""

from itertools import product

import numpy as np
import pytest
import torch

from fedcore.errors import InputError
from fedcore.methods.st_lf import energy
from fedcore.methods.st_lf.bound import (
    combination_noise,
    corollary_1,
    deviation,
    empirical_error,
    rademacher,
    source_bound,
    target_bound,
    theorem_2,
)

SIZES = np.array([100.0, 400.0])
ERROR = np.array([0.25, 0.5])
DIVERGENCE = np.array([[0, 1.2], [1.2, 0]])


def test_printed_constants_are_those_of_17_and_18() -> None:
    """With delta = 2 / e^2 the deviation is sqrt(1 / D): .1 and .05."""
    delta = 2 * np.exp(-2)
    np.testing.assert_allclose(deviation(SIZES, delta), [0.1, 0.05])
    S = source_bound(ERROR, SIZES, delta=delta, constants="printed")
    np.testing.assert_allclose(S, [0.25 + 2.3548 + 0.3, 0.5 + 2.3548 + 0.15], atol=1e-4)
    T = target_bound(ERROR, SIZES, DIVERGENCE, delta=delta, constants="printed")
    np.testing.assert_allclose(T[0, 1], 0.25 + 11.7741 + 0.6 + 6 * 0.15, atol=1e-4)
    np.testing.assert_allclose(T[1, 0], 0.5 + 11.7741 + 0.6 + 6 * 0.15, atol=1e-4)


def test_the_data_term_of_table_2_is_that_of_decimal_constants() -> None:
    """Its two right-hand sides differ by 7.93 to 7.95; 1,800 and 1,000 examples and delta .999 leave .18."""
    sizes = np.array([1800.0, 1000.0])
    assert rademacher(sizes, "printed") == pytest.approx(np.sqrt(2 * np.log(2)))
    decimal = 10 * rademacher(sizes, "decimal")[0]
    assert decimal == pytest.approx(7.76, abs=0.005)
    assert decimal + 6 * np.sqrt(np.log10(2 / 0.999) / sizes).sum() == pytest.approx(7.94, abs=0.01)


def test_assumed_constants_shrink_with_the_data() -> None:
    np.testing.assert_allclose(rademacher(SIZES, "assumed"), [0.30349, 0.17308], atol=1e-5)
    T = target_bound(ERROR, SIZES, DIVERGENCE, delta=0.1, constants="assumed")
    q = deviation(SIZES, 0.1)
    np.testing.assert_allclose(T[0, 1], 0.25 + 4 * 0.30349 + 6 * 0.17308 + 0.6 + 6 * q.sum(), atol=1e-4)


def complexity(labels: np.ndarray) -> float:
    """Return (7) over every choice of signs. labels: (H, D), what each hypothesis says of each example, 0 or 1."""
    signs = np.array([*product((-1, 1), repeat=labels.shape[1])])
    return float((signs @ labels.T / labels.shape[1]).max(1).mean())


def test_rademacher_complexity_by_its_definition_is_below_its_limits() -> None:
    """Ten thresholds label ten points of a line in ten ways, (46) with D labellings; all labellings have 1/2."""
    sizes = np.array([10.0])
    thresholds = np.arange(10) >= np.arange(10)[:, None]
    assert complexity(thresholds) < rademacher(sizes, "assumed")[0]
    everything = np.array([*product((0, 1), repeat=10)])
    assert complexity(everything) == pytest.approx(0.5)
    assert complexity(everything) < min(rademacher(sizes, "decimal")[0], rademacher(sizes, "printed")[0])


def test_an_unlabelled_example_counts_as_wrong() -> None:
    sizes, labelled = np.array([10.0, 10.0, 10.0]), np.array([10.0, 5.0, 0.0])
    error = empirical_error(np.array([0.2, 0.2, np.nan]), labelled, sizes, unlabelled=1e3)
    np.testing.assert_allclose(error, [0.2, 0.6, 1e3])


def test_corollary_1_is_the_weighted_target_bound_and_contains_theorem_2() -> None:
    alpha = np.array([[0.0, 1.0], [0.0, 0.0]])
    noise = np.full((2, 2), 0.1)
    T = target_bound(ERROR, SIZES, DIVERGENCE, delta=0.1, constants="printed")
    got = corollary_1(alpha, ERROR, SIZES, DIVERGENCE, delta=0.1, constants="printed", noise=noise, labelling=noise)
    np.testing.assert_allclose(got, [0, T[0, 1] + 0.2])
    np.testing.assert_allclose(theorem_2(alpha, ERROR, DIVERGENCE, noise, noise), [0, 0.25 + 0.6 + 0.2])


def test_theorem_2_bounds_the_true_error_of_mixed_classifiers() -> None:
    """Thresholds on ten points of a line, where all hypotheses and their divergence can be enumerated."""
    x = np.arange(10)
    hypotheses = np.array([(x >= t) != flip for t in range(11) for flip in (False, True)], dtype=np.float64)
    differ = abs(hypotheses[:, None] - hypotheses[None])  # (H, H, 10)
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = rng.dirichlet(np.full(10, 0.3), 3)  # two sources and a target
        truth = hypotheses[rng.integers(len(hypotheses), size=3)]
        models = hypotheses[rng.integers(len(hypotheses), size=2)]
        alpha = rng.dirichlet([1, 1])
        mixed = alpha @ models
        error = (weights[:2] * abs(models - truth[:2])).sum(1)
        labelling = (weights[2] * abs(truth[:2] - truth[2])).sum(1)
        noise = (weights[2] * abs(models - mixed)).sum(1)
        divergence = [2 * abs(differ @ (weights[2] - weights[i])).max() for i in range(2)]
        square = np.zeros((3, 3))
        column = np.zeros((3, 3))
        column[:2, 2] = alpha

        def flat(values: np.ndarray, square: np.ndarray = square) -> np.ndarray:
            full = square.copy()
            full[:2, 2] = values
            return full

        bound = theorem_2(column, np.append(error, 0), flat(np.array(divergence)), flat(noise), flat(labelling))[2]
        assert (weights[2] * abs(mixed - truth[2])).sum() <= bound + 1e-12


def test_combination_noise_is_the_weighted_disagreement() -> None:
    disagreement = np.zeros((3, 3, 3))
    disagreement[0, 2, 1] = disagreement[1, 2, 0] = 0.4
    alpha = np.zeros((3, 3))
    alpha[:, 2] = 0.25, 0.75, 0
    np.testing.assert_allclose(combination_noise(alpha, disagreement)[:, 2], [0.3, 0.1, 0])


def test_the_energy_of_a_link_is_that_of_the_papers_ranges() -> None:
    K = energy.draw_energy(50, torch.Generator().manual_seed(0))
    others = K[~np.eye(50, dtype=bool)]
    assert not np.diagonal(K).any()
    assert 2.35 < others.min() < 2.45
    assert 4.8 < others.max() < 5.02
    low = energy.energy(np.array([23.0, 25.0]), np.full((2, 2), 85e6))
    np.testing.assert_allclose(low, [[0, 2.3474], [3.7203, 0]], atol=1e-4)
    np.testing.assert_array_equal(K, energy.draw_energy(50, torch.Generator().manual_seed(0)))


def test_a_users_own_costs_are_taken_as_they_are() -> None:
    np.testing.assert_array_equal(energy.check_costs([[9, 1], [2, 9]], 2), [[0, 1], [2, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: energy.check_costs(np.ones((2, 2)), 3), r"energy: shape \(2, 2\) does not fit 3 devices"),
        (lambda: energy.check_costs([[0, -1], [0, 0]], 2), "energy: -1 is negative"),
        (lambda: energy.check_costs([[0, np.nan], [0, 0]], 2), "energy: some values are infinite or nan"),
        (lambda: energy.energy(np.array([23.0, 24.0]), np.zeros((2, 2))), "rates: some links have rate 0"),
        (lambda: energy.energy(np.array([23.0, np.nan]), np.ones((2, 2))), "powers: some values"),
        (lambda: energy.energy(np.array([23.0, 24.0]), np.ones((2, 2)), 0), "bits: 0 is no size"),
        (lambda: energy.draw_energy(2, torch.Generator(), rates=(2, 1)), "rates: 2 to 1 is no range"),
        (lambda: source_bound(ERROR, np.array([5.0, 0.0]), delta=0.1, constants="printed"), "device 1 has no data"),
        (lambda: empirical_error(ERROR, np.zeros(2), SIZES, unlabelled=1), "labelled: no device has a label"),
        (lambda: empirical_error(ERROR, SIZES + 1, SIZES, unlabelled=1), "labelled: 101 of device 0's 100"),
        (lambda: empirical_error(ERROR, SIZES, SIZES, unlabelled=-1), "unlabelled: -1 is no error"),
        (
            lambda: target_bound(ERROR, SIZES, 3 * DIVERGENCE, delta=0.1, constants="printed"),
            "divergence: 3.6 is too large",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)
