"""The bytes that a table's rows send."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from answer_tables import ALONE, CONTROLS, GUESS, plus, table
from federations import NET, federation
from scipy import stats

import fedcore as fc
from fedcore import Data, Splits, nets
from fedcore.core.metrics import METRICS
from fedcore.execute.workers import Inline
from fedcore.report.phrases import sentences
from fedcore.results import tidy
from fedcore.results.advice import Action
from fedcore.results.answer import STOPPED_AFTER, answer
from fedcore.results.chance import PROBE, SCALE, SEEN, TRIED, Cause, with_found
from fedcore.results.criterion import Criterion, criterion
from fedcore.results.gains import gain_of
from fedcore.results.left_out import probe
from fedcore.results.scores import SetScores
from fedcore.results.stopping import Leader, SoFar, best, rows_that_cannot_win, validation_value
from fedcore.results.summary import NO_SECONDS, summarise
from fedcore.types.federation import NO_DATA, Device


@pytest.mark.slow
def test_a_device_that_never_takes_part_shares_the_traffic():
    whole = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    sampled = whole[(whole["split"] != "traffic") | (whole["device"] == "d00") | (whole["method"] != "code")]
    found = answer(sampled, CONTROLS)
    assert (found.up, found.down) == (500, 1000)
    assert answer(whole[whole["split"] != "traffic"], CONTROLS).up == 0


@pytest.mark.slow
def test_a_new_site_does_not_share_the_traffic():
    whole = table({"local_only": ALONE, "code": plus(0.1)})
    runs = whole[["study", "dataset", "setting", "method", "seed", "stage", "round"]].drop_duplicates()
    values = {"accuracy": 0.7, "examples": 50.0, "classes": 2.0}
    site = [runs.assign(device="site", split="left_out", metric=name, value=value) for name, value in values.items()]
    found = answer(pd.concat([whole, *site]), CONTROLS)
    assert (found.up, found.down) == (1000, 2000)


@pytest.mark.slow
def test_the_interval_of_a_new_device_is_over_devices():
    """Gains of .1, .2 and .15 on three devices, each without one of three: q is 1 / 2, as two are trained on."""
    code, alone = [0.6, 0.7, 0.65], [0.5] * 3
    whole = table({"local_only": [[0.7] * 3] * 2, "code": [[0.8] * 3] * 2})
    runs = whole[["study", "dataset", "setting", "seed", "stage", "round"]].drop_duplicates()
    values = {"accuracy": None, "examples": 50.0, "classes": 2.0}
    left_out = [
        runs.assign(
            method=name, device=f"d{i:02d}", split="left_out", metric=metric, value=own if held is None else held
        )
        for name, each in (("local_only", alone), ("code", code))
        for i, own in enumerate(each)
        for metric, held in values.items()
    ]
    found = answer(pd.concat([whole, *left_out]), CONTROLS).new_device
    assert found is not None
    gain = found.advice.gain
    assert gain is not None
    half = stats.t.ppf(0.975, 2) * 0.05 * (1 / 3 + 1 / 2 / 5) ** 0.5
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.15, 0.15 - half, 0.15 + half))


@pytest.mark.slow
def test_bytes_that_prepare_examples_make_no_row_combine():
    whole = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    same = whole[whole["metric"] == "bytes_up"].assign(metric="prepare_up", value=40.0)
    assert answer(pd.concat([whole, same]), CONTROLS) == answer(whole, CONTROLS)


def test_what_is_asked_for_again_is_of_its_own_row_set_and_choice():
    rng = np.random.default_rng(0)
    runs, others = ({name: pd.DataFrame(rng.random((3, 4))) for name in "ab"} for _ in range(2))
    sets = SetScores(runs, others, pd.Series(1.0, index=range(4)), 0.5)
    for _ in range(2):
        for name in "ab":
            assert sets.mean(name) == pytest.approx(runs[name].to_numpy().mean())
            assert sets.mean(name, True) == pytest.approx(others[name].to_numpy().mean())
        for among in (1, 5):
            for one, other in ("ab", "ba"):
                assert sets.gain(one, other, among) == gain_of(runs[one], runs[other], sets.weights, 0.5, among)


# Rows at chance are named with their likely cause: on made numbers, and on runs whose cause is known.
CHANCE = [[0.3, 0.3]] * 3


def with_losses(made: pd.DataFrame, losses: Mapping[str, float]) -> pd.DataFrame:
    known = made["metric"].eq("loss") & made["method"].isin(list(losses))
    return made.assign(value=made["value"].where(~known, made["method"].map(losses)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "cause"),
    [(1.1, Cause.TOO_FAR), (math.nan, Cause.TOO_FAR), (0.71, Cause.TOO_LITTLE), (0.66, Cause.COMMONEST)],
)
def test_the_loss_beside_that_of_guessing_tells_the_cause(loss: float, cause: Cause):
    made = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    found = answer(with_losses(made, {"code": loss, "majority": 0.7}), CONTROLS)
    assert {name: one.cause for name, one in found.causes.items()} == {"code": cause}
    (said,) = [one for one in sentences(found) if "always guessing (" in one]
    assert said.startswith(f"code (loss {loss:.3g}) is no better than always guessing (loss 0.7). ")


@pytest.mark.parametrize(("gain", "key", "blamed"), [(0.2, SCALE, True), (0.001, SCALE, False), (0.2, "lr", False)])
@pytest.mark.slow
def test_the_scale_is_the_cause_where_a_run_with_it_gained(gain: float, key: str, blamed: bool):
    """Not where the gain is below what matters, or another setting's."""
    made = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    made = with_found(with_losses(made, {"code": 0.71, "majority": 0.7}), TRIED, {f"code with {key}=x": gain})
    text = " ".join(sentences(answer(made, CONTROLS)))
    assert ("the columns span unlike ranges" in text) is blamed
    assert ("learning rate" in text) is not blamed


