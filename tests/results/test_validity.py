"""Claims are tested only where gates hold, rows may still differ and have converged."""

import pandas as pd
import pytest
from claim_tables import POINTS, course, table

from fedcore.results.claims import Claim, Gate
from fedcore.results.judging import judge, judge_all, verdict_table
from fedcore.results.validity import closed


def curve(**methods):
    """Rows of one setting with three seeds: method -> mean accuracy by round; seeds differ by .01."""
    rows = [
        (
            "one", method, seed, 0, turn, "x", "test", metric,
            (value if metric == "accuracy" else 1 - value) + 0.01 * seed,
        )
        for method, values in methods.items()
        for turn, value in values.items()
        for seed in range(3)
        for metric in ("accuracy", "loss")
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table().columns))


RISING = {1: 0.1, 9: 0.5, 10: 0.52}

LEVEL_OFF = {1: 0.1, 8: 0.6, 10: 0.6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "a", "b", "word"),
    [("b > a", RISING, LEVEL_OFF, "not tested"), ("a > b", LEVEL_OFF, RISING, "not tested"),
     ("b ~ a within 0.1", RISING, LEVEL_OFF, "not tested"), ("a > 0.3", RISING, LEVEL_OFF, "holds"),
     ("b > a", {1: 0.5}, LEVEL_OFF, "holds"), ("b > a", {10: 0.5}, LEVEL_OFF, "not tested"),
     ("b > a", {1: 0.3}, RISING, "not tested"), ("b > a", {1: 0.9, 9: 0.5, 10: 0.48}, LEVEL_OFF, "holds"),
     ("a rises with round", RISING, RISING, "holds")],
)  # fmt: skip
def test_a_row_that_still_gains_is_not_compared(rule, a, b, word):
    claim = Claim("said", rule, metric="test.accuracy")
    assert judge(claim, curve(a=a, b=b), {"one": {}}, converged=True).word == word
    assert judge(claim, curve(a=a, b=b), {"one": {}}).word == "holds"


@pytest.mark.slow
def test_less_loss_is_a_gain():
    claim = Claim("said", "a > b", metric="test.loss")
    words = [
        judge(claim, curve(a=a, b=LEVEL_OFF), {"one": {}}, converged=True).word for a in (RISING, {9: 0.5, 10: 0.4})
    ]
    assert words == ["not tested", "holds"]


def test_a_seed_that_diverged_hides_no_gain_of_the_others():
    rows = curve(a=RISING, b=LEVEL_OFF)
    of_loss = (rows["method"] == "a") & (rows["metric"] == "loss")
    rows.loc[of_loss & (rows["seed"] == 2), "value"] = float("inf")
    claim = Claim("said", "a > b", metric="test.loss")
    assert judge(claim, rows, {"one": {}}, converged=True).word == "not tested"


@pytest.mark.slow
def test_convergence_is_said_with_its_numbers_and_asked_of_the_end_alone():
    rows = curve(a=RISING, b=LEVEL_OFF)
    claims = [Claim("said", "b > a", metric="test.accuracy", round=at) for at in (None, 10)]
    end, early = judge_all(claims, [], rows, {"one": {}}, converged=True)
    why = "not converged: a gains 0.02 [0.02, 0.02] from round 9 to 10"
    assert end.numbers == f"{why}; so far +0.08 [+0.08, +0.08] (3 seeds)"
    assert early.word == "holds"


@pytest.mark.parametrize(
    ("gains", "word"),
    [((0.01, 0.02, 0.03), "not tested"), ((-0.02, 0.02, 0.06), "holds"), ((-0.03, -0.02, 0), "holds")],
)
@pytest.mark.slow
def test_a_sure_gain_counts_however_far_seeds_lie_apart(gains: tuple[float, ...], word: str):
    """Half of the intervals by hand, Student's 2.920: .0169 of .02 (sure), .0674 of .02 (not), .0258 of a loss."""
    rows = curve(a=LEVEL_OFF, b={9: 0.5, 10: 0.5})
    here = (rows["method"] == "b") & (rows["metric"] == "accuracy")
    for seed, gain in enumerate(gains):
        of_seed = here & (rows["seed"] == seed)
        rows.loc[of_seed, "value"] += 0.5 * seed  # seeds lie half apart, fifty times the gain
        rows.loc[of_seed & (rows["round"] == 10), "value"] += gain
    claim = Claim("said", "b ~ a within 1", metric="test.accuracy")
    assert judge(claim, rows, {"one": {}}, converged=True).word == word


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
     ("fedasa > fedper", "not tested"), ("fedavg > local", "contradicted"), ("fedasa - ditto > 0.13", "not tested"),
     ("fedasa > 0.96", "holds"), ("fedasa ~ ditto within 0.01", "holds")],
)  # fmt: skip
@pytest.mark.slow
def test_rows_at_the_ceiling_are_not_compared(rule, word, tests):
    claim = Claim("said", rule, metric="test.accuracy")
    verdict = judge(claim, near_one(tests, **CLEAN), {"one": {}})
    assert verdict.word == word
    if word == "not tested" and "ditto" in rule:
        assert verdict.numbers == "ditto and fedasa are at the ceiling: 0.9986 of 1"


