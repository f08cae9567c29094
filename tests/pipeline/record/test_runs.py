"""The record: equal flows write once, a study on other data has its own run, drift beside the champion."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from fedcore import Data, Dataset, nets
from fedcore.core.metrics import METRICS
from fedcore.data.schema import Column, Fit, Schema
from fedcore.partition import PARTS, Partition
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.command import Failed
from fedcore.pipeline.record import contents, models, promotion, registry, runs, seals
from fedcore.pipeline.record.contents import about_data
from fedcore.pipeline.record.result import ComparedMethod, ComparedRequest, Notice, PreparedData, StudyOnData
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Scoring
from fedcore.types.method import Model, Threshold

ON_DATA = StudyOnData("study", "small", "machines", "a" * 64)
ROWS, MORE_ROWS = (about_data("machines", "a" * 64, {"examples": count}) for count in (60, 70))


def asked(
    request: str, note: str = "", files: dict[str, bytes] | None = None, seconds: float = 1.0, **rows: float
) -> ComparedRequest:  # fmt: skip
    """A comparison of rows with two seeds each; the configuration of one names its row and seed."""
    methods = (
        ComparedMethod("base", name, {"test/accuracy": value, "seconds": seconds}, (f"{name} 0", f"{name} 1"))
        for name, value in rows.items()
    )
    return ComparedRequest(request, "Which?", note, {"gain": 0.1}, tuple(methods), files=files or {})


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: Path) -> runs.Record:
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path / "files")
    return runs.Record()


def test_a_folder_in_the_databases_place_is_named(absent: Path) -> None:
    absent.mkdir()
    with pytest.raises(Failed, match=r"record\.db: is a folder, .*; move it away$"):
        runs.Record()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
@pytest.mark.parametrize(
    ("place", "outputs"),
    [("mlflow.MlflowClient.log_outputs", 0), ("mlflow.pyfunc.save_model", 1), (f"{runs.__name__}.Record.log_files", 1)],
)
def test_a_model_whose_logging_was_killed_is_continued(
    place: str, outputs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: Path
) -> None:
    """As many models, outputs and files as if it had been logged at once; a kill runs no handler of MLflow's."""
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(environment, "REGISTERED", tmp_path / "registered")
    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    record, store = runs.Record(), Store(tmp_path / "blobs")
    run = record.open("configuration", "name", {}, None)
    net = nets.net("mlp", shape=(1,), classes=2, widths=[1])
    model = Model((nets.init(net, torch.Generator()),))
    result: Any = SimpleNamespace(
        setting=SimpleNamespace(nets=[{"name": "mlp", "widths": [1]}]), models={"one": store.put(model)},
        fed=SimpleNamespace(devices={"one": None}, scoring=Scoring()), row=SimpleNamespace(label="row"),
        threshold=Threshold("a", 0.25),
    )  # fmt: skip
    index = np.arange(2)
    held = Dataset(Data(torch.zeros(2, 1), torch.from_numpy(index)), None, ("a", "b"))
    made = Partition.of({"one": {"train": index} | dict.fromkeys(PARTS[1:], index[:0])}, index[:0])
    arguments = run, store, result, Schema((1,), "float32", ("a", "b"), devices={"one": Fit()}), held, made

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(place, killed)
        with pytest.raises(KeyboardInterrupt):
            record.model(*arguments)
    assert counted(database) == {"logged_models": 1, "inputs": outputs}
    entry = record.model(*arguments)
    logged = entry.model_id
    assert counted(database) == {"logged_models": 1, "inputs": 1}
    assert [output.model_id for output in record.client.get_run(run.info.run_id).outputs.model_outputs] == [logged]
    mlflow = import_module("mlflow")
    card = mlflow.pyfunc.load_model(f"models:/{logged}").metadata
    assert (card.metadata, card.run_id) == ({"classes": ["a", "b"]}, run.info.run_id)
    assert str(record.client.get_logged_model(logged).status) == "READY"
    assert [path.name for path in tmp_path.glob("files/models/*")] == [logged]
    assert mlflow.pyfunc.load_model(f"models:/{logged}").metadata.signature.outputs.input_names()[-1] == "threshold"
    assert record.model(*arguments).model_id == logged
    blob = store.path(result.models["one"])
    (file,) = tmp_path.glob("files/models/*/**/model-0.safetensors")
    assert file.samefile(blob)
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1])  # of both, and the store writes its own anew
    store.put(model)
    record.share(entry, store, result)
    assert file.samefile(blob)
    assert blob.read_bytes() == whole
    for _ in range(2):
        record.register(run, entry, "machines", {"a": "b"})
        (version,) = record.client.search_model_versions("name = 'fedcore-machines'")
        assert (version.run_id, version.source, version.tags) == (run.info.run_id, f"models:/{logged}", {"a": "b"})


