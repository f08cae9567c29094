"""Which metric decides, how it is written, and what is refused."""

import math
from dataclasses import replace
from shlex import split
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from answer_tables import ALONE, table

from fedcore import Dataset, InputError
from fedcore.config.params import parse
from fedcore.core.metrics import METRICS
from fedcore.partition import partition
from fedcore.partition.tables import expected_tests, shares_of, training_numbers
from fedcore.report.preview import _problems
from fedcore.results.criterion import (
    COSTS,
    RATIO,
    Criterion,
    criterion,
    free_mistakes,
    largest_class,
    measured,
    measured_by,
    ratio_of_test,
    scoring,
)
from fedcore.types.federation import Data, Scoring

CLASSES = ("ok", "fault", "stop")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": "f1"}, ["run.metric = 'f1'", "run.positive"]),
        ({"metric": "cost"}, ["run.metric = 'cost'", "run.costs", f"'run.costs={COSTS}'"]),
        *(({"metric": "cost", "costs": of}, ["run.metric = 'cost'", "predicted label"]) for of in (50, {"ok": 50})),
        ({"metric": "recall", "positive": "ok", "costs": {"ok": {"fault": 1.0}}}, ["run.costs", "'recall'"]),
        ({"costs": {"ok": {"fault": 0.0}, "fault": {}}}, ["run.costs: every mistake costs nothing; give"]),
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
    for value in (math.nan, math.inf, -1.0):
        with pytest.raises(InputError, match=rf"^run.costs.fault.ok = {value}: must be a finite number from 0 on$"):
            scoring("cost", None, {"fault": {"ok": value}}, CLASSES)


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


SITES = {
    "small": [21, 24, 28, 31, 36, 40],
    "about the least": [112, 119, 124, 126, 133, 140],
    "one big": [24] * 7 + [130],
    "many": [*range(10, 71), 260, 400],
}
"""Rows of each site; a share of .16 tests, so that 125 rows are the fewest that count."""


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SITES.values(), ids=SITES)
def test_given_devices_count_alike_with_any_seeds_and_in_preview(sizes: list[int]):
    hold_out = "stable" if len(sizes) > 6 else "random"
    rng, names = np.random.default_rng(0), [f"s{i:02d}" for i in range(len(sizes))]
    x, y = torch.from_numpy(rng.normal(size=(sum(sizes), 2))).float(), torch.from_numpy(rng.integers(0, 2, sum(sizes)))
    data = Dataset(Data(x, y), None, ("no", "yes"), device=tuple(np.repeat(names, sizes).tolist()))
    federation = {"test": 0.2, "shared_test": 0.2, "examples": None}
    tables = []
    for seed in range(10):
        parts = partition(data, name="by_device", min_size=1, seed=seed, hold_out=hold_out)
        numbers = training_numbers(data, parts, shares_of(federation))
        rows = [(name, "data", *pair) for name, of in numbers.items() for pair in of.items()]
        tables.append(pd.DataFrame(rows, columns=["device", "split", "metric", "value"]))
    decides = Criterion(least_test=20)
    first, *others = (measured(pd.concat(tables[:count]), decides) for count in (1, 3, 5, 10))
    assert others == [first] * 3
    large = [name for name, size in zip(names, sizes, strict=True) if size >= 125]
    assert [*first.weights] == (large or names)
    setting, nothing = SimpleNamespace(federation=federation), pd.DataFrame(index=names)
    (line,) = (line for line in _problems(setting, data, parts, nothing, {}) if "test rows" in line)
    how = "left out of means (run.least_test=0 counts all)" if large else "though all count"
    small = len(names) - len(large)
    assert line.startswith(("fewer than 20 test rows", "fewer than 20 expected test rows"))
    assert f", {how}: {small} of {len(names)} devices: " in line


def test_drawn_devices_and_marked_rows_have_no_number_to_expect():
    """Of marked rows there is one only where a part of them is drawn for the shared test set."""
    y = torch.arange(40) % 2
    data = Dataset(Data(torch.rand(40, 2), y), None, ("no", "yes"), device=("a",) * 30 + ("b",) * 10)
    drawn = partition(data, name="iid", devices=2, min_size=1, seed=0)
    assert expected_tests(data, drawn, (0.2, 0.2)) is None
    marked = replace(data, split=(("train",) * 3 + ("test",) * 2) * 8)
    parts = partition(marked, name="by_device", min_size=1, seed=0, shared_test=0.0)
    assert expected_tests(marked, parts, (0.2, 0.0)) is None
    assert expected_tests(data, parts, shares_of({"examples": 20})) is None
    found = expected_tests(marked, parts, (0.2, 0.25))
    assert found is not None
    assert found["expected_test"].tolist() == [9.0, 3.0]
    assert found["expected_classes"].tolist() == [2.0, 2.0]


def test_of_sequences_the_classes_of_steps_are_expected():
    """Of a fifth of 30 rows each: lengths differ; one row of device b has class v, a fifth of which is expected."""
    y = torch.zeros(60, 4, dtype=torch.int64)
    y[::2, 2:] = -1
    y[31:50, 1], y[59, 0] = 1, 2
    data = Dataset(Data(torch.rand(60, 4), y), None, ("t", "u", "v"), device=("a",) * 30 + ("b",) * 30)
    found = expected_tests(data, partition(data, name="by_device", min_size=1, seed=0), (0.2, 0.0))
    assert found is not None
    assert found.to_numpy().tolist() == [[6.0, 1.0], [6.0, 2.0]]


@pytest.mark.parametrize(
    ("classes", "costs", "said"),
    [
        ("ab", {"a": {"b": 5.0}, "b": {"a": 0.0}}, ""),
        ("ab", {"a": {"b": 5.0}}, "run.costs: not listed, so it costs nothing: b taken for a; to let it cost 1: "
        "'run.costs={a: {b: 5}, b: {a: 1}}'"),
        ("abc", {"a": {"b": 0.5}, "c": {"b": 2}}, "run.costs: not listed, so it costs nothing: a taken for c, b taken "
        "for a, b taken for c and 1 more; to let it cost 1: 'run.costs={a: {b: 0.5, c: 1}, b: {a: 1, c: 1}, c: {a: 1, "
        "b: 2}}'"),
        (["no", "a: b"], {"no": {"a: b": 2}}, "run.costs: not listed, so it costs nothing: a: b taken for no; to let "
        """it cost 1: 'run.costs={no: {"a: b": 2}, "a: b": {no: 1}}'"""),
    ],
)  # fmt: skip
def test_mistakes_that_costs_leave_out_are_named_with_what_to_type(classes: Any, costs: Any, said: str):
    assert free_mistakes(costs, classes) == said
    if said:  # what is to be typed leaves none out
        typed = split(said.partition("cost 1: ")[2])
        assert free_mistakes(parse(typed)["run.costs"], classes) == ""


def test_of_many_classes_what_to_type_is_an_example():
    said = free_mistakes({"a": {"b": 5.0}}, "abcde", where="compare")
    assert said.startswith("compare.costs: not listed, so it costs nothing: a taken for c, a taken for d, a taken for")
    assert said.endswith(' and 16 more; to let it cost 1: costs={"a": {"c": 1}, ...}')
