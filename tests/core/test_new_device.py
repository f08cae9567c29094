"""Devices that took no part: their model, their scores, and the answer for a new device."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from federations import NET, data, federation, last

import fedcore as fc
from fedcore import Data, InputError, Model
from fedcore.core.evaluation import evaluate
from fedcore.core.new_device import score_new
from fedcore.core.rounds import run
from fedcore.data.encoding import encode
from fedcore.data.prepare import fit_schema
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS
from fedcore.partition.new_devices import leave_out
from fedcore.partition.partitions import training
from fedcore.partition.tables import dropped_devices
from fedcore.pipeline.run.step_functions import prepare_sites
from fedcore.results.advice import Action

SITES = [f"s{k}" for k in range(4)]
ROWS = 120


def sites(names: list[str] = SITES) -> fc.Dataset:
    """Sites that differ in level: the threshold of a site's labels is its own level, which no other site has."""
    rng, x, y, owners = np.random.default_rng(0), [], [], []
    for k, name in enumerate(names):
        drawn = rng.normal(size=(ROWS, 2))
        x.append(np.stack([drawn[:, 0] + 8 * k, np.full(ROWS, float(k % 2))], 1))
        y.append((drawn[:, 0] > 0) ^ (k % 2 == 1))
        owners += [name] * ROWS
    return fc.from_arrays(np.concatenate(x).astype(np.float32), np.concatenate(y).astype(int), device=owners)


@cache
def compared(names: tuple[str, ...] = tuple(SITES)) -> fc.api.results.Comparison:
    fed = fc.federate(sites([*names]), fc.by_device(), net=fc.mlp(32), scale="common", test=0.3)
    methods = [fc.local_only(), fc.fedavg(rounds=8, training={"lr": 0.05}), fc.fedper(rounds=1)]
    return fc.compare(methods, fed, range(2), new_device="left_out")


def left_out(table: pd.DataFrame, metric: str = "accuracy") -> pd.Series:
    rows = table[(table["split"] == "left_out") & (table["metric"] == metric)]
    return rows.set_index(["method", "seed", "device"])["value"]


@pytest.mark.slow
def test_scores_are_those_of_a_federation_built_without_it():
    """Oracle: a dataset without the rows of the device, a run of its own, and the rows scaled and scored by hand."""
    whole, found = sites(), left_out(compared().table)
    there = np.array([owner == "s2" for owner in whole.device])
    x, y = whole.train.x.numpy(), whole.train.y.numpy()
    rest = fc.from_arrays(x[~there], y[~there], device=[owner for owner in whole.device if owner != "s2"])
    divided = fc.federate(rest, fc.by_device(), net=fc.mlp(32), scale="common", test=0.3)
    fed = divided.federation(1)
    method = fc.fedavg(rounds=8, training={"lr": 0.05}).build(fed.public.nets)
    state = list(run(method, fed, 1, Inline()))[-1].state
    made = divided.partition(1)
    train = x[~there][np.concatenate([own["train"] for own in made.devices.values()])].astype(np.float64)
    scaled = torch.tensor((x[there] - train.mean(0)) / train.std(0)).float()
    model = Model((next(iter(state.messages.values())).params,))
    expected = evaluate(model, fed.devices["s0"].net, Data(scaled, torch.tensor(y[there])))["accuracy"]
    assert found["fedavg", 1, "s2"] == pytest.approx(expected, abs=1e-12)
    assert left_out(compared().table, "examples")["fedavg", 1, "s2"] == ROWS


def by_device() -> fc.api.federation.DividedDataset:
    return fc.federate(sites(), fc.by_device(), net=fc.mlp(8), scale="device", test=0.3)


def test_a_left_out_device_is_scaled_by_its_own_rows_as_predict_scales_it():
    """Its level, which no other device has, is gone; labels have no part. A prediction prepares the rows alike."""
    divided = by_device()
    x = divided.left_out("s2", 1)[1].x
    raw = sites().train.x[2 * ROWS : 3 * ROWS].double()
    std = raw.std(0, correction=0)
    assert torch.equal(x, ((raw - raw.mean(0)) / std.masked_fill(std == 0, 1.0)).float())
    others, *_ = leave_out(sites(), divided.partition(1), "s2")
    schema = fit_schema(sites(), training(others), "device")
    assert torch.equal(encode(raw.float().numpy(), schema, new=True), x)
    assert (encode(raw[:1].float().numpy(), schema, new=True) - x[:1]).abs().max() > 0.1  # a single row tells no scale
    assert (encode(raw.float().numpy(), schema) - x).abs().max() > 0.1  # of no device, perhaps of several


