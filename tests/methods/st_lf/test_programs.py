"""The programs against brute force and against what any answer must be; the paper's regimes as numbers."""

from dataclasses import replace
from itertools import pairwise, product
from typing import TypeAlias

import cvxpy as cp
import links
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import InputError
from fedcore.methods.st_lf.bound import source_bound, target_bound
from fedcore.methods.st_lf.forms import StepSolution, cone, log, solve_by_cvxpy, to_step
from fedcore.methods.st_lf.geometric import (
    EPS_C,
    LEAST_ALPHA,
    PSI,
    SENT,
    SLACK,
    Monomials,
    Point,
    initial_point,
    monomial,
)
from fedcore.methods.st_lf.problem import EPS_E, Array, Problem, Solution, best_links, objective
from fedcore.methods.st_lf.programs import RISE, SolverSettings, gap, local_search, solve_exactly, solve_successively

SEEDS = st.integers(0, 2**31 - 1)


def every_psi(n: int) -> list[np.ndarray]:
    return [np.array(psi, dtype=np.float64) for psi in product((0, 1), repeat=n) if not all(psi)]


def cheapest(problem: Problem, psi: np.ndarray) -> float:
    """(11) at the best links of psi, target by target and term by term."""
    sources = [i for i in range(len(psi)) if psi[i] == 0]
    value = sum(problem.phi_s * problem.source[i] for i in sources)
    for j in range(len(psi)):
        if psi[j] == 1:
            value += min(
                problem.phi_t * problem.target[i, j] + problem.phi_e * problem.energy[i, j] / 1.001 for i in sources
            )
    return float(value)


def feasible(answer: Solution) -> None:
    psi, alpha = answer.psi, answer.alpha
    assert set(psi) <= {0.0, 1.0}
    assert (psi == 0).any()
    np.testing.assert_allclose(alpha.sum(0), psi, atol=1e-12)  # targets on the simplex, sources receive nothing
    assert (alpha >= 0).all()
    assert not alpha[psi == 1].any()  # a target sends nothing


@pytest.mark.slow
@settings(max_examples=60)
@given(n=st.integers(1, 8), seed=SEEDS)
def test_exact_is_brute_force_over_all_psi(n: int, seed: int) -> None:
    problem = links.plain(n, seed)
    answer = solve_exactly(problem)
    feasible(answer)
    assert answer.objective == pytest.approx(min(cheapest(problem, psi) for psi in every_psi(n)), rel=1e-9, abs=1e-12)
    assert answer.objective == pytest.approx(cheapest(problem, answer.psi), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 7, 8])
def test_algorithm_2_against_every_choice_of_sources(n: int) -> None:
    """It finds the sources of the optimum on ST-LF's bounds, and its links cost at most a fifth more; not elsewhere."""
    problem = links.random(n, 0)
    best = min(cheapest(problem, psi) for psi in every_psi(n))
    found, repaired = (links.solved(problem, solver) for solver in ("successive", "repaired"))
    feasible(found)
    feasible(repaired)
    assert repaired.objective == pytest.approx(best, rel=1e-9)
    assert best * (1 - 1e-9) <= found.objective <= 1.2 * best
    assert found.gap == pytest.approx(found.objective / best - 1, abs=1e-8)
    assert cheapest(problem, found.psi) == pytest.approx(best, rel=1e-9)
    other = links.plain(n, 0)
    assert links.solved(other, "successive").objective >= min(cheapest(other, psi) for psi in every_psi(n)) * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("phi_e", [1.0, 10.0])
def test_the_trace_ends_at_the_true_objective(phi_e: float) -> None:
    """A closed link pays next to nothing. With a floor of alpha at eps_E it would pay half: 234 for 81 at phi_E = 1."""
    answer = links.solved(links.random(10, 0, phi_e=phi_e), "successive")
    assert answer.trace[-1] == pytest.approx(answer.objective, rel=0.015)


