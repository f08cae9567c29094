"""What a run of one method tells."""

import logging
import math
import pickle
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pandas as pd
import pytest
import torch
from federations import data, device_of, model

import fedcore as fc
from fedcore import Data, Dataset, InputError
from fedcore.core.evaluation import outputs
from fedcore.pipeline import environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.store import Store
from fedcore.types.method import Model, Threshold

environment.prepare()  # Prefect reads its settings when it is imported

import numpy as np
from answer_tables import CONTROLS, plus, table
from partitions import LABELS, SETTINGS, dataset

from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import MOST_LEFT_OUT
from fedcore.core.metrics import METRICS
from fedcore.core.rounds import run as rounds
from fedcore.core.training import Training
from fedcore.errors import Diverged
from fedcore.execute.workers import Inline
from fedcore.partition import partition
from fedcore.pipeline.cache.store import Ref
from fedcore.pipeline.orchestration import schedule
from fedcore.pipeline.record import result as record_result
from fedcore.pipeline.record.registry import Version, Versions
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.pipeline.run import history, requests, run_method
from fedcore.pipeline.run import outputs as run_outputs
from fedcore.pipeline.run.final_fit import threshold_taken
from fedcore.pipeline.run.left_out import federation_without, leaves_out, score_sites
from fedcore.pipeline.run.partitions import notes, read_dataset, require_two
from fedcore.pipeline.run.run_method import choose_threshold, leader_of, prepared_bytes, summary_line, tally, try_remedy
from fedcore.pipeline.run.step_functions import distribute, score_validation
from fedcore.report.history import differences as differences_of_lines
from fedcore.results.advice import Action, Advice, Answer
from fedcore.results.answer import answers
from fedcore.results.chance import LINEAR, AtChance, Cause
from fedcore.results.criterion import Criterion
from fedcore.results.gains import Gain
from fedcore.results.reports import Fold


@pytest.mark.slow
def test_progress_counts_the_devices_of_the_table():
    """Device c has 5 test rows, fewer than 20: own tests are 0.7 on average, where all three would have 0.5."""
    scores, sizes = {"a": 0.6, "b": 0.8, "c": 0.1}, {"a": 30, "b": 90, "c": 5}
    rows = [(name, "test", "accuracy", value) for name, value in scores.items()]
    rows += [(name, "data", "test_examples", size) for name, size in sizes.items()]
    rows += [(name, "data", "test_classes", 2) for name in sizes]
    rows += [(name, "shared", "accuracy", 0.5) for name in sizes]
    table = pd.DataFrame(rows, columns=["device", "split", "metric", "value"]).assign(
        study="s", dataset="d", setting="base", method="fedavg", seed=0, stage=0, round=1
    )
    row = SimpleNamespace(label="fedavg")
    steps = [SimpleNamespace(kind=kind, cached=cached) for kind, cached in (("train", 0), ("train", 1), ("test", 0))]
    methods = [SimpleNamespace(label="local_only"), row]
    result: Any = SimpleNamespace(
        table=table, metric=METRICS["accuracy"], name="x", steps=steps, validation=0.5, row=row,
        setting=SimpleNamespace(methods=methods),
    )  # fmt: skip
    line = summary_line(result, Criterion(least_test=20))
    assert line.split("x ", 1)[1].strip().startswith("own test 70.0% (worst 60.0%), shared test 50.0% (worst 50.0%)")
    result.seed = 4
    place = "[seed 2 of 3, method 2 of 2; 2 steps computed, 1 from the cache]"
    assert summary_line(result, Criterion(), [1, 4, 7]).endswith(place)
    assert tally(steps, kinds=True).endswith("from the cache; computed by kind: train 1 of 2, test 1 of 1")
    assert "own test 75.0%" in summary_line(result, Criterion(least_test=20, weigh="examples"))
    led = leader_of(result, Criterion(least_test=0))
    assert led is not None
    assert led.test == METRICS["accuracy"].value(0.5)


@pytest.mark.parametrize("scale", ["none", "common"])
@pytest.mark.slow
def test_the_pipeline_prepares_and_counts_as_a_script_does(tmp_path: Path, scale: Any):
    digits = fc.load("digits")
    fed = fc.federate(digits, devices=4, scale=scale)
    held, shared, server = distribute(digits, fed.partition(), scale=scale)
    for name, device in fed.federation().devices.items():
        for part in ("train", "val", "test"):
            assert torch.equal(getattr(held[name], part).x, getattr(device.data, part).x)
    assert torch.equal(shared.x, fed.federation().test.x)
    assert not len(server)
    store = Store(tmp_path)
    prepared: Any = PreparedData(store.put(digits), store.put(fed.partition()))
    counted = prepared_bytes(store, prepared, scale)
    rows = fc.run(fc.majority(), fed).table.set_index("metric")
    assert counted == ({"prepare_up": 8 + 16 * 64, "prepare_down": 16 * 64} if scale == "common" else {})
    for metric, value in counted.items():
        assert rows.loc[metric, "value"].tolist() == [value] * 4


def test_validation_rows_of_all_devices_are_scored_by_their_own_models():
    devices = {name: device_of(name) for name in "ab"}
    models = {name: Model((model(name),)) for name in devices}
    found = score_validation(models, devices, positive=2)
    expected = [outputs(models[name], of.net, of.data.val.x).exp()[:, 2] for name, of in devices.items()]
    assert torch.equal(found["scores"], torch.cat(expected))
    assert torch.equal(found["positive"], torch.cat([of.data.val.y for of in devices.values()]) == 2)
    none = {name: replace(of, data=replace(of.data, val=data(0))) for name, of in devices.items()}
    assert [len(part) for part in score_validation(models, none, positive=2).values()] == [0, 0]


