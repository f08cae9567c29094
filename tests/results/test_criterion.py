"""Which metric decides, how it is written, and what is refused."""

import pandas as pd
import pytest
from answer_tables import ALONE, table

from fedcore.core.metrics import METRICS
from fedcore.errors import InputError
from fedcore.results.criterion import RATIO, criterion, largest_class, measured, measured_by, ratio_of_test, scoring
from fedcore.types.federation import Scoring

CLASSES = ("ok", "fault", "stop")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": "f1"}, ["run.metric = 'f1'", "run.positive"]),
        ({"metric": "cost"}, ["run.metric = 'cost'", "run.costs"]),
        ({"metric": "recall", "positive": "ok", "costs": {"ok": {"fault": 1.0}}}, ["run.costs", "'recall'"]),
        ({"metric": "acuracy"}, ["run.metric = 'acuracy'", "accuracy?"]),
        ({"min_effect": 0.0}, ["run.min_effect = 0.0", "above 0"]),
        ({"min_effect": 1.0}, ["run.min_effect = 1.0", "below 1"]),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(InputError) as refused:
        criterion(**settings)
    for words in said:
        assert words in str(refused.value)


def test_a_label_that_is_no_class_is_refused():
    with pytest.raises(InputError, match=r"run.positive = 'falt'.*did you mean fault\?"):
        scoring("f1", "falt", None, CLASSES)
    with pytest.raises(InputError, match=r"run.costs.fault = 'okay'"):
        scoring("cost", None, {"fault": {"okay": 5.0}}, CLASSES)


def test_costs_alone_ask_for_their_metric_and_name_classes():
    assert criterion(costs={"fault": {"ok": 10.0}}).metric is METRICS["cost"]
    found = scoring("cost", None, {"fault": {"ok": 10.0}, "ok": {"fault": 1.0}}, CLASSES)
    assert found.costs == ((0.0, 1.0, 0.0), (10.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert scoring("recall", "stop", None, CLASSES) == Scoring("recall", 2)
    assert scoring("accuracy", None, None, CLASSES) == Scoring()


@pytest.mark.parametrize(("rows", "counted"), [(19, ["b"]), (20, ["a", "b"])])
def test_a_device_with_just_as_many_test_rows_as_needed_counts(rows: int, counted: list[str]):
    sizes, classes = pd.Series({"a": rows, "b": 50}), pd.Series({"a": 2, "b": 2})
    found = measured_by(sizes, classes, criterion(least_test=20))
    assert ([*found.weights], found.few) == (counted, () if len(counted) == 2 else ("a",))


def test_a_table_without_numbers_of_its_data_counts_all_devices_alike():
    made = table({"local_only": ALONE})
    assert measured(made, criterion()).weights == {"d00": 1.0, "d01": 1.0}
    assert ratio_of_test(made, "test", {"d00": 1.0}) == RATIO
    assert largest_class(made) != largest_class(made)


@pytest.mark.parametrize(
    ("name", "value", "difference", "unit", "amount"),
    [
        ("accuracy", "87.3%", "+1.0", "points", "1 point"),
        ("log_loss", "0.873", "-0.01", "", "0.01"),
        ("cost", "873 per 1,000 rows", "-10", "per 1,000 rows", "10 per 1,000 rows"),
    ],
)
def test_a_metric_writes_its_numbers(name, value, difference, unit, amount):
    metric = METRICS[name]
    written = (metric.value(0.873), metric.difference(0.01), metric.unit, metric.amount(0.01))
    assert written == (value, difference, unit, amount)
    assert metric.width(-0.01) == metric.width(0.01)
    assert not metric.width(0.01).startswith(("+", "-"))


def test_numbers_as_labels_are_decided_by_their_error():
    made = table({"local_only": ALONE})
    of_label = made.head(1).assign(split="data", metric="label_std", value=250.0)
    made = pd.concat([made, of_label], ignore_index=True)
    found = criterion("auto", min_effect=0.02).of_table(made)
    assert (found.metric.name, found.min_effect, found.reason) == ("rmse", 5.0, "the label is a number")
    assert found.of_table(made) == found
    assert criterion("r2").of_table(made).min_effect == 0.01
    assert criterion("mae").of_table(made).reason == ""
    words = [METRICS["mae"].value(12345.6), METRICS["mae"].value(0.01234), METRICS["mae"].difference(1234.0)]
    assert words == ["12,346", "0.0123", "-1,234"]
