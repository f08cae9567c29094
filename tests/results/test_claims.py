"""Claims over a table of two devices, three seeds and a grid of two keys, whose numbers are stated."""

import pandas as pd
import pytest

from fedcore.results.claims import Claim, judge
from fedcore.types import InputError

POINTS = {
    f"alpha={alpha} net={net}": {"federation.alpha": alpha, "net": net}
    for alpha in (1.0, 0.1)
    for net in ("mlp", "cnn")
}
BASE = {"good": 0.8, "fair": 0.7, "even": 0.7, "single": 0.5}
NOISE = {0: -0.02, 1: 0.0, 2: 0.02}
"""What a seed adds to every method alike."""


def table(**more):
    """good is .1 above fair everywhere, even within .005 of it; all fall with alpha and are the same in both nets."""
    rows = []
    for setting, point in POINTS.items():
        for method, base in BASE.items():
            for seed, noise in NOISE.items():
                if method == "single" and seed:
                    continue
                wobble = 0.005 * (seed - 1) if method == "even" else 0.0
                value = base + noise + wobble - (0.1 if point["federation.alpha"] == 1.0 else 0.0)
                for turn in (1, 2):
                    for device, side in (("a", 0.01), ("b", -0.01)):
                        row = (
                            setting,
                            method,
                            seed,
                            0,
                            turn,
                            device,
                            "shared",
                            "accuracy",
                            value - 0.2 * (2 - turn) + side,
                        )
                        rows.append(row)
    columns = ["setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def verdict(rule, **words):
    return judge(Claim("said", rule, **words), table(), POINTS)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("good > fair", "holds"),
        ("fair > good", "does not hold"),
        ("even > fair", "does not hold"),  # within the spread
        ("even ~ fair within 0.01", "holds"),
        ("good ~ fair within 0.09", "does not hold"),
        ("good ~ fair within 0.11", "holds"),
        ("good falls with federation.alpha", "holds"),
        ("good rises with federation.alpha", "does not hold"),
        ("good rises with net", "does not hold"),  # equal
        ("good stays within 0.001 with net", "holds"),
        ("good stays within 0.01 with federation.alpha", "does not hold"),
        ("good rises with round", "holds"),
        ("good - fair rises with federation.alpha", "does not hold"),
        ("good - fair ~ good - even within 0.01", "holds"),
        ("good > single", "not tested"),  # one common seed
        ("good > absent", "not tested"),
        ("good rises with federation.devices", "not tested"),
        ("good - fair rises with round", "not tested"),
        ("good > 0.6", "holds"),  # .7 and .8, spread .02
        ("good > 0.69", "does not hold"),  # within the spread where alpha is 1
        ("0.9 > good", "holds"),
        ("0.75 > good", "does not hold"),
        ("good - fair > 5e-2", "holds"),
        ("0.05 > good - fair", "does not hold"),
        ("good ~ .75 within 0.06", "holds"),
        ("single > 0.1", "not tested"),
    ],
)
def test_rules(rule, word):
    assert verdict(rule).word == word


def test_the_evidence_is_the_difference_seed_by_seed():
    found = verdict("good > even").evidence
    assert [one.place for one in found] == list(POINTS)
    for one in found:
        assert one.difference == pytest.approx(0.1)
        assert one.spread == pytest.approx(0.005)  # what all methods share cancels
        assert one.seeds == 3


def test_a_trend_is_put_to_every_group_that_differs_in_the_key_alone():
    found = verdict("good falls with federation.alpha").evidence
    assert [one.place for one in found] == ["net=mlp", "net=cnn"]
    assert [one.difference for one in found] == pytest.approx([0.1, 0.1])
    found = verdict("good rises with net").evidence  # from mlp to cnn, as the grid has them
    assert [one.place for one in found] == ["alpha=1.0", "alpha=0.1"]
    assert [one.difference for one in found] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_where_restricts_the_settings():
    assert len(verdict("good > fair", where={"federation.alpha": 1.0}).evidence) == 2
    assert len(verdict("good > fair", where={"federation.alpha": [1.0, 0.1], "net": "cnn"}).evidence) == 2
    assert verdict("good > fair", where={"federation.devices": 3}).word == "not tested"


def test_only_the_metric_asked_for_counts():
    assert verdict("good > fair", of="test.accuracy").word == "not tested"
    assert verdict("good > fair", of="shared.loss").word == "not tested"


