"""What a method's rounds become in the tidy table, without a server; what is recorded of it over devices."""

import math
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import pytest
from federations import federation as plainly
from signals import ADAM

from fedcore.core.metrics import METRICS
from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.report.tables import notes
from fedcore.results import tidy
from fedcore.results.criterion import LEFT_OUT, Criterion
from fedcore.results.summary import NO_SECONDS, summarise
from fedcore.types.method import Report


def test_bytes_are_listed_of_the_devices_that_took_part():
    fed = plainly("abcdefgh")
    made = method(
        "fedavg", nets=fed.public.nets, training=ADAM, shared_init=True, rounds=3, fraction=0.25, weights="size"
    )
    played = list(run(made, fed, 0, Inline(), every=3))
    rows = tidy.rows(tidy.Row("s", "d", "base", "fedavg", 0), played, [one.report for one in played], {})
    traffic = rows[rows["split"] == "traffic"]
    model = 4 * sum(tensor.numel() for tensor in played[-1].state.messages["a"].params.values())
    present = {one.round_info.round + 1: set(one.round_info.units) for one in played}
    assert [len(names) for names in present.values()] == [2, 2, 2]
    assert set.union(*present.values()) < set(fed.devices)  # some never take part, and get the model at the end
    up = traffic[traffic["metric"] == "bytes_up"].set_index(["round", "device"])["value"].to_dict()
    assert up == {(r, name): model for r, names in present.items() for name in names}
    down = traffic[traffic["metric"] == "bytes_down"].set_index(["round", "device"])["value"]
    sums = {r: sum(played[r - 1].down.values()) for r in present}
    assert down.groupby("round").sum().to_dict() == sums
    assert {name for r, name in down.index if r < 3} == present[1] | present[2]
    assert {name for r, name in down.index if r == 3} == set(fed.devices)
    assert down[3].drop(list(present[3])).eq(model).all()


@pytest.mark.slow
def test_the_traffic_before_the_first_round_has_rows_of_its_own():
    """So that training alone still is what sends nothing, and its seconds are those of the preparation."""
    fed = plainly("abc")
    made = method("local_only", nets=fed.public.nets, training=ADAM)
    played = list(run(made, fed, 0, Inline()))
    before = {name: {"prepare_up": 40.0, "prepare_down": 32.0} for name in "abc"}
    place = tidy.Row("s", "d", "base", "local_only", 0)
    whole, plain = (tidy.rows(place, played, [one.report for one in played], {}, b) for b in (before, {}))
    added = whole[whole["metric"].str.startswith("prepare_")]
    pd.testing.assert_frame_equal(whole.drop(added.index).reset_index(drop=True), plain)
    assert added.pivot_table("value", "device", "metric").to_dict("index") == before
    assert set(zip(added["stage"], added["round"], added["split"], strict=True)) == {(0, 1, "traffic")}
    assert tidy.transfer_seconds(whole, 8.0)["value"].tolist() == [9.0] * 3
    summary = summarise(whole, NO_SECONDS, frozenset()).iloc[0]
    assert summary[["bytes_up", "bytes_down", "prepare_up", "prepare_down"]].tolist() == [0, 0, 120, 96]
    assert "sends 40 B and receives 32 B once" in notes(summary.to_frame().T)[-1]
    assert summarise(plain, NO_SECONDS, frozenset()).iloc[0]["prepare_down"] == 0


def test_over_devices_and_groups():
    rows = pd.DataFrame({"device": list("abc"), "split": "test", "metric": "accuracy", "value": [0.2, 0.6, 0.4]})
    groups = pd.Series({"a": "x", "b": "x", "c": "y"})
    plain = {"mean": pytest.approx(0.4), "worst": 0.2, "std": pytest.approx((0.08 / 2) ** 0.5)}
    assert tidy.over_devices(rows, groups) == {**plain, "in_x": pytest.approx(0.4), "in_y": 0.4}
    assert tidy.over_devices(rows, groups[:2]) == tidy.over_devices(rows, groups[:0]) == plain
    assert tidy.over_devices(rows.assign(split="data"), groups) == plain
    assert tidy.over_devices(rows.assign(metric="loss"), groups)["worst"] == 0.6


