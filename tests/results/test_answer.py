"""The rule that says what to do, on tables made so that the answer is known."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from answer_tables import ALONE, CONTROLS, GUESS, Accuracy, plus, table
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tables import frame, rows

from fedcore.core.metrics import METRICS
from fedcore.report.phrases import WEIGHTS, facts, headline, sentences
from fedcore.results.advice import Action, Advice, NewDevice
from fedcore.results.answer import FEW_SEEDS, answer, answers, answers_by_budget, decide, device_changes
from fedcore.results.chance import LINEAR, TRIED, Cause, with_found
from fedcore.results.criterion import RATIO, Criterion, Measured
from fedcore.results.gains import Gain


@pytest.mark.slow
def test_a_clear_winner_is_recommended_with_its_gains_and_cost():
    found = answer(table({"local_only": ALONE, "code": plus(0.1), "worse": plus(-0.1), "majority": GUESS}), CONTROLS)
    own = found.own
    assert own is not None
    assert own.gain is not None
    assert own.over_guess is not None
    assert (own.action, own.method, own.value) == (Action.USE, "code", pytest.approx(0.75))
    assert (own.gain.mean, own.gain.low, own.gain.high, own.gain.least) == pytest.approx((0.1, 0.1, 0.1, 0.1))
    assert own.over_guess.mean == pytest.approx(0.45)
    assert (own.equal, own.indistinguishable, own.better_controls) == ((), (), ())
    assert found.devices is not None
    assert (found.devices.count, found.devices.helped, found.devices.hurt) == (2, 2, 0)
    assert (found.up, found.down) == (1000, 2000)


@pytest.mark.slow
def test_validation_data_choose_the_row_whose_gain_is_tested():
    made = table({"local_only": ALONE, "lucky": plus(0.2), "chosen": plus(0.1)})
    on = (made["method"] == "lucky") & (made["split"] == "val")
    made.loc[on, "value"] = made.loc[on, "value"] - 0.3
    found = answer(made, CONTROLS).advice
    assert (found.best, found.validated) == ("chosen", True)


@pytest.mark.slow
def test_the_row_that_is_ahead_on_test_data_alone_is_named_with_the_reason():
    made = table({"local_only": ALONE, "lucky": plus(0.2), "chosen": plus(0.1)})
    on = (made["method"] == "lucky") & (made["split"] == "val")
    found = answer(made.assign(value=made["value"].where(~on, made["value"] - 0.3)), CONTROLS)
    assert found.advice.ahead == ("lucky", pytest.approx(0.85), "chosen")
    assert (
        "chosen is chosen, as it is best on validation rows. On the test rows lucky is ahead (85.0% right), but "
        in str(sentences(found))
    )
    assert answer(made, CONTROLS).advice.ahead is None


@pytest.mark.slow
def test_two_seeds_are_said_to_tell_nothing():
    made = table({"local_only": ALONE, "code": [[0.9, 0.8], [0.75, 0.6], [0.7, 0.6]]})
    found = sentences(answer(made[made["seed"] < 2], CONTROLS))
    assert found[0].endswith("Two seeds say nothing; run a third.")


@pytest.mark.slow
def test_without_validation_data_several_rows_share_the_5_per_cent():
    """Gains of .1, .2 and .15; of three rows the best is taken, so that each has a third of the 5 %."""
    runs = [[value + gain for value in devices] for gain, devices in zip((0.1, 0.2, 0.15), ALONE, strict=True)]
    made = table({"local_only": ALONE, "code": runs, "lmf": plus(0.02), "worse": plus(-0.1)})
    for rows_of, among in ((made, 1), (made[made["split"] != "val"], 3)):
        advice = answer(rows_of, CONTROLS).advice
        half = stats.t.ppf(1 - 0.025 / among, 2) * 0.05 * (1 / 3 + RATIO / 5) ** 0.5
        assert advice.gain is not None
        assert (advice.best, advice.validated) == ("code", among == 1)
        assert (advice.gain.mean, advice.gain.margin) == pytest.approx((0.15, half))


@pytest.mark.slow
def test_a_difference_that_does_not_matter_is_said_to_be_none():
    found = answer(table({"local_only": ALONE, "code": plus(0.002)}), CONTROLS)
    assert found.advice.action is Action.SAME


@pytest.mark.slow
def test_a_tie_wider_than_what_matters_is_no_equality():
    """Gains by seed: .08, -.06, .01 -> .01 with spread .07."""
    wide = {"local_only": ALONE, "code": [[0.78, 0.68], [0.66, 0.54], [0.69, 0.61]]}
    found = answer(table(wide), CONTROLS)
    assert found.advice.action is Action.UNSURE
    assert found.advice.equal == ()
    # The interval decides, not the mean: where differences of 30 points do not matter, the two are the same.
    assert answer(table(wide), CONTROLS, Criterion(min_effect=0.3)).advice.action is Action.SAME


@pytest.mark.slow
def test_training_alone_is_recommended_where_combining_cannot_gain():
    found = answer(table({"local_only": ALONE, "code": plus(-0.1), "lmf": plus(-0.2)}), CONTROLS)
    assert (found.advice.action, found.advice.method, found.advice.best) == (Action.ALONE, "local_only", "code")


@pytest.mark.slow
def test_a_winner_that_hurts_the_worst_device_says_so():
    hurts = [[0.95, 0.50], [0.97, 0.50], [0.93, 0.50]]
    found = answer(table({"local_only": ALONE, "code": hurts}), CONTROLS)
    assert found.advice.action is Action.USE
    assert found.devices is not None
    assert (found.devices.helped, found.devices.hurt, found.devices.lowest) == (1, 1, "d01")
    assert found.devices.lowest_change == pytest.approx(-0.1)
    assert (found.devices.worst_alone, found.devices.worst) == pytest.approx((0.6, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("falls", "same_test", "shown"), [((13, 5, -1), 0, False), ((11, 10, 9), 0, True), ((10, 10, 10), 1, False)]
)
def test_a_fall_that_is_not_shown_may_be_chance(falls: tuple[float, ...], same_test: int, shown: bool):
    """Points that d08 of nine devices falls by at three seeds: its interval has 0 in it, or misses the rows' luck."""
    made = table({"local_only": [[0.6] * 9] * 3, "code": [[0.8] * 8 + [0.6 - fall / 100] for fall in falls]})
    made = pd.concat([made, made.iloc[:1].assign(split="data", metric="same_test", value=same_test)], ignore_index=True)
    found = answer(made, CONTROLS)
    assert found.devices is not None
    assert (found.devices.lowest, found.devices.hurt, "d08" in found.devices.shown) == ("d08", 1, shown)
    (whom,) = [text for text in sentences(found) if text.startswith("code helps 8 of 9 devices")]
    assert ("This may be chance." in whom) is not shown
    assert facts(found)[2] == ("8 of 9", f"devices helped, 1 hurt{'; may be chance' * (not shown)}")