def test_the_numbers_name_the_place_that_speaks_most_against():
    rows = table()
    worst = "alpha=0.1 net=cnn"
    rows.loc[(rows["method"] == "good") & (rows["setting"] == worst), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.word == "does not hold"
    assert found.numbers.startswith("in 3 of 4; most against: -0.2 ")
    assert worst in found.numbers
    assert verdict("good > fair").numbers.startswith("in 4 of 4; least: +0.1 ")
    assert "two seeds" in verdict("good > single").numbers


def test_a_reversed_order_is_stronger_evidence_than_a_spread_over_seeds():
    rows = table()
    good = rows["method"] == "good"
    rows.loc[good & (rows["setting"] == "alpha=1.0 net=mlp"), "value"] += 5 * rows["seed"] - 4.5  # +.6 +- 5
    rows.loc[good & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.numbers.startswith("in 2 of 4; most against: -0.2 ")


def test_a_tolerance_claim_names_the_setting_of_largest_difference():
    rows = table()
    rows.loc[(rows["method"] == "fair") & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] += 0.02
    assert judge(Claim("said", "fair ~ even within 0.03"), rows, POINTS).numbers.startswith(
        "in 4 of 4; largest: +0.02 "
    )
    found = judge(Claim("said", "even ~ fair within 0.01"), rows, POINTS).numbers
    assert found.startswith("in 3 of 4; most against: -0.02 ")
    assert "alpha=0.1 net=cnn" in found


@pytest.mark.parametrize(
    "rule",
    [
        *("", "good", "good >", "good beats fair", "good > fair and", "good ~ fair", "good rises", "a - b - c > d"),
        *("0.9 > 0.8", "0.9 rises with round", "good > 0.9 - 0.1", "good > .", "0.5 < good"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(InputError, match="must be one of"):
        Claim("said", rule)


@pytest.mark.parametrize("of", ["", "accuracy", "mean of test.accuracy", "std test.accuracy", "worst of accuracy"])
def test_an_of_that_cannot_be_read_is_refused(of):
    with pytest.raises(InputError, match="must be a split and a metric"):
        Claim("said", "good > fair", of=of)


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
        ("good > fair", {"of": "std of shared.accuracy"}, 0.18 / 2**0.5),  # .2 and .02 apart: over sqrt(2) each
        ("good > fair", {"of": "worst of shared.accuracy"}, 0.1 - 0.09),
        ("good > fair", {"where": {"domain": "A"}}, 0.1 + 0.09),
        ("good > fair", {"where": {"domain": ["B"]}}, 0.1 - 0.09),
        ("good > fair", {"where": {"domain": ["A", "B"]}}, 0.1),
        ("good > 0.0", {"of": "data.in_A"}, 0.5),
        ("good > 0.0", {"of": "data.in_A", "where": {"domain": "A"}}, 1.0),
        ("good > 0.0", {"of": "worst of data.in_A"}, 0.0),
    ],
)
def test_spreads_worst_devices_and_domains(rule, words, differences):
    found = judge(Claim("said", rule, **words), spread_out(), POINTS).evidence
    assert [one.difference for one in found] == pytest.approx([differences] * len(POINTS))


def test_the_worst_of_what_is_better_less_is_the_greatest():
    rows = spread_out()
    for metric, worst in (("accuracy", 0.0), ("loss", 1.0), ("similarity_other", 1.0)):
        renamed = rows[rows["metric"] == "in_A"].assign(split="shared", metric=metric)
        (first, *_) = judge(Claim("said", "good > -1", of=f"worst of shared.{metric}"), renamed, POINTS).evidence
        assert first.difference == worst + 1


def test_a_domain_that_no_device_is_of_is_not_tested():
    assert judge(Claim("said", "good > fair", {"domain": "C"}), spread_out(), POINTS).word == "not tested"


def test_labels():
    assert Claim("said", "0.5 > a - b").labels == {"a", "b"}
    assert Claim("said", "10_rounds > 10").labels == {"10_rounds"}
    assert Claim("said", "a - b ~ c - d within 1e-3").labels == {"a", "b", "c", "d"}
    assert Claim("said", "a rises with round").labels == {"a"}


def test_a_trend_over_lists_follows_the_grid():
    """Sets of locations have no size: from the first to the last that the grid names."""
    points = {"locations=B": {"data.locations": ["B"]}, "locations=A+B": {"data.locations": ["A", "B"]}}
    claim = Claim("", "fedavg falls with data.locations", of="test.accuracy")
    rows = [
        (place, seed, value + seed / 100) for place, value in zip(points, (0.9, 0.6), strict=True) for seed in (0, 1)
    ]
    table = pd.DataFrame(
        [("s", "d", place, "fedavg", seed, 0, 1, "a", "test", "accuracy", value) for place, seed, value in rows],
        columns=[
            "study",
            "dataset",
            "setting",
            "method",
            "seed",
            "stage",
            "round",
            "device",
            "split",
            "metric",
            "value",
        ],
    )
    verdict = judge(claim, table, points)
    assert verdict.word == "holds"
    assert verdict.evidence[0].difference == pytest.approx(0.3)
