"""Descriptions that fit into MLflow."""

import asyncio
import json
import math
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tables import frame, grouped, rows

import fedcore as fc
from fedcore.config.params import read
from fedcore.config.studies import grid_points
from fedcore.core.metrics import METRICS
from fedcore.errors import InputError
from fedcore.methods import METHODS
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.record import contents
from fedcore.pipeline.record.contents import NOTE, REST, device_table, metrics, read_device_table, rounds
from fedcore.pipeline.record.mlflow_page import Guard
from fedcore.pipeline.record.result import Origin
from fedcore.results.criterion import Criterion
from fedcore.results.reports import folds
from fedcore.results.summary import curves
from fedcore.types.method import Report, Threshold


def test_a_long_description_ends_before_a_table_and_names_the_page() -> None:
    table = "\n".join(["| row | 0.123 |"] * 200)
    head, *tables = "Which?\n\n**An answer**", *(f"### {name}\n\n{table}" for name in ("first", "second", "third"))
    note = "\n\n".join([head, *tables])
    assert len(note) > NOTE
    assert contents.shorten_note(note) == "\n\n".join([head, *tables[:2], REST])
    assert contents.shorten_note(note[:NOTE]) == note[:NOTE]
    assert contents.shorten_note("?" * (NOTE + 1)) == REST


# A run's metrics: few final numbers, and the numbers of single devices in a table.


def points(table: pd.DataFrame, **rule: Any) -> dict[tuple[str, int], float]:
    decides = Criterion(**rule)
    found = list(metrics(rounds(table, decides), 3.0, 1000, decides.metric))
    assert all(one.timestamp == 1000 + one.step for one in found)
    named = {(one.key, one.step): one.value for one in found}
    assert len(named) == len(found)
    return named


def two_rounds() -> pd.DataFrame:
    return frame(rows({"a": [[0.4, 0.6]]}, shared=0.3), rows({"a": [[0.7, 0.9]]}, at=2, shared=0.5, up=300.0))


@pytest.mark.slow
def test_final_numbers_have_no_step_and_bytes_add_up():
    found = points(two_rounds())
    final = {key: value for (key, step), value in found.items() if step == 0}
    expected = {
        "test/accuracy": 0.8, "test/worst_device": 0.7, "shared/accuracy": 0.5, "val/accuracy": 0.8,
        "traffic/up_MB": 800e-6, "traffic/down_MB": final["traffic/down_MB"], "seconds": 3.0,
    }  # fmt: skip
    assert final == pytest.approx(expected)
    assert {key for key, step in found if step} == {key for key, _ in found if key.startswith("round/")}
    assert [found["round/test_accuracy", step] for step in (1, 2)] == pytest.approx([0.5, 0.8])
    assert [found["round/traffic_up_MB", step] for step in (1, 2)] == pytest.approx([200e-6, 800e-6])
    assert len({key for key, _ in found}) <= 25
    table = rounds(two_rounds())
    assert list(table["test/accuracy_std"]) == pytest.approx([0.02**0.5] * 2)  # as in the summary


def test_a_run_of_one_round_has_no_curves():
    found = points(frame(rows({"a": [[0.4, 0.6]]}, shared=0.3)))
    assert {step for _, step in found} == {0}


@pytest.mark.slow
def test_another_metric_that_decides_takes_the_place_of_accuracy():
    table = two_rounds()
    more = table[table["metric"] == "accuracy"]
    table = pd.concat([table, more.assign(metric="cost", value=more["value"] + 1)], ignore_index=True)
    found = {key: value for (key, step), value in points(table, metric=METRICS["cost"]).items() if step == 0}
    assert found["test/cost"] == pytest.approx(1.8)
    assert found["test/worst_device"] == pytest.approx(1.9)  # the greatest
    assert found["shared/cost"] == pytest.approx(1.5)
    assert found["val/cost"] == pytest.approx(1.8)
    assert not [key for key in found if "accuracy" in key]
    means = rounds(table, Criterion(METRICS["cost"])).iloc[-1]
    assert means["test/accuracy"] == pytest.approx(0.8)
    assert means["shared/macro_f1"] == pytest.approx(0.25)
    columns = [*read_device_table(device_table(table, METRICS["cost"]))]
    assert [name.partition("/")[2] for name in columns].index("accuracy") == 3  # after those of cost on three splits


