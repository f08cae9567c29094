"""Claims are judged as stated over tables of known numbers."""

import numpy as np
import pandas as pd
import pytest
from claim_tables import POINTS, course, drawn, table

from fedcore.results.claims import Claim, Gate
from fedcore.results.criterion import RATIO, SHARED_DATA, half_width
from fedcore.results.judging import LEVEL, in_place_of_accuracy, judge, judge_all, verdict_table


def verdict(rule, **words):
    return judge(Claim("said", rule, **words), table(), POINTS)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("good > fair", "holds"),
        ("fair > good", "contradicted"),
        ("even > fair", "not shown"),  # within the interval
        ("even ~ fair within 0.01", "holds"),
        ("good ~ fair within 0.09", "contradicted"),
        ("good ~ fair within 0.11", "holds"),
        ("good falls with federation.alpha", "holds"),
        ("good rises with federation.alpha", "contradicted"),
        ("good rises with net", "not shown"),  # equal
        ("good stays within 0.001 with net", "holds"),
        ("good stays within 0.01 with federation.alpha", "contradicted"),
        ("good rises with round", "holds"),
        ("good - fair rises with federation.alpha", "not shown"),
        ("good - fair ~ good - even within 0.01", "holds"),
        ("good > single", "not tested"),  # one common seed
        ("good > absent", "not tested"),
        ("good rises with federation.devices", "not tested"),
        ("good - fair rises with round", "not tested"),
        ("good > 0.6", "holds"),  # .7 and .8, half of the interval .041
        ("good > 0.69", "not shown"),  # within the interval where alpha is 1
        ("0.9 > good", "holds"),
        ("0.75 > good", "contradicted"),
        ("good - fair > 5e-2", "holds"),
        ("0.05 > good - fair", "contradicted"),
        ("good ~ .75 within 0.06", "holds"),
        ("single > 0.1", "not tested"),
    ],
)
@pytest.mark.slow
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


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.slow
def test_a_null_effect_passes_in_at_most_five_of_a_hundred_cases(seeds):
    """In 3,000 settings of independent normal differences; one standard deviation passed .11 of them with 3 seeds."""
    values = np.random.default_rng(seeds).standard_normal((3000, seeds))
    found = judge(Claim("said", "a > b"), *drawn(values))
    assert len(found.evidence) == 3000
    assert found.held <= 150


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("shared", "rates"), [(0.0, (0.043, 0.035, 0.020)), (SHARED_DATA * RATIO, (0.05,) * 3)])
@pytest.mark.slow
def test_how_often_a_null_effect_passes(seeds, shared, rates):
    """docs/claims.md has these rates. shared: variance that all seeds of a setting have in common, of one seed's."""
    draw = np.random.default_rng(seeds)
    values = draw.standard_normal((200_000, seeds)) + shared**0.5 * draw.standard_normal((200_000, 1))
    margins = half_width(1.0, seeds, RATIO, LEVEL) * values.std(axis=1, ddof=1)
    assert np.mean(values.mean(axis=1) > margins) == pytest.approx(rates[[3, 5, 10].index(seeds)], abs=0.002)


@pytest.mark.parametrize("rule", ["a > b", "a ~ b within 1", "a stays within 1 with round"])
@pytest.mark.slow
def test_two_seeds_test_nothing(rule):
    rows, points = drawn([[0.1, 0.1]])
    rows = pd.concat([rows, rows.assign(round=2)])
    verdict = judge(Claim("said", rule), rows, points)
    assert verdict.word == "not tested"
    assert verdict.numbers.startswith("2 seeds, a rule needs three; so far +")


def test_a_setting_with_two_seeds_is_out_of_the_verdict():
    verdict = judge(Claim("said", "a > b"), *drawn([[0.1, 0.1, 0.1], [0.1, 0.1]]))
    assert verdict.word == "holds"
    assert verdict.numbers.endswith("(3 seeds); not tested in 1 of 2: 2 seeds, a rule needs three")


def test_a_tolerance_is_compared_with_the_mean_and_its_interval_is_shown():
    """Mean 0, standard deviation .02: t = 2.920 of two degrees of freedom, times .02 sqrt(1 / 3 + 1 / 6)."""
    verdict = judge(Claim("said", "a ~ b within 0.01"), *drawn([[-0.02, 0.0, 0.02]]))
    assert verdict.numbers == "in 1 of 1 setting; largest: +0 [-0.0369, +0.0369] (3 seeds)"
    assert verdict.word == "holds"


def solved(changes, level=lambda seed, reg, device: 100.0 * (1 + seed) + 1000 * reg, devices=("a",)):
    """Iterations of a solver at two tolerances on problems of three seeds and two regularisations, in the "transport"
    of each device. changes: what the finer tolerance adds to a problem's level, (seed, reg, device) -> number."""
    points = {f"reg={reg} tol={tol}": {"reg": reg, "tol": tol} for reg in (1, 2) for tol in (0.1, 0.01)}
    rows = [
        (name, "ot", seed, 0, 1, device, "transport", "iterations",
         level(seed, at["reg"], device) + (at["tol"] < 0.1) * changes(seed, at["reg"], device))
        for name, at in points.items()
        for seed in range(3)
        for device in devices
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table().columns)), points


def paired(rule, *args, **words):
    return judge(Claim("said", rule, metric="transport.iterations", **words), *solved(*args))