def test_a_threshold_needs_twenty_validation_rows_of_each_class():
    """Of calibrated rows of .05, .15 and .4 balanced accuracy takes those from .15 on."""
    result: Any = SimpleNamespace(setting=SimpleNamespace(threshold="fault"), metric=METRICS["balanced_accuracy"])
    scores = torch.tensor([0.05, 0.15, 0.4]).repeat_interleave(100)
    positive = torch.cat([torch.arange(100) < count for count in (5, 25, 40)])
    assert choose_threshold(result, {"scores": scores, "positive": positive}) == Threshold("fault", scores[100].item())
    for count in (0, 19, 281):
        assert choose_threshold(result, {"scores": scores, "positive": torch.arange(300) < count}) is None


@pytest.mark.parametrize(
    ("cause", "rare", "setting"),
    [
        (Cause.TOO_LITTLE, False, "lr=0.3"), (Cause.TOO_FAR, False, "lr=0.003"), (None, True, "class_weights=balanced"),
        (Cause.COMMONEST, False, ""), (None, False, ""),
    ],
)  # fmt: skip
def test_a_remedy_is_tried_once_by_its_cause(cause: Cause | None, rare: bool, setting: str, monkeypatch):
    """The one run of a row that gains .2 on validation rows with any change; none where nothing is to be changed."""
    values = {True: 0.7, False: 0.5}
    row = MethodConfig("fedavg", "fedavg", Training(lr=0.03), {"rounds": 2})
    of: Any = SimpleNamespace(row=row, validation=0.5, seed=0, table=False, fed=Mock(devices={}), size="small")
    of.setting, of.prepared = Setting("s", "base", {}, {}, {}, {"name": "lstm"}, (), 1), None
    ran = Mock(return_value=SimpleNamespace(table=True))
    monkeypatch.setattr(run_method, "run_method", ran)
    monkeypatch.setattr(run_method, "build", Mock())
    monkeypatch.setattr(run_method, "count_local_steps", Mock(return_value=1))
    monkeypatch.setattr(run_method, "validation_value", lambda table, _: values[table])
    causes = {} if cause is None else {"fedavg": AtChance(cause, 0.7, 0.7)}
    found = Answer(Criterion(), None, None, causes=causes, misses_rare=rare)
    session: Any = Mock()
    gained = try_remedy(session, of, found, Criterion())
    assert gained == ({f"fedavg with training.{setting}": pytest.approx(0.2)} if setting else {})
    assert ran.call_count == len(gained)
    guess = try_remedy(session, of, found, Criterion(), False, [SimpleNamespace(table=True)])
    assert all(gain == 0 for gain in guess.values()), "always guessing reaches it as well"
    for tried in (call.args[4] for call in ran.call_args_list):
        key, _, value = setting.partition("=")
        assert str(getattr(tried.training, key)) == value
        of.row = tried
        assert not rare or try_remedy(session, of, found, Criterion()) == {}, "it has weights already"


@pytest.mark.parametrize(
    ("lr", "other", "tuned", "tried"),
    [
        (0.1, Cause.TOO_LITTLE, False, 1), (0.1, Cause.TOO_FAR, False, 0.01), (0.1, Cause.TOO_FAR, True, 1),
        (3, Cause.TOO_LITTLE, False, 0.3), (3, Cause.TOO_LITTLE, True, 0.3),
    ],
)  # fmt: skip
def test_a_rate_that_may_be_too_high_is_not_raised(lr: float, other: Cause, tuned: bool, tried: float, monkeypatch):
    """That of fedavg, which learns little; where rates are tuned another row has one of its own."""
    of: Any = Mock(validation=0.5, row=MethodConfig("fedavg", "fedavg", Training(lr=lr), {}), fed=Mock(devices={}))
    rates = {"fedavg": [lr], "fedprox": [lr]} if tuned else {}
    of.setting = Setting("s", "base", {}, {}, {}, {"name": "lstm"}, (), 1, rates=rates)
    monkeypatch.setattr(run_method, "run_method", Mock())
    monkeypatch.setattr(run_method, "build", Mock())
    monkeypatch.setattr(run_method, "count_local_steps", Mock(return_value=1))
    monkeypatch.setattr(run_method, "validation_value", Mock(return_value=0.5))
    causes = {"fedavg": AtChance(Cause.TOO_LITTLE, 0.7, 0.7), "fedprox": AtChance(other, 200, 0.7)}
    gained = try_remedy(Mock(), of, Answer(Criterion(), None, None, causes=causes), Criterion())
    assert gained == {f"fedavg with training.lr={float(tried)}": 0}


@pytest.mark.parametrize(("scale", "spans", "unscaled"), [
    ("none", (1.0, 11.0), True), ("none", (1.0, 9.0), False), ("none", None, False), ("common", (1.0, 99.0), False),
])  # fmt: skip
def test_columns_of_unlike_spans_are_scaled_in_the_one_run(scale, spans, unscaled, monkeypatch):
    """Where the scale was typed as none, that is to blame before a learning rate, and it is what is tried."""
    monkeypatch.setattr(run_method, "read_prepared", Mock(return_value=[None]))
    monkeypatch.setattr(run_method, "spans", lambda _: spans)
    of: Any = Mock()
    of.setting = Setting("s", "base", {}, {}, {"scale": scale}, {"name": "lstm"}, (), 1)
    assert run_method.is_unscaled(Mock(), of) is unscaled
    if not unscaled:
        return
    of.row, of.table = MethodConfig("fedavg", "fedavg", Training(lr=0.03), {"rounds": 2}), 0.5
    ran = Mock(side_effect=lambda *args: SimpleNamespace(table=0.5 if args[3] is of.fed else 0.9))
    monkeypatch.setattr(run_method, "run_method", ran)
    monkeypatch.setattr(
        run_method, "build_federation", lambda _, setting, __: Mock(scale=setting.federation, devices={})
    )
    monkeypatch.setattr(run_method, "build", Mock())
    monkeypatch.setattr(run_method, "count_local_steps", Mock(return_value=1))
    monkeypatch.setattr(run_method, "validation_value", lambda table, _: table)
    found = Answer(Criterion(), None, None, causes={"fedavg": AtChance(Cause.TOO_LITTLE, 0.7, 0.7)})
    gained = try_remedy(Mock(), of, found, Criterion(), unscaled)
    assert gained == {"fedavg with federation.scale=common": pytest.approx(0.4)}
    assert ran.call_args.args[1].federation == ran.call_args.args[3].scale == {"scale": "common"}
    assert ran.call_args.args[4] == of.row