@pytest.mark.slow
def test_the_loss_of_an_untrained_net_is_not_called_too_far():
    """Nine of ten rows are of one class: guessing has .33 nats, an untrained net ln 2."""
    made = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    row = made[made["method"] == "code"].iloc[[0]].assign(split="data", metric="classes", value=2.0)
    made = with_losses(pd.concat([made, row], ignore_index=True), {"code": 0.7, "majority": 0.33})
    assert answer(made, CONTROLS).causes["code"].cause is Cause.TOO_LITTLE


@pytest.mark.slow
def test_rare_labels_among_several_are_told_apart_from_an_untrained_net():
    """Guessing has .2 nats a label, an untrained net ln 2; the answer goes by macro F1, which needs 1/2."""
    made = table({"local_only": ALONE, "code": CHANCE, "fedavg": CHANCE, "majority": CHANCE}, up={"code": 10.0})
    row = made[made["method"] == "code"].iloc[[0]].assign(split="data", metric="labels", value=3.0)
    made = made.assign(metric=made["metric"].replace({"accuracy": "macro_f1", "macro_f1": "subset_accuracy"}))
    made = with_losses(pd.concat([made, row], ignore_index=True), {"code": 0.15, "fedavg": 0.7, "majority": 0.2})
    found = answer(made, CONTROLS)
    assert {name: one.cause for name, one in found.causes.items()} == {
        "code": Cause.COMMONEST, "fedavg": Cause.TOO_LITTLE,
    }  # fmt: skip
    assert any("those of rare labels stay below 1/2" in one for one in sentences(found))


