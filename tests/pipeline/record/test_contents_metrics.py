"""A run's metrics: few headline numbers, and the numbers of single devices in a table."""

import math

import pandas as pd
import pytest
from tables import NO_SECONDS, frame, grouped, rows

from fedcore.core.metrics import METRICS
from fedcore.pipeline.record.contents import device_table, metrics, read_device_table, safe_name
from fedcore.results.criterion import Criterion

SECONDS = pd.DataFrame(
    [("study", "alpha=1", "a", 0, "train", 2.0, 1.0), ("study", "alpha=1", "a", 0, "fuse", 1.0, 0.5)],
    columns=NO_SECONDS.columns,
)


def points(table: pd.DataFrame) -> dict[tuple[str, int], float]:
    found = list(metrics(table, SECONDS, 1000))
    assert all(one.timestamp == 1000 + one.step for one in found)
    named = {(one.key, one.step): one.value for one in found}
    assert len(named) == len(found)
    return named


def two_rounds() -> pd.DataFrame:
    return frame(rows({"a": [[0.4, 0.6]]}, shared=0.3), rows({"a": [[0.7, 0.9]]}, at=2, shared=0.5, up=300.0))


def test_headline_numbers_sort_first_and_bytes_add_up():
    found = points(two_rounds())
    assert found["accuracy", 1] == pytest.approx(0.5)
    assert found["accuracy", 2] == pytest.approx(0.8)
    assert found["accuracy_worst", 2] == pytest.approx(0.7)
    assert found["accuracy_std", 2] == pytest.approx(0.1)
    assert found["shared_accuracy", 2] == pytest.approx(0.5)
    assert found["validation_accuracy", 2] == pytest.approx(0.8)
    assert [found["bytes_up", step] for step in (1, 2)] == [200, 800]
    assert (found["seconds", 0], found["seconds_cpu", 0]) == (3, 1.5)
    names = sorted({key for key, _ in found})
    assert names[:3] == ["accuracy", "accuracy_std", "accuracy_worst"]
    assert len([name for name in names if "/" not in name]) <= 21
    assert not [name for name in names if "d00" in name]


def test_another_metric_that_decides_takes_the_place_of_accuracy():
    table = two_rounds()
    more = table[table["metric"] == "accuracy"]
    table = pd.concat([table, more.assign(metric="cost", value=more["value"] + 1)], ignore_index=True)
    found = {one.key: one.value for one in metrics(table, SECONDS, 0, Criterion(METRICS["cost"]))}
    assert found["cost"] == pytest.approx(1.8)
    assert found["cost_worst"] == pytest.approx(1.9)  # the greatest
    assert found["shared_cost"] == pytest.approx(1.5)
    assert found["validation_cost"] == pytest.approx(1.8)
    assert found["topic/test.accuracy"] == pytest.approx(0.8)
    assert found["topic/shared.macro_f1"] == pytest.approx(0.25)
    assert not [key for key in found if "/" not in key and ("accuracy" in key or "f1" in key)]
    columns = [*read_device_table(device_table(table, METRICS["cost"]))]
    assert [name.partition(".")[2] for name in columns].index("accuracy") == 3  # after those of cost on three splits


def test_the_mean_on_own_test_data_is_over_devices_that_count():
    sizes = {"d00": 5.0, "d01": 20.0, "d02": 60.0}
    table = frame(rows({"a": [[0.1, 0.4, 0.8]]}, shared=0.5))
    held = table[(table["split"] == "test") & (table["metric"] == "accuracy")].assign(split="data")
    held = [
        held.assign(metric="test_examples", value=held["device"].map(sizes)),
        held.assign(metric="test_classes", value=2),
    ]
    table = pd.concat([table, *held], ignore_index=True)

    def own(**rule: object) -> dict[str, float]:
        return {one.key: one.value for one in metrics(table, SECONDS, 0, Criterion(**rule))}

    assert own(least_test=0)["accuracy"] == pytest.approx(1.3 / 3)
    found = own(least_test=20)
    assert (found["accuracy"], found["accuracy_worst"]) == (pytest.approx(0.6), pytest.approx(0.4))
    assert found["shared_accuracy"] == 0.5
    assert own(least_test=20, weigh="examples")["accuracy"] == pytest.approx((20 * 0.4 + 60 * 0.8) / 80)


def test_groups_have_their_mean_accuracy():
    found = points(grouped(frame(rows({"a": [[0.2, 0.4, 0.9]]})), {"d00": "A", "d01": "A", "d02": "B"}))
    assert found["accuracy_in_A", 1] == pytest.approx(0.3)
    assert found["accuracy_in_B", 1] == pytest.approx(0.9)
    assert found["topic/data.in_A", 1] == pytest.approx(2 / 3)


def test_the_numbers_of_devices_are_a_table_of_the_last_round():
    table = two_rounds()
    table.loc[table["split"].eq("val") & table["device"].eq("d01"), "value"] = math.nan
    found = read_device_table(device_table(table))
    assert list(found.index) == ["d00", "d01"]
    assert list(found["test.accuracy"]) == [0.7, 0.9]
    assert list(found["traffic.bytes_up"]) == [300, 300]
    assert found.loc["d00", "val.accuracy"] == 0.7
    assert math.isnan(found.loc["d01", "val.accuracy"])


def test_names_that_mlflow_refuses_stay_distinct():
    assert safe_name("in_A") == "in_A"
    assert safe_name("a/b") != safe_name("a?b")