@pytest.mark.slow
def test_algorithm_2_by_cvxpy_ends_where_the_cone_form_ends() -> None:
    problem = links.random(4, 0)
    direct, by_cvxpy = (links.solved(problem, solver) for solver in ("successive", "cvxpy"))
    feasible(by_cvxpy)
    assert by_cvxpy.status in ("log: Solved", "log: AlmostSolved")  # the last digits decide which
    np.testing.assert_array_equal(by_cvxpy.psi, direct.psi)
    np.testing.assert_allclose(by_cvxpy.alpha, direct.alpha, atol=1e-4)
    assert by_cvxpy.trace[-1] == pytest.approx(direct.trace[-1], rel=1e-4)


@pytest.mark.slow
def test_where_algorithm_2_ends_depends_on_its_start() -> None:
    """The paper says that its answer is optimal regardless of the initial estimate."""
    problem, n = links.random(8, 0), 8
    best, ends = min(cheapest(problem, psi) for psi in every_psi(n)), []
    for seed in range(4):
        alpha = np.random.default_rng(seed).uniform(0, 1, (n, n))
        np.fill_diagonal(alpha, 0)
        begin = replace(initial_point(n), alpha=alpha / alpha.sum(0) / 2)
        found = solve_successively(problem, SolverSettings(), begin=begin)
        feasible(found)
        ends.append(found.objective / best)
    assert min(ends) >= 1 - 1e-9
    assert max(ends) > 1.01 * min(ends)


@settings(max_examples=60)
@given(n=st.integers(3, 8), seed=SEEDS)
@pytest.mark.slow
def test_no_mixture_of_sources_beats_the_best_single_one_even_with_noise(n: int, seed: int) -> None:
    problem, rng = links.random(n, seed, phi_e=0.1, noisy=True), np.random.default_rng(seed)
    psi = (rng.uniform(size=n) < 0.5).astype(np.float64)
    psi[0], psi[-1] = 0, 1
    alpha = np.zeros((n, n))
    mixture = rng.dirichlet(np.full(int((psi == 0).sum()), 0.5), int(psi.sum())).T
    alpha[np.ix_(psi == 0, psi == 1)] = mixture
    assert objective(problem, psi, best_links(problem, psi)) <= objective(problem, psi, alpha) * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=5)
@given(n=st.integers(1, 6), seed=SEEDS, noisy=st.booleans())
def test_every_answer_is_feasible_and_the_penalised_objective_never_rises(n: int, seed: int, noisy: bool) -> None:
    problem = links.random(n, seed, phi_e=10.0 ** (seed % 4 - 2), noisy=noisy and n > 1)
    answer = links.solved(problem, "successive")
    feasible(answer)
    for before, after in zip(answer.trace, answer.trace[1:], strict=False):
        assert after <= before * (1 + RISE)
    assert "fallback" not in answer.status  # a rise would have ended it so
    feasible(fixed := links.solved(problem, "repaired"))
    feasible(best := links.solved(problem, "exact"))
    assert best.gap == 0
    assert 0 <= fixed.gap <= answer.gap + 1e-12
    assert answer.gap == pytest.approx((answer.objective - best.objective) / best.objective, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["successive", "repaired", "exact"])
def test_relabelling_the_devices_permutes_the_answer(solver: str) -> None:
    problem = links.random(6, 3)
    order = np.random.default_rng(0).permutation(6)
    there = np.ix_(order, order)
    moved = Problem(problem.source[order], problem.target[there], problem.energy[there])
    here, found = links.solved(problem, solver), links.solved(moved, solver)
    np.testing.assert_array_equal(found.psi, here.psi[order])
    np.testing.assert_allclose(found.alpha, here.alpha[there], atol=1e-3)


