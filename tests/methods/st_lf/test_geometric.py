"""The monomials of (19)-(24) against their posynomials."""

import links
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.st_lf.geometric import EPS_C, LEAST_ALPHA, PSI, SLACK, Monomials, Point, monomial
from fedcore.methods.st_lf.problem import EPS_E, objective

SEEDS = st.integers(0, 2**31 - 1)


def anywhere(rng: np.random.Generator, n: int) -> Point:
    """A point between the bounds, drawn evenly on the logarithmic scale."""

    def between(low: float, high: float, *shape: int) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), shape))

    alpha = between(LEAST_ALPHA, 1, n, n) * ~np.eye(n, dtype=bool)
    return Point(between(1e-3, PSI[1], n), alpha, between(*SLACK, n))


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, n=st.integers(2, 6))
def test_each_monomial_is_below_its_posynomial_and_equal_at_the_point(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    at, other = anywhere(rng, n), anywhere(rng, n)
    around = Monomials(links.random(n, seed % 1000), at)
    i, j = around.i, around.j
    r, b = around.left
    w, c = around.link
    on_slack, on_psi, plus = around.above
    weights, minus = around.under

    def logs(point: Point) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Log monomial and log posynomial; (19)-(21) as the monomial above 1 - psi, with both signs turned."""
        alpha = np.where(point.alpha > 0, point.alpha, 1)
        return {
            "(19)-(21)": (r * np.log(point.psi) - b, -np.log(1 - point.psi)),
            "(22)": (w * np.log(point.alpha[i, j]) + c, np.log(point.alpha[i, j] + EPS_E)),
            "(23)": (
                on_slack * np.log(point.slack) + on_psi * np.log(point.psi) + plus,
                np.log(point.slack + EPS_C + point.psi),
            ),
            "(24)": ((weights * np.log(alpha)).sum(0) + minus, np.log(point.alpha.sum(0) + EPS_C)),
        }

    for below, above in logs(at).values():
        np.testing.assert_allclose(below, above, rtol=1e-9, atol=1e-9)
    for name, (below, above) in logs(other).items():
        assert (below <= above + 1e-9).all(), name


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_the_posynomials_as_printed(seed: int) -> None:
    """Lemma 2 on F, G, H, J, M+ and M- with all of their variables free, written out from (19)-(24)."""
    rng = np.random.default_rng(seed)
    n, S, T, D = 4, *rng.uniform(0.1, 10, 3)

    def terms(draw: np.ndarray) -> dict[str, list[np.ndarray]]:
        psi_i, psi_j, psi_k, alpha, chi_s, chi_t, chi_c, *rest = draw
        chi_g, alphas = np.array(rest[: n - 1]), np.array(rest[n - 1 :])
        return {
            "F (19)": [psi_i, chi_s / S],
            "G (20)": [psi_k, chi_g[0] / (psi_j * alpha * D)],
            "H (21)": [psi_i * T, *(psi_i * chi_g), chi_t / (psi_j * alpha)],
            "J (22)": [alpha, np.array(EPS_E)],
            "M+ (23)": [chi_c, np.array(EPS_C), psi_j],
            "M- (24)": [*alphas],
        }

    at, other = (terms(np.exp(rng.uniform(-5, 1, 7 + 2 * (n - 1)))) for _ in range(2))
    for name in at:
        weights, c = monomial(at[name])

        def value(u: list[np.ndarray], weights: list[np.ndarray] = weights, c: np.ndarray = c) -> float:
            return float(np.exp(c) * np.prod([x**w for x, w in zip(u, weights, strict=True)]))

        assert value(at[name]) == pytest.approx(sum(at[name]), rel=1e-9)
        assert value(other[name]) <= sum(other[name]) * (1 + 1e-9)


def test_noise_raises_the_objective_only_where_sources_are_mixed() -> None:
    problem, calm = links.random(6, 0, noisy=True), links.random(6, 0)
    psi = (np.arange(6) >= 3).astype(np.float64)
    single, mixed = np.zeros((6, 6)), np.zeros((6, 6))
    single[0, 3:] = 1
    mixed[:3, 3:] = 1 / 3
    assert objective(problem, psi, single) == objective(calm, psi, single)
    by_hand = sum(problem.noise[i, j, k] / 9 for j in range(3, 6) for i in range(3) for k in range(3))
    assert objective(problem, psi, mixed) - objective(calm, psi, mixed) == pytest.approx(problem.phi_t * by_hand)