@pytest.mark.slow
def test_a_row_that_is_not_above_the_guess_is_one():
    found = answer(table({"local_only": GUESS, "code": plus(0.1), "majority": GUESS}), CONTROLS)
    assert [found.is_guess(row) for row in ("local_only", "code")] == [True, False]


@pytest.mark.parametrize("seeds", [0, 1])
@pytest.mark.slow
def test_a_single_seed_recommends_nothing(seeds: int):
    """Also where each of two rows has a seed that the other has not."""
    made = table({"local_only": ALONE, "code": plus(0.2), "majority": GUESS})
    made = made[(made["seed"] == 0) | ((made["method"] == "code") & (made["seed"] == seeds))]
    found = answer(made, CONTROLS)
    assert (found.advice.action, found.advice.reason) == (Action.UNSURE, FEW_SEEDS)


@pytest.mark.parametrize(
    "methods", [{"code": plus(0.2)}, {"local_only": ALONE}, {"majority": GUESS, "best_local": plus(0.2)}]
)
@pytest.mark.slow
def test_one_row_alone_or_controls_alone_recommend_nothing(methods: dict[str, Accuracy]):
    found = answer(table(methods), CONTROLS)
    assert found.advice.action is Action.UNSURE
    assert found.advice.reason.startswith("no method ")


@pytest.mark.slow
def test_a_control_is_never_recommended_and_named_if_it_is_better():
    found = answer(table({"local_only": ALONE, "code": plus(0.1), "best_local": plus(0.2)}), CONTROLS)
    assert (found.advised, found.advice.better_controls) == ("code", ("best_local",))
    assert answer(table({"local_only": ALONE, "best_local": plus(0.2)}), CONTROLS).advised is None