@pytest.mark.slow
@pytest.mark.parametrize("better", ["majority", "majority_per_device"])
def test_who_knows_only_the_rates_of_devices_has_not_learnt(better: str):
    """One guess is right more often, and the other has the lower loss, which local training has as well."""
    both = {"majority": [[0.2, 0.2]] * 3, "majority_per_device": [[0.2, 0.2]] * 3} | {better: CHANCE}
    losses = dict.fromkeys(both, 0.9) | {better: 1.0, "local_only": 0.91, "code": 1.0}
    made = with_losses(table({"local_only": CHANCE, "code": CHANCE, **both}), losses)
    found = answer(made, CONTROLS | {"majority_per_device"})
    assert found.advice.guess == better
    assert found.nothing_learns
    assert {(one.cause, one.guess) for one in found.causes.values()} == {(Cause.TOO_LITTLE, 0.9)}
    words = "code (loss 1) and local_only (loss 0.91) are no better than always guessing (loss 0.9)."
    assert any(one.startswith(words) and "the columns tell nothing" in one for one in sentences(found))
    learnt = answer(with_losses(made, {"local_only": 0.8}), CONTROLS | {"majority_per_device"})
    assert learnt.causes["local_only"].cause is Cause.COMMONEST
    assert not learnt.nothing_learns


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "unlike"), [(0.6, True), (0.95, False)])
def test_a_model_above_one_answer_for_all_has_learnt(loss: float, unlike: bool):
    """Devices' own means have a loss of .3, which a net for all does not reach; at one's own rows that is nothing."""
    made = table(dict.fromkeys(["local_only", "code", "majority", "majority_per_device"], CHANCE))
    losses = {"majority": 1.0, "majority_per_device": 0.3, "code": loss, "local_only": loss}
    found = answer(with_losses(made, losses), CONTROLS | {"majority_per_device"})
    rest = Cause.TOO_LITTLE
    assert {name: one.cause for name, one in found.causes.items()} == {
        "code": Cause.UNLIKE if unlike else rest, "local_only": rest,
    }  # fmt: skip
    said = f"code (loss {loss:.3g}) is no better than always guessing (loss 0.3). Better than one answer for all"
    assert any(one.startswith(said) for one in sentences(found)) == unlike


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "cause"), [(0.5, 1.1, Cause.UNEVEN), (0.68, 0.9, Cause.TOO_LITTLE)])
def test_a_model_above_guessing_on_some_devices_alone_is_no_weak_one(first: float, second: float, cause: Cause):
    """Its mean loss is above the guess's .7; one that trains alone is of one device, so it cannot be uneven so."""
    made = table(dict.fromkeys(["local_only", "code", "analytic", "majority"], CHANCE))
    made = with_losses(made, {"code": second, "analytic": second, "local_only": second, "majority": 0.7})
    on_one = made["device"] == made.loc[made["metric"] == "loss", "device"].iloc[0]
    ours = made["metric"].eq("loss") & made["method"].isin(["code", "analytic", "local_only"]) & on_one
    found = answer(made.assign(value=made["value"].where(~ours, first)), CONTROLS)
    closed = Cause.UNEVEN if cause is Cause.UNEVEN else Cause.NO_TRAINING
    causes = {"code": cause, "analytic": closed, "local_only": Cause.TOO_LITTLE}
    assert {name: one.cause for name, one in found.causes.items()} == causes
    said = "Better on some devices, worse on others."
    assert any(said in one for one in sentences(found)) == (cause is Cause.UNEVEN)


@pytest.mark.slow
def test_a_number_has_no_commonest_class_and_starts_at_the_mean_of_all():
    """Devices' means differ: guessing them has a loss of .3, that of all and an untrained net have 1."""
    errors = {name: [[0.5, 0.5]] * 3 for name in ("code", "fedavg", "local_only", "majority_per_device")}
    made = table({**errors, "majority": [[0.9, 0.9]] * 3})
    made = made.assign(metric=made["metric"].replace({"accuracy": "rmse"}))
    row = made[made["method"] == "code"].iloc[[0]].assign(split="data", metric="label_std", value=1.0)
    losses = {"code": 1.0, "fedavg": 1.6, "local_only": 0.2, "majority_per_device": 0.3, "majority": 1.0}
    found = answer(with_losses(pd.concat([made, row], ignore_index=True), losses), CONTROLS | {"majority_per_device"})
    assert {name: one.cause for name, one in found.causes.items()} == {
        "code": Cause.TOO_LITTLE, "fedavg": Cause.TOO_FAR, "local_only": Cause.COMMONEST,
    }  # fmt: skip
    chance = "local_only (loss 0.2) is no better than always guessing (loss 0.3). "
    assert f"{chance}The loss, a squared error, is lower. Another run.metric may show it." in sentences(found)


@pytest.mark.slow
def test_with_costs_the_guess_is_of_the_cheapest_class():
    made = table({"local_only": CHANCE, "majority": CHANCE, "code": plus(0.2)}).replace("accuracy", "cost")
    found = answer(with_losses(made, {"local_only": 0.2}), CONTROLS, criterion("cost", costs={"a": {"b": 1}}))
    assert any("too little to make another class the cheapest for enough rows." in text for text in sentences(found))


