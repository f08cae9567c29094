"""Links from reports and divergences, by hand; how often their program is solved, and what is reported of it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import bits
from links import BOUNDS, COSTS, NAMES, REPORTS, ROUND_INFO, D, formed, planted

from fedcore.methods.st_lf import divergence, planning, programs
from fedcore.methods.st_lf.bound import source_bound, target_bound
from fedcore.methods.st_lf.forms import StepSolution
from fedcore.methods.st_lf.planning import link_costs, pose_program, report_solution
from fedcore.methods.st_lf.problem import Problem, Solution, best_links
from fedcore.methods.st_lf.programs import solve_successively


def test_planted_divergences_give_the_links_worked_out_from_s_t_and_k():
    """c is near a and d near b, and neither has a label: each target listens to its neighbour."""
    server, messages, report = formed()
    torch.testing.assert_close(report.matrices["divergence"], torch.from_numpy(D))
    error = np.array([0.1 * 500 + 100, 0.2 * 400 + 100, np.nan, np.nan]) / [600, 500, 700, 800]
    error[2:] = 1e3
    sizes, how = np.array([600.0, 500, 700, 800]), {"delta": 1e-3, "constants": "assumed"}
    problem = Problem(
        source_bound(error, sizes, **how), target_bound(error, sizes, D, **how), link_costs(5, 4, COSTS), 1, 5, 1
    )
    psi = np.array([0.0, 0, 1, 1])
    assert server["psi"].tolist() == psi.tolist()
    np.testing.assert_array_equal(server["alpha"].numpy(), best_links(problem, psi))
    assert {name: bool(message.extra["sends"]) for name, message in messages.items()} == {
        name: bool(server["alpha"][i].any()) for i, name in enumerate(NAMES)
    }
    assert server["energy"].tolist() == problem.energy.tolist()
    assert float(report.matrices["gap"]) == 0
    assert report.devices["program"] == {name: {"gap": 0.0} for name in NAMES}
    assert bits({name: report.matrices[name] for name in ("psi", "alpha", "energy")}) == bits(
        {name: server[name] for name in ("psi", "alpha", "energy")}
    )


def test_the_order_of_devices_does_not_matter():
    """The same costs, handed over with the devices in another order, give the same links."""
    order = [2, 0, 3, 1]
    costs = link_costs(5, 4, COSTS)

    def links(index):
        moved = replace(COSTS, costs=costs[np.ix_(index, index)].tolist())
        server, *_ = formed({"report": REPORTS["report"][index]}, D[np.ix_(index, index)], costs=moved)
        return server["psi"], server["alpha"]

    (psi, alpha), (moved, weights) = links([0, 1, 2, 3]), links(order)
    assert torch.equal(moved, psi[order])
    assert torch.equal(weights, alpha[order][:, order])


def test_the_factor_of_divergences_is_in_t_alone():
    server, round_info = REPORTS, ROUND_INFO
    plain, more = (pose_program(server, D, round_info, replace(BOUNDS, phi_d=phi), COSTS) for phi in (1.0, 100.0))
    np.testing.assert_allclose(more.target - plain.target, 99 * D / 2)
    np.testing.assert_array_equal(more.source, plain.source)


@pytest.fixture
def unsolved():
    """A process that remembers no program's answer, before and after."""
    planning.solve_cached.cache_clear()
    yield
    planning.solve_cached.cache_clear()


@pytest.mark.slow
def test_rows_that_pose_the_same_program_have_it_solved_once(unsolved, monkeypatch):
    posed, solve = [], planning.solve_program
    monkeypatch.setattr(planning, "solve_program", lambda problem, how: posed.append(problem) or solve(problem, how))
    first, again = formed(), formed()
    assert len(posed) == 1
    assert bits(first) == bits(again)
    problem = pose_program(REPORTS, divergence.matrix(planted(D), NAMES).numpy(), ROUND_INFO, BOUNDS, COSTS)
    assert [x.tolist() for x in (posed[0].source, posed[0].target, posed[0].energy)] == [
        x.tolist() for x in (problem.source, problem.target, problem.energy)
    ]
    dear = {"bounds": replace(BOUNDS, phi_e=2.0)}
    for other in (dear, {"d": D / 2}, {"round_info": replace(ROUND_INFO, seed=6)}, {"solver": "repaired"}):
        formed(**other)
    assert len(posed) == 5


def test_a_solver_that_fails_is_a_warning_that_names_its_stand_in(unsolved, monkeypatch):
    def cone(around):
        return StepSolution(None, np.inf, "NumericalError")

    monkeypatch.setitem(programs.SOLVERS, "successive", partial(solve_successively, solve_step=cone))
    server, _, told = formed(solver="successive")
    status = "cone: NumericalError at iteration 1; fallback: local search"
    assert told.words == {"status": status, "warning": f"the program was not solved as asked; {status}"}
    assert server["psi"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("status", ["cone: Solved", "cone: max_iterations"])  # the latter is its own end, no failure
def test_a_solver_that_ends_is_no_warning(status):
    answer = Solution(np.zeros(1), np.zeros((1, 1)), 0.0, 0.0, 1, 0.0, status)
    assert report_solution(answer, "a").words == {"status": status}


def test_gap_iterations_fall_and_rise_of_a_program_are_reported():
    def solution(gap, *trace):
        answer = Solution(np.zeros(1), np.zeros((1, 1)), 0.0, gap, 1, 0.0, "", trace)
        return report_solution(answer, "ab").devices["program"]

    expected = {"gap": 0.25, "iterations": 4, "fall": 3 / 8, "rise": 2 / 8}
    assert solution(0.25, 8.0, 4.0, 6.0, 5.0) == {"a": expected, "b": expected}
    assert solution(0.0)["a"] == {"gap": 0}
    assert solution(np.nan, 8.0)["a"] == {"iterations": 1, "fall": 0, "rise": 0}
