"""Verdicts: the numbers that they name, and in how many settings they hold."""

import pandas as pd
import pytest
from claim_tables import POINTS, course, drawn, table

from fedcore.results.claims import Claim
from fedcore.results.judging import judge
from fedcore.results.verdicts import verdict_table


def verdict(rule, **words):
    return judge(Claim("said", rule, **words), table(), POINTS)


def test_the_numbers_name_the_place_that_speaks_most_against():
    rows = table()
    worst = "alpha=0.1 net=cnn"
    rows.loc[(rows["method"] == "good") & (rows["setting"] == worst), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.word == "not shown"
    assert found.numbers.startswith(
        "in 3 of 4 settings (sign test p = 0.31), the opposite in 1; strongest counter-example: -0.2 "
    )
    assert worst in found.numbers
    assert verdict("good > fair").numbers.startswith("in 4 of 4 settings; least: +0.1 ")
    assert verdict("good > single").numbers == "1 seed, a rule needs three; so far +0.3 at alpha=1.0 net=mlp (1 seed)"
    assert "three seeds" in verdict("good > absent").numbers


def test_a_reversed_order_is_stronger_evidence_than_a_spread_over_seeds():
    rows = table()
    good = rows["method"] == "good"
    rows.loc[good & (rows["setting"] == "alpha=1.0 net=mlp"), "value"] += 5 * rows["seed"] - 4.5  # +.6 +- 5
    rows.loc[good & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.numbers.startswith(
        "in 2 of 4 settings (sign test p = 0.69), the opposite in 1; strongest counter-example: -0.2 "
    )


def test_a_tolerance_claim_names_the_setting_of_largest_difference():
    rows = table()
    rows.loc[(rows["method"] == "fair") & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] += 0.02
    assert judge(Claim("said", "fair ~ even within 0.03"), rows, POINTS).numbers.startswith(
        "in 4 of 4 settings; largest: +0.02 "
    )
    found = judge(Claim("said", "even ~ fair within 0.01"), rows, POINTS).numbers
    assert found.startswith(
        "in 3 of 4 settings (sign test p = 0.31), the opposite in 1; strongest counter-example: -0.02 "
    )
    assert "alpha=0.1 net=cnn" in found


@pytest.mark.parametrize(
    ("held", "of", "word", "p"),
    [(8, 8, "holds", 1 / 256), (7, 8, "holds in most", 9 / 256), (6, 7, "not shown", 8 / 128),
     (1, 1, "holds", 1 / 2), (0, 1, "contradicted", 1), (12, 16, "holds in most", 2517 / 65536),
     (5, 8, "contradicted", 93 / 256), (6, 8, "not shown", 37 / 256), (5, 7, "contradicted", 29 / 128)],
)  # fmt: skip
def test_a_claim_may_hold_in_most_settings(held, of, word, p):
    """p: sums of binomial coefficients by hand, e.g. (8 + 1) / 2 ** 8 for at least 7 of 8."""
    verdict = judge(Claim("said", "a > b"), *drawn([[0.1] * 3] * held + [[-0.1] * 3] * (of - held)))
    (row,) = verdict_table([("s", verdict)]).to_dict("records")
    assert verdict.word == row["verdict"] == word
    assert row["p"] == pytest.approx(p)
    assert (row["holds_in"], row["contradicted_in"], row["tested_in"]) == (held, of - held, of)
    assert row["numbers"].startswith(f"in {held} of {of} setting")


def test_an_interval_on_both_sides_shows_neither():
    """Mean -.01, standard deviation .02: half of the interval is .0369."""
    unsure = judge(Claim("said", "a > b"), *drawn([[-0.03, -0.01, 0.01]]))
    assert (unsure.word, unsure.contradicted) == ("not shown", 0)
    ahead = judge(Claim("said", "a > b"), *drawn([[-0.01, 0.01, 0.03]]))
    assert ahead.word == "not shown"
    assert ahead.numbers.startswith("in 0 of 1 setting; weakest setting: +0.01 ")


def test_a_tolerance_is_contradicted_by_an_interval_outside_of_it():
    words = [
        judge(Claim("said", f"a ~ b within {tolerance}"), *drawn([[0.08, 0.1, 0.12]])).word
        for tolerance in (0.05, 0.07, 0.1)
    ]
    assert words == ["contradicted", "not shown", "holds"]  # .1, half of the interval .0369


@pytest.mark.parametrize(
    ("rule", "sides"), [("good > fair", (0.7, 0.6)), ("good > 0.5", (0.7, 0.5)), ("good falls with net", (0.7, 0.7))]
)
def test_the_means_of_both_sides_are_in_the_table(rule, sides):
    (row,) = verdict_table([("s", verdict(rule))]).to_dict("records")
    assert (row["a"], row["b"]) == pytest.approx(sides)


def after(rule, at, **values):
    return judge(Claim("said", rule, round=at), course(**values), {"one": {}})


def test_the_round_is_in_the_table():
    frame = verdict_table([("s", after("a > b", 2, a=[[1, 2]], b=[[0, 0]]))])
    assert frame["of"].tolist() == ["shared.accuracy after round 2"]


def test_a_spread_of_rounding_errors_is_none():
    values = enumerate((0.1 + 0.2, 0.3, 0.3))
    rows = [("one", "a", seed, 0, 1, "x", "shared", "accuracy", value) for seed, value in values]
    rows = pd.DataFrame(rows, columns=list(table().columns))
    verdict = judge(Claim("said", "a > 0.25"), rows, {"one": {}})
    assert 0 < verdict.evidence[0].spread < 1e-15
    assert verdict.numbers == "in 1 of 1 setting; least: +0.05 [+0.05, +0.05] (3 seeds)"
    level = judge(Claim("said", "0.3 > a"), rows, {"one": {}})
    assert level.numbers == "in 0 of 1 setting; strongest counter-example: +0 [+0, +0] (3 seeds)"