@pytest.mark.parametrize(
    ("judged", "rare", "unscaled", "tried"),
    [
        ("analytic", True, False, "fedprox"), ("analytic", True, True, "analytic"), ("fedavg", True, False, "fedavg"),
        ("analytic", False, False, None), (None, True, False, None),
    ],
)  # fmt: skip
def test_a_remedy_is_tried_on_a_row_that_takes_it(judged: str, rare: bool, unscaled: bool, tried: str, monkeypatch):
    """Class weights on the trained row that is best on validation rows, if the judged one trains no net."""
    values = {"analytic": 0.9, "fedavg": 0.5, "fedprox": 0.6, "majority": 0.8}
    table = pd.DataFrame({"split": ["test"], "metric": ["accuracy"], "value": [0.5]})
    runs = [Result.__new__(Result) for _ in values]
    for run, (label, value) in zip(runs, values.items(), strict=True):
        row = Mock(label=label, control=label == "majority")
        for key, one in {"row": row, "seed": 0, "table": table.assign(value=value)}.items():
            object.__setattr__(run, key, one)
    found = Mock(causes={"fedavg": 1}, misses_rare=rare, nothing_learns=False)
    found.advice.judged = judged
    remedy, doubt = Mock(return_value={}), Mock(return_value={})
    monkeypatch.setattr(run_method, "doubt_gain", doubt)
    monkeypatch.setattr(requests, "answer", Mock(return_value=found))
    monkeypatch.setattr(requests, "replace", lambda run, **_: run)
    monkeypatch.setattr(requests, "with_found", lambda table, *_: table)
    monkeypatch.setattr(requests, "validation_value", lambda table, _: float(table["value"].iloc[0]))
    monkeypatch.setattr(run_method, "is_unscaled", Mock(return_value=unscaled))
    monkeypatch.setattr(run_method, "try_remedy", remedy)
    requests.Run._ask_why(Mock(), runs, Criterion())
    assert [call.args[1].row.label for call in remedy.call_args_list] == ([] if tried is None else [tried])
    assert all(call.args[5] == [runs[-1]] for call in remedy.call_args_list), "majority"
    remedy.return_value = {f"local_only with {LINEAR}": 0.1}
    requests.Run._ask_why(Mock(), runs, Criterion())
    assert doubt.call_count == 1 + (tried is None), "no linear net is tried twice"


@pytest.mark.parametrize(
    ("net", "shape", "judged", "tried"),
    [
        ({"name": "auto", "widths": [64, 32]}, (4,), "fedavg", ["fedavg", "local_only"]),
        ({"name": "mlp", "widths": [64, 32]}, (4,), "xgb_bagging", ["local_only"]),
        ({"name": "auto", "widths": []}, (4,), "fedavg", []), ({"name": "lstm"}, (4,), "fedavg", []),
        ({"name": "mlp", "widths": [8], "variants": [{"widths": [4]}]}, (4,), "fedavg", []),
        ({"name": "auto", "widths": [64, 32]}, (1, 8, 8), "fedavg", []),
    ],
)  # fmt: skip
def test_a_linear_net_is_tried_on_a_table_until_it_gains(net, shape, judged, tried, monkeypatch):
    """Class weights are tried first: their run diverges, and that does not end the tries."""
    fed = Mock(devices={})
    runs = [
        Mock(row=MethodConfig(label, label, Training(), {}), table=0.5, seed=0, fed=fed)
        for label in (judged, "local_only")
    ]
    for run in runs:
        run.setting = Setting("s", "base", {}, {}, {}, net, (), 1)
    data = SimpleNamespace(train=SimpleNamespace(x=torch.zeros(3, *shape)))
    monkeypatch.setattr(run_method, "read_prepared", Mock(return_value=[data]))
    monkeypatch.setattr(run_method, "build_federation", lambda _, setting, __: Mock(nets=setting.nets, devices={}))
    monkeypatch.setattr(run_method, "build", Mock())
    monkeypatch.setattr(run_method, "count_local_steps", Mock(return_value=1))
    monkeypatch.setattr(run_method, "validation_value", lambda table, _: table)
    found, session = Answer(Criterion(), None, None, misses_rare=True), Mock()
    for gain, labels in ((0.005, tried), (0.2, tried[:1])):
        ran = Mock(side_effect=[Diverged("nan"), *[SimpleNamespace(table=0.5 + gain)] * len(labels)])
        monkeypatch.setattr(run_method, "run_method", ran)
        gained = try_remedy(session, runs[0], found, Criterion(), alone=runs[1:])
        assert gained == {f"{label} with a linear net (net.widths=[])": pytest.approx(gain) for label in labels}
        weighted, *linear = ran.call_args_list
        assert weighted.args[4].training.class_weights == "balanced"
        assert all(call.args[3].nets == [net | {"widths": []}] == call.args[1].nets for call in linear)


