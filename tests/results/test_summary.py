import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tables import NO_SECONDS, frame, grouped, rows

from fedcore.results.criterion import RATIO
from fedcore.results.summary import (
    COLUMNS,
    by_group,
    curves,
    format_bytes,
    gap_to,
    gaps_to_best,
    groups,
    join_words,
    last_round,
    standings,
    summarise,
    with_scores,
)

# Means of the devices by seed: a .7, .7; b .7, .4; c .6, .6.
ACCURACY = {"b": [[0.7, 0.7], [0.5, 0.3]], "a": [[0.8, 0.6], [0.9, 0.5]], "c": [[0.6, 0.6], [0.6, 0.6]]}
ROOT = math.sqrt(2)  # a pair's sample standard deviation is its distance / sqrt(2)


def half(std: float, seeds: int) -> float:
    """Half of the 95 % interval of a mean over seeds, by hand."""
    return float(stats.t.ppf(0.975, seeds - 1)) * std * math.sqrt(1 / seeds + RATIO / 5)


def by_method(summary: pd.DataFrame) -> pd.DataFrame:
    return summary.set_index("method")


@pytest.mark.slow
def test_the_numbers_of_two_devices_and_two_seeds():
    best_is_earlier = {method: [[1.0, 1.0], [1.0, 1.0]] for method in ACCURACY}
    table = frame(rows(best_is_earlier, at=1), rows(ACCURACY, at=2, shared=0.25))
    seconds = pd.DataFrame(
        [("study", "alpha=1", "a", seed, kind, 1.0 + seed, 2.0) for seed in (0, 1) for kind in ("train", "fuse")],
        columns=NO_SECONDS.columns,
    )
    row = by_method(summarise(table, seconds, frozenset())).loc["a"]
    assert row["test_mean"] == pytest.approx(0.7)
    assert row["test_std_devices"] == pytest.approx((0.2 + 0.4) / ROOT / 2)
    assert row["test_std_seeds"] == row["test_margin"] == pytest.approx(0.0)
    found = by_method(summarise(frame(rows(ACCURACY)), NO_SECONDS, frozenset()))
    assert found.loc["b", "test_margin"] == pytest.approx(half(0.3 / ROOT, 2))
    assert row["test_worst"] == pytest.approx((0.6 + 0.5) / 2)
    assert row["test_macro_f1"] == pytest.approx(0.35)
    assert row["test_loss"] == pytest.approx(0.3)
    assert row["test_loss_std_devices"] == pytest.approx(row["test_std_devices"])  # the loss is 1 - accuracy here
    assert row["shared_mean"] == row["shared_worst"] == pytest.approx(0.25)
    assert row["bytes_up"] == 2 * 2 * 100  # two rounds, two devices
    assert row["bytes_down"] == 2 * 2 * 200
    assert (row["rounds"], row["n_devices"], row["n_seeds"]) == (2, 2, 2)
    assert row["wall"] == pytest.approx((2 * 1 + 2 * 2) / 2)  # two steps a seed
    assert row["cpu"] == pytest.approx(4.0)


@pytest.mark.slow
def test_ranks_are_the_order_of_the_gaps_seed_by_seed():
    summary = summarise(frame(rows(ACCURACY)), NO_SECONDS, frozenset())
    assert list(summary["method"]) == ["a", "c", "b"]
    assert list(summary["rank"]) == [1, 2, 3]
    assert list(summary["test_gap"]) == pytest.approx([0, 0.1, 0.15])
    assert list(summary["shared_rank"]) == [1, 1, 1]


def test_a_row_that_was_stopped_is_compared_on_its_own_seeds():
    # Seed 0 is easy: b's mean is the highest, as it has that seed alone. c has the best mean of those with both.
    seeds = {"a": [[0.9], [0.5]], "b": [[0.95]], "c": [[0.8], [0.7]]}
    runs = {name: pd.DataFrame(values) for name, values in seeds.items()}
    assert gaps_to_best(runs, frozenset(), None).to_dict() == pytest.approx({"a": 0.05, "b": -0.15, "c": 0})
    assert gaps_to_best(runs, frozenset("c"), None).to_dict() == pytest.approx({"a": 0, "b": -0.05, "c": -0.05})


def test_methods_without_a_common_seed_are_compared_by_their_means():
    left = pd.DataFrame([[0.6], [0.8]], index=[0, 1])
    right = pd.DataFrame([[0.4], [0.8]], index=[2, 3])
    assert gap_to(right, left) == pytest.approx(0.1)