def test_scores_of_earlier_versions_are_read():
    earlier = {"accuracy": 0.7, "shared_accuracy": 0.6, "validation_accuracy": 0.5}
    today = {"test/accuracy": 0.7, "shared/accuracy": 0.6, "val/accuracy": 0.5}
    for recorded in (earlier, today):
        assert [contents.score(recorded, split, "accuracy") for split in ("test", "shared", "val")] == [0.7, 0.6, 0.5]
    assert contents.score({}, "val", "accuracy") is None


@pytest.mark.slow
def test_the_mean_on_own_test_data_is_over_devices_that_count():
    sizes = {"d00": 5.0, "d01": 20.0, "d02": 60.0}
    table = frame(rows({"a": [[0.1, 0.4, 0.8]]}, shared=0.5))
    held = table[(table["split"] == "test") & (table["metric"] == "accuracy")].assign(split="data")
    count = held.assign(metric="test_examples", value=held["device"].map(sizes))
    table = pd.concat([table, count, held.assign(metric="test_classes", value=2)], ignore_index=True)
    assert points(table, least_test=0)["test/accuracy", 0] == pytest.approx(1.3 / 3)
    found = points(table, least_test=20)
    assert (found["test/accuracy", 0], found["test/worst_device", 0]) == (pytest.approx(0.6), pytest.approx(0.4))
    assert (found["val/accuracy", 0], found["shared/accuracy", 0]) == (pytest.approx(0.6), 0.5)
    course = curves(table, Criterion(least_test=20)).query("metric == 'accuracy'").set_index("split")["mean"]
    assert course.to_dict() == pytest.approx({"test": 0.6, "val": 0.6, "shared": 0.5})
    weighed = points(table, least_test=20, weigh="examples")
    assert weighed["test/accuracy", 0] == pytest.approx((20 * 0.4 + 60 * 0.8) / 80)