@pytest.mark.slow
def test_models_that_only_guess_recommend_nothing():
    made = {"local_only": ALONE, "code": plus(0.1), "majority": plus(0.1)}
    found = answer(table(made), CONTROLS)
    assert found.advice.action is Action.UNSURE
    assert "is not above always guessing" in found.advice.reason


@pytest.mark.slow
def test_few_seeds_may_not_tell_a_row_from_guessing():
    """74.4 against a guess of 52.7, but with a wide spread."""
    wide = [[0.95, 0.95], [0.60, 0.60], [0.68, 0.68]]
    made = {"local_only": [[0.5, 0.5]] * 3, "code": wide, "majority": [[0.527, 0.527]] * 3}
    close = {"local_only": plus(-0.2, wide), **{key: made[key] for key in ("code", "majority")}}
    found = answer(table(close), CONTROLS).advice
    assert found.action is Action.UNSURE
    assert found.reason == "these seeds do not tell code from always guessing"


@pytest.mark.slow
def test_where_nothing_is_decided_no_row_is_said_to_have_learnt_nothing():
    """Combining is below guessing and training alone above: nothing is used, and the reason is not the guess."""
    made = {"local_only": ALONE, "fedavg": [[0.9, 0.9], [0.4, 0.4], [0.7, 0.7]], "majority": [[0.68, 0.6]] * 3}
    found = answer(table(made), CONTROLS).advice
    assert (found.action, found.reason) == (Action.UNSURE, "")


@pytest.mark.slow
def test_the_stronger_guess_counts():
    """Each device's own majority is right more often than one class for all."""
    own = [[0.74, 0.70], [0.76, 0.70], [0.72, 0.70]]
    made = {"local_only": ALONE, "code": plus(0.1), "majority": GUESS, "majority_per_device": own}
    found = answer(table(made), CONTROLS | {"majority_per_device"}).advice
    assert found.guess == "majority_per_device"
    assert found.over_guess is not None
    assert found.over_guess.mean == pytest.approx(0.03)


# which devices count, and by what


def with_sizes(made: pd.DataFrame, sizes: dict[str, int], classes: dict[str, int] | None = None) -> pd.DataFrame:
    """Add how many test examples each device has, and of how many classes."""
    runs = made[["study", "dataset", "setting", "method", "seed", "stage", "round", "device"]].drop_duplicates()
    parts = [
        runs.assign(split="data", metric=name, value=runs["device"].map(values).astype(float))
        for name, values in (
            ("test_examples", sizes),
            ("test_classes", classes or dict.fromkeys(sizes, 2)),
            ("examples", {name: 3 * size for name, size in sizes.items()}),
        )
    ]
    return pd.concat([made, *parts], ignore_index=True)


@pytest.mark.slow
def test_a_tiny_device_does_not_outvote_the_others():
    """d00 has 400 test rows and gains; d01 has 2, loses, and is left out of the mean, by name."""
    made = with_sizes(table({"local_only": ALONE, "code": [[0.75, 0.1]] * 3}), {"d00": 400, "d01": 2})
    found = answer(made, CONTROLS, Criterion(least_test=20))
    assert (found.advice.action, found.measured.few) == (Action.UNSURE, ("d01",))
    assert found.advice.gain is not None
    assert found.advice.gain.mean == pytest.approx(0.05)
    assert found.devices is not None
    assert found.devices.count == 1
    assert found.by_rows is None
    tiny = answer(made, CONTROLS, Criterion(least_test=0))
    assert tiny.by_rows is None  # nor can anything be said by rows
    surer = with_sizes(table({"local_only": ALONE, "code": [[0.85, 0.1]] * 3}), {"d00": 400, "d01": 2})
    offer = "Devices differ much in size. If rows count, not devices, use code: run.weigh=examples."
    assert offer in sentences(answer(surer, CONTROLS, Criterion(least_test=0)))
    close = with_sizes(table({"local_only": ALONE, "code": [[0.75, 0.1]] * 3}), {"d00": 400, "d01": 41})
    assert answer(close, CONTROLS).by_rows is None
    assert answer(made, CONTROLS, Criterion(least_test=0, weigh="examples")).by_rows is None
    everyone = tiny.advice.gain
    assert everyone is not None
    assert everyone.mean == pytest.approx((0.05 - 0.5) / 2)
    weighed = answer(made, CONTROLS, Criterion(weigh="examples")).advice.gain
    assert weighed is not None
    assert weighed.mean == pytest.approx((0.05 * 400 - 0.5 * 2) / 402)