@pytest.mark.slow
def test_where_the_guess_costs_nothing_no_model_is_blamed():
    """Nothing is probed then, and the mistakes without a cost are named."""
    rows = {name: [[0.0, 0.0]] * 3 for name in ("local_only", "majority", "code")}
    made = with_losses(table(rows).replace("accuracy", "cost"), dict.fromkeys(rows, 0.7))
    found = answer(made, CONTROLS, criterion("cost", costs={"a": {"b": 1}}))
    assert (found.causes, found.nothing_learns, found.is_guess("code")) == ({}, False, True)
    free = "run.costs: not listed, so it costs nothing: b taken for a"
    assert sentences(replace(found, free=free)) == [
        "Cannot say: always guessing the cheapest class costs nothing on these test rows, so that no model can be "
        "better by cost.",
        free,
    ]


@pytest.mark.slow
def test_a_guess_is_named_by_what_is_measured_where_costs_decide():
    made = with_losses(
        table({"local_only": CHANCE, "code": CHANCE, "majority": CHANCE}).replace("accuracy", "cost"),
        {"code": 0.7, "local_only": 0.7, "majority": 0.7},
    )
    said = " ".join(
        sentences(answer(with_found(made, PROBE, {"linear": 0.0}), CONTROLS, criterion("cost", costs={"1": {"0": 1}})))
    )
    assert "is not better by cost than always guessing the cheapest class on these test rows." in said
    assert "are no better by cost than always guessing the cheapest class (loss 0.7)." in said
    assert "training fails" not in said


def nothing_learnt(found: Mapping[str, float] | None) -> list[str]:
    """The sentences about code, of which nothing is known but its loss, and about a probe."""
    made = with_losses(
        table({"local_only": CHANCE, "code": CHANCE, "majority": CHANCE}), {"code": 0.7, "majority": 0.7}
    )
    assert answer(made, CONTROLS).nothing_learns
    words = sentences(answer(made if found is None else with_found(made, PROBE, found), CONTROLS))
    return words[[text.startswith(("code (loss", "On each")) for text in words].index(True) :]


@pytest.mark.slow
def test_where_nothing_learns_a_probe_tells_columns_from_training():
    chance = "code (loss 0.7) and local_only (loss 0.7) are no better than always guessing (loss 0.7)."
    (unknown,) = nothing_learnt(None)
    assert unknown.startswith(chance)
    assert "or the columns tell nothing of the label." in unknown
    assert nothing_learnt({"linear": 0.01, "nearest-neighbour": 0.9}) == [
        chance,
        "A linear and a nearest-neighbour model on each device's own rows see nothing of the label either: the columns "
        "tell little, or the rows are too few to show it.",
    ]
    seen, cause = nothing_learnt({"linear": 0.5, "nearest-neighbour": 0.0})
    assert "learning rate" in cause
    assert "columns" not in cause
    assert seen == (
        "On each device's own rows a nearest-neighbour model finds the label in the columns: try run.metric=roc_auc, "
        "as accuracy may hide what is told weakly."
    )
    both = nothing_learnt({"linear": 0.0, "nearest-neighbour": 0.0})[0]
    assert both.startswith("On each device's own rows a linear and a nearest-neighbour model find the label in")
    learns = table({"local_only": ALONE, "code": CHANCE, "majority": CHANCE})
    assert not answer(learns, CONTROLS).nothing_learns
    assert "columns" not in " ".join(sentences(answer(learns, CONTROLS)))


@pytest.mark.slow
def test_rows_whose_cause_is_not_said_are_named_in_one_sentence():
    rows = ("analytic", "code", "fedavg", "local_only")
    made = with_losses(table(dict.fromkeys((*rows, "majority"), CHANCE)), dict.fromkeys(rows, 0.7) | {"majority": 0.7})
    made = with_losses(made, {"fedavg": 1.2})
    assert len({case.cause for case in answer(made, CONTROLS).causes.values()}) == 3
    named = "analytic (loss 0.7), code (loss 0.7), fedavg (loss 1.2) and local_only (loss 0.7) are no better than "
    nothing = with_found(made, PROBE, {"linear": 0.5})
    assert f"{named}always guessing (loss 0.7)." in sentences(answer(nothing, CONTROLS))
    assert sum("no better" in text for text in sentences(answer(made, CONTROLS))) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "said"), [(2, "more devices would tell."), (3, "More devices would tell.")])