@pytest.mark.slow
def test_groups_have_their_mean_accuracy():
    made = grouped(frame(rows({"a": [[0.2, 0.4, 0.9]]})), {"d00": "A", "d01": "A", "d02": "B"})
    (found,) = rounds(made).to_dict("records")
    assert found["test/accuracy_in_A"] == pytest.approx(0.3)
    assert found["test/accuracy_in_B"] == pytest.approx(0.9)
    assert found["data/in_A"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_the_numbers_of_devices_are_a_table_of_the_last_round():
    table = two_rounds()
    table.loc[table["split"].eq("val") & table["device"].eq("d01"), "value"] = math.nan
    found = read_device_table(device_table(table))
    assert list(found.index) == ["d00", "d01"]
    assert list(found)[:3] == ["test/accuracy", "shared/accuracy", "val/accuracy"]
    assert list(found["test/accuracy"]) == [0.7, 0.9]
    assert list(found["traffic/bytes_up"]) == [300, 300]
    assert found.loc["d00", "val/accuracy"] == 0.7
    assert math.isnan(found.loc["d01", "val/accuracy"])
    earlier = device_table(table).replace(b"test/accuracy", b"test.accuracy")
    assert list(read_device_table(earlier)) == list(found)
    head = device_table(table).partition(b'"data"')[0]
    assert b"." not in head  # the page shows no dotted column


def test_transport_matrices_are_read_back_as_they_were(tmp_path: Path):
    plans = {"h1": torch.rand(3, 2), "h2": torch.rand(2, 2)}
    matrices = {f"plan/{fold}/{label}": plan for fold in ("b/1", "c") for label, plan in plans.items()}
    solver = {"solver/iterations": torch.arange(4.0), "solver/violation": torch.rand(4, dtype=torch.float64)}
    told = Report(
        matrices=matrices | solver, words={"folds": json.dumps({"b/1": ["a", "b/1", 0.25], "c": ["b/1", "c", 0.25]})}
    )
    expected = folds([told, Report()])
    files = contents.fold_files(expected)
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    found = fc.load_plans(tmp_path / "plans")
    assert [fold.row for fold in found] == [fold.row for fold in expected]
    assert all(torch.equal(one.matrix, other.matrix) for one, other in zip(found, expected, strict=True))
    assert [fold.order for fold in found] == [1, 1, 2, 2]
    assert [*found[0].row][:4] == ["order", "device", "into", "weight"]
    assert found[0].sides(found) == ("units of a", "units of b/1")
    assert found[2].sides(found) == ("units of the fused model (b/1)", "units of c")
    text = pd.read_csv(tmp_path / "plans" / "01 a into b_1, layer h1.csv", index_col=0)
    assert ([*text.index][-1], [*text]) == ("a h1 2", ["b/1 h1 0", "b/1 h1 1"])
    with pytest.raises(InputError, match=r"^folder = .*: has no folds\.json"):
        fc.load_plans(tmp_path)


def test_names_that_mlflow_refuses_stay_distinct():
    assert contents.safe_name("in_A") == "in_A"
    assert contents.safe_name("a/b") != contents.safe_name("a?b")


# What made a run, as JSON: it comes back as it was, with every digest, for every method and kind of setting.
ROOT = Path(__file__).parents[3]
CHANGES: list[dict[str, Any]] = [
    {},
    {"data.name": "domains", "data.domains": ["digits", "digits_inverted"], "federation.partition": "by_domain"},
    {"data.name": "bearings", "data.locations": ["A"], "net.name": "cells", "federation.partition": "by_device"},
    {"data.name": "digits", "run.metric": "f1", "run.positive": "3", "federation.scale": "common"},
    {
        "run.threshold": "validation", "run.positive": "3", "net.variants": [{"widths": [48, 24]}],
        "federation.hidden": "random", "federation.hostile": 0.25,
    },
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: str(changes.get("data.name", len(changes))))
def test_an_origin_comes_back_as_it_was(changes: dict[str, Any]):
    (setting,) = grid_points(read(ROOT), "code", "small", changes, list(METHODS))
    for row in setting.methods:
        chosen = Threshold("3", 0.1) if setting.threshold else None
        made = Origin(setting, row, 3, "small", "c" * 40, "d" * 40, chosen)
        found = Origin.from_json(made.to_json())
        assert found.threshold == chosen
        assert (found.seed, found.size, found.config, found.data) == (3, "small", "c" * 40, "d" * 40)
        assert replace(found.setting, methods=setting.methods) == setting
        assert found.row == row
        assert Digest().of(found.row.flat()) == Digest().of(row.flat())


def test_settings_of_earlier_versions_are_read_by_todays_names():
    (setting,) = grid_points(read(ROOT), "code", "small", {}, ["fedavg"])
    card = json.loads(Origin(setting, setting.methods[0], 0, "small", "c", "d").to_json())
    settings = card["method"]["settings"]
    del settings["secure_aggregation"], settings["upload"]
    for sums, sends, today in (("plain", "change", (False, "delta")), ("masked", "model", (True, "model"))):
        card["method"]["settings"] = settings | {"sums": sums, "sends": sends}
        found = Origin.from_json(json.dumps(card).encode()).row.settings
        assert (found["secure_aggregation"], found["upload"]) == today


def test_a_setting_that_is_no_longer_known_is_refused_by_name():
    (setting,) = grid_points(read(ROOT), "code", "small", {}, ["fedavg"])
    card = json.loads(Origin(setting, setting.methods[0], 0, "small", "c", "d").to_json())
    card["method"]["settings"]["shots"] = 3
    with pytest.raises(InputError, match="shots"):
        Origin.from_json(json.dumps(card).encode())


# MLflow's page answers nothing without the password, and no other page with it.
KNOWN = (b"authorization", b"Basic " + b64encode(b"fedcore:secret"))
HOST = (b"host", b"127.0.0.1:5000")


def status(*headers: tuple[bytes, bytes], kind: str = "http") -> Any:
    """Return the status of an answer to these headers; "app" from the app, or the code of a closed socket."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"status": "app"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> None:
        raise AssertionError("the body of a refused request was read")

    scope = {"type": kind, "path": "/graphql", "headers": [HOST, *headers]}
    asyncio.run(Guard(app, "fedcore:secret")(scope, receive, send))
    return sent[0].get("status") or sent[0]["code"]


def test_the_password_opens_the_page():
    assert status(KNOWN) == status(KNOWN, (b"origin", b"http://127.0.0.1:5000")) == "app"


@pytest.mark.parametrize("said", [b"", b"Basic", b"Basic " + b64encode(b"fedcore:"), b"Bearer secret"])
def test_another_word_does_not(said: bytes):
    assert status((b"authorization", said)) == status() == 401
    assert status((b"authorization", said), kind="websocket") == 1008


@pytest.mark.parametrize(
    "origin", [b"null", b"https://evil.example", b"http://127.0.0.1:5001", b"https://127.0.0.1:5000"]
)
def test_another_page_is_refused_with_the_password(origin: bytes):
    assert status(KNOWN, (b"origin", origin)) == 403
    assert status(KNOWN, (b"origin", origin), kind="websocket") == 1008
