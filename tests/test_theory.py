"""The theorems that the papers prove, on problems small enough to compute both sides: benchmarks/theory_*.py."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import theory_code, theory_dfl, theory_fedasa
from fedcore.core.aggregation import evenly
from fedcore.methods.code.transport import Transport, bound, solve_transport
from fedcore.methods.dfl.soft_targets import distillation_grad

RESULTS = theory_dfl.DOCS / "results"

# DFL and FedAvg


@pytest.fixture(scope="module")
def problems() -> dict[str, theory_dfl.Problem]:
    return theory_dfl.problems()


@pytest.mark.slow
def test_the_minimum_is_one(problems: dict[str, theory_dfl.Problem]):
    for problem in problems.values():
        assert np.abs(problem.gradient(problem.optimum)).max() < 1e-6
        random = np.random.default_rng(0)
        for scale in (1e-3, 1e-1):
            near = problem.optimum + scale * random.normal(size=problem.optimum.shape)
            distance = ((near - problem.optimum) ** 2).sum()
            above = problem.value(near) - problem.least
            assert problem.mu / 2 * distance <= above + 1e-9 <= problem.L / 2 * distance + 2e-9


@pytest.mark.slow
def test_the_problems_gradient_is_that_of_dfls_loss(problems: dict[str, theory_dfl.Problem]):
    """(3) with soft targets, by fedcore's own loss."""
    problem, (X, hard) = problems["dfl"], theory_dfl.digits()
    logits = np.einsum("cnd,dk->cnk", X, problem.optimum * 0.7)
    table = np.einsum("cnk,cnj->kj", hard, X @ problems["fedavg"].optimum) / hard.sum((0, 1))[:, None]
    loss = distillation_grad(torch.tensor(table).softmax(1), theory_dfl.RHO, 1 - theory_dfl.RHO)
    slope = loss(torch.tensor(logits).flatten(0, 1), torch.tensor(hard.argmax(-1)).flatten())
    expected = X.reshape(-1, 65).T @ slope.numpy() / len(slope) + problem.mu * problem.optimum * 0.7
    np.testing.assert_allclose(problem.gradient(problem.optimum * 0.7), expected, atol=1e-6)


@pytest.mark.slow
def test_the_error_falls_at_least_like_one_over_t():
    found = theory_dfl.slopes(theory_dfl.rates(250, 2)).set_index(["method", "devices"])
    assert (found.xs("all", level="devices")["slope"] < -1).all()
    assert (found["slope"] < -0.3).all()


def test_the_measured_slopes_are_those_of_the_measured_errors():
    anew = theory_dfl.slopes(pd.read_csv(RESULTS / "theory-dfl.csv"))
    kept = pd.read_csv(RESULTS / "theory-dfl-slopes.csv")
    pd.testing.assert_frame_equal(anew, kept, check_dtype=False, rtol=1e-3)
    assert (kept["slope"] - kept["margin"] <= -1).all()


# CODE


@pytest.mark.slow
def test_lemma_2_holds_along_algorithm_2():
    table = theory_code.lemma((10, 30), (0.1, 0.02))
    assert (table["exceeded"] == 0).all()
    assert (table["rises"] == 0).all()
    assert (table["greatest_share"] > 0.005).all()  # it is not met by being empty


def test_the_objective_of_the_lemma_ends_at_its_minimum():
    C = theory_code.layers(12, seed=1)
    excess, violation = theory_code.half_steps(C, 0.1, 200)[-1]
    assert abs(excess) < 1e-9
    assert violation < 1e-9


def test_the_lemmas_radius_is_that_of_the_bound():
    C = theory_code.layers(12, seed=1)
    limit = 2 + 4 * theory_code.radius(C, 0.05) / 1e-3
    assert limit == pytest.approx(bound(C, evenly(12), evenly(12), 0.05, 1e-3))


@pytest.mark.slow
def test_half_steps_by_epsilon_stay_far_below_theorem_2():
    table = theory_code.by_epsilon(20, (0.1, 0.05))
    assert table["converged"].all()
    assert (table["share_of_bound"] < 0.01).all()
    for _, part in table.groupby("lambda"):
        assert part["share_of_bound"].is_monotonic_decreasing
        assert part["half_steps"].is_monotonic_increasing


@pytest.mark.slow
def test_half_steps_grow_with_models_and_layers():
    """K - 1 folds of L layers: as many problems."""
    table = theory_code.by_size(0.05, 1e-3)
    assert (table["problems"] == (table["models"] - 1) * table["hidden_layers"]).all()
    per_problem = table["half_steps"] / table["problems"]
    assert per_problem.max() < 2 * per_problem.min()


@pytest.mark.slow
def test_newton_and_algorithm_2_agree_on_a_wide_layer():
    assert (theory_code.newton(60, (0.1, 0.05))["apart"] < 1e-4).all()
    C, a = theory_code.layers(60, seed=60), evenly(60)
    assert solve_transport(C, a, a, Transport("newton", 0.05)).converged


@pytest.mark.slow
def test_remark_4_the_server_pays_and_devices_do_not():
    table = theory_code.remark_4((2, 4), (0.05, 0.1), examples=100, epochs=1)
    assert (table["code_server_operations"] > table["fedavg_server_operations"]).all()
    assert (table["device_operations_code"] == table["device_operations_fedavg_1"]).all()
    assert (table["device_operations_fedavg_10"] == 10 * table["device_operations_code"]).all()


# FedASA


def test_divergences_over_intervals():
    """By hand: [0, 1] against [.5, 1.5] evenly; an interval tells half of the mass apart on one side alone."""
    x = np.linspace(0, 1, 1001)
    assert theory_fedasa.divergence(x, x) == 0.0
    assert theory_fedasa.divergence(x, x + 0.5) == pytest.approx(1, abs=0.01)
    assert theory_fedasa.divergence(x, x + 5) == 2.0


@pytest.mark.slow
def test_theorem_1_holds_for_a_common_part_and_not_for_any():
    table = theory_fedasa.bound(((4, 50), (12, 5000)), draws=20).set_index("points")
    assert (table["broken_common"] == 0).all()
    assert table.loc[50, "bound_common"] > 1 or table.loc[50, "complexity"] > 0.5  # says little with few points
    assert table.loc[5000, "broken_own"] > 10


@pytest.mark.slow
def test_theorem_2_bounds_the_mean_gradient():
    table = theory_fedasa.stationarity((5, 20), seeds=1)
    assert (table["mean_squared"] <= table["bound"]).all()
    for row in table.itertuples():
        rate = math.sqrt(2 * row.M / (row.L * row.T * row.K**2 * row.G2))
        assert row.rate == pytest.approx(rate, rel=0.2)  # the constants of the second run, of the first
    assert table["mean_squared"].iloc[1] < table["mean_squared"].iloc[0]


@pytest.mark.parametrize("name", ["lemma", "epsilon", "size", "newton", "cost"])
def test_what_the_pages_say_of_code_is_in_its_files(name: str):
    table = pd.read_csv(RESULTS / f"theory-code-{name}.csv")
    if name == "lemma":
        assert table["exceeded"].sum() == 0
    if name == "newton":
        assert (table["apart"] < 1e-4).all()
        first, second, third = (f"{one:.0e}".replace("e-0", "e-") for one in table["apart"])
        for page in ("docs/results/theory.md", "papers/code.yaml"):
            assert f" is {first}, {second} and {third} " in (RESULTS.parents[1] / page).read_text()
