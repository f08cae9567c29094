"""Rows that cannot win by a few seeds stop, and the answer is the one that all seeds give."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from answer_tables import ALONE, CONTROLS, plus, table

from fedcore.core.metrics import METRICS
from fedcore.report.phrases import sentences
from fedcore.results import tidy
from fedcore.results.advice import Action
from fedcore.results.answer import STOPPED_AFTER, answer
from fedcore.results.criterion import Criterion
from fedcore.results.stopping import Leader, SoFar, best, rows_that_cannot_win, validation_value
from fedcore.results.summary import NO_SECONDS, summarise

ROWS = {"local_only": ALONE, "good": plus(0.1), "near": plus(0.095), "bad": plus(-0.2), "majority": [[0.3, 0.3]] * 3}


def test_a_row_that_is_surely_below_the_best_of_its_kind_stops():
    """Guessing goes on, and so does the only row that trains alone."""
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion()) == {"bad"}


def test_the_margin_is_the_least_difference_that_matters():
    """All differences are the same in every seed: the intervals are points."""
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion(min_effect=0.004)) == {"bad", "near"}
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion(min_effect=0.4)) == frozenset()


def test_seeds_that_do_not_agree_stop_nothing():
    made = {**ROWS, "bad": [[0.9, 0.9], [0.2, 0.2], [0.3, 0.3]]}
    assert rows_that_cannot_win(table(made), CONTROLS, Criterion()) == frozenset()


def test_the_best_with_a_model_for_a_new_device_goes_on():
    made = {**ROWS, "worse": plus(-0.3)}
    assert rows_that_cannot_win(table(made), CONTROLS, Criterion(), able=["bad", "worse"]) == {"worse"}


def test_a_control_stops_only_below_all_rows():
    controls = CONTROLS | {"near", "bad"}
    assert rows_that_cannot_win(table(ROWS), controls, Criterion()) == {"bad"}


def test_where_less_is_better_the_greater_loss_stops():
    made = table(ROWS)  # its losses are 1 less the accuracy
    assert rows_that_cannot_win(made, CONTROLS, Criterion(METRICS["log_loss"])) == {"bad"}


def test_without_validation_data_nothing_stops():
    made = table(ROWS)
    assert rows_that_cannot_win(made[made["split"] != "val"], CONTROLS, Criterion()) == frozenset()


def stopped(seeds: int = 6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table of many seeds, the first of which are easy, and the one in which the bad row stops."""
    rng = np.random.default_rng(0)
    luck = np.where(np.arange(seeds) < STOPPED_AFTER, 0.25, 0.0)[:, None] + rng.normal(0, 0.01, (seeds, 2))
    base = 0.4 + luck
    made = table({
        name: (base + gain + rng.normal(0, 0.001, (seeds, 2))).tolist()
        for name, gain in {"local_only": 0.0, "good": 0.2, "bad": 0.1}.items()
    })  # fmt: skip
    return made, made[(made["method"] != "bad") | (made["seed"] < STOPPED_AFTER)]


def test_the_answer_is_that_of_all_seeds_and_names_what_stopped():
    """The stopped row has the highest mean, of the easy seeds alone, and is not the best for that."""
    whole, part = stopped()
    assert rows_that_cannot_win(part[part["seed"] < STOPPED_AFTER], CONTROLS, Criterion()) == {"bad"}
    before, after = (answer(one, CONTROLS) for one in (whole, part))
    assert (after.advice.action, after.advised, after.advice.gain) == (Action.USE, "good", before.advice.gain)
    assert (before.stopped, after.stopped, after.seeds) == ((), ("bad",), (3, 6))
    said = "Stopped after 3 of 6 seeds, since by validation data it could not win: bad (run.stop_rows=none runs all)."
    assert said in sentences(after)
    assert said not in sentences(before)


def test_a_stopped_row_stays_in_the_summary_and_changes_no_split():
    _, part = stopped()
    found = summarise(part, NO_SECONDS, CONTROLS).set_index("method")
    assert found.loc["bad", "n_seeds"] == 3
    assert {*found["primary"]} == {"test"}
    assert found.loc["good", "rank"] == 1
    assert found.loc["bad", "test_gap"] == pytest.approx(0.1, abs=0.01)


def test_a_stopped_row_is_not_among_those_not_told_apart():
    _, part = stopped()
    found = answer(part, CONTROLS)
    close = replace(found, own=replace(found.advice, indistinguishable=("bad", "near")))
    assert "Not told apart from good by these seeds: near." in sentences(close)


def course(values: dict[str, list[float]], metric: str = "accuracy", few: str = "") -> pd.DataFrame:
    """Return a row's table: values after each round by device; what is best on test data is worst here."""
    place = ("s", "d", "base", "row", 0, 0)
    found: list[tuple[object, ...]] = []
    for device, each in values.items():
        for turn, value in enumerate(each, 1):
            found += [(*place, turn, device, "val", metric, value), (*place, turn, device, "test", metric, 1 - value)]
        sizes = {"examples": 100, "test_examples": 2 if device == few else 50, "test_classes": 2}
        found += [(*place, 1, device, "data", name, size) for name, size in sizes.items()]
    return pd.DataFrame(found, columns=tidy.COLUMNS)


def test_the_mean_over_devices_after_the_last_round_decides():
    assert validation_value(course({"a": [0.9, 0.5], "b": [0.9, 0.7]}), Criterion()) == pytest.approx(0.6)


def test_a_device_that_does_not_count_has_no_part():
    shown = course({"a": [0.5], "b": [0.9]}, few="b")
    assert validation_value(shown, Criterion(least_test=20)) == pytest.approx(0.5)
    assert validation_value(shown, Criterion()) == pytest.approx(0.7)


def test_of_a_loss_the_least_is_best():
    tables = {0.1: course({"a": [0.9]}, "loss"), 0.3: course({"a": [0.4]}, "loss"), 1.0: course({"a": [0.6]}, "loss")}
    assert best(tables, Criterion(METRICS["log_loss"])) == 0.3


def test_of_equal_candidates_the_first_is_taken():
    tables = {"x": course({"a": [0.5]}), "y": course({"a": [0.5]})}
    assert best(tables, Criterion()) == "x"


def test_without_validation_data_the_first_is_taken():
    none = course({"a": [float("nan")]})
    assert validation_value(none, Criterion()) is None
    assert best({"x": none, "y": none}, Criterion()) == "x"


def leader(label: str, validation: float) -> Leader:
    return Leader(label, validation, f"{validation:.0%}")


def test_a_line_comes_with_a_row_of_each_kind_and_for_each_that_leads():
    first = SoFar()
    assert first.add(leader("local_only", 0.8), combines=False) is None
    assert first.add(leader("fedavg", 0.7), combines=True) == (
        "  so far: fedavg 70%, local_only (alone) 80%; one seed decides nothing"
    )
    assert first.add(leader("fedprox", 0.7), combines=True) is None
    assert first.add(leader("ditto", 0.9), combines=True) == (
        "  so far: ditto 90%, local_only (alone) 80%; one seed decides nothing"
    )


def test_without_training_alone_there_is_no_line():
    assert SoFar().add(leader("fedavg", 0.7), combines=True) is None