@pytest.mark.slow
def test_the_ceiling_is_lower_where_few_examples_are_worth_more():
    """Five of 100 test examples: from .95 on."""
    for split in ("test", "shared"):
        claim = Claim("said", "a > b", metric=f"{split}.accuracy")
        words = [
            judge(claim, near_one(tests, split, a=0.97, b=0.96), {"one": {}}).word for tests in (None, 1000, 100)
        ]  # fmt: skip
        assert words == ["holds", "holds", "not tested"]


@pytest.mark.slow
def test_a_study_sets_another_ceiling_or_none():
    claim = Claim("said", "local > fedasa", metric="test.accuracy")
    words = [
        [one.word for one in judge_all([claim], [], near_one(**CLEAN), {"one": {}}, ceiling)]
        for ceiling in ("auto", None, 0.999, 0.9)
    ]
    assert words == [["not tested"], ["holds"], ["holds"], ["not tested"]]


@pytest.mark.slow
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


AT_CHANCE = Gate("good > 0.9", "local models are at chance")


def gated(gates, rows=None, **words):
    rows = table() if rows is None else rows
    return judge(Claim("said", **{"rule": "good > fair"} | words), rows, POINTS, closed(gates, rows, POINTS))


@pytest.mark.slow
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


@pytest.mark.slow
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
@pytest.mark.slow
def test_what_a_run_says_once_closes_a_gate_at_any_round(said, word):
    """The first claim is about round 1; a value of round 2 alone counts for it, one of two values does not."""
    scores = course(a=[[0.6, 0.9]], b=[[0.5, 0.5]])
    rows = pd.concat([scores, course(a=[said]).assign(split="auxiliary")])
    gate = Gate("a > 0.7", "not the paper's", metric="auxiliary.accuracy")
    (early,) = judge_all([Claim("said", "a > b", round=1)], [gate], rows, {"one": {}})
    assert early.word == word


def test_a_claim_does_not_count_what_a_run_says_once_later():
    rows = course(a=[[None, 0.9]], b=[[None, 0.5]])
    (verdict,) = judge_all([Claim("said", "a > b", round=1)], [Gate("a > 0.1", "at chance")], rows, {"one": {}})
    assert (verdict.word, verdict.numbers) == ("not tested", "no values after round 1")


@pytest.mark.slow
def test_a_gate_that_holds_changes_nothing():
    """One seed is enough for it: single has seed 0 only, but then so must the table."""
    assert gated([Gate("good > 0.5", "?")]) == gated([])
    first = table()[lambda rows: rows["seed"] == 0]
    assert closed([Gate("single > 0.3", "?")], first, POINTS) == {}


@pytest.mark.parametrize("when", ["absent > 0.1", "single > 0.1", "good - absent > 0", "good > absent"])
@pytest.mark.slow
def test_a_gate_without_a_value_for_every_seed_is_closed(when):
    verdict = gated([Gate(when, "at chance")])
    assert verdict.word == "not tested"
    assert verdict.numbers == f"no values for {when} (shared.accuracy); otherwise: at chance"


@pytest.mark.slow
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
@pytest.mark.slow
def test_a_closed_gate_says_what_it_found_and_what_it_needs(when, numbers):
    found = closed([Gate(when, "why", {"net": "mlp"})], table(), POINTS)
    assert found["alpha=0.1 net=mlp"] == f"why ({numbers})"


@pytest.mark.slow
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