@pytest.mark.slow
def test_the_servers_counts_of_evaluated_rounds_are_in_every_devices_rows():
    fed = plainly()
    made = method(
        "dfl", nets=fed.public.nets, training=ADAM, shared_init=True, rounds=5, fraction=1.0, ratio="dynamic",
        threshold=0.5, temperature=1.0, weighting="counts",
    )  # fmt: skip
    played = list(run(made, fed, 0, Inline(), every=2))
    rows = tidy.rows(tidy.Row("s", "d", "base", "dfl", 0), played, [one.report for one in played], {})
    told = rows[rows["split"] == "distillation"]
    rho = told[told["metric"] == "rho"].set_index(["round", "device"])["value"]
    assert rho.to_dict() == {(r, name): pytest.approx(1 - r / 5) for r in (2, 4, 5) for name in "abc"}
    assert set(told["metric"]) == {"rho", "diagonal", "right"}


# Rows that a study derives


def scored(name: str, seed: int, val: float | None, shared: float, setting: str = "base") -> list[tuple[Any, ...]]:
    """Two rounds on two devices; the first round's validation scores mislead."""
    found: list[tuple[Any, ...]] = []
    for at, own, there in ((1, 1 - (val or 0), 0.1), (2, val, shared)):
        for device, up in (("a", 100.0), ("b", 0.0)):
            place = ("s", "d", setting, name, seed, 0, at, device)
            found += [(*place, "traffic", "bytes_up", up), (*place, "traffic", "bytes_down", 3 * up)]
            found += [(*place, "val", "accuracy", own), (*place, "shared", "accuracy", there)]
    return found


@pytest.mark.parametrize(
    "of",
    [
        {"series": {"test": {"loss": 0.0}}}, {"devices": {"traffic": {"a": {"bytes_up": 1.0}}}},
        {"devices": {"data": {"a": {"test_examples": 5.0}}}}, {"counts": {"inference": {"a": {"nets_run": 7.0}}}},
    ],
)  # fmt: skip
def test_a_report_whose_rows_would_stand_among_others_is_refused(of: dict[str, Any]):
    fed = plainly("ab")
    built = method("local_only", nets={name: device.net for name, device in fed.devices.items()}, training=ADAM)
    played, row = [*run(built, fed, 0, Inline())], tidy.Row("s", "d", "s", "mine", 0)
    (topic,) = next(iter(of.values()))
    with pytest.raises(InputError, match=rf"^method mine: topic '{topic}' of its Report is a split of others; call it"):
        tidy.of_run(row, built, played, [Report(**of)] * len(played), {})
    table = tidy.of_run(row, built, played, [Report(series={"mine": {"loss": 0.0}})] * len(played), {})
    assert {*table["split"]} == {"val", "test", "shared", "traffic", "inference", "mine"}


def test_a_tuned_row_is_the_best_on_validation_data_seed_by_seed():
    """The shared test set says the opposite, and so do the validation data of the first round."""
    drawn = [*scored("x", 0, 0.9, 0.2), *scored("y", 0, 0.8, 0.7), *scored("x", 1, 0.5, 0.6), *scored("y", 1, 0.6, 0.3)]
    whole = pd.DataFrame([*drawn, *scored("z", 0, 1.0, 1.0)], columns=tidy.COLUMNS)
    found = tidy.choose(whole, "tuned", ["x", "y"])
    expected = whole[(whole["method"] + whole["seed"].astype(str)).isin(["x0", "y1"])].assign(method="tuned")
    sort = partial(pd.DataFrame.sort_values, by=tidy.COLUMNS, ignore_index=True)
    pd.testing.assert_frame_equal(sort(found), sort(expected))


def test_a_tuned_row_of_numbers_has_the_least_error():
    whole = pd.DataFrame([*scored("x", 0, 90.0, 0.2), *scored("y", 0, 80.0, 0.7)], columns=tidy.COLUMNS)
    told = whole.head(1).assign(split="data", metric="label_std", value=100.0)
    whole = pd.concat([whole.replace({"metric": {"accuracy": "rmse"}}), told], ignore_index=True)
    found = tidy.choose(whole, "tuned", ["x", "y"])
    assert set(found.loc[found["split"] == "val", "value"]) == {-79.0, 80.0}  # y, in both rounds