@pytest.mark.slow
@pytest.mark.parametrize(("large", "offered"), [((0.6, 0.6, 0.6), "other"), ((0.5, 0.6, 0.7), None)])
def test_by_rows_a_row_is_offered_if_it_is_better_for_sure(large: tuple[float, ...], offered: str | None):
    """Of two rows that gain, one gains more at the large device, by 10 points with or without a spread."""
    runs = {"local_only": [[0.5, 0.5]] * 3, "code": [[value, 0.9] for value in large], "other": [[0.7, 0.6]] * 3}
    found = answer(with_sizes(table(runs), {"d00": 400, "d01": 40}), CONTROLS)
    assert (found.advised, found.by_rows) == ("code", offered)


@pytest.mark.slow
def test_the_gain_over_all_devices_is_said_beside_that_of_those_that_count():
    """One device of four counts; over all the gain is .1 (.2, .1, .1, 0), with the interval over devices."""
    own = [[0.5 + shift] * 4 for shift in (0.0, 0.02, -0.02)]
    gains = [[value + gain for value, gain in zip(row, (0.2, 0.1, 0.1, 0.0), strict=True)] for row in own]
    made = table({"local_only": own, "code": gains})
    sized = with_sizes(made, {"d00": 50, "d01": 5, "d02": 5, "d03": 5})
    found = answer(sized, CONTROLS, Criterion(least_test=20))
    assert found.over_all is not None
    half = 3.182446 * np.std([0.2, 0.1, 0.1, 0.0], ddof=1) / 2  # Student's t of three degrees of freedom
    assert (found.over_all.mean, found.over_all.margin) == (pytest.approx(0.1), pytest.approx(half, rel=1e-5))
    interval = f"95 % interval {10 - 100 * half:+.1f} to {10 + 100 * half:+.1f}; 4 devices"
    named = "If d01, d02 and d03 counted too, code against local training: "
    assert f"{named}+10.0 points ({interval}). The answer leaves that out, as their test rows are few." in sentences(
        found
    )
    by_rows = answer(sized, CONTROLS, Criterion(least_test=20, weigh="examples"))
    assert any(one.startswith("If d01, d02 and d03 counted too, all alike, ") for one in sentences(by_rows))
    few = (
        "fewer than 20 test rows on average over seeds. One device tells little of the others. run.least_test=0 counts"
    )
    assert few in " ".join(sentences(found))
    three = with_sizes(made, {"d00": 50, "d01": 50, "d02": 50, "d03": 5})
    whom = "helps 3 of the 3 devices that count by at least 1 point"
    assert whom in " ".join(sentences(answer(three, CONTROLS, Criterion(least_test=20))))
    down = table({"local_only": own, "code": [[0.9, 0.9, value[0] - 0.2, 0.9] for value in own]})
    fall = "The lowest accuracy of the 3 devices that count, mean over seeds, falls from 50.0% to 30.0%."
    sizes = {"d00": 50, "d01": 50, "d02": 50, "d03": 5}
    assert fall in " ".join(sentences(answer(with_sizes(down, sizes), CONTROLS, Criterion(least_test=20))))
    everyone = answer(with_sizes(made, dict.fromkeys(["d00", "d01", "d02", "d03"], 50)), CONTROLS, Criterion())
    assert everyone.over_all is None


@pytest.mark.slow
def test_losses_that_tell_a_cause_are_of_the_devices_that_count():
    """d01 does not count: its loss would make code's .5 of .7, the commonest class, into 2.75, too far."""
    chance = [[0.3, 0.3]] * 3
    made = table({"local_only": ALONE, "code": chance, "majority": chance}, up={"code": 10.0})
    losses = {("code", "d00"): 0.5, ("code", "d01"): 5.0, ("majority", "d00"): 0.7, ("majority", "d01"): 0.7}
    keys = [*zip(made["method"], made["device"], strict=True)]
    known = made["metric"].eq("loss") & np.array([key in losses for key in keys])
    made = made.assign(value=made["value"].where(~known, [losses.get(key, 0.0) for key in keys]))
    found = answer(with_sizes(made, {"d00": 400, "d01": 2}), CONTROLS, Criterion(least_test=20))
    assert (found.causes["code"].cause, found.causes["code"].loss) == (Cause.COMMONEST, pytest.approx(0.5))


