"""The choice among candidates by validation data."""

import pandas as pd
import pytest

from fedcore.core.metrics import METRICS
from fedcore.results import tidy
from fedcore.results.criterion import Criterion
from fedcore.results.tuning import best, validation_value


def table(values: dict[str, list[float]], metric: str = "accuracy", few: str = "") -> pd.DataFrame:
    """Return a row's table: values after each round by device; what is best on test data is worst here."""
    place = ("s", "d", "base", "row", 0, 0)
    found: list[tuple[object, ...]] = []
    for device, course in values.items():
        for turn, value in enumerate(course, 1):
            found += [(*place, turn, device, "val", metric, value), (*place, turn, device, "test", metric, 1 - value)]
        sizes = {"examples": 100, "test_examples": 2 if device == few else 50, "test_classes": 2}
        found += [(*place, 1, device, "data", name, size) for name, size in sizes.items()]
    return pd.DataFrame(found, columns=tidy.COLUMNS)


def test_the_mean_over_devices_after_the_last_round_decides():
    assert validation_value(table({"a": [0.9, 0.5], "b": [0.9, 0.7]}), Criterion()) == pytest.approx(0.6)


def test_a_device_that_does_not_count_has_no_part():
    shown = table({"a": [0.5], "b": [0.9]}, few="b")
    assert validation_value(shown, Criterion(least_test=20)) == pytest.approx(0.5)
    assert validation_value(shown, Criterion()) == pytest.approx(0.7)


def test_of_a_loss_the_least_is_best():
    tables = {0.1: table({"a": [0.9]}, "loss"), 0.3: table({"a": [0.4]}, "loss"), 1.0: table({"a": [0.6]}, "loss")}
    assert best(tables, Criterion(METRICS["log_loss"])) == 0.3


def test_of_equal_candidates_the_first_is_taken():
    tables = {"x": table({"a": [0.5]}), "y": table({"a": [0.5]})}
    assert best(tables, Criterion()) == "x"


def test_without_validation_data_the_first_is_taken():
    none = table({"a": [float("nan")]})
    assert validation_value(none, Criterion()) is None
    assert best({"x": none, "y": none}, Criterion()) == "x"