def test_a_tuned_row_is_chosen_by_the_metric_that_decides():
    whole = pd.DataFrame([*scored("x", 0, 0.9, 0.2), *scored("y", 0, 0.8, 0.7)], columns=tidy.COLUMNS)
    balanced = whole[whole["split"] == "val"].assign(metric="balanced_accuracy", value=1 - whole["value"])
    whole = pd.concat([whole, balanced], ignore_index=True)
    for metric, best in (("accuracy", 0.9), ("balanced_accuracy", 0.8)):
        found = tidy.choose(whole, "tuned", ["x", "y"], Criterion(METRICS[metric]))
        assert best in set(found.loc[found["metric"] == "accuracy", "value"])


@pytest.mark.parametrize(
    ("least_test", "weigh", "best"), [(20, "devices", "y"), (0, "devices", "x"), (0, "examples", "y")]
)
def test_a_tuned_row_is_chosen_by_the_devices_that_count(least_test: int, weigh: Any, best: str):
    """Device a has 500 test rows, and y is better there; b and c have five each, and x is far better there."""
    values = {"x": {"a": 0.6, "b": 0.9, "c": 0.9}, "y": {"a": 0.7, "b": 0.4, "c": 0.4}}
    rows = [("s", "m", "base", method, 0, 0, 1, device, "val", "accuracy", value)
            for method, of in values.items() for device, value in of.items()]  # fmt: skip
    for device, size in {"a": 500.0, "b": 5.0, "c": 5.0}.items():
        rows += [("s", "m", "base", "x", 0, 0, 0, device, "data", name, size) for name in ("test_examples", "examples")]
        rows.append(("s", "m", "base", "x", 0, 0, 0, device, "data", "test_classes", 2.0))
    found = tidy.choose(
        pd.DataFrame(rows, columns=tidy.COLUMNS), "tuned", ["x", "y"], Criterion(least_test=least_test, weigh=weigh)
    )
    assert set(found.loc[found["split"] == "val", "value"]) == {*values[best].values()}


def test_without_a_candidate_or_validation_examples_nothing_is_chosen():
    drawn = [*scored("x", 0, 0.9, 0.2), *scored("x", 1, 0.9, 0.2), *scored("y", 1, None, 0.2)]
    whole = pd.DataFrame([*drawn, *scored("x", 2, 0.9, 0.2), *scored("y", 2, 0.9, 0.3)], columns=tidy.COLUMNS)
    found = tidy.choose(whole, "tuned", ["x", "y"])
    assert set(found["seed"]) == {2}
    last = found[(found["split"] == "shared") & (found["round"] == 2)]
    assert last["value"].tolist() == [0.2, 0.2]  # of equal ones the first listed
    assert tidy.choose(whole, "tuned", ["x", "other"]).empty
    assert tidy.choose(whole, "tuned", ["others"]).empty, "a part of the study ran"


@pytest.mark.parametrize(("there", "kept"), [({"x": 0.5, "y": 0.6}, {0, 1}), ({"x": 0.5}, set()), ({}, set())])
def test_a_tuned_row_has_scores_on_new_devices_in_all_seeds_or_none(there: dict[str, float], kept: set[int]):
    """It takes x in one seed and y in the other; y may have no such scores, or no model for a new device."""
    drawn = [*scored("x", 0, 0.9, 0.2), *scored("y", 0, 0.8, 0.7), *scored("x", 1, 0.5, 0.6), *scored("y", 1, 0.6, 0.3)]
    for name, seed in product(there, range(2)):
        drawn.append(("s", "d", "base", name, seed, 0, 2, "new", LEFT_OUT, "accuracy", there[name]))
    for more in ([], [("s", "d", "base", "y", 1, 0, 2, "new", LEFT_OUT, "accuracy", math.nan)] * ("y" not in there)):
        found = tidy.choose(pd.DataFrame([*drawn, *more], columns=tidy.COLUMNS), "tuned", ["x", "y"])
        assert {*found.loc[(found["split"] == LEFT_OUT) & found["value"].notna(), "seed"]} == kept
        assert {*found["seed"]} == {0, 1}


def test_seconds_are_bytes_both_ways_over_the_rate_of_who_took_part():
    found = tidy.transfer_seconds(pd.DataFrame(scored("x", 0, 0.9, 0.2), columns=tidy.COLUMNS), 50.0)
    assert found[["round", "device", "split", "metric", "value"]].to_numpy().tolist() == [
        [1, "a", "traffic", "seconds", 8.0],
        [2, "a", "traffic", "seconds", 8.0],
    ]
