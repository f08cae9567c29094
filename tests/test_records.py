import pytest
import torch

from fedcore import records
from fedcore.align.transport import Plan
from fedcore.distillation import recorded
from fedcore.types import Params


def plan(n, m, iterations, violation, bound):
    return Plan(torch.full((n, m), 1 / (n * m), dtype=torch.float64), iterations, violation, True, bound)


def test_a_leaf_for_each_plan_and_how_each_problem_was_solved():
    folds = {
        "b": {"h1": plan(3, 2, 7, 1e-9, 100.0), "h2": plan(2, 2, 8, 0.0, 200.0)},
        "a": {"h1": plan(2, 3, 9, 0.5, 3.0)},
    }
    leaves = records.plans(folds)
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    assert shapes == {
        "record/plan/b/h1": (3, 2),
        "record/plan/b/h2": (2, 2),
        "record/plan/a/h1": (2, 3),
        "record/solver/iterations": (3,),
        "record/solver/violation": (3,),
        "record/solver/bound": (3,),
        "record/solver/partners": (3,),
    }
    assert all(name.startswith(records.PREFIX) for name in leaves)
    assert leaves["record/plan/b/h1"].dtype == torch.float32
    torch.testing.assert_close(leaves["record/plan/b/h1"], torch.full((3, 2), 1 / 6))
    numbers = {name: leaves[f"record/solver/{name}"].tolist() for name in ("iterations", "violation", "bound")}
    assert numbers == {"iterations": [7, 8, 9], "violation": [1e-9, 0, 0.5], "bound": [100, 200, 3]}
    torch.testing.assert_close(leaves["record/solver/partners"], torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64))
    assert leaves["record/solver/violation"].dtype == torch.float64


def test_no_plan_leaves_no_matrix():
    for folds in ({}, {"a": {}}):
        leaves = records.plans(folds)
        assert leaves
        assert all(leaf.shape == (0,) for leaf in leaves.values())


def test_partners_are_one_for_a_permutation_and_all_for_an_even_plan():
    eye = Plan(torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]] / 4, 1, 0.0, True, 1.0)
    assert records.partners(eye) == 1
    halves = Plan(torch.tensor([[0.25, 0.25, 0, 0], [0, 0, 0.25, 0.25]], dtype=torch.float64), 1, 0.0, True, 1.0)
    assert abs(records.partners(halves) - 2) < 1e-12


def test_numbers_of_a_fold_are_sums_of_iterations_and_bounds_and_means_of_the_rest():
    folds = {
        "b": {"h1": plan(3, 2, 7, 0.5, 100.0), "h2": plan(2, 2, 8, 0.0, 200.0)},
        "a": {"h1": plan(2, 3, 9, 0.5, 3.0)},
    }
    found = records.by_fold({"other": torch.zeros(1)} | records.plans(folds))
    assert {name: {k: round(v, 9) for k, v in numbers.items()} for name, numbers in found.items()} == {
        "b": {"iterations": 15, "violation": 0.25, "bound": 300, "partners": 2},
        "a": {"iterations": 9, "violation": 0.5, "bound": 3, "partners": 3},
    }
    assert records.by_fold({"other": torch.zeros(1)}) == {}


def test_the_last_fold():
    folds = {"b": {"h1": plan(3, 2, 7, 0.5, 1.0)}, "a": {"h1": plan(2, 3, 9, 0.5, 3.0), "h2": plan(2, 2, 9, 0.5, 3.0)}}
    assert {k: tuple(x.shape) for k, x in records.last_fold(records.plans(folds)).items()} == {
        "h1": (2, 3),
        "h2": (2, 2),
    }
    assert records.last_fold({}) == {}


ALIGNED = {
    "record/alignment/a": torch.tensor(1),
    "record/distance/a": torch.tensor([3.0, 0.5, torch.inf], dtype=torch.float64),
    "record/alignment/b/1": torch.tensor(0),
    "record/distance/b/1": torch.tensor([2.0], dtype=torch.float64),
    "hyper/x": torch.zeros(2),
}


def test_alignment_is_depth_and_finite_distances_of_each_device():
    expected = {"a": {"depth": 1, "distance_0": 3, "distance_1": 0.5}, "b/1": {"depth": 0, "distance_0": 2}}
    assert records.alignment(ALIGNED) == expected