@pytest.mark.parametrize("solver", ["successive", "repaired", "exact"])
@pytest.mark.slow
def test_free_sources_make_everyone_a_source(solver: str) -> None:
    answer = links.solved(replace(links.random(8, 0), phi_s=0.0), solver)
    assert not answer.psi.any()
    assert answer.objective == answer.gap == 0


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["successive", "repaired", "exact"])
def test_free_targets_and_links_leave_only_the_source_with_the_least_bound(solver: str) -> None:
    problem = replace(links.random(8, 0), phi_t=0.0, phi_e=0.0)
    answer = links.solved(problem, solver)
    assert np.flatnonzero(answer.psi == 0) == problem.source.argmin()
    assert answer.objective == pytest.approx(problem.source.min())


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["successive", "exact"])
def test_free_target_errors_do_not_make_everyone_a_target(solver: str) -> None:
    """The paper says that phi_T = 0 does; with (13) and links from sources only someone must send."""
    answer = links.solved(replace(links.random(10, 0), phi_t=0.0), solver)
    np.testing.assert_array_equal(answer.psi, np.arange(10) >= 5)


def test_the_printed_constants_make_everyone_a_source() -> None:
    sizes, error = np.full(10, 1000.0), np.where(np.arange(10) < 5, 0.1, 1.0)
    source = source_bound(error, sizes, delta=1e-3, constants="printed")
    target = target_bound(error, sizes, np.zeros((10, 10)), delta=1e-3, constants="printed")
    assert not links.solved(Problem(source, target, np.zeros((10, 10))), "exact").psi.any()
    assert 5 * target.min() > 59 > 4 > source.max()


def test_one_device_is_its_own_source() -> None:
    for solver in ("successive", "repaired", "exact"):
        answer = links.solved(Problem(np.array([2.0]), np.zeros((1, 1)), np.zeros((1, 1))), solver)
        assert (answer.psi, answer.alpha, answer.objective) == (0, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["successive", "exact"])
def test_a_labelled_device_becomes_a_target_where_its_error_is_large(solver: str) -> None:
    """Fig. 4: device 3, and the objective falls until no weight moves any more, whatever the errors."""
    divergence = links.symmetric(10, 0, 1.0)
    small, large = (links.solved(links.figure_5(divergence, third=error), solver) for error in (0.1, 0.9))
    assert (small.psi[2], large.psi[2]) == (0, 1)
    assert divergence[large.alpha[:, 2].argmax(), 2] < 0.15
    for answer in (small, large) if solver == "successive" else ():
        assert answer.status == "cone: Solved"
        assert all(after <= before * (1 + RISE) for before, after in pairwise(answer.trace))
        assert answer.trace[-1] < 0.95 * answer.trace[0]


def test_under_eq_18_a_labelled_device_is_a_source_for_any_error() -> None:
    """1,000 examples: T is at least 1.9, five times that is above any S, so that Fig. 4B cannot appear."""
    error, sizes = np.where(np.arange(10) < 5, 0.1, 1e3), np.full(10, 1000.0)
    error[2] = 1.0
    how = {"delta": 1e-3, "constants": "assumed"}
    source, target = source_bound(error, sizes, **how), target_bound(error, sizes, np.zeros((10, 10)), **how)
    assert 5 * target[:, 2].min() > 2 * source[2]
    answer = links.solved(Problem(source, target, np.zeros((10, 10)), phi_e=0.0), "exact")
    np.testing.assert_array_equal(answer.psi, np.arange(10) >= 5)


@pytest.mark.slow
def test_uniform_divergence_gives_every_target_all_sources_alike() -> None:
    """Fig. 5, first column: the labelled devices are sources, every link weighs a fifth."""
    answer = links.solved(links.figure_5(1 - np.eye(10)), "successive")
    np.testing.assert_array_equal(answer.psi, np.arange(10) >= 5)
    np.testing.assert_allclose(answer.alpha[:5, 5:], 0.2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["successive", "exact"])