def test_the_keys_of_equal_training_rows_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    keys = np.array([1], np.uint64)
    monkeypatch.setattr(runs, "split_keys", lambda _, made, each: asked.append(made.digest) or (keys, keys))
    store: Any = type("Known", (), {"get": lambda _, refs: refs})()
    for _ in range(2):
        for seed in "012":
            runs.keys_of_rows(store, PreparedData(Ref("data", 1), Ref(seed, 1)))
    assert asked == ["0", "1", "2"]


@pytest.mark.slow
def test_a_studys_run_is_not_written_again_for_each_of_its_rows(record: runs.Record) -> None:
    """But a comparison dates its end, and a study's run that was cut off is completed."""
    where = record.parent(ON_DATA, "Which?", ROWS)
    first = record.client.get_run(where).info
    assert record.parent(ON_DATA, "Which?", ROWS) == where
    assert record.client.get_run(where).info.end_time == first.end_time
    record.client.update_run(where, status="RUNNING")
    assert record.parent(ON_DATA, "Which?", ROWS) == where
    assert record.client.get_run(where).info.status == "FINISHED"
    record.describe(ON_DATA, asked("all", "Old."))
    assert record.client.get_run(where).info.end_time > first.end_time


@pytest.mark.slow
def test_two_equal_comparisons_at_once_write_each_number_once(
    monkeypatch: pytest.MonkeyPatch, record: runs.Record, database: Path
) -> None:
    """The second starts between the first one's look at what is there and its writing."""
    first, second = record, runs.Record()
    given: Any = (ON_DATA, asked("all", "This.", {"answer.txt": b"This."}, fedavg=0.5))
    first.parent(ON_DATA, "Which?")
    other = Thread(target=second.describe, args=given)
    write = first.client.log_batch

    def late(*args: Any, **options: Any) -> None:
        if other.ident is None:
            other.start()
            other.join(0.5)
        write(*args, **options)

    monkeypatch.setattr(first.client, "log_batch", late)
    first.describe(*given)
    other.join()
    first.describe(ON_DATA, asked("all", "This.", seconds=2.0, fedavg=0.5))  # a step was damaged and computed again
    with closing(sqlite3.connect(database)) as db:
        found = sorted(db.execute("select key, value, step from metrics"))
    assert found == [("gain", 0.1, 0), ("seconds", 1.0, 0), ("test/accuracy", 0.5, 0)]