@pytest.mark.parametrize(
    ("action", "mean", "widths", "linear", "gain"),
    [
        (Action.USE, 0.2, [64], 0.9, 0.3), (Action.UNSURE, 0.2, [64], 0.9, 0.3), (Action.USE, 0.2, [64], 0.605, 0.005),
        (Action.USE, 0.2, [], 0.9, None), (Action.ALONE, 0.2, [64], 0.9, None), (Action.UNSURE, -0.1, [64], 0.9, None),
    ],
)  # fmt: skip
def test_local_training_tries_a_linear_net_where_combining_gains(action, mean, widths, linear, gain, monkeypatch):
    """Of the first seed, and its gain is that on the best row that trains alone, which has no net."""
    values = {"local_only": 0.5, "analytic_local": 0.6, "fedavg": 0.8, "majority": 0.95}
    runs = [
        Mock(row=MethodConfig(label, label, Training(), {}), table=value, seed=seed, fed=Mock(devices={}))
        for seed in (0, 1)
        for label, value in values.items()
    ]
    for run in runs:
        run.setting = Setting("s", "base", {}, {}, {}, {"name": "auto", "widths": widths}, (), 1)
    data = SimpleNamespace(train=SimpleNamespace(x=torch.zeros(3, 4)))
    ran = Mock(return_value=SimpleNamespace(table=linear))
    monkeypatch.setattr(run_method, "read_prepared", Mock(return_value=[data]))
    monkeypatch.setattr(run_method, "build_federation", Mock(return_value=Mock(devices={})))
    monkeypatch.setattr(run_method, "combines", lambda run: run.row.label == "fedavg")
    for name, stand_in in {"run_method": ran, "build": Mock(), "count_local_steps": Mock(return_value=1)}.items():
        monkeypatch.setattr(run_method, name, stand_in)
    monkeypatch.setattr(run_method, "validation_value", lambda table, _: table)
    found = Answer(Criterion(), Advice(action, "fedavg", gain=Gain(mean, mean - 0.3, mean + 0.3, 0.1, 0.0, 3)), None)
    gained = run_method.doubt_gain(Mock(), runs, replace(found, misses_rare=True), Criterion())
    assert gained == ({} if gain is None else {"local_only with a linear net (net.widths=[])": pytest.approx(gain)})
    assert ran.call_count == (gain is not None)
    assert all(call.args[1].net["widths"] == [] and call.args[5] == 0 for call in ran.call_args_list)


def test_a_threshold_is_for_one_of_two_classes():
    require_two(("fault", "ok"), "ok")
    with pytest.raises(InputError, match=r"^run.threshold = 'validation': is for data of two classes; these have 3$"):
        require_two(("a", "b", "c"), "a")
    with pytest.raises(InputError, match=r"^run.positive = 'falt'.*did you mean fault\?"):
        require_two(("fault", "ok"), "falt")


def test_a_result_is_sent_without_what_it_has_computed_of_itself():
    """Else a thread that computes it, while another pickles the result, changes what is pickled."""
    nothing: Any = None
    result = Result(*[nothing] * 13)
    result.__dict__["digest"] = "found"
    sent = pickle.loads(pickle.dumps(result))
    assert sent.__dict__.keys() == {one.name for one in fields(Result)}
    assert sent == result


@pytest.mark.parametrize(("costs", "free"), [({"a": {"b": 2.0}}, True), ({"a": {"b": 2.0}, "b": {"a": 1.0}}, False)])
def test_a_list_of_runs_says_which_mistakes_cost_nothing(costs: Any, free: bool):
    nothing: Any = None
    of: dict[str, Any] = {"scoring": {"costs": costs}, "federation": {"scale": "device" if free else "none"}}
    setting: Any = SimpleNamespace(study="s", name="base", point={}, **of)
    row: Any = SimpleNamespace(label="fedavg", control=False, training=SimpleNamespace(class_weights="none"))
    outcomes: Any = SimpleNamespace(classes=("a", "b"), confusion=np.array([[60, 3], [8, 9]]))
    result = Result(*[nothing] * 13)
    result = replace(result, setting=setting, row=row, outcomes=outcomes, models={})
    result.__dict__["validation"] = 0.5
    for metric, few in (("accuracy", None), ("balanced_accuracy", ("b", 17))):
        result.__dict__["metric"] = METRICS[metric]
        assert result.entry.get("few") == few
    assert ("b taken for a" in result.entry.get("free", "")) == free
    assert ("free" in result.entry) == free
    assert result.entry.get("own_scale") == (20 if free else None)


# Datasets and partitions on their way into a run.


def test_what_files_looked_like_changes_no_key(tmp_path: Path):
    store, data = Store(tmp_path), dataset(LABELS)
    told = replace(data, notes=("read: columns separated by tabs",))
    assert read_dataset(store, {}, told) == read_dataset(store, {}, data)


def test_a_run_names_the_devices_that_it_drops(tmp_path: Path):
    store, data = Store(tmp_path), dataset(LABELS, ["tiny"] * 3 + ["a", "b"] * 98 + ["a"])
    section = {"partition": "by_device", "devices": 4, "min_size": 11, "drop_small": True}
    divided = partition(data, **{**SETTINGS, "name": "by_device", "min_size": 11}, drop_small=True)
    prepared = PreparedData(store.put(data), store.put(divided))
    assert notes(store, prepared, section) == ["dropped, 1 device below federation.min_size=11: tiny"]
    assert notes(store, prepared, {**section, "drop_small": False}) == []


@pytest.mark.slow
def test_a_run_names_the_numbers_that_are_rounded_once(tmp_path: Path):
    """As the preview does, for its first seed."""
    times = 1.7e9 + np.arange(0, 800, 10.0)
    rows = pd.DataFrame({"time": times, "y": ["p", "q"] * 40, "who": ["a"] * 40 + ["b"] * 40})
    rows.to_csv(tmp_path / "t.csv", index=False)
    store, data = Store(tmp_path), fc.load("table", path=tmp_path / "t.csv", label="y", device="who")
    parts = store.put(partition(data, **{**SETTINGS, "name": "by_device", "min_size": 11}))
    prepared = PreparedData(read_dataset(store, {}, data), parts)
    (line,) = notes(store, prepared, {"scale": "none"})
    assert line.startswith("time: float32 keeps these numbers in steps of 128, over a span of ")
    assert notes(store, prepared, {"scale": "none"}, first=False) == notes(store, prepared, {"scale": "device"}) == []


