"""Rows at chance are named with their likely cause: on made numbers, and on runs whose cause is known."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from answer_tables import ALONE, CONTROLS, table

import fedcore as fc
from fedcore.report.phrases import sentences
from fedcore.results.answer import answer
from fedcore.results.chance import Cause

CHANCE = [[0.3, 0.3]] * 3


def with_losses(made: pd.DataFrame, losses: Mapping[str, float]) -> pd.DataFrame:
    known = made["metric"].eq("loss") & made["method"].isin(list(losses))
    return made.assign(value=made["value"].where(~known, made["method"].map(losses)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "cause"),
    [(1.1, Cause.TOO_FAR), (math.nan, Cause.TOO_FAR), (0.71, Cause.TOO_LITTLE), (0.5, Cause.COMMONEST)],
)
def test_the_loss_beside_that_of_guessing_tells_the_cause(loss: float, cause: Cause):
    made = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    found = answer(with_losses(made, {"code": loss, "majority": 0.7}), CONTROLS)
    assert {name: one.cause for name, one in found.causes.items()} == {"code": cause}
    (said,) = [one for one in sentences(found) if "always guessing (" in one]
    assert said.startswith(f"No better than always guessing (loss 0.7) is code (loss {loss:.3g}): ")


def test_the_loss_of_an_untrained_net_is_not_called_too_far():
    """Nine of ten rows are of one class: guessing has .33 nats, an untrained net ln 2."""
    made = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    row = made[made["method"] == "code"].iloc[[0]].assign(split="data", metric="classes", value=2.0)
    made = with_losses(pd.concat([made, row], ignore_index=True), {"code": 0.7, "majority": 0.33})
    assert answer(made, CONTROLS).causes["code"].cause is Cause.TOO_LITTLE


def test_rare_labels_among_several_are_told_apart_from_an_untrained_net():
    """Guessing has .2 nats a label, an untrained net ln 2; the answer goes by macro F1, which needs 1/2."""
    made = table({"local_only": ALONE, "code": CHANCE, "fedavg": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    row = made[made["method"] == "code"].iloc[[0]].assign(split="data", metric="labels", value=3.0)
    made = made.assign(metric=made["metric"].replace({"accuracy": "macro_f1", "macro_f1": "subset_accuracy"}))
    made = with_losses(pd.concat([made, row], ignore_index=True), {"code": 0.15, "fedavg": 0.7, "majority": 0.2})
    found = answer(made, CONTROLS)
    assert {name: one.cause for name, one in found.causes.items()} == {
        "code": Cause.COMMONEST, "fedavg": Cause.TOO_LITTLE,
    }  # fmt: skip
    assert any("those of rare labels stay below 1/2" in one for one in sentences(found))


def data() -> Any:
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(6, 8))
    y = np.maximum(np.arange(720) % 10 - 4, 0)  # half of them are of class 0
    return fc.from_arrays((centres[y] + rng.normal(size=(720, 8))).astype("float32"), y)


SGD = {"optimiser": "sgd", "epochs": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("divide", "widths", "lr", "shared_init", "cause"),
    [
        (fc.iid(), (16,), 1e-5, True, Cause.TOO_LITTLE),
        (fc.iid(), (16,), 2.0, True, Cause.TOO_FAR),
        (fc.iid(), (16, 8), 2.0, True, Cause.TOO_LITTLE),  # its units are dead
        (fc.few_classes(classes=2), (16, 8), 0.1, False, Cause.DIFFERENT_STARTS),
    ],
)
def test_runs_that_were_spoilt_are_told_by_how(divide: Any, widths: Any, lr: float, shared_init: bool, cause: Cause):
    fed = fc.federate(data(), divide, devices=4, net=fc.mlp(*widths))
    rows = [
        fc.local_only(training={**SGD, "lr": 0.1}),
        fc.fedavg(training={**SGD, "lr": lr, "shared_init": shared_init}),
    ]
    found = fc.compare(rows, fed, seeds=[0, 1]).answer.causes
    assert {name: one.cause for name, one in found.items()} == {"fedavg": cause}