def test_a_device_near_all_others_is_their_only_source(solver: str) -> None:
    """Fig. 5, second column."""
    divergence = 1 - np.eye(10)
    divergence[0] = divergence[:, 0] = 0
    answer = links.solved(links.figure_5(divergence), solver)
    np.testing.assert_array_equal(answer.psi, np.arange(10) > 0)
    np.testing.assert_allclose(answer.alpha[0], np.arange(10) > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "device"), [(0, 0), (2, 3)])
def test_a_labelled_device_of_small_divergence_becomes_a_target(seed: int, device: int) -> None:
    """Fig. 5, third column: every other labelled device stays a source."""
    divergence = links.symmetric(10, seed, 1.0)
    for solver in ("successive", "exact"):
        answer = links.solved(links.figure_5(divergence), solver)
        np.testing.assert_array_equal(answer.psi, (np.arange(10) >= 5) | (np.arange(10) == device))
        assert divergence[answer.alpha[:, device].argmax(), device] < 0.15


def staircase(solver: str) -> list[float]:
    problem = links.figure_5(np.zeros((10, 10)))
    error = np.where(np.arange(10) < 5, np.random.default_rng(0).uniform(0.05, 0.3, 10), 1e3)
    divergence, sizes = links.symmetric(10, 0, 1.0), np.full(10, 1000.0)
    target = target_bound(error, sizes, divergence, delta=1e-3, constants="assumed")
    return [
        problem.energy[links.solved(replace(problem, target=target, phi_e=phi_e), solver).alpha > 0].sum()
        for phi_e in (0, 1e-5, 1, 10, 1000)
    ]


@pytest.mark.parametrize("solver", [pytest.param("successive", marks=pytest.mark.slow), "exact"])
def test_energy_falls_in_steps_as_it_weighs_more(solver: str) -> None:
    """Fig. 6: saturated at first, one step after another, and nothing is sent at 1e3."""
    joules = staircase(solver)
    assert joules == sorted(joules, reverse=True)
    assert joules[0] == joules[1]
    assert joules[-1] == 0
    assert len(set(joules)) >= 4


def test_local_search_is_what_stands_in_for_a_solver_that_fails() -> None:
    problem = links.random(8, 0)
    answer = solve_exactly(problem, time_limit=0.0)
    assert answer.status == "HiGHS: Time limit reached; fallback: local search"
    feasible(answer)
    begin = initial_point(8)
    begin.alpha[:] = 20 * (1 - np.eye(8))  # no step brings links down so far
    answer = solve_successively(problem, SolverSettings(tol=1e-3, max_iterations=5), begin=begin)
    assert answer.status == "cone: PrimalInfeasible at iteration 1; fallback: local search"
    feasible(answer)
    np.testing.assert_array_equal(answer.psi, local_search(problem))


@settings(max_examples=30)
@given(n=st.integers(2, 8), seed=SEEDS)
@pytest.mark.slow
def test_no_single_change_improves_on_local_search(n: int, seed: int) -> None:
    problem = links.plain(n, seed)
    psi = local_search(problem)
    for device in range(n):
        other = np.where(np.arange(n) == device, 1 - psi, psi)
        assert not (other == 0).any() or cheapest(problem, other) >= cheapest(problem, psi) - 1e-9


def test_gap_is_a_fraction_of_the_optimum() -> None:
    assert (gap(3.0, 2.0), gap(2.0, 2.0), gap(0.0, 0.0), gap(1.0, 0.0)) == (0.5, 0, 0, np.inf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy": np.zeros((4, 3))}, r"energy: shape \(4, 3\) does not fit 4 devices; must be \(4, 4\)"),
        ({"energy": -np.ones((4, 4))}, "energy: -1 is negative; must be 0 or more"),
        ({"energy": np.full((4, 4), np.inf)}, "energy: some values are infinite or nan"),
        ({"target": np.zeros(4)}, r"target: shape \(4,\) does not fit 4 devices"),
        ({"source": np.zeros(0)}, "source: needs at least one device"),
        ({"noise": np.ones((4, 4, 4))}, "noise: a model differs from itself"),
        ({"phi_e": -1.0}, "phi_e: -1.0: a weight must be"),
    ],
)
def test_what_is_no_problem_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(links.plain(4, 0), **change)