def test_what_a_preview_has_said_is_not_said_again(monkeypatch: pytest.MonkeyPatch):
    """It was of the first setting and seed; one of Prefect's page has none."""
    monkeypatch.setattr(requests, "read_papers", lambda _: {})
    monkeypatch.setattr(requests, "partitions", Mock(notes=lambda *of: [f"a note, {of[-1]}"]))
    jobs, setting = [Mock(seed=seed) for seed in (5, 6)], Mock(source="t")
    for loaded, said in (({}, ["a note, True", "a note, False"]), ({"t": dataset(LABELS)}, ["a note, False"])):
        run = requests.Run(requests.Request(), {"studies": {}}, jobs, session := Mock(), Mock())
        run.request.loaded.update(loaded)
        for job in jobs:
            run._divide(job, setting)
        assert [call.args[0].split(": ")[1] for call in session.print_line.call_args_list] == said


@pytest.mark.parametrize(
    ("shape", "nets", "typed", "point", "said"),
    [
        ((1, 8, 8), ["auto"], {"net.widths": [8]}, {}, "cnn"), ((1, 8, 8), ["auto"], {}, {"net.widths": [8]}, "cnn"),
        ((2, 64), ["auto", "auto"], {"net.widths": [8]}, {}, "cells"), ((1, 8, 8), ["auto"], {}, {}, None),
        ((4,), ["auto"], {"net.widths": [8]}, {}, None), ((1, 8, 8), ["auto", "mlp"], {"net.widths": [8]}, {}, None),
    ],
)  # fmt: skip
def test_widths_that_the_chosen_net_does_not_have_are_said(
    shape: tuple[int, ...], nets: list[str], typed: Any, point: Any, said: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "read_papers", lambda _: {})
    data = SimpleNamespace(train=SimpleNamespace(x=torch.zeros(3, *shape)))
    monkeypatch.setattr(requests.partitions, "read_prepared", lambda *_: (data, None))
    sections = [{"name": name, "widths": [8]} for name in nets]
    setting = Mock(nets=sections, net=sections[0], point=point, methods=[])
    run = requests.Run(requests.Request(changes=typed), {"studies": {}}, [], session := Mock(), Mock())
    run.jobs = [Mock(study="s", seed=seed, settings=[setting]) for seed in (5, 6)]
    monkeypatch.setattr(run, "_prepare", lambda job, setting: Mock(job=job, setting=setting))
    run.prepare()
    lines = [call.args[0].partition(": ")[2] for call in session.print_line.call_args_list]
    line = f"net.widths = [8]: not used, since net.name=auto takes {said} for these data"
    assert lines == ([line] if said else [])


# Sites whose rows are all marked test, scored by the pipeline.
environment.prepare()  # Prefect reads its settings when it is imported