def test_a_run_is_not_the_last_ones_before_its_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a request that goes on, or was cut off, would stand among the rows of the last one."""
    for name in ("contents", "seals", "worst_devices", "distinct_models", "params_of"):
        monkeypatch.setattr(runs, name, MagicMock())
    setting, record = MagicMock(federation={}), MagicMock()
    prepared = MagicMock(load=lambda store: (MagicMock(), MagicMock()))
    result = MagicMock(
        setting=setting, prepared=prepared, final=None, thread={}, criterion=Criterion(), metric=METRICS["accuracy"]
    )
    runs.Record._save(record, Store(Path()), result, "Which?", {})
    assert record.open.call_args.args[2][runs.LATEST] == "false"


@pytest.mark.slow
def test_a_study_on_other_data_has_a_run_of_its_own(record: runs.Record) -> None:
    first = record.parent(ON_DATA, "Which?", ROWS)
    record.describe(ON_DATA, replace(asked("all", "Old.", fedavg=0.5, gone=0.4), typed="a=1"))
    other = replace(ON_DATA, data="b" * 64)
    second = record.parent(other, "Which?", MORE_ROWS)
    record.describe(other, asked("all", "New.", fedavg=0.6))
    assert record.parent(ON_DATA, "Which?", ROWS) == first != second
    old, new = (record.client.get_run(where) for where in (first, second))
    assert (numbers(record, first), numbers(record, second)) == ({"fedavg": 0.5, "gone": 0.4}, {"fedavg": 0.6})
    assert [run.data.params["rows"] for run in (old, new)] == ["60", "70"]
    assert [run.info.run_name for run in (old, new)] == ["study a=1", "study"]
    assert [run.data.tags["mlflow.note.content"].split()[-1] for run in (old, new)] == ["Old.", "New."]
    assert [len(run.inputs.dataset_inputs) for run in (old, new)] == [1, 1]


@pytest.mark.slow
def test_a_request_on_several_data_has_latest_runs_on_each(record: runs.Record) -> None:
    """Until a later one: on all of them, or on one alone; a part of it ends no other run."""

    def latest() -> set[str]:
        found = record.search(f"tags.{runs.LATEST} = 'true' and tags.kind != 'seed'")
        return {f"{run.data.tags['data'][-1]} {run.data.tags[runs.REQUESTS]}" for run in found}

    def ask(request: str, *data: StudyOnData, part: bool = False) -> None:
        for of in data:
            beside = tuple(other for other in data if other != of)
            record.parent(of, "Which?", ROWS)
            compared = replace(asked(f"{request}{of.data[0]}", fedavg=0.5), part=part, beside=beside)
            record.describe(of, compared)

    both = ON_DATA, replace(ON_DATA, data="b" * 64)
    ask("one", *both)
    assert latest() == {"a onea", "b oneb"}
    ask("part", *both, part=True)
    ask("part", both[0], part=True)
    assert latest() == {"a onea", "b oneb"}
    ask("two", *both)
    assert latest() == {"a twoa", "b twob"}
    ask("three", both[0])
    assert latest() == {"a threea"}


@pytest.mark.slow
def test_the_numbers_of_two_requests_do_not_mix(record: runs.Record, tmp_path: Path) -> None:
    """Of the second, and of every other row and seed; the first one again is the study's run as before."""
    seeds = {}
    for name in ("fedavg", "code_ot"):
        for seed in range(2):
            tags = {"fedcore.kind": "method", "fedcore.study": "study", "fedcore.method": name, "latest": "true"}
            tags |= {"fedcore.seed": str(seed), "study": "study", "kind": "seed"}
            run = record.open(f"{name} {seed}", name, tags, None)
            seeds[name, seed] = run.info.run_id
    whole, part = {"fedavg": 0.5, "code_ot": 0.4}, {"fedavg": 0.6}
    record.parent(ON_DATA, "Which?", ROWS)
    for request, rows, changed in (("whole", whole, ""), ("part", part, "Since."), ("whole", whole, "Once more.")):
        of = asked(request, request, {"report.html": request.encode()}, **rows)
        record.describe(ON_DATA, replace(of, changed=changed))
        last = max(record.search("tags.kind = 'study'"), key=runs.last_asked)
        written = (tmp_path / "files" / last.info.run_id / "artifacts" / contents.METHODS).read_text()
        assert json.loads(written)["columns"][:2] == ["method", "test/accuracy"]
        assert numbers(record, last.info.run_id) == rows
        assert last.data.tags["mlflow.note.content"].split() == ["Which?", *changed.split(), request]
        assert last.data.tags.get(runs.CHANGED, "") == changed
        found = record.client.search_runs([record.experiment], "tags.kind = 'seed' and tags.latest = 'true'")
        assert {run.info.run_id for run in found} == {where for (name, _), where in seeds.items() if name in rows}
    for (name, _), where in seeds.items():  # a run stands once, however many requests have it
        named = record.client.get_run(where).data.tags["requests"].split()
        assert named == ["whole", *(["part"] if name == "fedavg" else [])]
    earlier = record.search("tags.kind = 'study'")
    record.describe(
        ON_DATA, replace(asked("trial", fedavg=0.7), part=True, typed="a=1", rule="weigh = examples")
    )  # takes no links, and ends no other run
    latest = record.search("tags.kind = 'study' and tags.latest = 'true'")
    assert [run.data.tags[runs.REQUEST] for run in latest] == ["whole"]
    assert all(record.client.get_run(run.info.run_id).info.end_time == run.info.end_time for run in earlier)
    assert all(run.info.start_time == record.began for run in earlier)
    lasted = {run.info.end_time - run.info.start_time for run in record.search("tags.kind = 'method'")}
    assert lasted == {1000}  # of a seed's steps, and not until it was asked again
    found = record.search("tags.kind = 'seed' and tags.latest = 'true'")
    assert {run.info.run_id for run in found} == {*seeds.values()}
    study = record.parent(ON_DATA, "Which?")
    others = record.client.search_runs([record.experiment], f"tags.`{runs.ROWS}` = '{study}'")
    assert {other.data.tags[runs.REQUEST] for other in others} == {"part", "trial"}
    ruled = record.search("params.rule = 'weigh = examples'")
    assert {run.data.tags["kind"] for run in ruled} == {"study", "method"}
    named = {"study a=1, part: 1 method, 2 seeds, tria", "study, 1 method, 2 seeds, part"}
    assert {other.info.run_name for other in others} == named
    assert all(other.inputs.dataset_inputs for other in others)
    rows = record.client.search_runs([record.experiment], "tags.kind = 'method'")
    assert len(rows) == 4
    for row in rows:  # which leads to its seeds' runs
        note, ids = row.data.tags["mlflow.note.content"], row.data.tags["runs"].split()
        assert all(f"runs/{where}?{runs.TRAINING})" in note for where in ids)