@pytest.mark.slow
def test_controls_have_a_gap_and_no_rank():
    summary = summarise(frame(rows(ACCURACY)), NO_SECONDS, frozenset({"a", "b"}))
    assert list(summary["method"]) == ["c", "a", "b"]
    assert list(summary["control"]) == [False, True, True]
    assert summary["rank"].isna().to_list() == [False, True, True]
    assert list(summary["test_gap"]) == pytest.approx([0, -0.1, 0.05])
    assert standings(summary) == ["1", "control", "control"]


@pytest.mark.slow
def test_shared_decides_where_a_method_has_no_own_test_score():
    table = frame(rows({"a": [[0.9, 0.9]]}, shared=0.4), rows({"b": [[math.nan, math.nan]]}, shared=0.5))
    summary = summarise(table, NO_SECONDS, frozenset())
    assert list(summary["method"]) == ["b", "a"]
    assert set(summary["primary"]) == {"shared"}
    assert by_method(summary)["test_rank"].dropna().to_dict() == {"a": 1}


@pytest.mark.slow
def test_a_device_without_test_examples_is_left_out():
    summary = summarise(frame(rows({"a": [[0.9, math.nan]]})), NO_SECONDS, frozenset())
    assert summary.loc[0, ["test_mean", "test_worst", "primary", "n_devices"]].tolist() == [0.9, 0.9, "test", 2]


@pytest.mark.slow
def test_no_scores_and_no_rows():
    nothing = summarise(frame(rows({"a": [[math.nan]]}, shared=math.nan)), NO_SECONDS, frozenset())
    assert nothing["rank"].isna().all()
    assert standings(nothing) == ["-"]
    assert list(summarise(frame(), NO_SECONDS, frozenset()).columns) == COLUMNS


@pytest.mark.slow
def test_a_row_that_stands_twice_is_an_error():
    with pytest.raises(ValueError, match="duplicate"):
        summarise(frame(rows(ACCURACY), rows(ACCURACY)), NO_SECONDS, frozenset())


@pytest.mark.slow
def test_settings_are_apart_and_in_the_order_of_the_table():
    table = frame(rows(ACCURACY, setting="z"), rows({"b": [[0.1]], "a": [[0.2]]}, setting="y"))
    summary = summarise(table, NO_SECONDS, frozenset())
    assert list(summary["setting"]) == ["z"] * 3 + ["y"] * 2
    assert list(summary["rank"]) == [1, 2, 3, 1, 2]
    assert summary["wall"].isna().all()


def test_last_round_is_of_the_last_stage():
    table = frame(rows({"a": [[0.1]]}, stage=0, at=3), rows({"a": [[0.2]]}, stage=1, at=1), rows({"b": [[0.3]]}, at=2))
    last = last_round(table)
    assert last[last["metric"] == "accuracy"].groupby("method")["value"].max().to_dict() == {"a": 0.5, "b": 0.5}
    assert set(zip(last["method"], last["stage"], last["round"], strict=True)) == {("a", 1, 1), ("b", 0, 2)}
    assert "traffic" not in set(last["split"])


def test_groups_are_devices_of_one_domain():
    table = grouped(frame(rows({"a": [[0.8, 0.6, 0.1, 0.3]]})), {"d00": "A", "d01": "A", "d02": "", "d03": "C"})
    assert dict(zip(*(groups(table)[name] for name in ("device", "group")), strict=True)) == {
        "d00": "A", "d01": "A", "d03": "C",
    }  # fmt: skip
    assert groups(frame(rows(ACCURACY))).empty


def test_accuracy_by_group_of_the_last_round():
    early, late = {"a": [[1.0, 1.0, 1.0]] * 2}, {"a": [[0.8, 0.6, 0.1], [0.9, 0.5, 0.3]]}
    table = grouped(frame(rows(early, at=1), rows(late, at=2)), {"d00": "A", "d01": "A", "d02": "B"})
    found = by_group(table)
    own = found[found["split"] == "test"].set_index("group")
    assert own.loc["A", ["mean", "std_seeds", "n_devices", "n_seeds"]].tolist() == pytest.approx([0.7, 0, 2, 2])
    assert own.loc["A", "std_devices"] == pytest.approx((0.2 + 0.4) / ROOT / 2)
    assert own.loc["B", ["mean", "std_seeds", "n_devices"]].tolist() == pytest.approx([0.2, 0.2 / ROOT, 1])
    assert math.isnan(own.loc["B", "std_devices"])
    assert set(found["split"]) == {"test", "shared"}