def test_where_columns_tell_nothing_more_would_not_tell(devices: int, said: str):
    """Gains of a method on devices left out, from -30 points to +40."""
    runs = table({"local_only": [[0.5] * devices] * 3, "code": [[0.9, 0.2, 0.6][:devices]] * 3}, shared={"code": 0.5})
    left_out = runs[(runs["split"] == "test") & (runs["metric"] == "accuracy")].assign(split="left_out")
    known = [left_out.assign(metric=name, value=value) for name, value in {"examples": 50.0, "classes": 2.0}.items()]
    shared = runs["split"] == "shared"
    spread = (runs["method"] == "code") * (runs["seed"] - 1) * 0.3
    runs = pd.concat([runs.assign(value=runs["value"].where(~shared, 0.5 + spread)), left_out, *known])
    for made in (runs, runs[runs["split"] != "left_out"]):
        assert "would tell" in " ".join(sentences(answer(made, CONTROLS))[1:])
        assert "would tell" not in " ".join(sentences(answer(with_found(made, PROBE, {"linear": 0.5}), CONTROLS)))
    assert said in " ".join(sentences(answer(runs, CONTROLS)))


def probed(label: Any, net: Any = NET) -> set[str]:
    """The simple models that see the label of four numbers at three devices, whose labels differ in their rates."""
    draws = torch.Generator().manual_seed(0)
    devices = {}
    for number, name in enumerate("abc"):
        x = torch.randn(60, 4, generator=draws)
        y = label(x, number + torch.rand(60, generator=draws))
        devices[name] = Device(name, net, Splits(Data(x, y), NO_DATA, NO_DATA))
    found = probe(devices, 1 if y.is_floating_point() else 2, Inline())
    assert set(found) in ({"linear", "nearest-neighbour"}, set())
    return {name for name, share in found.items() if share < SEEN}


@pytest.mark.slow
def test_a_probe_sees_what_columns_tell_and_no_rates_of_devices():
    assert probed(lambda x, drawn: (x[:, 0] > 0).long()) == {"linear", "nearest-neighbour"}
    assert probed(lambda x, drawn: ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()) == {"nearest-neighbour"}
    assert probed(lambda x, drawn: x[:, 0] + drawn) == {"linear", "nearest-neighbour"}
    assert probed(lambda x, drawn: (drawn > 1.5).long()) == set()


def test_of_words_and_of_labels_for_each_step_a_probe_says_nothing():
    tokens = nets.net("lstm", shape=(4,), classes=2)
    devices = federation("a").devices
    assert probe({"a": replace(devices["a"], net=tokens)}, 2, Inline()) == {}
    steps = Data(torch.zeros(20, 4), torch.zeros(20, 4, dtype=torch.long))
    assert probe({"a": replace(devices["a"], data=Splits(steps, NO_DATA, NO_DATA))}, 2, Inline()) == {}


def data() -> Any:
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(6, 8))
    y = np.maximum(np.arange(720) % 10 - 4, 0)  # half of them are of class 0
    return fc.from_arrays((centres[y] + rng.normal(size=(720, 8))).astype("float32"), y)


SGD = {"optimiser": "sgd", "epochs": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("divide", "widths", "lr", "shared_init", "cause"),
    [
        (fc.iid(), (16,), 1e-5, True, Cause.TOO_LITTLE),
        (fc.iid(), (16,), 2.0, True, Cause.TOO_FAR),
        (fc.iid(), (16, 8), 2.0, True, Cause.TOO_LITTLE),  # its units are dead
        (fc.few_classes(classes=2), (16, 8), 0.1, False, Cause.DIFFERENT_STARTS),
    ],
)
def test_runs_that_were_spoilt_are_told_by_how(divide: Any, widths: Any, lr: float, shared_init: bool, cause: Cause):
    fed = fc.federate(data(), divide, devices=4, net=fc.mlp(*widths))
    alone = fc.local_only(training={**SGD, "lr": 0.1})
    rows = [alone, fc.fedavg(training={**SGD, "lr": lr, "shared_init": shared_init})]
    found = fc.compare(rows, fed, seeds=[0, 1]).answer.causes
    assert {name: one.cause for name, one in found.items()} == {"fedavg": cause}


