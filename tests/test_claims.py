"""Claims over a table of two devices, three seeds and a grid of two keys, whose numbers are stated."""

import pandas as pd
import pytest

from fedcore.claims import Claim, judge
from fedcore.types import Refused

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
        ("good rises with round", "holds"),
        ("good - fair rises with federation.alpha", "does not hold"),
        ("good - fair ~ good - even within 0.01", "holds"),
        ("good > single", "not tested"),  # one common seed
        ("good > absent", "not tested"),
        ("good rises with federation.devices", "not tested"),
        ("good - fair rises with round", "not tested"),
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


@pytest.mark.parametrize(
    "rule", ["", "good", "good >", "good beats fair", "good > fair and", "good ~ fair", "good rises", "a - b - c > d"]
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(Refused, match="must be one of"):
        Claim("said", rule)


def test_labels():
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
