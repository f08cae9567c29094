"""Claims over a table of two devices, three seeds and a grid of two keys, whose numbers are stated."""

import numpy as np
import pandas as pd
import pytest

from fedcore.results.claims import LEVEL, Claim, Gate, closed, judge, judge_all, verdict_table
from fedcore.results.criterion import RATIO
from fedcore.results.intervals import SHARED_DATA, half_width
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
                for round_info in (1, 2):
                    for device, side in (("a", 0.01), ("b", -0.01)):
                        row = (
                            setting,
                            method,
                            seed,
                            0,
                            round_info,
                            device,
                            "shared",
                            "accuracy",
                            value - 0.2 * (2 - round_info) + side,
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
        ("even > fair", "does not hold"),  # within the interval
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
        ("good > 0.6", "holds"),  # .7 and .8, half of the interval .041
        ("good > 0.69", "does not hold"),  # within the interval where alpha is 1
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
    assert verdict("good > fair", metric="test.accuracy").word == "not tested"
    assert verdict("good > fair", metric="shared.loss").word == "not tested"


def test_the_numbers_name_the_place_that_speaks_most_against():
    rows = table()
    worst = "alpha=0.1 net=cnn"
    rows.loc[(rows["method"] == "good") & (rows["setting"] == worst), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.word == "does not hold"
    assert found.numbers.startswith("in 3 of 4 settings (sign test p = 0.31); strongest counter-example: -0.2 ")
    assert worst in found.numbers
    assert verdict("good > fair").numbers.startswith("in 4 of 4 settings; least: +0.1 ")
    assert verdict("good > single").numbers == "1 seed, a rule needs three"
    assert "three seeds" in verdict("good > absent").numbers


def test_a_reversed_order_is_stronger_evidence_than_a_spread_over_seeds():
    rows = table()
    good = rows["method"] == "good"
    rows.loc[good & (rows["setting"] == "alpha=1.0 net=mlp"), "value"] += 5 * rows["seed"] - 4.5  # +.6 +- 5
    rows.loc[good & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] -= 0.3
    found = judge(Claim("said", "good > fair"), rows, POINTS)
    assert found.numbers.startswith("in 2 of 4 settings (sign test p = 0.69); strongest counter-example: -0.2 ")


def test_a_tolerance_claim_names_the_setting_of_largest_difference():
    rows = table()
    rows.loc[(rows["method"] == "fair") & (rows["setting"] == "alpha=0.1 net=cnn"), "value"] += 0.02
    assert judge(Claim("said", "fair ~ even within 0.03"), rows, POINTS).numbers.startswith(
        "in 4 of 4 settings; largest: +0.02 "
    )
    found = judge(Claim("said", "even ~ fair within 0.01"), rows, POINTS).numbers
    assert found.startswith("in 3 of 4 settings (sign test p = 0.31); strongest counter-example: -0.02 ")
    assert "alpha=0.1 net=cnn" in found


@pytest.mark.parametrize(
    "rule",
    [
        *("", "good", "good >", "good beats fair", "good > fair and", "good ~ fair", "good rises", "a - b - c > d"),
        *("good stays within 1 with net pairwise", "good > fair pairwise", "good pairwise falls with net"),
        *("0.9 > 0.8", "0.9 rises with round", "good > 0.9 - 0.1", "good > .", "0.5 < good"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(InputError, match="must be one of"):
        Claim("said", rule)


@pytest.mark.parametrize("of", ["", "accuracy", "mean of test.accuracy", "std test.accuracy", "worst of accuracy"])
def test_an_of_that_cannot_be_read_is_refused(of):
    with pytest.raises(InputError, match="must be a split and a metric"):
        Claim("said", "good > fair", metric=of)


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
def test_spreads_worst_devices_and_domains(rule, words, differences):
    found = judge(Claim("said", rule, **words), spread_out(), POINTS).evidence
    assert [one.difference for one in found] == pytest.approx([differences] * len(POINTS))


def test_the_worst_of_what_is_better_less_is_the_greatest():
    rows = spread_out()
    for metric, worst in (("accuracy", 0.0), ("loss", 1.0), ("similarity_other", 1.0)):
        renamed = rows[rows["metric"] == "in_A"].assign(split="shared", metric=metric)
        (first, *_) = judge(Claim("said", "good > -1", metric=f"worst of shared.{metric}"), renamed, POINTS).evidence
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
    claim = Claim("", "fedavg falls with data.locations", metric="test.accuracy")
    rows = [
        (place, seed, value + seed / 100) for place, value in zip(points, (0.9, 0.6), strict=True) for seed in range(3)
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


# the interval over seeds


def drawn(values, a="a", b="b"):
    """Rows of a and b = 0: values of a, settings x seeds."""
    rows = [
        (str(place), method, seed, 0, 1, "x", "shared", "accuracy", value)
        for place, seeds in enumerate(values)
        for seed, difference in enumerate(seeds)
        for method, value in ((a, difference), (b, 0.0))
    ]
    return pd.DataFrame(rows, columns=list(table().columns)), {str(place): {} for place in range(len(values))}


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_null_effect_passes_in_at_most_five_of_a_hundred_cases(seeds):
    """In 3,000 settings of independent normal differences; one standard deviation passed .11 of them with 3 seeds."""
    values = np.random.default_rng(seeds).standard_normal((3000, seeds))
    found = judge(Claim("said", "a > b"), *drawn(values))
    assert len(found.evidence) == 3000
    assert found.held <= 150


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("shared", "rates"), [(0.0, (0.043, 0.035, 0.020)), (SHARED_DATA * RATIO, (0.05,) * 3)])
def test_how_often_a_null_effect_passes(seeds, shared, rates):
    """docs/pipeline.md has these rates. shared: variance that all seeds of a setting have in common, of one seed's."""
    draw = np.random.default_rng(seeds)
    values = draw.standard_normal((200_000, seeds)) + shared**0.5 * draw.standard_normal((200_000, 1))
    margins = half_width(1.0, seeds, RATIO, LEVEL) * values.std(axis=1, ddof=1)
    assert np.mean(values.mean(axis=1) > margins) == pytest.approx(rates[[3, 5, 10].index(seeds)], abs=0.002)


@pytest.mark.parametrize("rule", ["a > b", "a ~ b within 1", "a stays within 1 with round"])
def test_two_seeds_test_nothing(rule):
    rows, points = drawn([[0.1, 0.1]])
    rows = pd.concat([rows, rows.assign(round=2)])
    verdict = judge(Claim("said", rule), rows, points)
    assert (verdict.word, verdict.numbers) == ("not tested", "2 seeds, a rule needs three")


def test_a_setting_with_two_seeds_is_out_of_the_verdict():
    verdict = judge(Claim("said", "a > b"), *drawn([[0.1, 0.1, 0.1], [0.1, 0.1]]))
    assert verdict.word == "holds"
    assert verdict.numbers.endswith("(3 seeds); not tested in 1 of 2: 2 seeds, a rule needs three")


def test_a_tolerance_is_compared_with_the_mean_and_its_interval_is_shown():
    """Mean 0, standard deviation .02: t = 2.920 of two degrees of freedom, times .02 sqrt(1 / 3 + 1 / 6)."""
    verdict = judge(Claim("said", "a ~ b within 0.01"), *drawn([[-0.02, 0.0, 0.02]]))
    assert verdict.numbers == "in 1 of 1 setting; largest: +0 [-0.0369, +0.0369] (3 seeds)"
    assert verdict.word == "holds"


# convergence


def curve(**methods):
    """Rows of one setting with three seeds: method -> mean accuracy by round; seeds differ by .01."""
    rows = [
        (
            "one",
            method,
            seed,
            0,
            turn,
            "x",
            "test",
            metric,
            (value if metric == "accuracy" else 1 - value) + 0.01 * seed,
        )
        for method, values in methods.items()
        for turn, value in values.items()
        for seed in range(3)
        for metric in ("accuracy", "loss")
    ]
    return pd.DataFrame(rows, columns=list(table().columns))


RISING = {1: 0.1, 9: 0.5, 10: 0.52}
LEVEL_OFF = {1: 0.1, 8: 0.595, 10: 0.6}


@pytest.mark.parametrize(
    ("rule", "a", "b", "word"),
    [("b > a", RISING, LEVEL_OFF, "not tested"), ("a > b", LEVEL_OFF, RISING, "not tested"),
     ("b ~ a within 0.1", RISING, LEVEL_OFF, "not tested"), ("a > 0.3", RISING, LEVEL_OFF, "holds"),
     ("b > a", {1: 0.5}, LEVEL_OFF, "holds"), ("b > a", {10: 0.5}, LEVEL_OFF, "not tested"),
     ("b > a", {1: 0.3}, RISING, "holds"), ("b > a", {1: 0.9, 9: 0.5, 10: 0.48}, LEVEL_OFF, "holds"),
     ("a rises with round", RISING, RISING, "holds")],
)  # fmt: skip
def test_a_row_that_still_gains_is_not_compared(rule, a, b, word):
    claim = Claim("said", rule, metric="test.accuracy")
    assert judge(claim, curve(a=a, b=b), {"one": {}}, converged=True).word == word
    assert judge(claim, curve(a=a, b=b), {"one": {}}).word == "holds"


def test_less_loss_is_a_gain():
    claim = Claim("said", "a > b", metric="test.loss")
    words = [
        judge(claim, curve(a=a, b=LEVEL_OFF), {"one": {}}, converged=True).word for a in (RISING, {9: 0.5, 10: 0.4})
    ]
    assert words == ["not tested", "holds"]


def test_convergence_is_said_with_its_numbers_and_asked_of_the_end_alone():
    rows = curve(a=RISING, b=LEVEL_OFF)
    claims = [Claim("said", "b > a", metric="test.accuracy", round=at) for at in (None, 10)]
    end, early = judge_all(claims, [], rows, {"one": {}}, converged=True)
    assert end.numbers == "not converged: a gains 0.02 from round 9 to 10, its spread over seeds is 0.01"
    assert early.word == "holds"


def test_rounds_of_all_stages_count_for_convergence():
    """Stage 1 begins after 5 rounds: its rounds 4 and 5 are 9 and 10."""
    rows = curve(a=RISING, b={1: 0.6})
    late = rows["round"] > 1
    moved = rows.assign(stage=late.astype(int), round=rows["round"] - 5 * late)
    first = rows[~late].assign(round=5)
    (verdict,) = judge_all(
        [Claim("said", "b > a", metric="test.accuracy")], [], pd.concat([moved, first[first["method"] == "a"]]),
        {"one": {}}, converged=True,
    )  # fmt: skip
    assert "from round 9 to 10" in verdict.numbers


# many settings


@pytest.mark.parametrize(
    ("held", "of", "word", "p"),
    [(8, 8, "holds", 1 / 256), (7, 8, "holds in most", 9 / 256), (6, 7, "does not hold", 8 / 128),
     (1, 1, "holds", 1 / 2), (0, 1, "does not hold", 1), (12, 16, "holds in most", 2517 / 65536),
     (4, 8, "does not hold", 163 / 256)],
)  # fmt: skip
def test_a_claim_may_hold_in_most_settings(held, of, word, p):
    """p: sums of binomial coefficients by hand, e.g. (8 + 1) / 2 ** 8 for at least 7 of 8."""
    verdict = judge(Claim("said", "a > b"), *drawn([[0.1] * 3] * held + [[-0.1] * 3] * (of - held)))
    (row,) = verdict_table([("s", verdict)]).to_dict("records")
    assert verdict.word == row["verdict"] == word
    assert row["p"] == pytest.approx(p)
    assert (row["holds_in"], row["tested_in"]) == (held, of)
    assert row["numbers"].startswith(f"in {held} of {of} setting")


# the ceiling


def near_one(tests=None, split="test", **values):
    """Rows of one setting with three seeds: method -> mean accuracy. tests: test examples of the device, if known."""
    rows = [
        ("one", method, seed, 0, 1, "x", split, "accuracy", value + (seed - 1) * 1e-4)
        for method, value in values.items()
        for seed in range(3)
    ]
    if tests is not None:
        for name, number in (("examples", 400.0), ("test_examples", tests), ("shared_examples", tests)):
            rows += [("one", next(iter(values)), 0, 0, 1, "x", "data", name, float(number))]
    return pd.DataFrame(rows, columns=list(table().columns))


CLEAN = {"fedasa": 0.9986, "ditto": 0.9991, "local": 0.9995, "fedper": 0.9961, "fedavg": 0.937, "fedprox": 0.937}
"""Accuracies on clean bearing records of three locations: all but FedAvg and FedProx are at the ceiling."""


@pytest.mark.parametrize("tests", [None, 2160, 400])
@pytest.mark.parametrize(
    ("rule", "word"),
    [("fedasa > fedavg", "holds"), ("fedasa > ditto", "not tested"), ("fedasa > local", "not tested"),
     ("fedasa > fedper", "not tested"), ("fedavg > local", "does not hold"), ("fedasa - ditto > 0.13", "not tested"),
     ("fedasa > 0.96", "holds"), ("fedasa ~ ditto within 0.01", "holds")],
)  # fmt: skip
def test_rows_at_the_ceiling_are_not_compared(rule, word, tests):
    claim = Claim("said", rule, metric="test.accuracy")
    verdict = judge(claim, near_one(tests, **CLEAN), {"one": {}})
    assert verdict.word == word
    if word == "not tested" and "ditto" in rule:
        assert verdict.numbers == "ditto and fedasa are at the ceiling: 0.9986 of 1"


def test_the_ceiling_is_lower_where_few_examples_are_worth_more():
    """Five of 100 test examples: from .95 on."""
    for split in ("test", "shared"):
        claim = Claim("said", "a > b", metric=f"{split}.accuracy")
        words = [
            judge(claim, near_one(tests, split, a=0.97, b=0.96), {"one": {}}).word for tests in (None, 1000, 100)
        ]  # fmt: skip
        assert words == ["holds", "holds", "not tested"]


def test_a_study_sets_another_ceiling_or_none():
    claim = Claim("said", "local > fedasa", metric="test.accuracy")
    words = [
        [one.word for one in judge_all([claim], [], near_one(**CLEAN), {"one": {}}, ceiling)]
        for ceiling in ("auto", None, 0.999, 0.9)
    ]
    assert words == [["not tested"], ["holds"], ["holds"], ["not tested"]]


def test_a_trend_at_the_ceiling_is_not_tested():
    points = {"k=1": {"k": 1}, "k=2": {"k": 2}}
    both = [near_one(a=first, b=0.9999).assign(setting=place) for place, first in (("k=1", 0.999), ("k=2", 0.997))]
    rows = pd.concat([pd.concat(both), pd.concat(both).assign(device="y")])
    for rule, metric in (("a falls with k", "test.accuracy"), ("b > a", "std of test.accuracy")):
        verdict = judge(Claim("said", rule, metric=metric), rows, points)
        assert verdict.word == "not tested"
        assert "at the ceiling: 0.997 of 1" in verdict.numbers
    losses = rows.assign(metric="loss")
    assert judge(Claim("said", "a falls with k", metric="test.loss"), losses, points).word == "holds"


# values after a given round


def course(**values):
    """Rows of one device in setting "one", seeds 0 to 2: method -> values after rounds 1, 2, ...; a list of stages."""
    rows = [
        ("one", method, seed, stage, round_info, "a", "shared", "accuracy", value + seed / 1000)
        for method, stages in values.items()
        for stage, of in enumerate(stages)
        for round_info, value in enumerate(of, 1)
        for seed in range(3)
        if value is not None
    ]
    return pd.DataFrame(rows, columns=list(table().columns))


def after(rule, at, **values):
    return judge(Claim("said", rule, round=at), course(**values), {"one": {}})


def test_a_claim_may_look_at_an_earlier_round():
    """Early a is ahead, in the end b; with stages of two and of one round the third round is in the second stage."""
    curves = {"a": [[0.5, 0.6], [0.6]], "b": [[0.2, 0.4, 0.8]]}
    assert [after("a > b", at, **curves).word for at in (1, 2, 3, None)] == ["holds"] * 2 + ["does not hold"] * 2
    assert after("a > b", 2, **curves).evidence[0].difference == pytest.approx(0.2)


def test_a_round_that_was_not_evaluated_is_not_tested():
    curves = {"a": [[None, 0.5, None, 0.6]], "b": [[None, 0.2, 0.3, 0.4]]}
    words = [after("a > b", at, **curves).word for at in (1, 2, 3, 4, 5)]
    assert words == ["not tested", "holds", "not tested", "holds", "not tested"]


def test_a_method_of_one_round_has_its_value_at_any_time():
    assert after("a > once", 3, a=[[0.1, 0.2, 0.9, 0.1]], once=[[0.5]]).word == "holds"
    assert after("a > twice", 3, a=[[0.1, 0.2, 0.9, 0.1]], twice=[[0.5, 0.5]]).word == "not tested"


def test_a_trend_over_rounds_ends_at_the_given_round():
    assert after("a rises with round", 3, a=[[0.1, 0.2, 0.9, 0.05]]).word == "holds"
    assert after("a falls with round", None, a=[[0.1, 0.2, 0.9, 0.05]]).word == "holds"


def test_the_round_is_in_the_table():
    frame = verdict_table([("s", after("a > b", 2, a=[[1, 2]], b=[[0, 0]]))])
    assert frame["of"].tolist() == ["shared.accuracy after round 2"]


# comparisons on one problem


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
    assert paired("ot rises with tol pairwise", lambda seed, *_: 10 + 2 * seed).word == "does not hold"


def test_seeds_that_differ_in_size_hide_a_fall_only_without_pairing():
    """By setting, the spread over seeds exceeds the mean; over all problems the mean is 2.9 standard errors."""
    change = lambda seed, reg, _: {1: (10, 10, 100), 2: (100, 10, 100)}[reg][seed]  # noqa: E731
    assert paired("ot falls with tol", change).word == "does not hold"
    assert paired("ot falls with tol pairwise", change).word == "holds"


def test_changes_in_both_directions_are_no_fall():
    verdict = paired("ot falls with tol pairwise", lambda seed, *_: (-10, 0, 11)[seed])
    assert verdict.word == "does not hold"
    assert verdict.evidence[0].agree == 2


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


# gates


AT_CHANCE = Gate("good > 0.9", "local models are at chance")


def gated(gates, rows=None, **words):
    rows = table() if rows is None else rows
    return judge(Claim("said", **{"rule": "good > fair"} | words), rows, POINTS, closed(gates, rows, POINTS))


@pytest.mark.parametrize(
    "rule", ["good > fair", "fair > good", "good ~ fair within 1", "good falls with federation.alpha",
             "good falls with federation.alpha pairwise", "good rises with round", "good > absent", "single > 0.1"],
)  # fmt: skip
def test_no_claim_of_a_study_at_chance_is_tested(rule):
    verdict = gated([AT_CHANCE], rule=rule)
    assert verdict.word == "not tested"
    assert verdict.evidence == ()
    assert verdict.numbers.startswith("local models are at chance (good = 0.")
    (row,) = verdict_table([("s", verdict)]).to_dict("records")
    assert row["verdict"] == "not tested"
    assert row["numbers"] == verdict.numbers


def test_a_claim_of_an_early_round_needs_a_gate_that_holds_by_then():
    rows = course(a=[[0.1, 0.9]], b=[[0.05, 0.5]])
    claims = [Claim("said", "a > b", round=at) for at in (1, 2, None)]
    early, late, end = judge_all(claims, [Gate("a > 0.3", "at chance")], rows, {"one": {}})
    assert (early.word, late.word, end.word) == ("not tested", "holds", "holds")
    assert early.numbers.startswith("at chance (a = 0.1")
    assert judge(claims[0], rows, {"one": {}}).word == "holds"


@pytest.mark.parametrize(
    ("said", "word"), [([None, 0.8], "holds"), ([None, 0.1], "not tested"), ([0.1, 0.8], "not tested")]
)
def test_what_a_run_says_once_closes_a_gate_at_any_round(said, word):
    """The first claim is about round 1; a value of round 2 alone counts for it, one of two values does not."""
    scores = course(a=[[0.6, 0.9]], b=[[0.5, 0.5]])
    rows = pd.concat([scores, course(a=[said]).assign(split="auxiliary")])
    gate = Gate("a > 0.7", "not the paper's", metric="auxiliary.accuracy")
    (early,) = judge_all([Claim("said", "a > b", round=1)], [gate], rows, {"one": {}})
    assert early.word == word


def test_a_spread_of_rounding_errors_is_none():
    values = enumerate((0.1 + 0.2, 0.3, 0.3))
    rows = [("one", "a", seed, 0, 1, "x", "shared", "accuracy", value) for seed, value in values]
    rows = pd.DataFrame(rows, columns=list(table().columns))
    verdict = judge(Claim("said", "a > 0.25"), rows, {"one": {}})
    assert 0 < verdict.evidence[0].spread < 1e-15
    assert verdict.numbers == "in 1 of 1 setting; least: +0.05 [+0.05, +0.05] (3 seeds)"
    level = judge(Claim("said", "0.3 > a"), rows, {"one": {}})
    assert level.numbers == "in 0 of 1 setting; strongest counter-example: +0 [+0, +0] (3 seeds)"


def test_a_claim_does_not_count_what_a_run_says_once_later():
    rows = course(a=[[None, 0.9]], b=[[None, 0.5]])
    (verdict,) = judge_all([Claim("said", "a > b", round=1)], [Gate("a > 0.1", "at chance")], rows, {"one": {}})
    assert (verdict.word, verdict.numbers) == ("not tested", "no values after round 1")


def test_a_gate_that_holds_changes_nothing():
    """One seed is enough for it: single has seed 0 only, but then so must the table."""
    assert gated([Gate("good > 0.5", "?")]) == gated([])
    first = table()[lambda rows: rows["seed"] == 0]
    assert closed([Gate("single > 0.3", "?")], first, POINTS) == {}


@pytest.mark.parametrize("when", ["absent > 0.1", "single > 0.1", "good - absent > 0", "good > absent"])
def test_a_gate_without_a_value_for_every_seed_is_closed(when):
    verdict = gated([Gate(when, "at chance")])
    assert verdict.word == "not tested"
    assert verdict.numbers == f"no values for {when} (shared.accuracy); otherwise: at chance"


def test_a_gate_closes_the_settings_in_which_it_fails():
    """good is .7 where alpha is 1 and .8 where it is .1: the first are out of the verdict, and it says so."""
    verdict = gated([Gate("good > 0.75", "local models are at chance")])
    assert verdict.word == "holds"
    assert [one.place for one in verdict.evidence] == ["alpha=0.1 net=mlp", "alpha=0.1 net=cnn"]
    assert verdict.numbers.startswith("in 2 of 2 settings; least: +0.1 ")
    assert verdict.numbers.endswith("; not tested in 2 of 4: local models are at chance (good = 0.7, needs > 0.75)")
    trend = gated([Gate("good > 0.75", "local models are at chance")], rule="good falls with federation.alpha")
    assert trend.word == "not tested"  # each trend has one end where the gate is closed


def test_a_gate_may_concern_some_settings_only():
    gate = Gate("good > 0.9", "at chance", {"net": "mlp"})
    assert {*closed([gate], table(), POINTS)} == {name for name in POINTS if "mlp" in name}


@pytest.mark.parametrize(
    ("when", "numbers"),
    [
        ("good - fair > 0.3", "good - fair = 0.1, needs > 0.3"),
        ("0.5 > good", "good = 0.8, needs < 0.5"),
        ("fair > good", "fair minus good = -0.1, needs > 0"),
        ("good ~ 0.5 within 0.1", "good = 0.8, needs ~ 0.5 within 0.1"),
        ("good falls with round", "good changes by +0.2, needs: falls"),
        ("good stays within 0.1 with round", "good changes by +0.2, needs: within 0.1"),
    ],
)
def test_a_closed_gate_says_what_it_found_and_what_it_needs(when, numbers):
    found = closed([Gate(when, "why", {"net": "mlp"})], table(), POINTS)
    assert found["alpha=0.1 net=mlp"] == f"why ({numbers})"


def test_a_gate_may_look_at_devices_with_labels_alone():
    """Device a has labels and is .02 above b, which has none."""
    rows = table().assign(study="s", dataset="d")
    places = rows.drop(columns=["split", "metric", "value"]).drop_duplicates()
    counts = places.assign(split="data", metric="examples", value=(places["device"] == "a") * 8.0)
    both = pd.concat([rows, counts])
    for labelled, value in ((True, 0.81), (False, 0.79), ([True, False], 0.8)):
        shut = closed([Gate("good > 0.99", "why", {"labelled": labelled})], both, POINTS)
        assert shut["alpha=0.1 net=mlp"] == f"why (good = {value:g}, needs > 0.99)"
    assert closed([Gate("good > 0.8", "why", {"labelled": True, "federation.alpha": 0.1})], both, POINTS) == {}


def test_the_first_gate_that_fails_gives_the_reason():
    gates = [Gate("good > 0.1", "one"), Gate("good > 0.95", "two"), AT_CHANCE]
    assert gated(gates).numbers.startswith("two (")