# The two forms of a step of Algorithm 2 against a third, the program as it is printed.
Factor: TypeAlias = tuple[npt.NDArray[np.int64], Array | float]
"""Indices of variables and their powers in a row of monomials."""

LEAST = 1e-12
"""Replaces coefficients of zero, which a posynomial cannot have."""


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_both_forms_have_the_objective_of_the_printed_program(n: int, noisy: bool) -> None:
    problem, at = links.random(n, 1, noisy=noisy), initial_point(n)
    for _ in range(4):
        direct, by_cvxpy, printed = (solve_step(Monomials(problem, at)) for solve_step in (cone, log, gp))
        assert direct.objective == pytest.approx(printed.objective, rel=1e-5)
        assert by_cvxpy.objective == pytest.approx(printed.objective, rel=1e-5)
        at = direct.point


def gp(around: Monomials) -> StepSolution:
    """Solve the step as printed, (83)-(93), by CVXPY's geometric programming, for small N.

    It has one positive variable y = (psi, alpha, slack, chi_S, chi_T, chi_G); constraints are sums of monomials <= 1.
    """
    problem, at, n = around.problem, around.at, around.n
    by_column = np.lexsort((around.i, around.j))
    i, j = around.i[by_column], around.j[by_column]
    pairs = len(i)
    first, second = np.nonzero((j[:, None] == j) & (i[:, None] != i))  # the pairs (i, j) and (k, j) of chi_ijk
    if problem.noise is None:
        first, second = first[:0], second[:0]
    ends = np.cumsum([0, n, pairs, n, n, pairs, len(first)])
    psi, alpha, slack, chi_s, chi_t, chi_g = (np.arange(a, b) for a, b in pairwise(ends))
    y = cp.Variable(int(ends[-1]), pos=True)

    def product(constant: Array, *factors: Factor) -> cp.Expression:
        """Return the monomials exp(constant) prod y[index] ** exponent, one per row."""
        exponents = np.zeros((len(constant), ends[-1]))
        for index, exponent in factors:
            exponents[np.arange(len(constant)), index] += exponent
        return cp.multiply(np.exp(constant), cp.gmatmul(exponents, y))

    def amount(values: Array) -> Array:
        return np.asarray(np.log(values.clip(LEAST)))  # a posynomial has no zero coefficients

    constraints = [y[psi] >= PSI[0], y[psi] <= PSI[1], y[slack] >= SLACK[0], y[slack] <= SLACK[1]]
    constraints += [
        y[alpha] >= around.least[i, j],
        y[alpha] <= 1,
        product(np.zeros(pairs), (psi[i], 1), (alpha, 1)) <= SENT,
    ]

    # (19): psi_i + chi_i / S_i >= its monomial >= 1
    (w1, w2), c = monomial([at.psi, 1 - at.psi])
    constraints.append(product(c - w2 * amount(problem.source), (psi, w1), (chi_s, w2)) >= 1)
    # (20): the same with chi_ijk / (psi_j alpha_kj D_ijk) for k
    if problem.noise is not None and len(first):
        k, D = i[second], amount(problem.noise[i[first], j[first], i[second]])
        flow = ((psi[j[second]], -w2[k]), (alpha[second], -w2[k]))
        constraints.append(product(c[k] - w2[k] * D, (psi[k], w1[k]), (chi_g, w2[k]), *flow) >= 1)
    # (21): the same with chi_ij / (psi_j alpha_ij A_ij); solved for A_ij = T_ij + sum_k chi_ijk
    per: tuple[Factor, ...] = ((psi[i], -w1[i] / w2[i]), (psi[j], 1), (alpha, 1), (chi_t, -1))
    needed = product(amount(problem.target[i, j]) - c[i] / w2[i], *per)
    if len(first):
        there = [(index[first], np.broadcast_to(power, pairs)[first]) for index, power in per]
        noise = product(-c[i[first]] / w2[i[first]], *there, (chi_g, 1))
        needed = needed + cp.sum(cp.reshape(noise, (pairs, n - 2), order="C"), axis=1)
    constraints.append(needed <= 1)
    # (22): the objective has K alpha / J
    (w, rest), c = monomial([at.alpha[i, j], np.full(pairs, EPS_E)])
    energy = product(amount(problem.energy[i, j]) - c - rest * np.log(EPS_E), (alpha, 1 - w))
    # (23)-(24): the band around sum_i alpha_ij = psi_j
    (w1, w2, w3), c = monomial([at.slack, np.full(n, EPS_C), at.psi])
    constant = c + w2 * np.log(EPS_C)
    filled = product(-constant[j], (alpha, 1), (slack[j], -w1[j]), (psi[j], -w3[j]))
    constraints.append(cp.sum(cp.reshape(filled, (n, n - 1), order="C"), axis=1) <= 1)
    (*shares, rest), c = monomial([*at.alpha[i, j].reshape(n, n - 1).T, np.full(n, EPS_C)])
    sent = [(alpha.reshape(n, n - 1)[:, row], -exponent) for row, exponent in enumerate(shares)]
    constant = -c - rest * np.log(EPS_C)
    constraints.append(product(constant, (slack, 1), *sent) + product(constant, (psi, 1), *sent) <= 1)

    terms = ((problem.phi_s, y[chi_s]), (problem.phi_t, y[chi_t]), (problem.phi_e, energy), (1.0, y[slack]))
    task = cp.Problem(cp.Minimize(sum(phi * cp.sum(term) for phi, term in terms if phi > 0)), constraints)
    status = solve_by_cvxpy(task, gp=True)
    if y.value is None:
        return StepSolution(None, np.inf, status)
    z = np.log(y.value[: ends[3]])
    z[alpha] = z[alpha][np.argsort(by_column)]
    return to_step(around, z, float(task.value), status)