def test_noise_between_problems_does_not_hide_a_fall_in_each():
    """Ten iterations more or fewer than a level of 1,100 to 2,300: 10, 12 and 14 by seed."""
    verdict = paired("ot falls with tol pairwise", lambda seed, *_: 10 + 2 * seed)
    assert verdict.word == "holds"
    (one,) = verdict.evidence
    assert (one.difference, one.seeds, one.agree) == (pytest.approx(12), 6, 6)
    assert one.spread == pytest.approx(pd.Series([10, 12, 14] * 2).std() / 6**0.5)
    assert verdict.numbers == "in 6 of 6 problems; mean +12, standard error 0.73"
    assert paired("ot rises with tol pairwise", lambda seed, *_: 10 + 2 * seed).word == "contradicted"


def test_seeds_that_differ_in_size_hide_a_fall_only_without_pairing():
    """By setting, the spread over seeds exceeds the mean; over all problems the mean is 2.9 standard errors."""
    change = lambda seed, reg, _: {1: (10, 10, 100), 2: (100, 10, 100)}[reg][seed]  # noqa: E731
    assert paired("ot falls with tol", change).word == "not shown"
    assert paired("ot falls with tol pairwise", change).word == "holds"


def test_changes_in_both_directions_are_no_fall():
    verdict = paired("ot falls with tol pairwise", lambda seed, *_: (-10, 0, 11)[seed])
    assert verdict.word == "not shown"
    assert (verdict.evidence[0].agree, verdict.evidence[0].against) == (2, 2)


def test_one_problem_is_not_enough():
    rows, points = solved(lambda *_: 10)
    rows = rows[rows["seed"] == 0]
    claim = Claim("said", "ot falls with tol pairwise", {"reg": 1}, "transport.iterations")
    assert judge(claim, rows, points).word == "not tested"
    assert judge(Claim("said", claim.rule, {}, claim.metric), rows, points).evidence[0].seeds == 2


def test_devices_are_problems_only_where_their_values_differ():
    """A number of the server stands in the rows of every device and is one observation, not three."""
    of = {"ot falls with tol pairwise": None}
    for level, problems in ((lambda s, r, d: 100.0 * r, 6), (lambda s, r, d: 100.0 * r + ord(d), 18)):
        rows, points = solved(lambda seed, *_: 10 + seed, level, ("a", "b", "c"))
        for rule in of:
            found = judge(Claim("said", rule, metric="transport.iterations"), rows, points)
            assert found.evidence[0].seeds == problems
            worst = judge(Claim("said", rule, metric="worst of transport.iterations"), rows, points)
            assert worst.evidence[0].seeds == 6


def as_errors(accuracies: pd.DataFrame, std: float) -> pd.DataFrame:
    """The same rows as those of a number as label of that deviation: an error of std - std * accuracy."""
    errors = accuracies.assign(metric="rmse", value=std * (1 - accuracies["value"]))
    told = accuracies[["setting", "method", "seed", "stage", "round", "device"]].drop_duplicates()
    return pd.concat([errors, told.assign(split="data", metric="label_std", value=std)], ignore_index=True)


@pytest.mark.parametrize(
    ("rule", "metric"),
    [
        ("good > fair", "shared.accuracy"), ("fair > good", "shared.accuracy"),
        ("even ~ fair within 0.01", "shared.accuracy"), ("good ~ fair within 0.09", "shared.accuracy"),
        ("good falls with federation.alpha", "shared.accuracy"), ("good rises with round", "worst of shared.accuracy"),
        ("good ~ fair within 0.001", "std of shared.accuracy"), ("good > 0.6", "shared.accuracy"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_claims_on_numbers_are_those_on_accuracies(rule, metric):
    """An error of a share e of the labels' deviation is as good as an accuracy of 1 - e."""
    claims, gates = [Claim("said", rule, metric=metric)], [Gate("fair > 0.65", "at chance")]
    (expected,) = judge_all(claims, gates, table(), POINTS)
    (found,) = judge_all(claims, gates, as_errors(table(), 250.0), POINTS)
    assert found.claim.metric == metric.replace("accuracy", "score")
    assert (found.word, found.closed) == (expected.word, expected.closed)
    for one, other in zip(found.evidence, expected.evidence, strict=True):
        assert (one.place, one.holds) == (other.place, other.holds)
        assert (one.difference, one.margin) == pytest.approx((other.difference, other.margin), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "word"), [("fair > good", "holds"), ("good > fair", "contradicted")])
@pytest.mark.parametrize("metric", ["shared.rmse", "worst of shared.rmse"])
def test_an_error_that_is_named_is_compared_as_it_is(rule, word, metric):
    """In its unit: A > B says that the error of A is the greater."""
    (found,) = judge_all([Claim("said", rule, metric=metric)], [], as_errors(table(), 250.0), POINTS)
    assert found.word == word
    assert abs(found.evidence[0].difference) == pytest.approx(25.0)


def test_only_accuracies_on_splits_become_scores():
    kept = ["test.balanced_accuracy", "links.accuracy", "traffic.bytes_up", "std of test.loss"]
    assert [in_place_of_accuracy(name, "score") for name in kept] == kept
    assert in_place_of_accuracy("std of test.accuracy", "score") == "std of test.score"


# Verdicts: the numbers that they name, and in how many settings they hold.


@pytest.mark.slow
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
@pytest.mark.slow
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
@pytest.mark.slow
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
