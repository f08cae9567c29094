"""What is told of transport plans."""

from dataclasses import replace

import pytest
import torch

from fedcore.methods.code.transport import Plan, partners, report_plans
from fedcore.report.figures.code import last_fold
from fedcore.types.method import Report


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
    matrices = report_plans(FOLDS).matrices
    assert {label: tuple(matrix.shape) for label, matrix in last_fold(matrices).items()} == {"h1": (2, 3)}
    assert last_fold({}) == {}