# Rows that cannot win by a few seeds stop, and the answer is the one that all seeds give.
ROWS = {"local_only": ALONE, "good": plus(0.1), "near": plus(0.095), "bad": plus(-0.2), "majority": [[0.3, 0.3]] * 3}


def test_a_row_that_is_surely_below_the_best_of_its_kind_stops():
    """Guessing goes on, and so does the only row that trains alone."""
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion()) == {"bad"}


def test_the_margin_is_the_least_difference_that_matters():
    """All differences are the same in every seed: the intervals are points."""
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion(min_effect=0.004)) == {"bad", "near"}
    assert rows_that_cannot_win(table(ROWS), CONTROLS, Criterion(min_effect=0.4)) == frozenset()


def test_seeds_that_do_not_agree_stop_nothing():
    made = {**ROWS, "bad": [[0.9, 0.9], [0.2, 0.2], [0.3, 0.3]]}
    assert rows_that_cannot_win(table(made), CONTROLS, Criterion()) == frozenset()


def test_the_best_with_a_model_for_a_new_device_goes_on():
    made = {**ROWS, "worse": plus(-0.3)}
    assert rows_that_cannot_win(table(made), CONTROLS, Criterion(), able=["bad", "worse"]) == {"worse"}


def test_a_control_stops_only_below_all_rows():
    controls = CONTROLS | {"near", "bad"}
    assert rows_that_cannot_win(table(ROWS), controls, Criterion()) == {"bad"}


def test_where_less_is_better_the_greater_loss_stops():
    made = table(ROWS)  # its losses are 1 less the accuracy
    assert rows_that_cannot_win(made, CONTROLS, Criterion(METRICS["log_loss"])) == {"bad"}


def test_without_validation_data_nothing_stops():
    made = table(ROWS)
    assert rows_that_cannot_win(made[made["split"] != "val"], CONTROLS, Criterion()) == frozenset()