def test_numbers_are_all_that_is_known_by_split():
    plans = records.plans({"b": {"h1": plan(3, 2, 7, 0.5, 100.0)}})
    assert records.numbers({}) == records.numbers({"hyper/x": torch.zeros(1)}) == {}
    assert records.numbers(ALIGNED) == {"alignment": records.alignment(ALIGNED)}
    assert records.numbers(plans | ALIGNED) == {
        "transport": records.by_fold(plans),
        "alignment": records.alignment(ALIGNED),
    }


def test_numbers_are_recorded_round_by_round():
    first = records.extended({}, {"rho": torch.tensor(1.0), "rows": torch.tensor([1, 2])})
    second = records.extended(
        {**first, "other": torch.zeros(2)}, {"rho": torch.tensor(0.5), "rows": torch.tensor([3, 4])}
    )
    assert {name: leaf.tolist() for name, leaf in second.items()} == {
        "record/rho": [1.0, 0.5], "record/rows": [[1.0, 2.0], [3.0, 4.0]],
    }  # fmt: skip


def test_courses_are_the_numbers_of_every_round():
    told = {"record/rho": torch.tensor([1.0, 0.5]), "record/rows": torch.zeros(2, 3), "record/x/y": torch.zeros(2)}
    assert {name: course.tolist() for name, course in records.courses(told | ALIGNED).items()} == {"rho": [1.0, 0.5]}
    assert records.numbers(told) == {}


def test_of_targets_the_accuracy_is_told_and_how_far_bounds_are_above_their_error():
    links = {"a": {"target": 0.0, "energy": 3.0}, "b": {"target": 1.0, "theorem_2": 0.5, "corollary_1": 4.0},
             "c": {"target": 1.0}}  # fmt: skip
    found = records.served(links, {"a": 0.9, "b": 0.25, "c": 0.75})
    assert found == {
        "a": links["a"],
        "b": {**links["b"], "accuracy": 0.25, "slack_theorem_2": -0.25, "slack_corollary_1": 3.25},
        "c": {"target": 1.0, "accuracy": 0.75},
    }
    assert [*found["b"]][-2:] == ["slack_theorem_2", "slack_corollary_1"]  # the table's rows come in this order


def test_a_solver_that_failed_is_told_with_what_stands_in():
    def said(words: str) -> str | None:
        return records.stood_in({"record/status": torch.tensor(list(words.encode()), dtype=torch.uint8)})

    failed = "cone: NumericalError at iteration 1; fallback: local search"
    assert said(failed) == failed
    assert said("cone: Solved") is None
    assert said("cone: max_iterations") is None  # its own end, no failure
    assert records.stood_in({}) is None


def test_of_a_program_gap_iterations_and_how_far_it_fell_and_rose_are_told_of_every_device():
    solved: Params = {"record/gap": torch.tensor(0.25), "record/trace": torch.tensor([8.0, 4.0, 6.0, 5.0])}
    named: Params = {"record/links/a": torch.full((len(records.LINKS),), torch.nan), "record/links/b": torch.zeros(10)}
    expected = {"gap": 0.25, "iterations": 4, "fall": 3 / 8, "rise": 2 / 8}
    assert records.program(solved | named) == {"a": expected, "b": expected}
    exact: Params = {"record/gap": torch.tensor(0.0), "record/trace": torch.zeros(0)}
    assert records.numbers(exact | named)["program"] == {"a": {"gap": 0}, "b": {"gap": 0}}
    unknown: Params = {"record/gap": torch.tensor(torch.nan), "record/trace": torch.tensor([8.0])}
    assert records.program(unknown | named)["a"] == {"iterations": 1, "fall": 0, "rise": 0}
    assert records.program(named) == {}


@pytest.mark.parametrize(("rounds", "kept"), [(1, [1]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_soft_targets_are_kept_after_rounds_1_2_4_and_the_last(rounds: int, kept: list[int]):
    server: Params = {}
    given = {}
    for number in range(1, rounds + 1):
        given[number] = torch.full((2, 2), -torch.inf, dtype=torch.float64).fill_diagonal_(0) + number * torch.eye(2)
        given[number][0] = torch.tensor([0.0, number])
        server |= recorded(server, given[number], 2.0)
    found = records.tables(server)
    assert sorted(found) == kept
    for number, table in found.items():
        torch.testing.assert_close(table, (given[number] / 2).softmax(1).float())
    assert records.tables({"record/rho": torch.zeros(3)}) == {}
