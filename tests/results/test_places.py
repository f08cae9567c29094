"""Where a rule is put to the test: settings, devices, rounds and problems."""

import pandas as pd
import pytest
from claim_tables import POINTS, course, table

from fedcore.results.claims import Claim
from fedcore.results.judging import judge


def verdict(rule, **words):
    return judge(Claim("said", rule, **words), table(), POINTS)


@pytest.mark.slow
def test_where_restricts_the_settings():
    assert len(verdict("good > fair", where={"federation.alpha": 1.0}).evidence) == 2
    assert len(verdict("good > fair", where={"federation.alpha": [1.0, 0.1], "net": "cnn"}).evidence) == 2
    assert verdict("good > fair", where={"federation.devices": 3}).word == "not tested"


def test_only_the_metric_asked_for_counts():
    assert verdict("good > fair", metric="test.accuracy").word == "not tested"
    assert verdict("good > fair", metric="shared.loss").word == "not tested"


def spread_out():
    """The same with good's devices a and b in domains of their own, .2 apart instead of .02, under every setting."""
    rows = table().assign(study="s", dataset="d")
    good, a = rows["method"] == "good", rows["device"] == "a"
    rows.loc[good, "value"] += a[good].map({True: 0.09, False: -0.09})
    places = rows.drop(columns=["split", "metric", "value"]).drop_duplicates()
    held = [places.assign(split="data", metric=f"in_{name}", value=(places["device"] == who) * 1.0)
            for name, who in (("A", "a"), ("B", "b"))]  # fmt: skip
    return pd.concat([rows, *held])


@pytest.mark.parametrize(
    ("rule", "words", "differences"),
    [
        ("good > fair", {"metric": "std of shared.accuracy"}, 0.18 / 2**0.5),  # .2 and .02 apart: over sqrt(2) each
        ("good > fair", {"metric": "worst of shared.accuracy"}, 0.1 - 0.09),
        ("good > fair", {"where": {"domain": "A"}}, 0.1 + 0.09),
        ("good > fair", {"where": {"domain": ["B"]}}, 0.1 - 0.09),
        ("good > fair", {"where": {"domain": ["A", "B"]}}, 0.1),
        ("good > 0.0", {"metric": "data.in_A"}, 0.5),
        ("good > 0.0", {"metric": "data.in_A", "where": {"domain": "A"}}, 1.0),
        ("good > 0.0", {"metric": "worst of data.in_A"}, 0.0),
    ],
)
@pytest.mark.slow
def test_spreads_worst_devices_and_domains(rule, words, differences):
    found = judge(Claim("said", rule, **words), spread_out(), POINTS).evidence
    assert [one.difference for one in found] == pytest.approx([differences] * len(POINTS))


def test_the_worst_of_what_is_better_less_is_the_greatest():
    rows = spread_out()
    for metric, worst in (("accuracy", 0.0), ("loss", 1.0), ("similarity_other", 1.0)):
        renamed = rows[rows["metric"] == "in_A"].assign(split="shared", metric=metric)
        (first, *_) = judge(Claim("said", "good > -1", metric=f"worst of shared.{metric}"), renamed, POINTS).evidence
        assert first.difference == worst + 1


@pytest.mark.slow
def test_a_domain_that_no_device_is_of_is_not_tested():
    assert judge(Claim("said", "good > fair", {"domain": "C"}), spread_out(), POINTS).word == "not tested"


def test_a_trend_over_lists_follows_the_grid():
    """Sets of locations have no size: from the first to the last that the grid names."""
    points = {"locations=B": {"data.locations": ["B"]}, "locations=A+B": {"data.locations": ["A", "B"]}}
    claim = Claim("", "fedavg falls with data.locations", metric="test.accuracy")
    rows = [
        (place, seed, value + seed / 100) for place, value in zip(points, (0.9, 0.6), strict=True) for seed in range(3)
    ]
    table = pd.DataFrame(
        [("s", "d", place, "fedavg", seed, 0, 1, "a", "test", "accuracy", value) for place, seed, value in rows],
        columns=[
            "study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value",
        ],
    )  # fmt: skip
    verdict = judge(claim, table, points)
    assert verdict.word == "holds"
    assert verdict.evidence[0].difference == pytest.approx(0.3)


def after(rule, at, **values):
    return judge(Claim("said", rule, round=at), course(**values), {"one": {}})


@pytest.mark.slow
def test_a_claim_may_look_at_an_earlier_round():
    """Early a is ahead, in the end b; with stages of two and of one round the third round is in the second stage."""
    curves = {"a": [[0.5, 0.6], [0.6]], "b": [[0.2, 0.4, 0.8]]}
    assert [after("a > b", at, **curves).word for at in (1, 2, 3, None)] == ["holds"] * 2 + ["contradicted"] * 2
    assert after("a > b", 2, **curves).evidence[0].difference == pytest.approx(0.2)


@pytest.mark.slow
def test_a_round_that_was_not_evaluated_is_not_tested():
    curves = {"a": [[None, 0.5, None, 0.6]], "b": [[None, 0.2, 0.3, 0.4]]}
    words = [after("a > b", at, **curves).word for at in (1, 2, 3, 4, 5)]
    assert words == ["not tested", "holds", "not tested", "holds", "not tested"]


@pytest.mark.slow
def test_a_method_of_one_round_has_its_value_at_any_time():
    assert after("a > once", 3, a=[[0.1, 0.2, 0.9, 0.1]], once=[[0.5]]).word == "holds"
    assert after("a > twice", 3, a=[[0.1, 0.2, 0.9, 0.1]], twice=[[0.5, 0.5]]).word == "not tested"


def test_a_trend_over_rounds_ends_at_the_given_round():
    assert after("a rises with round", 3, a=[[0.1, 0.2, 0.9, 0.05]]).word == "holds"
    assert after("a falls with round", None, a=[[0.1, 0.2, 0.9, 0.05]]).word == "holds"