@pytest.mark.slow
def test_a_device_of_one_class_is_not_counted_as_right():
    made = table({"local_only": [[0.7, 1.0]] * 3, "code": [[0.7, 0.9]] * 3})
    found = answer(with_sizes(made, {"d00": 50, "d01": 50}, {"d00": 2, "d01": 1}), CONTROLS, Criterion(least_test=20))
    assert found.measured.one_class == ("d01",)
    assert found.advice.value == pytest.approx(0.7)


@pytest.mark.slow
def test_a_device_without_a_value_of_the_metric_is_named():
    made = table({"local_only": [[0.7, 0.9]] * 3, "code": [[0.8, math.nan]] * 3})
    made.loc[(made["device"] == "d01") & (made["metric"] == "accuracy"), "value"] = math.nan
    found = answer(with_sizes(made, {"d00": 50, "d01": 50}), CONTROLS, Criterion(least_test=20, weigh="examples"))
    assert (dict(found.measured.weights), found.measured.undefined) == ({"d00": 50.0}, ("d01",))
    assert "The mean is over 1 of 2 devices, each by its test rows: d01 has no accuracy." in sentences(found)


@pytest.mark.slow
def test_a_device_on_which_one_of_the_rows_has_no_value_is_named():
    """Of three devices local training has none on d01: who is helped is counted on the other two."""
    made = table({"local_only": [[0.7, 0.9, 0.8]] * 3, "code": [[0.8, 0.9, 0.9]] * 3})
    here = (made["device"] == "d01") & (made["metric"] == "accuracy") & (made["split"] == "test")
    for row in ("local_only", "code"):
        lacks = made.assign(value=made["value"].mask(here & (made["method"] == row)))
        said = str(sentences(answer(lacks, CONTROLS)))
        assert "code helps 2 of 2 devices by at least 1 point and hurts none. Not counted: d01, where " in said
        assert f" d01, where {row} has no accuracy in any seed." in said
    assert "Not counted" not in str(sentences(answer(made, CONTROLS)))


@pytest.mark.slow
def test_where_no_device_can_be_measured_all_count():
    made = with_sizes(table({"local_only": ALONE, "code": plus(0.1)}), {"d00": 3, "d01": 4})
    found = answer(made, CONTROLS, Criterion(least_test=20))
    assert found.measured.everyone
    assert found.advice.action is Action.USE


@pytest.mark.slow
def test_of_a_loss_less_is_better():
    """In these tables loss is 1 - accuracy: the answer is the same, with the values of the loss."""
    made = table({"local_only": ALONE, "code": plus(0.1), "worse": plus(-0.1)})
    found, other = (answer(made, CONTROLS, Criterion(METRICS[name])) for name in ("accuracy", "log_loss"))
    assert (other.advice.action, other.advice.method) == (found.advice.action, "code")
    assert other.advice.value == pytest.approx(0.25)
    assert other.advice.gain is not None
    assert other.advice.gain.mean == pytest.approx(0.1)
    assert found.devices is not None
    assert other.devices is not None
    assert (other.devices.helped, other.devices.worst) == (found.devices.helped, pytest.approx(1 - found.devices.worst))


@pytest.mark.parametrize(("seeds", "said"), [
    (9, "More seeds or more test data would tell"),
    (10, "More test rows would tell: a larger share (federation.test=0.4) or more in all"),
])  # fmt: skip
@pytest.mark.slow
def test_from_ten_seeds_on_no_more_are_advised(seeds: int, said: str):
    made = table(
        {"local_only": [[0.5, 0.5]] * seeds, "code": [[0.5 + 0.2 * (-1) ** seed] * 2 for seed in range(seeds)]}
    )
    assert f"{said} (`fedcore docs undecided`)." in " ".join(sentences(answer(made, CONTROLS)))


