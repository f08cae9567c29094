"""Transport against independent solvers: POT's three, the Hungarian method, and the marginals themselves."""

from dataclasses import replace
from itertools import permutations
from math import fsum

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedcore import InputError, Report
from fedcore.core.aggregation import evenly
from fedcore.methods.code import transport
from fedcore.methods.code.transport import (
    SOLVERS,
    Plan,
    Transport,
    cost,
    partners,
    report_plans,
    solve_transport,
)
from fedcore.report.figures.reports import transport_plans

TOL = 1e-7


def run(solver: str, C: Tensor, reg: float, a: Tensor | None = None, b: Tensor | None = None, cap: int = 200) -> Plan:
    a, b = evenly(C.shape[0]) if a is None else a, evenly(C.shape[1]) if b is None else b
    return solve_transport(C, a, b, Transport(solver, reg, TOL, cap))  # type: ignore[arg-type]


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(n: int, seed: int) -> Tensor:
    w = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    return w / w.sum()


def layers(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two layers' units as training leaves them: near each other (a common initialisation) or unrelated (inf)."""
    x, other = 0.1 * points(n, 64, seed), 0.1 * points(n, 64, seed + 1)
    return (x, other) if noise == float("inf") else (x, x + noise * other)


KINDS = {
    "different p1": cost(*layers(200, float("inf")), 1), "different p2": cost(*layers(200, float("inf")), 2),
    "near p1": cost(*layers(200, 0.1), 1), "near p2": cost(*layers(200, 0.1), 2),
    "nearly equal p2": cost(*layers(200, 1e-3), 2), "equal p1": cost(*layers(200, 0.0), 1),
    "plane p1": cost(points(120, 2, 0), points(120, 2, 1), 1),
    "plane near p1": cost(points(200, 2, 0), points(200, 2, 0) + 0.1 * points(200, 2, 1), 1),
    "space near p2": cost(points(200, 8, 0), points(200, 8, 0) + points(200, 8, 1), 2),
    "wide p2": cost(points(60, 8, 0), points(150, 8, 1), 2), "tall p1": cost(points(150, 8, 0), points(60, 8, 1), 1),
    "duplicates p1": cost(points(20, 4, 0).repeat(4, 1), points(20, 4, 0).repeat(4, 1), 1),
    "duplicates p2": cost(points(20, 4, 0).repeat(4, 1), points(50, 4, 1), 2),
    "noise": torch.rand(120, 120, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    "constant": torch.ones(30, 40, dtype=torch.float64), "zero": torch.zeros(30, 40, dtype=torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("solver", ["newton", "sinkhorn"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.slow
def test_entropic_plan_is_that_of_pot(solver: str, p: int) -> None:
    C, a, b = cost(points(30, 5, 0), points(40, 5, 1), p), weights(30, 2), weights(40, 3)
    reg = 0.1 * C.max().item()
    for theirs in (ot.sinkhorn, ot.bregman.sinkhorn_log):
        want = theirs(a.numpy(), b.numpy(), C.numpy(), reg, numItermax=100_000, stopThr=1e-12)
        got = run(solver, C, reg, a, b, cap=10_000).plan.numpy()
        np.testing.assert_allclose(got, want, atol=1e-8)
        np.testing.assert_allclose((got * C.numpy()).sum(), (want * C.numpy()).sum(), atol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_exact_plan_costs_what_pot_and_the_hungarian_method_say(p: int) -> None:
    C, a, b = cost(points(30, 5, 0), points(40, 5, 1), p), weights(30, 2), weights(40, 3)
    assert (run("exact", C, 1.0, a, b).plan * C).sum().item() == pytest.approx(ot.emd2(a.numpy(), b.numpy(), C.numpy()))
    C = cost(points(50, 5, 0), points(50, 5, 1), p)
    rows, columns = linear_sum_assignment(C.numpy())
    assert (run("exact", C, 1.0).plan * C).sum().item() == pytest.approx(C.numpy()[rows, columns].mean())


def spread(n: int, m: int, seed: int) -> Tensor:
    """Costs from 1e-3 to 300, some of them 1e8 to 1e31."""
    rng = np.random.default_rng(seed)
    C = 10 ** rng.uniform(-3, 2.5, (n, m))
    C[rng.random((n, m)) < 0.4] = 10.0 ** rng.choice([8, 12, 20, 31])
    return torch.from_numpy(C)


@pytest.mark.parametrize("solver", ["exact", "newton"])
@pytest.mark.parametrize("shape", [(5, 5), (2, 4), (4, 2)])
@pytest.mark.slow
def test_costs_of_many_orders_against_every_assignment(solver: str, shape: tuple[int, int]) -> None:
    """Units of the smaller side stand several times, so that a plan is the mean of assignments."""
    for seed in range(40):
        C, most = spread(*shape, seed), max(shape)
        square = C.repeat_interleave(most // shape[0], 0).repeat_interleave(most // shape[1], 1).tolist()
        least = min(fsum(row[k] for row, k in zip(square, order, strict=True)) for order in permutations(range(most)))
        plan = run(solver, C, 1e-3)
        assert plan.converged
        assert (plan.plan * C).sum().item() == pytest.approx(least / most, rel=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_ordinary_costs_are_certified_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has the bits of POT's."""
    monkeypatch.delattr(transport, "_below_a_limit")
    C = KINDS[kind]
    a, b = evenly(C.shape[0]), evenly(C.shape[1])
    assert torch.equal(run("exact", C, 0.01).plan, torch.from_numpy(ot.emd(a.numpy(), b.numpy(), C.numpy())))


@pytest.mark.parametrize("reg", [0.3, 0.1, 0.05])
@pytest.mark.slow
def test_excess_over_the_least_cost_depends_on_lambda_not_epsilon(reg: float) -> None:
    """Definition 1 allows epsilon; the entropic plan costs up to lambda log n more than the least (eqs. 6 and 7)."""
    C = cost(points(40, 5, 0), points(40, 5, 1), 1)
    rows, columns = linear_sum_assignment(C.numpy())
    plan = run("sinkhorn", C, reg, cap=100_000)
    assert plan.converged
    assert plan.excess == pytest.approx((plan.plan * C).sum().item() - C.numpy()[rows, columns].mean(), abs=1e-12)
    assert 1e4 * TOL < plan.excess <= reg * np.log(40)
    assert np.isnan(run("newton", C, reg).excess)


@pytest.mark.slow
@pytest.mark.parametrize("reg", [1e-3, 1e-4, 1e-6, 1e-9, 1e-300])
def test_newton_tends_to_the_assignment_as_lambda_vanishes(reg: float) -> None:
    C = cost(points(60, 5, 0), points(60, 5, 1), 1)
    rows, columns = linear_sum_assignment(C.numpy())
    plan = run("newton", C, reg)
    assert plan.converged
    # the entropic plan's cost lies within lambda log n of the smallest
    excess = (plan.plan * C).sum().item() - C.numpy()[rows, columns].mean()
    assert -1e-6 <= excess <= reg * np.log(60) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("reg", [1e2, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-12])
@pytest.mark.parametrize("kind", KINDS)
def test_newton_never_meets_its_cap(kind: str, reg: float) -> None:
    plan = run("newton", KINDS[kind], reg)
    n, m = KINDS[kind].shape
    assert plan.converged
    assert plan.iterations < 60
    assert (plan.plan >= 0).all()
    assert (plan.plan.sum(1) - evenly(n)).abs().sum() + (plan.plan.sum(0) - evenly(m)).abs().sum() <= TOL


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("noise", [0.1, 1.0, float("inf")])
def test_newton_on_a_wide_layer_with_small_lambda(noise: float, p: int) -> None:
    for reg in (1e-2, 1e-3):
        plan = run("newton", cost(*layers(400, noise), p), reg)
        assert plan.converged
        assert plan.iterations < 30


def test_identical_units_share_alike() -> None:
    """Four copies of each unit: within a block of copies every entry is the same."""
    blocks = run("newton", KINDS["duplicates p1"], 0.05).plan.reshape(4, 20, 4, 20).transpose(1, 2).reshape(16, -1)
    torch.testing.assert_close(blocks, blocks[:1].expand_as(blocks), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["newton", "sinkhorn", "exact"])
def test_plan_follows_renamed_and_swapped_units(solver: str) -> None:
    C = cost(points(20, 3, 0), points(20, 3, 1), 1)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    plan = run(solver, C, 0.1, cap=10_000).plan
    torch.testing.assert_close(run(solver, C[order], 0.1, cap=10_000).plan, plan[order], rtol=0, atol=1e-7)
    torch.testing.assert_close(run(solver, C.T, 0.1, cap=10_000).plan.T, plan, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", ["newton", "sinkhorn", "exact"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
def test_single_units(solver: str, shape: tuple[int, int]) -> None:
    plan = run(solver, torch.rand(shape, dtype=torch.float64) * 1e3, 1e-2)
    torch.testing.assert_close(plan.plan, torch.full(shape, 1 / max(shape), dtype=torch.float64))
    assert plan.converged


@pytest.mark.slow
@settings(max_examples=40)
@given(
    n=st.integers(1, 12), m=st.integers(1, 12), seed=st.integers(0, 1000), reg=st.sampled_from([0.02, 0.1, 1.0]),
    even=st.booleans(),
)  # fmt: skip
def test_algorithm_2_stays_within_its_bound_and_agrees_with_newton(
    n: int, m: int, seed: int, reg: float, even: bool
) -> None:
    C = torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = (evenly(n), evenly(m)) if even else (weights(n, seed), weights(m, seed + 1))
    looped, direct = run("sinkhorn", C, reg, a, b, cap=20_000), run("newton", C, reg, a, b)
    assert direct.converged
    assert looped.bound >= looped.iterations
    if looped.converged:
        torch.testing.assert_close(looped.plan, direct.plan, rtol=0, atol=1e-4)
        assert ((looped.plan - direct.plan) * C).sum().abs() < 1e-5


@pytest.mark.parametrize(("reg", "ends"), [(0.01, False), (0.1, False), (0.5, False), (1.0, True)])
def test_steps_as_printed_end_only_where_lambda_is_near_1(reg: float, ends: bool) -> None:
    """(28) and (29) leave out lambda, although f is in units of the cost in (16)."""
    C = cost(points(20, 5, 0), points(20, 5, 1), 1)
    log_a, f, g = evenly(20).log(), torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    for t in range(400):
        rows, columns = (((f[:, None] + g - C) / reg).logsumexp(axis) for axis in (1, 0))
        wrong = (rows.exp() - 1 / 20).abs().sum() + (columns.exp() - 1 / 20).abs().sum()
        if wrong <= TOL or wrong > 1e6:
            break
        f, g = (f + log_a - rows, g) if t % 2 == 0 else (f, g + log_a - columns)
    assert (wrong <= TOL) == ends
    if ends:
        plan = ((f[:, None] + g - C) / reg).exp()
        torch.testing.assert_close(run("sinkhorn", C, reg).plan, plan, rtol=1e-5, atol=1e-8)


def test_bound_by_hand() -> None:
    """C = 2, lambda = 1/2, weights 1/4: R = 2 / .5 + ln 4, tol 1e-7."""
    plan = run("sinkhorn", torch.full((4, 2), 2.0, dtype=torch.float64), 0.5)
    assert plan.bound == pytest.approx(2 + 4 * (4 + np.log(4)) / 1e-7)
    assert plan.iterations == 1


def test_capped_sinkhorn_says_so() -> None:
    plan = run("sinkhorn", KINDS["different p2"], 1e-3, cap=10)
    assert (plan.iterations, plan.converged) == (10, False)
    assert plan.violation > TOL


def test_cost_is_the_distance_or_its_square() -> None:
    x, y = points(30, 4, 0), points(40, 4, 1)
    want = (x[:, None] - y).norm(dim=2)
    torch.testing.assert_close(cost(x, y, 1), want)
    torch.testing.assert_close(cost(x, y, 2), want**2)


@pytest.mark.slow
def test_same_problem_same_bits() -> None:
    first, second = (run("newton", KINDS["different p2"], 1e-3) for _ in range(2))
    assert torch.equal(first.plan, second.plan)


BAD_PROBLEMS = {
    "cost: shape": {"cost": torch.ones(2, 3)},
    "cost: some": {"cost": torch.tensor([[1.0, float("nan")], [0.0, 1.0]])},
    "cost: some entries are negative": {"cost": -torch.ones(2, 2)},
    "a: weights": {"a": torch.tensor([1.0, 0.0])},
    "b: weights": {"b": torch.tensor([1.0, 1.0])},
}


@pytest.mark.parametrize("words", BAD_PROBLEMS)
def test_bad_problem_is_refused_in_one_line(words: str) -> None:
    good = {"cost": torch.ones(2, 2), "a": evenly(2), "b": evenly(2)}
    with pytest.raises(InputError, match=f"^{words}") as refusal:
        solve_transport(**(good | BAD_PROBLEMS[words]), settings=Transport())
    assert "\n" not in str(refusal.value)


def test_what_a_solver_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="identity"):
        run("identity", torch.ones(2, 3), 1.0)
    with pytest.raises(InputError, match="too small"):
        run("sinkhorn", torch.full((2, 2), 1e10), 1e-300)


def test_every_solver_is_registered() -> None:
    assert list(SOLVERS) == ["newton", "sinkhorn", "exact", "identity"]


# What is told of transport plans.


def plan(n: int, m: int, iterations: int, violation: float, bound: float) -> Plan:
    return Plan(torch.full((n, m), 1 / (n * m), dtype=torch.float64), iterations, violation, True, bound)


FOLDS = {
    "b": {"h1": plan(3, 2, 7, 0.5, 100.0), "h2": plan(2, 2, 8, 0.0, 200.0)},
    "a/1": {"h1": plan(2, 3, 9, 0.5, 3.0)},
}


def test_a_matrix_for_each_plan_and_how_each_problem_was_solved():
    matrices = report_plans(FOLDS).matrices
    assert {name: tuple(matrix.shape) for name, matrix in matrices.items()} == {
        "plan/b/h1": (3, 2), "plan/b/h2": (2, 2), "plan/a/1/h1": (2, 3), "solver/iterations": (3,),
        "solver/violation": (3,), "solver/bound": (3,), "solver/partners": (3,),
    }  # fmt: skip
    torch.testing.assert_close(matrices["plan/b/h1"], torch.full((3, 2), 1 / 6))
    numbers = {name: matrices[f"solver/{name}"].tolist() for name in ("iterations", "violation", "bound")}
    assert numbers == {"iterations": [7, 8, 9], "violation": [0.5, 0, 0.5], "bound": [100, 200, 3]}
    torch.testing.assert_close(matrices["solver/partners"], torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64))


def test_numbers_of_a_fold_are_sums_of_iterations_and_bounds_and_means():
    found = report_plans(FOLDS).devices["transport"]
    assert found == {
        "b": {"iterations": 15, "violation": 0.25, "bound": 300, "partners": pytest.approx(2)},
        "a/1": {"iterations": 9, "violation": 0.5, "bound": 3, "partners": pytest.approx(3)},
    }


@pytest.mark.parametrize("folds", [{}, {"a": {}}])
def test_no_plan_is_an_empty_report(folds: dict[str, dict[str, Plan]]):
    assert report_plans(folds) == Report()


def test_the_excess_of_a_fold_is_the_mean_where_the_solver_gives_it():
    plans = {name: replace(plan(2, 2, 8, 0.0, 1.0), excess=excess) for name, excess in (("h1", 0.25), ("h2", 0.75))}
    found = report_plans({"b": plans})
    assert found.devices["transport"]["b"]["excess"] == 0.5
    assert found.matrices["solver/excess"].tolist() == [0.25, 0.75]


def test_partners_are_one_for_a_permutation_and_all_for_an_even_plan():
    eye = Plan(torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]] / 4, 1, 0.0, True, 1.0)
    assert partners(eye) == 1
    halves = Plan(torch.tensor([[0.25, 0.25, 0, 0], [0, 0, 0.25, 0.25]], dtype=torch.float64), 1, 0.0, True, 1.0)
    assert partners(halves) == pytest.approx(2)


def test_the_fold_that_was_made_last_is_drawn():
    ((name, _, draw),) = transport_plans({"code_ot": [report_plans(FOLDS)], "fedavg": []})
    assert name == "transport-code_ot"
    assert "h1\n2 by 3" in [text.get_text() for text in draw().axes[0].texts]
