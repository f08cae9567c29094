"""A run with a kit's devices, over the link of a server that stays."""

import json
import math
from dataclasses import replace
from datetime import date
from threading import Thread
from typing import Any

import pandas as pd
import pytest
import torch
from federations import bits
from plant_rows import on_devices

from fedcore import InputError, method
from fedcore.core.evaluation import metrics
from fedcore.core.rounds import RoundResult, State
from fedcore.field import deployed, station
from fedcore.field.kits import only_one
from fedcore.field.runs import Study, write_setup
from fedcore.field.session import choose_method, play, summary
from fedcore.field.wire import pack, unpack
from fedcore.types.method import RoundInfo

DITTO = {"label": "mine", "name": "ditto", "settings": {"rounds": 2}, "training": {"epochs": 1}}


class Connected:
    """Devices in this process as a server that stays knows them."""

    def __init__(self, link: Any) -> None:
        self.send = link.send

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def kit(tmp_path):
    """A server's kit with a server that stays, and three devices, started by their owners."""
    _, setup, link = on_devices(tmp_path)
    kit = tmp_path / "server"
    kit.mkdir()
    write_setup(kit, replace(setup, study=Study("s", "Which?", "small", "plant", "plant", (DITTO,), 4, "mine")))
    thread = Thread(target=station.serve, args=(kit, Connected(link)))
    thread.start()
    while (running := station.find(kit)) is None:
        pass
    yield kit
    running.stop()
    thread.join(20)


@pytest.mark.slow
def test_the_answer_runs_and_a_device_labels_new_rows_by_its_own_model(kit, tmp_path):
    row = choose_method(kit, None, {})
    assert (row.label, row.name, row.settings["rounds"]) == ("mine", "ditto", 2)
    field_run = play(kit, row, "one", seconds=20.0)
    assert (field_run.stored.plan.seed, len(field_run.stored.turns)) == (4, 2)
    with only_one(kit, "setup.json"), pytest.raises(InputError, match="server: another process runs with this kit"):
        play(kit, row, "two", seconds=20.0)
    again = play(kit, row, "one", seconds=20.0)  # it is over
    assert bits(again.stored.turns) == bits(field_run.stored.turns)

    own, memory = plant_rows(tmp_path, "west"), tmp_path / "devices" / "west"
    found = deployed.predict(memory, "one", "west", own.path)
    rows = pd.read_csv(own.path, dtype=str)
    (numbers := rows[rows["kind"] != "A1"]).to_csv(tmp_path / "numbers.csv", index=False)  # codes like numbers
    alone = deployed.predict(memory, "one", "west", tmp_path / "numbers.csv")
    pd.testing.assert_frame_equal(alone.reset_index(drop=True), found.iloc[numbers.index].reset_index(drop=True))
    plan = field_run.stored.plan
    raw = own.splits(plan.read_recipe(), plan.seed)
    every = torch.tensor(found[[f"probability_{name}" for name in plan.read_recipe().schema.classes]].to_numpy())
    scores = []
    for part in (raw.test, raw.val):  # the rows of a part, found again by their inputs
        rows = own.read(plan.read_recipe()).train
        index = [int((rows.x.nan_to_num() == x.nan_to_num()).all(1).nonzero()[0]) for x in part.x]
        scores.append(metrics(every[index].log(), part.y)["accuracy"])
    told = field_run.stored.turns[-1].scores["west"]
    assert scores == [told["test"]["accuracy"], told["val"]["accuracy"]]
    with pytest.raises(InputError, match=r"^--run two: west has no model of such a run$"):
        deployed.predict(memory, "two", "west", own.path)

    pd.read_csv(own.path, dtype=str).assign(heat="7").to_csv(own.path, index=False)  # its rows are others today
    again = deployed.predict(memory, "one", "west", tmp_path / "numbers.csv")
    pd.testing.assert_frame_equal(again, alone)
    for name, why in (
        ("deployed", r"/deployed: damaged, its bytes have changed since"),
        (max(path.name for path in (memory / "one").glob("turn-*")), r"^run one: west has not the memory that"),
        ("plan.json", r"/plan\.json: damaged, its bytes have changed since"),
    ):
        whole = (memory / "one" / name).read_bytes()
        at, bit = (whole.index(b'"seed": 4') + 8, 1) if name == "plan.json" else (tensors_at(whole), 128)
        (memory / "one" / name).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(InputError, match=why):
            deployed.predict(memory, "one", "west", tmp_path / "numbers.csv")
        (memory / "one" / name).write_bytes(whole)
    header, tensors = unpack((memory / "one" / "deployed").read_bytes(), "")
    del header["fit"], header["digest"]  # as an earlier version wrote it
    (memory / "one" / "deployed").write_bytes(pack(header, tensors))
    (memory / "one" / "plan.json").write_text(plan.to_json())
    with pytest.raises(InputError, match=r"^--run one: an earlier version made it; give --data, the rows of west"):
        deployed.predict(memory, "one", "west", tmp_path / "numbers.csv")
    old = deployed.predict(memory, "one", "west", tmp_path / "numbers.csv", own)
    assert old["probability"].tolist() != alone["probability"].tolist()


def tensors_at(parcel):
    """Return where the first byte of a parcel's tensors is."""
    return 8 + int.from_bytes(parcel[:8], "little") + 1


def plant_rows(tmp_path, site):
    from fedcore.field.rows import DeviceRows

    return DeviceRows(tmp_path / f"{site}.csv", site)


def test_a_method_is_a_row_of_the_study_or_any_other(kit, tmp_path):
    assert choose_method(kit, "mine", {"rounds": 3}).settings["rounds"] == 3
    assert choose_method(kit, "mine", {"rounds": 3}).training.epochs == 1
    assert choose_method(kit, "fedavg", {"rounds": 2}) == method("fedavg", rounds=2)
    words = json.loads((kit / "setup.json").read_text())
    (kit / "setup.json").write_text(json.dumps({**words, "study": {**words["study"], "answer": None}}))
    with pytest.raises(InputError, match=r"^--method: name one; the study of these kits has no answer$"):
        choose_method(kit, None, {})


@pytest.mark.parametrize(
    ("metric", "words"),
    [("accuracy", "accuracy 0.500"), ("rmse", "root mean squared error 0.5"), ("macro_f1", "macro F1 0.500")],
)
def test_a_line_about_a_round_names_the_metric_and_who_is_in_its_mean(metric, words):
    values = {"a": 1.0, "b": 0.0, "c": math.nan, "d": 0.5}
    scores = {name: {"test": {metric: value}} for name, value in values.items()}
    turn = RoundResult(RoundInfo(0, 0, 1, (*"abcde",), (*"abcde",)), State({}, {}, round=2), {}, {}, scores)
    assert summary(turn) == f"stage 1, round 2: {words}, mean of 3 devices"
    assert summary(replace(turn, scores=None, absent=("e",))) == "stage 1, round 2: not scored; absent: e"


@pytest.mark.slow
def test_a_nightly_runs_the_answer_under_the_name_of_the_day(kit, monkeypatch):
    from flows import field as flow

    recorded: list[Any] = []
    monkeypatch.setattr(flow, "record_field", recorded.append)
    flow.field.fn(str(kit), deadline=20.0)
    (field_run,) = recorded
    assert (field_run.label, len(field_run.stored.turns)) == ("mine", 2)
    assert field_run.folder.name == f"night{date.today():%Y%m%d}"