@pytest.mark.slow
def test_a_list_of_methods_has_the_means_and_rule_of_the_last_answer(record: runs.Record) -> None:
    """Those of a second request by another rule; each seed's run keeps its own, which a list of seeds has."""
    name, costs = registry.registered("t-label"), "of 'yes'; weigh = examples, costs = {'no': {'yes': 5}}"
    record.client.create_registered_model(name)
    for row, seed in [("fedavg", 0), ("fedavg", 1), ("alone", 0), ("alone", 1)]:
        tags = {"fedcore.kind": "method", "fedcore.study": "study", "fedcore.method": row, "fedcore.setting": "base"}
        tags |= {"fedcore.seed": str(seed), promotion.MODEL: name, promotion.RULE: costs, "study": "study"}
        run = record.open(f"{row} {seed}", row, tags, None).info.run_id
        for split in promotion.SCORES:
            record.client.log_metric(run, f"{split}/accuracy", 0.25)
    record.client.create_model_version(name, "file:///nowhere", run, tags=tags)

    def listed(seeds: bool = False) -> list[list[str]]:
        rows = promotion.version_table(record.client, "t-label", seeds)
        return [[row[head] for head in ("method", "own test", "val", "metric")] for row in rows]

    own = f"accuracy; {costs}"
    assert listed() == [["alone", "25.0%", "25.0%", own]]  # of no answer: a record of before, or one that was restored
    for request, rule, value in [("usual", "", 0.5), ("all", "least_test = 0", 0.6), ("usual", "", 0.5)]:
        of = asked(request, fedavg=0.5, alone=0.75)
        methods = tuple(replace(row, numbers={**row.numbers, "val/accuracy": value}) for row in of.methods)
        record.describe(ON_DATA, replace(of, rule=rule, methods=methods))
        said = "; ".join(filter(None, ["accuracy", "of 'yes'; costs = {'no': {'yes': 5}}", rule]))
        said = said.replace("least_test = 0", "all devices count")
        means = [["alone", "75.0%", f"{value:.1%}", said], ["fedavg", "50.0%", f"{value:.1%}", said]]
        assert sorted(listed()) == means
        assert sorted(listed(True)) == [[row, "25.0%", "25.0%", own] for row in ("alone",) * 2 + ("fedavg",) * 2]
    record.describe(ON_DATA, replace(asked("part", fedavg=0.9), part=True))
    assert sorted(listed()) == means, "a part is not the study's last request"


def numbers(record: runs.Record, study: str) -> dict[str, float]:
    """Return method -> accuracy of the rows of a comparison."""
    query = f"tags.`mlflow.parentRunId` = '{study}' and tags.kind = 'method'"
    rows = record.client.search_runs([record.experiment], query)
    return {row.data.tags["method"]: row.data.metrics["test/accuracy"] for row in rows}