@pytest.mark.slow
def test_balanced_accuracy_decides_where_one_class_is_rare():
    made = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    rare = made.iloc[:1].assign(split="data", metric="largest_class", value=0.94)
    more = made[made["metric"] == "macro_f1"].assign(metric="balanced_accuracy")
    made = pd.concat([made, rare, more], ignore_index=True)
    found = answer(made, CONTROLS, Criterion(auto=True))
    assert found.criterion.metric.name == "balanced_accuracy"
    assert "Decided by balanced accuracy, since one class has over 80% of the examples." in sentences(found)
    assert "Against always guessing on the same rows: +22.5 points" in " ".join(sentences(found))
    assert found.advice.value == pytest.approx(0.75 / 2)
    assert answer(made, CONTROLS).criterion.metric.name == "accuracy"


@pytest.mark.parametrize(
    ("alone", "what", "gain", "doubted"),
    [
        (0.7, "local_only", 0.2, True), (0.7, "local_only", 0.004, False), (0.7, "code", 0.2, False),
        (0.95, "local_only", 0.2, False),
    ],
)  # fmt: skip
def test_a_gain_on_local_training_that_a_linear_net_mends_is_doubted(alone, what, gain, doubted):
    made = table({"local_only": [[alone, alone]] * 3, "code": [[0.9, 0.9]] * 3})
    found = answer(with_found(made, TRIED, {f"{what} with {LINEAR}": gain}), CONTROLS, Criterion())
    said = "So code may be ahead of a badly trained net alone: before you combine, run again with net.widths=[]."
    assert (said in str(sentences(found))) is doubted
    assert headline(found.advice) == ("Use code" if alone == 0.7 else "Use local training")
    new = replace(found, new_device=NewDevice(Advice(Action.USE, "code"), Measured({"d": 1.0}), in_turn=True))
    assert ("This gain, too, may be over a badly trained net" in str(sentences(new))) is (doubted or alone == 0.95)


@pytest.mark.slow
def test_a_row_that_misses_a_rare_class_is_named_and_a_remedy_that_gained():
    """Right in 94 of 100 rows, of which 94 are of one class, and in half of each class on average."""
    guess = [[0.94, 0.94]] * 3
    made = table({"local_only": guess, "code": guess})
    rare = made.iloc[:1].assign(split="data", metric="largest_class", value=0.94)
    balanced = made[made["metric"] == "accuracy"].assign(metric="balanced_accuracy", value=0.5)
    missed = pd.concat([made, rare, balanced], ignore_index=True)
    found = answer(missed, CONTROLS, Criterion(auto=True))
    assert found.misses_rare
    found_words = sentences(found)
    assert "code misses many rows of a rare class; where training.class_weights=balanced is set" in str(found_words)
    for weighted, said in ((frozenset(), f"; {WEIGHTS}"), (frozenset({"code"}), "; more rows of it would help")):
        assert f"code misses many rows of a rare class{said} (" in str(sentences(replace(found, weighted=weighted)))
    for gain, said in ((0.1, WEIGHTS), (0.0, "more rows of it would help")):
        tried = replace(found, weighted=frozenset(), remedies={"code with training.class_weights=balanced": gain})
        assert f"code misses many rows of a rare class; {said} (" in str(sentences(tried))
    for row, takes in (("xgb_one", True), ("analytic", False)):
        other = replace(answer(missed.replace("code", row), CONTROLS, Criterion(auto=True)), weighted=frozenset())
        assert (f"{row} misses many rows of a rare class; {WEIGHTS}" in str(sentences(other))) is takes
    assert "More seeds" not in str(sentences(found))
    for gain, said in (
        (0.21, "+21.0 points"),
        (0.004, "+0.4 points"),
        (0.0, "nothing"),
        (-0.1, "nothing"),
        (math.nan, ""),
    ):
        tried = answer(with_found(missed, TRIED, {"code with w=1": gain}), CONTROLS, Criterion(auto=True))
        few = ", less than would matter" * (0 < gain < tried.min_effect)
        sentence = f"Tried with one seed: code with w=1 gains {said} on validation rows{few}."
        assert (sentence in sentences(tried)) == bool(said) == ("w=1" in str(sentences(tried)))
        unsure = replace(tried, own=replace(tried.own, action=Action.UNSURE, reason=""))
        assert ("More seeds or more test data would tell" in str(sentences(unsure))) != (gain > 0)
    typed = Criterion(METRICS["balanced_accuracy"])
    for share, classes, misses in ((0.94, 2, True), (0.56, 3, True), (0.7, 2, False), (0.1, 10, False)):
        some = pd.concat([missed.query("split != 'data'"), rare.assign(value=share)], ignore_index=True)
        some = pd.concat([some, rare.assign(metric="classes", value=classes)], ignore_index=True)
        assert answer(some, CONTROLS, typed).misses_rare is misses, "rows of a rare class, whoever chose the metric"
    seen = pd.concat([made, rare, balanced.assign(value=0.93)], ignore_index=True)
    assert not answer(seen, CONTROLS, Criterion(auto=True)).misses_rare


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "doubt"), [(400, False), (2, True)])
def test_where_devices_have_few_rows_who_is_helped_may_be_chance(rows: int, doubt: bool):
    made = table({"local_only": ALONE, "code": [[0.9, 0.9]] * 3, "majority": [[0.1, 0.1]] * 3})
    found = answer(with_sizes(made, {"d00": rows, "d01": rows}), CONTROLS, Criterion(least_test=20))
    assert found.advice.action is Action.USE
    assert ("This may be chance." in " ".join(sentences(found))) is doubt