@pytest.mark.slow
def test_errors_of_numbers_by_group():
    table = frame(rows({"a": [[8.0, 6.0, 1.0]]}))
    table["metric"] = table["metric"].replace("accuracy", "rmse")
    table = pd.concat([table, table.head(1).assign(split="data", metric="label_std", value=5.0)], ignore_index=True)
    found = by_group(grouped(table, {"d00": "A", "d01": "A", "d02": "B"}))
    own = found[found["split"] == "test"].set_index("group")
    assert own["mean"].tolist() == [7.0, 1.0]
    assert set(found["metric"]) == {"rmse"}


def test_a_score_is_an_accuracy_or_a_share_of_the_deviation():
    of_classes, of_numbers = frame(rows({"a": [[0.8]]})), frame(rows({"a": [[50.0]]})).assign(setting="numbers")
    of_numbers["metric"] = of_numbers["metric"].replace("accuracy", "rmse")
    told = of_numbers.head(1).assign(split="data", metric="label_std", value=200.0)
    found = with_scores(pd.concat([of_classes, of_numbers, told], ignore_index=True))
    scores = found[(found["metric"] == "score") & (found["split"] == "test")].set_index("setting")["value"]
    assert scores.tolist() == [0.8, 0.75]


@pytest.mark.slow
def test_one_group_or_none_are_no_groups():
    table = frame(rows(ACCURACY))
    assert by_group(table).empty
    assert by_group(grouped(table, {"d00": "A", "d01": "A"})).empty
    assert by_group(grouped(table, {"d00": "A", "d01": ""})).empty
    assert list(by_group(table).columns) == list(by_group(grouped(table, {"d00": "A", "d01": "B"})).columns)


def test_curves_count_rounds_through_the_stages():
    one, two = {"a": [[0.1, 0.3], [0.3, 0.5]]}, {"a": [[0.6, 0.6], [0.8, 0.8]]}
    course = curves(frame(rows(one, stage=0, at=2), rows(two, stage=1, at=1)))
    own = course[(course["split"] == "test") & (course["metric"] == "accuracy")]
    assert list(own["step"]) == [2, 3]
    assert list(own["mean"]) == pytest.approx([0.3, 0.7])
    assert list(own["margin"]) == pytest.approx([half(0.2 / ROOT, 2)] * 2)


steady = settings(derandomize=True, max_examples=60)
accuracies = st.integers(0, 20).map(lambda n: n / 20)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, pd.DataFrame]:
    seeds, devices = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    grid = st.lists(st.lists(accuracies, min_size=devices, max_size=devices), min_size=seeds, max_size=seeds)
    return {f"m{i}": pd.DataFrame(draw(grid)) for i in range(draw(st.integers(1, 6)))}


@pytest.mark.slow
@steady
@given(runs())
def test_ranks_follow_the_means_and_twins_share_one(runs: dict[str, pd.DataFrame]):
    gaps = gaps_to_best(runs, frozenset(), None)
    means = {name: run.to_numpy().mean() for name, run in runs.items()}
    assert gaps.to_dict() == pytest.approx(
        {name: max(means.values()) - mean for name, mean in means.items()}, abs=1e-12
    )
    best = str(gaps.idxmin())
    assert gaps_to_best(runs | {"twin": runs[best]}, frozenset(), None)["twin"] == 0
    turned = {name: runs[name].iloc[::-1, ::-1] for name in reversed(runs)}
    assert gaps_to_best(turned, frozenset(), None).to_dict() == gaps.to_dict()


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0"), (999, "999 B"), (1000, "1 kB"), (3_408_000, "3.41 MB"), (2e12, "2 TB"), (math.nan, "-")],
)
def test_readable(nbytes: float, words: str):
    assert format_bytes(nbytes) == words


def test_listed():
    assert [join_words("a"), join_words("ab"), join_words("abc")] == ["a", "a and b", "a, b and c"]


@pytest.mark.slow
def test_the_cost_of_an_answer_is_the_mean_over_devices_and_seeds():
    table = frame(rows(ACCURACY))
    last = table[table["split"] == "val"].drop_duplicates(["method", "seed", "device"])
    devices = last["device"].map({"d00": 1.0, "d01": 4.0})
    nets, macs = (
        last.assign(split="inference", metric=name, value=value)
        for name, value in (("nets_run", devices), ("macs", 10 * devices + last["seed"]))
    )
    summary = by_method(summarise(pd.concat([table, nets, macs]), NO_SECONDS, frozenset()))
    assert summary.loc["a", "nets_run"] == 2.5
    assert summary.loc["a", "macs"] == 25.5
    assert by_method(summarise(table, NO_SECONDS, frozenset()))["macs"].isna().all()