@pytest.mark.slow
def test_the_answer_says_that_a_new_device_is_scaled_by_its_own_rows():
    methods = [fc.local_only(), fc.fedavg(rounds=2)]
    found = fc.compare(methods, by_device(), range(2), new_device="left_out").answer
    said = "Its rows are scaled by their own mean and spread: predict at least 20 together."
    assert said in found.sentences
    assert said not in compared().answer.sentences


@pytest.mark.parametrize("hold_out", ["random", "stable"])
@pytest.mark.parametrize("common", [0, 30, ROWS])
@pytest.mark.slow
def test_rows_whose_id_trains_elsewhere_are_not_scored(hold_out: str, common: int):
    """common: rows of each site whose patient is at all sites; each patient is marked to train, validate or test."""
    patient, whole = np.tile(np.arange(ROWS), len(SITES)), sites()
    assert whole.device is not None
    ids = tuple(f"{number}" if number < common else f"{number} {i}" for i, number in enumerate(patient))
    marks = tuple(np.array(["train", "val", "test"])[patient % 3].tolist())
    for one, seen in ((whole, 0), (replace(whole, ids=ids), common * 2 // 3)):
        made = replace(one, split=marks)
        divided = fc.federate(made, fc.by_device(), shared_test=0.3, hold_out=hold_out)
        others, rows, known = leave_out(made, divided.partition(), "s1")
        assert sorted([*rows, *known]) == [i for i, owner in enumerate(whole.device) if owner == "s1"]
        assert known.tolist() == [i for i in range(ROWS, ROWS + seen * 3 // 2) if marks[i] != "test"]
        assert len(divided.left_out("s1")[1]) == ROWS - seen
        assert "s1" not in others.names


@pytest.mark.slow
def test_the_shared_test_set_claims_more_than_a_left_out_site_shows():
    found = compared()
    table, new = found.table, found.answer.new_device
    shared = table[(table["split"] == "shared") & (table["metric"] == "accuracy") & (table["method"] == "fedavg")]
    values = left_out(table)["fedavg"]
    assert shared[shared["round"] == 8]["value"].mean() > values.mean() + 0.1
    assert new is not None
    assert new.advice.best == "fedavg"
    assert new.advice.best_value == pytest.approx(values.mean())
    assert new.worst == values.groupby("device").mean().idxmin()
    assert new.advice.action is not Action.USE


@pytest.mark.slow
def test_the_gain_is_over_devices():
    values, advice = left_out(compared().table), compared().answer.new_device.advice
    gains = (values["fedavg"] - values["local_only"]).groupby("device").mean()
    assert advice.gain is not None
    assert advice.gain.seeds == len(SITES)
    assert (advice.gain.mean, advice.gain.spread) == pytest.approx((gains.mean(), gains.std()))
    assert advice.gain.margin == pytest.approx(3.18244631 * gains.std() * math.sqrt(1 / 4 + 1 / 15))


def test_one_devices_model_is_the_mean_of_the_others():
    fed = federation("abc")
    method = fc.local_only().build(fed.public.nets)
    state, rows = last(method, fed).state, data(30, "new")
    found = score_new(method, fed, state, Inline(), NET, {"new": rows})["new"]
    scores = [evaluate(method.deploy(state.memories[name], state.messages[name]), NET, rows) for name in "abc"]
    assert found["loss"] == pytest.approx(sum(score["loss"] for score in scores) / 3)


@pytest.mark.parametrize(("name", "has"), [
    ("fedavg", True), ("ditto", True), ("analytic", True), ("fedper", False), ("fd", False), ("majority", True),
])  # fmt: skip
@pytest.mark.slow
def test_which_methods_have_a_model_for_a_new_device(name: str, has: bool):
    assert name in METHODS
    fed = federation("abc")
    few = {"features": 32} if name == "analytic" else {}
    method = fc.method(name, **few).build(fed.public.nets, dict.fromkeys("abc", 8))
    scores = score_new(method, fed, last(method, fed).state, Inline(), NET, {"new": data(9, "new")})["new"]
    assert ("examples" in scores) == has
    assert math.isnan(scores["accuracy"]) != has


def test_messages_that_differ_are_no_shared_model():
    fed = federation("abc")
    method = fc.fedavg(rounds=1).build(fed.public.nets)
    state = last(method, fed).state
    one = state.messages["a"]
    other = replace(one, params={name: x + 1 for name, x in one.params.items()})
    changed = replace(state, messages={**state.messages, "a": other})
    assert math.isnan(score_new(method, fed, changed, Inline(), NET, {"new": data(9)})["new"]["accuracy"])


@pytest.mark.parametrize("name", ["local_only", "fedavg"])
@pytest.mark.slow
def test_renaming_devices_commutes(name: str):
    fed, new = federation("abc"), {"a": "z", "b": "y", "c": "x"}
    method = fc.method(name).build(fed.public.nets)
    state, rows = last(method, fed).state, {"new": data(30, "new")}
    renamed = replace(fed, devices={new[who]: replace(one, name=new[who]) for who, one in fed.devices.items()})
    memories, messages = ({new[who]: x for who, x in part.items()} for part in (state.memories, state.messages))
    there = replace(state, memories=memories, messages=messages)
    found, other = (score_new(method, f, s, Inline(), NET, rows)["new"] for f, s in ((fed, state), (renamed, there)))
    assert found == other


@pytest.mark.slow
def test_workers_give_the_same_bits():
    fed = fc.federate(sites(), fc.by_device(), net=fc.mlp(8), scale="common", test=0.3)
    methods = [fc.local_only(), fc.fedavg(rounds=2), fc.fedper(rounds=1)]
    there, here = (fc.compare(methods, fed, [1], new_device="left_out", workers=count).table for count in (1, None))
    assert len(left_out(here)) > 0
    pd.testing.assert_frame_equal(there, here)


@pytest.mark.slow
def test_answer_in_words():
    said = compared().answer.sentences
    assert any(line.startswith("For a new device (s0, s1, s2 and s3, left out of training in turn): ") for line in said)
    assert any("Against one device's model: " in line and "; 4 left-out devices)" in line for line in said)
    assert any(
        line.startswith(f"Among left-out devices fedavg does worst on {compared().answer.new_device.worst}: ")
        for line in said
    )
    assert "fedper cannot serve a device that did not train." in said
    assert not any("shared test data" in line for line in said)


@pytest.mark.slow
def test_a_site_that_is_all_test_is_scored_and_not_trained_on():
    whole = sites()
    marks = ["test" if owner == "s3" else ("train", "train", "test")[i % 3] for i, owner in enumerate(whole.device)]
    marked = replace(whole, split=tuple(marks))
    divided = fc.federate(marked, fc.by_device(), net=fc.mlp(8))
    assert divided.partition().names == ("s0", "s1", "s2")
    assert not {whole.device[i] for i in divided.partition().shared} & {"s3"}
    mine = prepare_sites(marked, divided.partition(), scale="none")["s3"]
    assert torch.equal(mine.x, divided.new_sites()["s3"].x)
    found = fc.compare([fc.local_only(), fc.fedavg(rounds=2)], divided, range(2))
    assert {*left_out(found.table).index.unique("device")} == {"s3"}
    assert left_out(found.table, "examples")["fedavg", 0, "s3"] == ROWS
    assert found.summary["n_devices"].max() == 3
    assert any(line.startswith("For a new device (s3, not in training): cannot say") for line in found.answer.sentences)
    assert any(line.startswith("Among left-out devices fedavg does worst on s3: ") for line in found.answer.sentences)


def test_rows_of_a_new_site_whose_id_trains_elsewhere_are_left_out():
    """Each patient has a row at every site: of the first half one trains, of the others each is marked test."""
    whole = sites()
    patient = np.arange(len(whole.train)) % ROWS
    trains = (np.array(whole.device) != "s3") & (patient < ROWS // 2)
    marked = replace(
        whole, split=tuple(np.where(trains, "train", "test").tolist()), ids=tuple(f"p{who}" for who in patient)
    )
    for ids, count in ((marked.ids, ROWS // 2), (None, ROWS), (tuple("p0" for _ in patient), None)):
        divided = fc.federate(
            replace(marked, ids=ids), fc.by_device(), hold_out="stable", net=fc.mlp(8), shared_test=0.0
        )
        found = divided.new_sites()
        assert {name: len(data) for name, data in found.items()} == ({} if count is None else {"s3": count})
        made = divided.partition()
        assert dropped_devices(replace(marked, ids=ids), made, "by_device", 4) == [], (
            "it is a new site, not a small one"
        )


@pytest.mark.parametrize("word", ["new_device", "left_out_rows"])
def test_unknown_words_are_refused(word: str):
    fed = fc.federate(sites(), fc.by_device())
    with pytest.raises(InputError, match=f"compare.{word} = 'shard'"):
        fc.compare([fc.local_only()], fed, range(2), **{word: "shard"})
