import torch

from fedcore import records
from fedcore.transport import Plan


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
    }
    assert all(name.startswith(records.PREFIX) for name in leaves)
    assert leaves["record/plan/b/h1"].dtype == torch.float32
    torch.testing.assert_close(leaves["record/plan/b/h1"], torch.full((3, 2), 1 / 6))
    numbers = {name: leaves[f"record/solver/{name}"].tolist() for name in ("iterations", "violation", "bound")}
    assert numbers == {"iterations": [7, 8, 9], "violation": [1e-9, 0, 0.5], "bound": [100, 200, 3]}
    assert leaves["record/solver/violation"].dtype == torch.float64


def test_no_plan_leaves_no_matrix():
    for folds in ({}, {"a": {}}):
        leaves = records.plans(folds)
        assert leaves
        assert all(leaf.shape == (0,) for leaf in leaves.values())