class Steps(Inline):
    """Steps in this process, on stored values."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run_inline(self, fn: Any, *refs: Ref) -> Any:
        return fn(*map(self.store.get, refs))


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.slow
def test_the_pipeline_scores_a_new_site_as_a_script_does(tmp_path: Path, marked: bool):
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(160, 3)), np.arange(160) % 4
    split = np.where(site == 3, "test" if marked else "train", np.array(["train", "train", "test"])[np.arange(160) % 3])
    data = fc.from_arrays(x, (x[:, 0] > 0).astype(int), device=[f"s{i}" for i in site])
    data = replace(data, split=tuple(split.tolist()))
    fed = fc.federate(data, fc.by_device(), net=fc.mlp(6))
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    federation = fed.federation()
    method = config.build(federation.public.nets)
    store = Store(tmp_path)
    prepared: Any = PreparedData(store.put(data), store.put(fed.partition()))
    steps: Any = Steps(store)
    *_, last = rounds(method, federation, 0, steps)
    found = score_sites(steps, prepared, "none", method, federation, last.state)
    table = fc.run(config, fed).table
    rows = table[table["split"] == "left_out"]
    assert found == ({"s3": dict(zip(rows["metric"], rows["value"], strict=True))} if marked else {})
    assert {*rows["device"]} == ({"s3"} if marked else set())


def rows(devices: int, named: bool = True) -> fc.Dataset:
    x = np.random.default_rng(0).normal(size=(20 * devices, 3))
    owners = [f"s{i % devices:02d}" for i in range(len(x))]
    return fc.from_arrays(x, (x[:, 0] > 0).astype(int), device=owners if named else None)


@pytest.mark.parametrize(("scale", "ids"), [("none", False), ("device", False), ("common", False), ("common", True)])
def test_the_federation_without_a_device_is_that_of_a_script(tmp_path: Path, scale: Any, ids: bool):
    data = replace(rows(4), ids=tuple(str(i // 8) for i in range(80)) if ids else None)
    hold_out = "stable" if ids else "random"
    fed, store = fc.federate(data, fc.by_device(), net=fc.mlp(6), scale=scale, hold_out=hold_out), Store(tmp_path)
    prepared, steps = PreparedData(store.put(fed.dataset), store.put(fed.partition(1))), Steps(store)
    found, examples = federation_without(steps, fed.federation(1), prepared, scale, "s02")
    expected, theirs = fed.left_out("s02", 1)
    assert [*found.devices] == [*expected.devices] == ["s00", "s01", "s03"]
    assert (len(examples) == 20) is not ids
    pairs = [(examples, theirs), (found.test, expected.test)]
    for name, device in expected.devices.items():
        assert found.devices[name].net == device.net
        own = found.devices[name].data
        pairs += [(own.train, device.data.train), (own.test, device.data.test)]
    for one, other in pairs:
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@pytest.mark.parametrize(("asked", "devices", "named", "expected"), [
    ("auto", 4, True, True), ("auto", MOST_LEFT_OUT + 1, True, False), ("auto", 4, False, False),
    ("shared", 4, True, False), ("left_out", MOST_LEFT_OUT + 1, True, True), ("left_out", 4, False, True),
])  # fmt: skip
@pytest.mark.slow
def test_what_leaves_devices_out(tmp_path: Path, asked: Any, devices: int, named: bool, expected: bool):
    data, store = rows(devices, named), Store(tmp_path)
    fed = fc.federate(data, fc.by_device() if named else fc.iid(), devices=devices, min_size=1)
    assert leaves_out(asked, store, PreparedData(store.put(data), store.put(fed.partition()))) == expected


def test_one_device_cannot_be_left_out(tmp_path: Path):
    store, fed = Store(tmp_path), fc.federate(rows(1), fc.by_device())
    with pytest.raises(InputError, match=r"run.new_device = 'left_out': needs at least two devices"):
        leaves_out("left_out", store, PreparedData(store.put(fed.dataset), store.put(fed.partition())))


# The history of a project: what a run appends to it.
environment.prepare()  # Prefect reads its settings when it is imported


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(history, "HISTORY", tmp_path / "runs" / "history.jsonl")
    monkeypatch.setattr(history, "HELD", tmp_path / "held.jsonl")
    monkeypatch.setattr(environment, "STATE", tmp_path)
    proposed = Version("fedcore-machines", "8", tags={"fedcore.proposal": "better? no"})
    monkeypatch.setattr(
        history.registry, "read", lambda: {"machines": Versions({"8": proposed}, {"champion": "7", "candidate": "8"})}
    )
    return history.HISTORY


def line(result: str = "r", date: str = "2026-01-01T02:00:00+00:00", **more: Any) -> history.Line:
    return {
        "date": date, "study": "s", "size": "small", "setting": "base", "data": "d", "task": "machines",
        "result": result, "champion": None, **more,
    }  # fmt: skip


def test_a_line_is_completed_by_the_champion_and_kept_once_a_day(file: Path):
    history.append([line(), line(study="t")])
    history.append([line(date="2026-01-01T23:00:00+00:00")])
    assert [(one["study"], one["champion"]) for one in history.read()] == [("s", "7"), ("t", "7")]
    assert {one["challenge"] for one in history.read()} == {"better? no"}
    history.append([line(date="2026-01-02T02:00:00+00:00"), line("another")])
    assert [one["date"][8:10] for one in history.read()] == ["01", "01", "02", "01"]


def test_a_run_by_another_rule_or_least_difference_has_a_line(file: Path):
    for more in ({}, {"min_effect": "0.4"}, {"min_effect": ""}, {"rule": "weigh = examples"}, {"min_effect": "0.4"}):
        history.append([line(**more)])
    assert [one.get("min_effect") or one.get("rule") for one in history.read()] == [None, "0.4", "weigh = examples"]
    asked = {"best": "a", "best_value": None, "metric": "accuracy", "rows": 1}
    one, other = (line(**asked, min_effect=of) for of in ("", "0.4"))
    assert differences_of_lines(one, other) == ["min_effect usual -> 0.4"]


def test_a_stage_holds_its_line_until_the_challenge_is_known(file: Path):
    history.hold([line()])
    history.hold([line(study="t")])
    history.append([line("by hand")])
    assert [one["result"] for one in history.read()] == ["by hand"]
    history.append(history.read(history.HELD))
    said = [(one["study"], one["challenge"]) for one in history.read()[1:]]
    assert said == [("s", "better? no"), ("t", "better? no")]
    assert history.read(history.HELD) == []


def test_half_a_line_is_no_line_and_the_next_one_is_whole(file: Path):
    history.append([line()])
    with file.open("ab") as opened:
        opened.write(b'{"date": "2026-01-02T')
    history.append([line("another")])
    assert [one["result"] for one in history.read()] == ["r", "another"]
    assert file.read_bytes().endswith(b"\n")


def test_nothing_is_written_without_lines(file: Path):
    history.append([])
    assert not file.exists()
    assert history.read() == []


@pytest.mark.slow
def test_a_line_has_the_answer_and_what_this_run_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path)
    ref: Any = store.put(Dataset(Data(torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)), None, ("a", "b")))
    scores = table({"local_only": plus(0.0), "fedavg": plus(0.1)})
    told = answers(scores, CONTROLS)
    ((study, _, setting),) = told
    steps = (SimpleNamespace(key="train", cached=False, wall=2.0), SimpleNamespace(key="read", cached=True, wall=50.0))
    made: Any = [
        SimpleNamespace(
            setting=SimpleNamespace(
                study=study, name=setting, data_name="m", model_name="m-y", scoring={}, rates={"fedavg": [0.1, 0.3]}
            ),
            size="small", seed=seed,
            prepared=SimpleNamespace(dataset=ref, partition=SimpleNamespace(digest=f"p{seed}")),
            fed=SimpleNamespace(devices={"a": 0, "b": 0}), steps=steps, config=f"c{seed}", digest=f"r{seed}",
            row=SimpleNamespace(label=row), tasks=(),
            table=scores[(scores["method"] == row) & (scores["seed"] == seed)],
        )
        for seed in (1, 0) for row in ("fedavg", "local_only")
    ]  # fmt: skip
    used = {"fedavg": {"training.lr": 0.1, "seed": 0}, "local_only": {"training.lr": 0.1, "threshold": 0.5}}
    monkeypatch.setattr(record_result, "params_of", lambda of, dataset: {"data.name": "m"} | used[of.row.label])
    (found,) = history.lines_of(made, told, store)
    rates = {"training.lr": "[0.1, 0.3]"}
    assert found["settings"] == {"": {"data.name": "m"}, "fedavg": rates, "local_only": {"training.lr": "0.1"}}
    assert found["tasks"] == {}
    assert (found["action"], found["method"], found["rows"], found["devices"]) == ("use", "fedavg", 5, 2)
    assert (found["seconds"], found["seeds"], found["data"]) == (2.0, [0, 1], ref.digest)
    assert found["value"] == found["best_value"] == pytest.approx(0.75)
    of = {key: replace(one, criterion=replace(one.criterion, min_effect=0.4)) for key, one in told.items()}
    (by_another,) = history.lines_of(made, of, store)
    assert (found["min_effect"], by_another["min_effect"]) == ("", "0.4")
    assert found["alone_value"] == pytest.approx(0.65)
    assert found["worst"] == pytest.approx(0.7)
    assert found["sites"] == pytest.approx({"d00": 0.81, "d01": 0.7})
    assert found["gain_low"] <= found["gain"] == pytest.approx(0.1)
    (again,) = history.lines_of(made[::-1], told, store)
    assert again["result"] == found["result"]


def test_a_request_of_some_methods_or_seeds_is_a_part_of_its_study(monkeypatch: pytest.MonkeyPatch):
    def points(*labels: str) -> list[Any]:
        return [SimpleNamespace(methods=[SimpleNamespace(label=label) for label in labels])]

    def is_whole(seeds: int, *labels: str) -> bool:
        jobs: Any = [SimpleNamespace(study="s", size="small", seed=s, settings=points(*labels)) for s in range(seeds)]
        return run_outputs.is_whole(jobs, "s")

    monkeypatch.setattr(run_outputs, "read", lambda: {"run": {"seeds": [0, 1]}})
    monkeypatch.setattr(run_outputs, "grid_points", lambda *_: points("a", "b"))
    monkeypatch.setattr(run_outputs, "run_section", lambda params: SimpleNamespace(**params["run"]))
    assert [is_whole(2, "a", "b"), is_whole(3, "a", "b", "c")] == [True, True]
    assert [is_whole(1, "a", "b"), is_whole(2, "a")] == [False, False]


def test_time_left_is_that_of_training_to_that_of_the_record(monkeypatch: pytest.MonkeyPatch):
    """As the last seed: of training alone, and at the rate at which runs were written; none below a minute."""
    jobs: Any = [SimpleNamespace(study="s", name=f"s-{seed}") for seed in range(5)]
    monkeypatch.setattr(requests, "read_papers", lambda _: {})
    run = requests.Run(requests.Request(), {"studies": {}}, jobs, session := Mock(), writer := Mock())
    for job, now, writer.left in zip(jobs, (900.0, 7200.0, 7320.0, 7440.0, 7450.0), (0, 0, 0, 6, 0), strict=True):
        monkeypatch.setattr(requests.time, "monotonic", lambda now=now: now)
        run._say_left(Mock(job=job, leave_out=now == 7440))
        run.results[job.name] = [Mock()] * 12
    last = "  3 of 5 seeds done, about 4 to 10 min left, before what a new device takes"
    assert [line.args[0] for line in session.print_line.mock_calls] == ["  2 of 5 seeds done, about 6 min left", last]


@pytest.mark.parametrize(("then", "words"), [("bc", "a chain"), ("cb", "in this order")])
def test_the_order_of_a_fusion_says_what_it_is(then: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, Any] = {}
    monkeypatch.setattr(run_outputs, "publish", lambda name, rows, words: published.update({name: (rows, words)}))
    fused = [Fold(i, of, to, "h1", math.nan, 5, 0.0, torch.eye(2)) for i, (of, to) in enumerate(("ab", then))]
    monkeypatch.setattr(run_outputs, "folds", lambda reports: fused)
    made = table({"code_ot": [[0.5]]})
    row = SimpleNamespace(label="code_ot", training=SimpleNamespace(lr=0.03))
    run_outputs.publish_result(Mock(table=made, metric=METRICS["accuracy"], row=row))
    rows, said = published["folds code_ot"]
    assert rows[0] == {"order": 0, "device": "a", "into": "b", "weight": None, "layer": "h1"}
    assert words in said
    assert said.endswith("learning rate 0.03")


def test_prefects_page_and_the_record_say_the_same_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of lines that know whether the whole study was asked."""
    told: list[Any] = []
    for name in ("comparison", "worst_devices", "print_answers", "study_answers", "brief", "naming"):
        monkeypatch.setattr(run_outputs, name, MagicMock())
    of = {"lines_of": lambda *_: [{"study": "s"}], "read": list}
    monkeypatch.setattr(run_outputs, "history", SimpleNamespace(**of))
    monkeypatch.setattr(run_outputs, "is_whole", lambda jobs, study: False)
    monkeypatch.setattr(run_outputs, "changes", lambda lines, _: told.append(lines) or {})
    monkeypatch.setattr(run_outputs, "write_run", lambda *given: told.append(given[-1]))
    run_outputs.report({}, [], {}, Mock(), Mock(), False, {})
    assert told == [[{"study": "s", "whole": False}]] * 2


