"""Tuning from a script."""

from itertools import product
from typing import Any

import pytest

import fedcore as fc


@pytest.fixture(scope="module")
def fed() -> Any:
    return fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(12), examples=600)


@pytest.mark.slow
def test_the_best_combination_on_validation_data_is_chosen(fed: Any):
    """Against a run for each combination, whose validation scores are averaged by hand."""
    grid = {"lr": [1e-5, 0.01], "rounds": [1, 3]}
    found = fc.tune(fc.fedavg(training={"epochs": 1}), fed, seed=1, progress=False, **grid)
    expected = {}
    for lr, rounds in product(*grid.values()):
        result = fc.run(fc.fedavg(rounds=rounds, training={"epochs": 1, "lr": lr}), fed, 1, progress=False)
        last = result.table[result.table["round"] == rounds]
        expected[lr, rounds] = last[(last["split"] == "val") & (last["metric"] == "accuracy")]["value"].mean()
    assert {(row.lr, row.rounds): row.value for row in found.table.itertuples()} == pytest.approx(expected)
    chosen = found.config.training.lr, found.config.settings["rounds"]
    assert chosen == max(expected, key=lambda point: expected[point])


def test_a_combination_that_diverges_is_not_chosen(fed: Any):
    tried = fc.tune(fc.fedavg(training={"epochs": 1, "optimiser": "sgd"}), fed, lr=[1e30, 0.1], progress=False)
    assert tried.config.training.lr == 0.1
    assert tried.table["value"].isna().tolist() == [True, False]


def test_a_metric_of_one_label_may_decide(fed: Any):
    tried = fc.tune(fc.fedavg(), fed, epochs=[1], metric="recall", positive="3", progress=False)
    assert tried.table["value"].between(0, 1).all()


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({}, "tune: needs values to try"),
        ({"lr": []}, "tune.lr = []: must have values"),
        ({"speed": [1]}, "tune.speed: fedavg has no such setting"),
        ({"lr": [-1]}, "fedavg.training.lr = -1"),
        ({"lr": [0.1], "metric": "recall"}, "tune.metric = 'recall': needs tune.positive"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_name(fed: Any, grid: dict[str, Any], says: str):
    with pytest.raises(fc.InputError, match=says.replace("[", r"\[")):
        fc.tune(fc.fedavg(), fed, **grid)