# The monomials of (19)-(24) against their posynomials.


def anywhere(rng: np.random.Generator, n: int) -> Point:
    """A point between the bounds, drawn evenly on the logarithmic scale."""

    def between(low: float, high: float, *shape: int) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), shape))

    alpha = between(LEAST_ALPHA, 1, n, n) * ~np.eye(n, dtype=bool)
    return Point(between(1e-3, PSI[1], n), alpha, between(*SLACK, n))


@settings(max_examples=100)
@given(seed=SEEDS, n=st.integers(2, 6))
@pytest.mark.slow
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


@settings(max_examples=100)
@given(seed=SEEDS)
@pytest.mark.slow
def test_the_posynomials_as_printed(seed: int) -> None:
    """Lemma 2 on F, G, H, J, M+ and M- with all of their variables free, written out from (19)-(24)."""
    rng = np.random.default_rng(seed)
    n, S, T, D = 4, *rng.uniform(0.1, 10, 3)

    def terms(draw: np.ndarray) -> dict[str, list[np.ndarray]]:
        psi_i, psi_j, psi_k, alpha, chi_s, chi_t, chi_c, *rest = draw
        chi_g, alphas = np.array(rest[: n - 1]), np.array(rest[n - 1 :])
        return {
            "F (19)": [psi_i, chi_s / S], "G (20)": [psi_k, chi_g[0] / (psi_j * alpha * D)],
            "H (21)": [psi_i * T, *(psi_i * chi_g), chi_t / (psi_j * alpha)], "J (22)": [alpha, np.array(EPS_E)],
            "M+ (23)": [chi_c, np.array(EPS_C), psi_j], "M- (24)": [*alphas],
        }  # fmt: skip

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