def counted(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as db:
        tables = ("logged_models", "inputs")
        return {table: db.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_training_rows_are_compared_with_those_of_the_champion(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (Column("heat", "number"), Column("sensor", "text", ("old", "new")))
    schema = Schema((3,), "float32", ("a", "b"), columns)
    rng, none = np.random.default_rng(0), np.zeros(0, np.int64)
    index = {"A": np.arange(100), "B": np.arange(100, 200)}
    made = Partition.of({name: {"train": own} | dict.fromkeys(PARTS[1:], none) for name, own in index.items()}, none)

    def dataset(shift: float) -> Dataset:
        x = torch.from_numpy(rng.normal(shift, 1, (200, 1)).astype(np.float32))
        x = torch.cat([x, torch.eye(2).repeat(100, 1)], dim=1)
        return Dataset(Data(x, torch.arange(200) % 2), None, schema.classes, schema=schema)

    def changed(of: Dataset, order: list[int], *columns: Column, **more: Any) -> Dataset:
        """A table of the same cells, laid out otherwise; inputs from the fourth on are 0."""
        x = torch.nn.functional.pad(of.train.x, (0, 2))[:, order]
        today = replace(schema, shape=(len(order),), columns=columns, **more)
        return replace(of, train=replace(of.train, x=x), schema=today)

    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path / "files")
    monkeypatch.setattr(environment, "REGISTERED", tmp_path / "registered")
    files = tmp_path / "files" / "model"
    folder, store, before = files / "data" / models.FOLDER, Store(tmp_path / "blobs"), dataset(0.0)
    model = Model((nets.init(nets.net("mlp", shape=(3,), classes=2, widths=[1]), torch.Generator()),))
    fitted = replace(schema, devices=dict.fromkeys(index, Fit()))
    models.write(folder, fitted, [{"name": "mlp", "widths": [1]}], [(model, 0)], dict.fromkeys(index, 0))
    models.write_reference(folder, before, made)
    client.create_registered_model("fedcore-heat")
    run = client.create_run(client.get_experiment_by_name("fedcore").experiment_id, tags={"fedcore.config": "heat"})
    tags = {"fedcore.data": store.put(before).digest}
    seals.seal("fedcore-heat", files.as_uri())
    version = client.create_model_version("fedcore-heat", files.as_uri(), run.info.run_id, tags=tags)

    def said(held: Dataset) -> list[Notice]:
        prepared = PreparedData(store.put(held), store.put(made))
        result: Any = SimpleNamespace(
            setting=SimpleNamespace(model_name="heat"), prepared=prepared, schema=lambda *_: held.schema
        )
        record: Any = SimpleNamespace(client=client)
        return runs.Record.check_drift(record, store, result)

    assert said(dataset(9.0)) == []  # no champion yet
    promotion.promote(client, version)
    assert said(before) == []
    beside = "fedcore-heat: training rows beside those of the champion, version 1: "
    assert said(dataset(0.0)) == [Notice(f"{beside}nothing has moved")]
    (moved,) = said(dataset(2.0))
    assert moved.line.startswith(f"{beside}column 'heat' moved in 2 groups of rows, most on ")
    assert moved.event == "drifted"
    drifted = promotion.alias(client, version.name, registry.CHAMPION)
    assert drifted is not None
    assert drifted.tags[registry.BEFORE_DRIFT] == run.info.run_id
    said(dataset(0.0))
    drifted = promotion.alias(client, version.name, registry.CHAMPION)
    assert drifted is not None
    assert registry.BEFORE_DRIFT not in drifted.tags
    heat, sensor, more = columns[0], Column("sensor", "text", ("new", "newest", "old")), Column("load", "number")
    for shift in (0.0, 2.0):
        plain = dataset(shift)
        expected = said(plain)
        assert said(changed(plain, [1, 2, 0], columns[1], heat)) == expected
        assert said(changed(plain, [2, 3, 1, 4, 0], sensor, more, heat)) == expected
    refused = [Notice(f"{beside}drift not checked: other columns or classes")]
    as_text = Column("heat", "text", ("1",))
    assert said(changed(plain, [0, 3], heat, more)) == refused  # a column is gone
    assert said(changed(plain, [0, 1, 2], as_text, columns[1])) == refused
    assert said(changed(plain, [1, 2, 0], columns[1], heat, classes=("b", "a"))) == refused
    assert said(changed(plain, [1, 2, 0], columns[1], heat, spelling="written")) == refused
