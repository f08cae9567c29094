"""Reports of all turns, read together; and a method of one's own whose server reports what it finds."""

import math
from functools import partial

import pytest
import torch
from federations import NET, SGD, federation

from fedcore import Message, Method, Report, Stage, initial_messages, received_model, to_everyone, train
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.results import reports, tidy


def test_series_have_a_number_for_each_turn_nan_where_nothing_was_said():
    told = [Report(series={"a": {"x": 1.0}}), Report(), Report(series={"a": {"x": 3.0, "y": 4.0}, "b": {"x": 5.0}})]
    nan = pytest.approx(math.nan, nan_ok=True)
    assert reports.series(told) == {"a": {"x": [1, nan, 3], "y": [nan, nan, 4]}, "b": {"x": [nan, nan, 5]}}
    assert reports.series([]) == {}


def test_of_devices_each_topics_last_turn_counts():
    told = [
        Report(devices={"z": {"a": {"x": 1.0}, "b": {"x": 2.0}}, "m": {"a": {"y": 3.0}}}),
        Report(devices={"z": {"a": {"x": 4.0}}}),
        Report(),
    ]
    found = reports.devices(told)
    assert found == {"m": {"a": {"y": 3.0}}, "z": {"a": {"x": 4.0}}}
    assert [*found] == ["m", "z"]


def test_of_matrices_each_kinds_last_turn_counts():
    one, two, three = (torch.tensor(number) for number in (1.0, 2.0, 3.0))
    told = [Report(matrices={"plan/a/h": one, "plan/b/h": one, "psi": one}), Report(matrices={"plan/b/h": two})]
    assert reports.matrices([*told, Report()]) == {"plan/b/h": two, "psi": one}
    assert reports.over_rounds([*told, Report(matrices={"psi": three})], "psi") == {1: one, 3: three}


def test_different_words_are_told_once_each():
    told = [Report(words={"warning": word, "other": "x"}) for word in ("slow", "slow", "failed", "slow")]
    assert reports.words([Report(), *told], "warning") == ["slow", "failed"]


def test_a_warning_names_classes_in_the_place_of_their_numbers():
    told = [Report(words={"warning": "no {1}, {0} or {2}: {x}", "status": "{1}"}), Report()]
    named = reports.name_classes(told, ["leak", "worn"])
    assert named == [Report(words={"warning": "no 'worn', 'leak' or {2}: {x}", "status": "{1}"}), Report()]


def median(server, updates, round_info):
    """Send the median of the models; report how far everyone is from it."""
    stacked = {
        key: torch.stack([update.params[key] for update in updates.values()])
        for key in next(iter(updates.values())).params
    }
    model = {key: x.median(0).values for key, x in stacked.items()}
    far = {
        name: {"distance": float(sum((update.params[key] - x).norm() for key, x in model.items()))}
        for name, update in updates.items()
    }
    found = Report(
        series={"median": {"spread": max(numbers["distance"] for numbers in far.values())}},
        devices={"median": far},
        matrices={"head": model["fc3.weight"]},
        words={"warning": f"round {round_info.round}"},
    )
    return server, to_everyone(round_info.names, Message(model)), found


def review(devices, scores):
    told = {name: {**numbers, "right": scores[name]["test"]["accuracy"]} for name, numbers in devices["median"].items()}
    return {"median": told}


MEDIAN = Method(
    partial(initial_messages, shared_init=True),
    (Stage(partial(train, training=SGD), median, 3),),
    received_model,
    review,
)


def test_what_a_method_of_ones_own_reports_is_in_its_rounds_and_rows():
    fed = federation()
    played = list(run(MEDIAN, fed, 0, Inline(), every=2))
    told = [one.report for one in played]
    assert reports.words(told, "warning") == ["round 0", "round 1", "round 2"]
    for one in played:
        assert torch.equal(one.report.matrices["head"], one.state.messages["a"].params["fc3.weight"])
        assert one.state.server == {}
    found = reports.final_numbers(MEDIAN, told, played[-1].scores)
    assert {name: numbers["right"] for name, numbers in found["median"].items()} == {
        name: scores["test"]["accuracy"] for name, scores in played[-1].scores.items()
    }
    table = tidy.rows(tidy.Row("s", "d", "base", "median", 0), played, told, found)
    rows = table[table["split"] == "median"].set_index(["round", "device", "metric"])["value"].to_dict()
    (course,) = reports.series(told)["median"].values()
    assert rows == {
        **{
            (round_info, name, "spread"): course[round_info - 1] for round_info in (2, 3) for name in fed.devices
        },  # evaluated rounds
        **{(3, name, metric): x for name, numbers in found["median"].items() for metric, x in numbers.items()},
    }


def test_a_method_that_reports_nothing_has_empty_reports():
    def silent(server, updates, round_info):
        return server, {}

    built = Method(
        partial(initial_messages, shared_init=True), (Stage(partial(train, training=SGD), silent),), received_model
    )
    (one,) = run(built, federation("ab", NET), 0, Inline())
    assert one.report == Report()