@pytest.mark.slow
def test_the_answer_says_which_row_is_local_training():
    made = table({"local_only": ALONE, "code": [[0.9, 0.9]] * 3, "majority": [[0.1, 0.1]] * 3})
    assert "Against local training: " in " ".join(sentences(answer(made, CONTROLS)))
    made = made.replace("local_only", "analytic_local")
    assert "Against local training (analytic_local): " in " ".join(sentences(answer(made, CONTROLS)))


@pytest.mark.slow
def test_no_learning_rate_is_blamed_for_a_row_in_closed_form():
    chance = [[0.3, 0.3]] * 3
    made = table({"local_only": ALONE, "analytic_60": chance, "majority": chance})
    found = answer(made, CONTROLS)
    assert found.causes["analytic_60"].cause is Cause.NO_TRAINING
    assert "learning rate" not in str(sentences(found)).replace("no learning rate", "")
    assert "to blame, but features and reg may not fit" in str(sentences(found))


@pytest.mark.slow
def test_of_rows_as_good_the_one_with_least_traffic_is_recommended():
    made = {"local_only": ALONE, "big": plus(0.1), "small": plus(0.097), "cheap": plus(0.08)}
    found = answer(table(made, up={"big": 9000.0, "small": 500.0, "cheap": 1.0}), CONTROLS)
    assert (found.advice.method, found.advice.equal, found.up) == ("small", ("big",), 500)


@pytest.mark.slow
def test_rows_within_the_spread_are_named_but_not_called_equal():
    shaky = [[0.9, 0.8], [0.70, 0.60], [0.78, 0.70]]  # best - shaky by seed: -.1, .11, .0
    found = answer(table({"local_only": ALONE, "code": plus(0.1), "shaky": shaky}), CONTROLS)
    assert (found.advice.method, found.advice.equal, found.advice.indistinguishable) == ("code", (), ("shaky",))


@pytest.mark.slow
def test_a_new_device_has_an_answer_of_its_own():
    made = {"local_only": ALONE, "personal": plus(0.1), "common": plus(-0.1)}
    found = answer(table(made, shared={"local_only": 0.5, "personal": 0.6, "common": 0.8}), CONTROLS)
    assert found.own is not None
    assert found.new is not None
    assert (found.own.method, found.new.method) == ("personal", "common")
    assert found.new.value == pytest.approx(0.8)
    assert found.new.gain is not None
    assert found.new.gain.mean == pytest.approx(0.3)


@pytest.mark.slow
def test_without_own_test_data_the_shared_test_set_decides():
    nothing = [[math.nan] * 2] * 3
    made = table({"local_only": nothing, "code": nothing}, shared={"local_only": 0.5, "code": 0.7})
    found = answer(made, CONTROLS)
    assert found.own is None
    assert found.advised == "code"
    assert answer(table({"code": nothing}), CONTROLS).advised is None


@pytest.mark.slow
def test_the_last_round_counts():
    early = frame(rows({"code": plus(0.3)}, up=10.0), rows({"code": plus(-0.3)}, at=2, up=10.0))
    found = answer(pd.concat([early, table({"local_only": ALONE})]), CONTROLS)
    assert found.advice.action is Action.ALONE
    assert found.up == 20