def stopped(seeds: int = 6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table of many seeds, the first of which are easy, and the one in which the bad row stops."""
    rng = np.random.default_rng(0)
    luck = np.where(np.arange(seeds) < STOPPED_AFTER, 0.25, 0.0)[:, None] + rng.normal(0, 0.01, (seeds, 2))
    base = 0.4 + luck
    made = table({
        name: (base + gain + rng.normal(0, 0.001, (seeds, 2))).tolist()
        for name, gain in {"local_only": 0.0, "good": 0.2, "bad": 0.1}.items()
    })  # fmt: skip
    return made, made[(made["method"] != "bad") | (made["seed"] < STOPPED_AFTER)]


@pytest.mark.slow
def test_the_answer_is_that_of_all_seeds_and_names_what_stopped():
    """The stopped row has the highest mean, of the easy seeds alone, and is not the best for that."""
    whole, part = stopped()
    assert rows_that_cannot_win(part[part["seed"] < STOPPED_AFTER], CONTROLS, Criterion()) == {"bad"}
    before, after = (answer(one, CONTROLS) for one in (whole, part))
    assert (after.advice.action, after.advised, after.advice.gain) == (Action.USE, "good", before.advice.gain)
    assert (before.stopped, after.stopped, after.seeds) == ((), ("bad",), (3, 6))
    said = "Stopped after 3 of 6 seeds: bad. It cannot win by validation data; run.stop_rows=none runs all seeds."
    assert said in sentences(after)
    assert said not in sentences(before)


@pytest.mark.slow
def test_a_stopped_row_stays_in_the_summary_and_changes_no_split():
    _, part = stopped()
    found = summarise(part, NO_SECONDS, CONTROLS).set_index("method")
    assert found.loc["bad", "n_seeds"] == 3
    assert {*found["primary"]} == {"test"}
    assert found.loc["good", "rank"] == 1
    assert found.loc["bad", "test_gap"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.slow
def test_a_stopped_row_is_not_among_those_not_told_apart():
    _, part = stopped()
    found = answer(part, CONTROLS)
    close = replace(found, own=replace(found.advice, indistinguishable=("bad", "near")))
    assert "Not significantly different from good with these seeds: near." in sentences(close)


def test_for_a_new_device_rows_are_compared_in_their_common_seeds():
    """The bad row, stopped after easy seeds, is below the good one on validation data of each."""
    _, part = stopped()
    own = part[(part["split"] == "test") & (part["metric"] == "accuracy")].assign(split="left_out")
    known = [own.assign(metric=name, value=value) for name, value in {"examples": 50.0, "classes": 2.0}.items()]
    found = answer(pd.concat([part, own, *known]), CONTROLS).new_device
    assert found is not None
    assert found.advice.best == "good"


def test_a_row_is_compared_with_a_guess_in_its_own_seeds():
    """Three seeds are hard, three easy: guesses have a higher mean over all than the stopped row over the hard ones."""
    hard, easy = {"local_only": 0.6, "good": 0.7, "bad": 0.55, "low": 0.4, "majority": 0.45}, 0.35
    made = table({name: [[value] * 2] * 3 + [[value + easy] * 2] * 3 for name, value in hard.items()})
    part = made[~made["method"].isin(["bad", "low"]) | (made["seed"] < STOPPED_AFTER)]
    found = answer(part, CONTROLS)
    assert found.advice.at_chance == ("low",)
    assert found.causes["low"].guess == pytest.approx(0.55)  # not .375, the guess's mean loss over all seeds


def course(values: dict[str, list[float]], metric: str = "accuracy", few: str = "") -> pd.DataFrame:
    """Return a row's table: values after each round by device; what is best on test data is worst here."""
    place = ("s", "d", "base", "row", 0, 0)
    found: list[tuple[object, ...]] = []
    for device, each in values.items():
        for turn, value in enumerate(each, 1):
            found += [(*place, turn, device, "val", metric, value), (*place, turn, device, "test", metric, 1 - value)]
        sizes = {"examples": 100, "test_examples": 2 if device == few else 50, "test_classes": 2}
        found += [(*place, 1, device, "data", name, size) for name, size in sizes.items()]
    return pd.DataFrame(found, columns=tidy.COLUMNS)


def test_the_mean_over_devices_after_the_last_round_decides():
    assert validation_value(course({"a": [0.9, 0.5], "b": [0.9, 0.7]}), Criterion()) == pytest.approx(0.6)


@pytest.mark.slow
def test_a_device_that_does_not_count_has_no_part():
    shown = course({"a": [0.5], "b": [0.9]}, few="b")
    assert validation_value(shown, Criterion(least_test=20)) == pytest.approx(0.5)
    assert validation_value(shown, Criterion()) == pytest.approx(0.7)
    untested = shown.assign(value=shown["value"].where(shown["metric"] != "test_examples", 0.0))
    assert validation_value(untested, Criterion(least_test=20)) == pytest.approx(0.7)  # of all devices


@pytest.mark.slow
def test_of_a_loss_the_least_is_best():
    tables = {0.1: course({"a": [0.9]}, "loss"), 0.3: course({"a": [0.4]}, "loss"), 1.0: course({"a": [0.6]}, "loss")}
    assert best(tables, Criterion(METRICS["log_loss"])) == 0.3


@pytest.mark.slow
def test_of_equal_candidates_the_first_is_taken():
    tables = {"x": course({"a": [0.5]}), "y": course({"a": [0.5]})}
    assert best(tables, Criterion()) == "x"


@pytest.mark.slow
def test_without_validation_data_the_first_is_taken():
    none = course({"a": [float("nan")]})
    assert validation_value(none, Criterion()) is None
    assert best({"x": none, "y": none}, Criterion()) == "x"


def leader(label: str, validation: float) -> Leader:
    return Leader(label, validation, f"{validation:.0%}", "balanced accuracy")


def test_lines_come_with_a_row_of_each_kind_and_for_each_that_leads():
    first = SoFar()
    assert first.add(leader("local_only", 0.8), combines=False) == []
    lines = first.add(leader("gaussian_distillation", 0.7), True, "; learning rates are still to be tried")
    assert lines == [
        "  so far, by one seed's validation rows, the best combining method is",
        "    gaussian_distillation: test balanced accuracy 70%, local training",
        "    (local_only) 80%; learning rates are still to be tried",
    ]
    assert first.add(leader("fedprox", 0.7), combines=True) == []
    lines = first.add(leader("lmf", 0.9), combines=True)
    assert "method is lmf: test balanced accuracy 90%, local training" in " ".join(map(str.strip, lines))


def test_without_training_alone_there_is_no_line():
    assert SoFar().add(leader("fedavg", 0.7), combines=True) == []