def test_a_row_that_is_left_out_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "read_papers", lambda _: {})
    run = requests.Run(requests.Request(), {"studies": {}}, [], session := Mock(), Mock())
    run.leave_out(Mock(optional=True, settings=[]), "base", Mock(label="code_ot"), InputError("code_ot: no"))
    session.print_line.assert_called_once_with("  code_ot is left out: no", level=logging.WARNING)


def test_a_row_that_diverges_in_one_seed_has_no_result_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of another setting: there it stays."""
    monkeypatch.setattr(requests, "read_papers", lambda _: {})
    rows = [Mock(label="local_only", control=False), Mock(label="fedavg", control=False)]
    settings = [SimpleNamespace(name=name, methods=rows) for name in ("x", "y")]
    jobs: Any = [Mock(study="s", seed=seed, settings=settings, stop_rows=False) for seed in range(4)]
    for job in jobs:
        job.name = f"s-{job.seed}"
    run = requests.Run(requests.Request(), {"studies": {}}, jobs, Mock(), Mock(left=0))
    tried: list[tuple[int, str, str]] = []

    def run_once(ready: Any, method: Any) -> Any:
        tried.append((ready.job.seed, ready.setting.name, method.label))
        if tried[-1] == (1, "x", "fedavg"):
            raise Diverged("fedavg: update of a is not finite")
        return SimpleNamespace(setting=ready.setting, row=method, seed=ready.job.seed)

    monkeypatch.setattr(run, "_tune", run_once)
    monkeypatch.setattr(run, "_run", run_once)
    monkeypatch.setattr(run, "_begin", lambda ready: None)
    for job in jobs:
        for setting in settings:
            for row in rows:
                if (made := run.run_method(Mock(job=job, setting=setting), row)) is not None:
                    run.results[job.name].append(made)
    left = [{(of.setting.name, of.row.label) for of in run.results[job.name]} for job in jobs]
    assert left == [{("x", "local_only"), ("y", "local_only"), ("y", "fedavg")}] * 4
    assert (2, "x", "fedavg") not in tried


@pytest.mark.parametrize(("changed", "tags"), [(True, {}), (False, {"data_md5": "ff"})])
def test_data_that_changed_since_dvc_tracked_them_have_no_digest(
    changed: bool, tags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Mock(setting=SimpleNamespace(data={"path": "m.csv"}), federation=Mock(devices=[]))
    job = Mock(study="s", size="small", seed=0, settings=[ready.setting])
    ready.job, given = job, Mock()
    monkeypatch.setattr(requests, "plan_jobs", lambda request: ({"studies": {}}, [job]))
    monkeypatch.setattr(requests, "open_run_session", lambda *_: nullcontext(MagicMock()))
    for name in ("run_section", "read_papers", "title_for", "repeat", "outputs"):
        monkeypatch.setattr(requests, name, MagicMock())
    monkeypatch.setattr(requests, "run_method", MagicMock(tally=lambda *_, **__: ""))
    monkeypatch.setattr(requests, "replace", given)
    monkeypatch.setattr(requests.tracked, "has_changed", lambda path: changed)
    monkeypatch.setattr(requests.tracked, "data_digest", lambda path: "ff")
    with requests.open_run(requests.Request(), MagicMock()) as run:
        run.record(ready, Mock(row=SimpleNamespace(label="a", control=True)))
    assert given.call_args.kwargs["thread"] == tags


def test_a_flow_run_is_named_by_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: dict[str, Any] = {"studies": ["code"], "size": "small", "seeds": [2, 0, 1]}
    monkeypatch.setattr(requests, "runtime", SimpleNamespace(flow_run=SimpleNamespace(parameters=typed)))
    assert requests.name_run() == "code, small, seeds 0 to 2"
    typed["methods"] = ["fedavg", "code_ot"]
    assert requests.name_run() == "code, small, seeds 0 to 2: fedavg, code_ot"
    typed["changes"] = {"training.epochs": 5}
    assert requests.name_run() == "code, small, seeds 0 to 2, training.epochs=5: fedavg, code_ot"
    typed["changes"] = {"data.path": "x" * 99}
    assert requests.name_run().endswith(f" 2, data.path={'x' * 47}...: fedavg, code_ot")
    typed["changes"] = {"run.sedes": [0]}
    assert requests.name_run() == "refused settings"


@pytest.mark.parametrize(("refuses", "updates"), [("plan_jobs", 1), ("open_run_session", 0)])
def test_a_deployment_asks_a_store_again_that_it_could_not_open(
    refuses: str, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a")
    monkeypatch.setattr(schedule, "get_client", client := MagicMock())
    monkeypatch.setattr(requests, "plan_jobs", lambda request: ({}, []))
    monkeypatch.setattr(requests, "run_section", Mock())
    monkeypatch.setattr(requests, refuses, Mock(side_effect=InputError("refused")))
    request: Any = None
    with pytest.raises(InputError, match="refused"), requests.open_run(request, MagicMock()):
        pass
    assert client.return_value.__enter__.return_value.update_flow_run.call_count == updates


def test_a_final_fit_says_whose_threshold_it_takes_over():
    words = threshold_taken(Threshold("yes", 0.3125), "7")
    assert words == "; 'yes' from probability 0.312 on, taken over from version 7, whose validation rows chose it"
    assert threshold_taken(None, "7") == ""


def test_a_flow_is_marked_as_running_until_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that the next run ends it on Prefect's page if it is killed after its last step."""
    monkeypatch.setattr(journal, "FLOWS", tmp_path / "flows")
    marks: list[list[str]] = []

    def note(*_: Any) -> None:
        marks.append([mark.name for mark in journal.marks()])

    monkeypatch.setattr(requests, "runtime", SimpleNamespace(flow_run=SimpleNamespace(id="run")))
    monkeypatch.setattr(requests, "RecordWriter", lambda: nullcontext(Mock(history=[], proposed=[], count=0)))
    monkeypatch.setattr(requests.tracked, "is_new_clone", lambda: False)
    monkeypatch.setattr(requests.alerts, "notify_disk", note)
    monkeypatch.setattr(history, "append", note)
    monkeypatch.setattr(requests, "tidy_up", note)  # which prunes, as no flow runs
    with requests.open_record():
        note()
    assert marks == [["run"], ["run"], [], []]