@pytest.mark.slow
def test_each_setting_of_a_table_has_its_answer():
    parts = [
        frame(rows({"local_only": ALONE}, setting=s, up=0.0), rows({"code": plus(by)}, setting=s))
        for s, by in (("x=1", 0.1), ("x=2", 0.2), ("x=3", -0.1))
    ]
    found = answers(pd.concat(parts), CONTROLS)
    assert [place[2] for place in found] == ["x=1", "x=2", "x=3"]
    assert [one.advised for one in found.values()] == ["code", "code", "local_only"]


FRACTIONS = st.floats(0, 1)


@given(st.floats(-1, 1), FRACTIONS, st.floats(0.001, 0.5))
@pytest.mark.slow
def test_the_decision_is_the_rule(mean: float, spread: float, min_effect: float):
    """Each word has its condition, on an interval around the gain."""
    low, high = mean - spread, mean + spread
    found = decide(Gain(mean, low, high, spread, mean, 3), min_effect)
    slack = 1e-9
    if found is Action.USE:
        assert low > -slack
        assert mean >= min_effect - slack
    elif found is Action.SAME:
        assert -min_effect - slack <= low
        assert high <= min_effect + slack
    elif found is Action.ALONE:
        assert high < min_effect + slack
    else:
        assert high >= min_effect - slack
        assert low <= slack or mean <= min_effect + slack


# budgets, and single devices


@pytest.mark.slow
def test_a_budget_leaves_out_the_rows_that_send_more():
    """Rows send 2,000 + 1,000 bytes or ten times as many; the dearer one is better, a control is free of the budget."""
    sent = {"dear": 10_000.0, "cheap": 1_000.0, "majority": 0.0}
    made = table({"local_only": ALONE, "cheap": plus(0.1), "dear": plus(0.2), "majority": GUESS}, up=sent)
    traffic = made[made["metric"] == "bytes_down"].groupby("method")["value"].first().to_dict()
    assert traffic == {"local_only": 0, "cheap": 2_000, "dear": 20_000, "majority": 0}
    whole = replace(answer(made, CONTROLS), tasks=("rank",), refused={"code": "why"})
    found = answers_by_budget(made, CONTROLS, whole)
    assert [*found] == [0, 3_000, 30_000]
    assert [one.advised for one in found.values()] == ["local_only", "cheap", "dear"]
    assert found[3_000] == whole.told(answer(made, CONTROLS, budget=29_999))
    assert (found[3_000].refused, found[30_000]) == (whole.refused, whole)


@pytest.mark.slow
def test_a_budget_that_nothing_fits_says_so_unless_the_models_guess():
    made = table({"code": plus(0.1)})
    assert answer(made, CONTROLS, budget=0).advice.reason == "no combining method fits the budget"
    guessing = answer(table({"local_only": GUESS, "majority": GUESS, "code": ALONE}), CONTROLS, budget=0)
    assert guessing.advice.action is Action.UNSURE
    assert "is not above always guessing" in guessing.advice.reason


@pytest.mark.slow
def test_changes_of_devices_are_those_that_the_answer_counts():
    made = table({"local_only": ALONE, "code": [[0.75, 0.58]] * 3, "other": plus(0.1), "majority": GUESS})
    alone, changes = device_changes(made, CONTROLS)
    assert alone.name == "local_only"
    assert alone.to_dict() == pytest.approx({"d00": 0.70, "d01": 0.60})
    assert [*changes] == ["code", "majority", "other"]
    change, counts = changes["code"]
    assert change.to_dict() == pytest.approx({"d00": 0.05, "d01": -0.02})
    assert (counts.count, counts.helped, counts.hurt) == (2, 1, 1)
    assert changes["other"][1] == answer(made, CONTROLS).devices
    undefined = made.assign(value=made["value"].mask((made["device"] == "d01") & (made["metric"] == "accuracy")))
    alone, changes = device_changes(undefined, CONTROLS)
    assert [*alone.index] == [*changes["code"][0].index] == ["d00"]
    alone, changes = device_changes(table({"code": ALONE}), CONTROLS)
    assert len(alone) == len(changes) == 0
