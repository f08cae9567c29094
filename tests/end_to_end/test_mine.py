"""A user's own table, as it is: preview and the default study, as docs/table.md describes them."""

import json
import re
import sqlite3
from contextlib import closing
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scenarios import Mine, machines
from scenarios.data import MACHINES
from torch import Tensor

import fedcore as fc
from fedcore import nets
from fedcore.config.request import ask, plan_jobs
from fedcore.data.encoding import encode, from_json
from fedcore.data.schema import Schema
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.record.contents import read_device_table
from fedcore.pipeline.record.result import Origin

SITES = [f"plant {name}" for name in "ABCDEF"]
LABELS = ["local_only", "fedavg", "majority", "majority_per_device"]


def results(mine: Mine) -> Path:
    """Return the folder that the run named."""
    assert mine.run.said is not None
    return mine.project.folder / mine.run.said.out.rpartition("page: ")[2].partition("/report.html")[0]


def test_the_preview_computes_and_writes_nothing(mine: Mine):
    assert mine.preview.steps == []
    assert mine.preview.record == dict.fromkeys(mine.preview.record, 0)
    assert mine.preview.outs == {}


def test_the_preview_counts_gaps_and_shows_every_site(mine: Mine):
    assert mine.preview.said is not None
    lines = mine.preview.said.out.splitlines()
    rows = machines()
    gaps = int(rows.isna().sum().sum())
    assert len(lines) <= 40
    assert any(line.startswith(f"missing: {gaps} cells") for line in lines)
    assert "left out: unit, the same value in every row: 'C'" in lines
    assert [line[:7] for line in lines if line.startswith("plant ")] == SITES


def test_a_run_shows_the_preview_first_and_why_a_method_is_left_out(mine: Mine):
    assert None not in (mine.preview.said, mine.run.said)
    shown, out = mine.preview.said.out, mine.run.said.out
    assert out.startswith(shown)
    (planned,) = (words[1] for line in mine.plan.out.splitlines() if (words := line.split())[:1] == ["all"])
    assert planned == f"{len({step['key'] for step in mine.run.steps}):,}"
    (line,) = (line for line in out.splitlines() if "is left out" in line)
    assert line.strip().startswith("fedasa is left out: the server has 0 examples; ")
    assert "bearings and cwru alone give the server examples" in line
    for answer in (out, (results(mine) / "report.html").read_text()):
        assert "fedasa has no result: the server has 0 examples; " in " ".join(answer.split())
    assert [label for label in LABELS if f"{label} seed 0 " not in out] == []


def test_devices_left_out_have_the_scores_of_a_script(mine: Mine, monkeypatch: pytest.MonkeyPatch):
    """Study my_data leaves each site out, and tunes learning rates; a script that does so has the same bits."""
    table = pd.read_parquet(results(mine) / "my_data-0" / "table.parquet")
    monkeypatch.chdir(mine.project.folder)
    (setting,) = plan_jobs(ask([*MACHINES, "methods=[local_only,fedavg]", "fedavg.rounds=30"]))[1][0].settings
    net = {key: value for key, value in setting.net.items() if key not in ("name", "variants")}
    data = fc.load(setting.data["name"], **{key: value for key, value in setting.data.items() if key != "name"})
    fed = fc.federate(data, fc.by_device(), net=fc.net(setting.net["name"], **net), scale="device")
    rates = setting.rates
    assert {*rates} == {"local_only", "fedavg"}
    methods = [
        fc.tune(row, fed, lr=rates[row.label], metric="auto", progress=False).config if row.label in rates else row
        for row in setting.methods
    ]
    assert methods != [*setting.methods]
    there = fc.compare(methods, fed, (0,), new_device="left_out", metric="auto", progress=False).table
    found, expected = (
        one[one["split"] == "left_out"].set_index(["method", "device", "metric"])["value"].sort_index()
        for one in (table, there)
    )
    assert ({*found.index.unique("device")}, {*found.index.unique("method")}) == ({*SITES}, {*LABELS})
    pd.testing.assert_series_equal(found, expected, check_exact=True)
    recorded = mine.project.folder / "mlruns"
    (left,) = (read_device_table(path.read_bytes(), "method") for path in recorded.glob("*/artifacts/left_out.json"))
    accuracy = left.set_index("device", append=True)["accuracy"].sort_index()
    assert accuracy.to_dict() == found.xs("accuracy", level="metric").dropna().to_dict()
    tried = [read_device_table(path.read_bytes(), "chosen")["learning_rate"]
             for path in recorded.glob("*/artifacts/learning_rates.json")]  # fmt: skip
    assert sorted(map(list, tried)) == sorted(map(list, rates.values()))
    assert sorted(rate[True] for rate in tried) == sorted(row.training.lr for row in methods if row.label in rates)
    assert "left out of training in turn" in (results(mine) / "report.html").read_text()


def test_the_summary_and_the_page_are_about_six_devices(mine: Mine):
    summary = pd.read_csv(results(mine) / "summary.csv").set_index("method")
    assert set(summary.index) == set(LABELS)
    assert summary.loc["fedavg", "test_mean"] > summary.loc["majority", "test_mean"] + 0.2
    page = (results(mine) / "report.html").read_text()
    assert "Which way of combining 6 devices&#39; models serves them best?" in page.replace("'", "&#39;")


def found(mine: Mine) -> Schema:
    written = json.loads((results(mine) / "my_data-0" / "schema.json").read_text())
    assert list(written) == ["base"]
    return from_json(json.dumps(written["base"]))


def predicted(mine: Mine, label: str, device: str, rows: pd.DataFrame) -> Tensor:
    """Return class numbers by a device's stored model, from the frame and the schema alone."""
    schema = found(mine)
    models = json.loads((results(mine) / "my_data-0" / "models.json").read_text())[f"base: {label}"]
    model = Store(mine.project.folder / ".fedcore" / "blobs").get(Ref(models[device], 0))
    (params,) = model.members
    module = nets.net("mlp", shape=schema.shape, classes=len(schema.classes), widths=[16, 8]).build()
    module.load_state_dict(params)
    with torch.no_grad():
        return module(encode(rows, schema, device)).argmax(1)


@cache
def parts(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "partition" / "my_data" / "base" / "seed-0" / "index.parquet")


@pytest.mark.parametrize("label", LABELS)
def test_a_schema_and_a_model_predict_the_test_rows_as_they_were_scored(mine: Mine, label: str):
    """From the CSV file alone, exactly: on each device's own test rows and on the shared ones."""
    rows, table = pd.read_csv(mine.csv), pd.read_parquet(results(mine) / "my_data-0" / "table.parquet")
    index, classes = parts(results(mine)), np.array(found(mine).classes)
    last = (
        table[(table["method"] == label) & (table["metric"] == "accuracy")].groupby(["device", "split"])["value"].last()
    )
    for site in SITES:
        own = rows.iloc[index[(index["device"] == site) & (index["split"] == "test")]["index"]]
        right = classes[predicted(mine, label, site, own)] == own["fault"].to_numpy()
        assert right.mean() == last[site, "test"]
    shared = rows.iloc[index[index["split"] == "shared"]["index"]]
    if label not in (
        "local_only",
        "majority_per_device",
    ):  # one model for all, on rows prepared as on the sites they come from
        right = [
            classes[predicted(mine, label, site, here)] == here["fault"].to_numpy()
            for site, here in shared.groupby("site")
        ]
        assert np.concatenate(right).mean() == last[SITES[0], "shared"]


def test_the_champion_predicts_the_test_rows_exactly_as_it_was_scored(mine: Mine):
    """By `fedcore promote` and `fedcore predict`, from a CSV file with rows of all sites."""
    (label,) = re.findall(
        r"machines-fault version \d+ \((\w+), seed 0(?:, not shown to be better)?\)",
        mine.promoted.out,
    )
    assert "promoted; it is the first champion: models:/fedcore-machines-fault@champion" in mine.promoted.out
    assert len(mine.labels) == len(mine.new)
    table = pd.read_parquet(results(mine) / "my_data-0" / "table.parquet")
    last = table[(table["method"] == label) & (table["metric"] == "accuracy") & (table["split"] == "test")]
    scored = last.groupby("device")["value"].last()
    classes = np.array(found(mine).classes)
    for site in SITES:
        here = (mine.new["site"] == site).to_numpy()
        said = mine.labels["label"].to_numpy()[here]
        assert list(said) == list(classes[predicted(mine, label, site, mine.new[here])])
        assert (said == mine.new["fault"].to_numpy()[here]).mean() == scored[site]
    assert mine.labels["probability"].between(1 / 3, 1).all()


# the final fit


def versions(mine: Mine) -> dict[str, dict[str, str]]:
    """Return the tags of each version, by its number."""
    with closing(sqlite3.connect(mine.project.folder / "mlflow.db")) as db:
        rows = db.execute("select version, key, value from model_version_tags").fetchall()
    found: dict[str, dict[str, str]] = {}
    for number, key, value in rows:
        found.setdefault(str(number), {})[key] = value
    return found


def artifact(mine: Mine, kind: str, method: str, name: str) -> bytes:
    """Return a file of the only run of that kind and method."""
    tag = "join tags {0} on {0}.run_uuid = r.run_uuid and {0}.key = 'fedcore.{1}'"
    query = f"select r.artifact_uri from runs r {tag.format('k', 'kind')} {tag.format('m', 'method')}"
    with closing(sqlite3.connect(mine.project.folder / "mlflow.db")) as db:
        ((uri,),) = db.execute(f"{query} where k.value = ? and m.value = ?", (kind, method)).fetchall()
    return (mine.project.folder / uri / name).read_bytes()


def chosen(mine: Mine) -> tuple[str, str]:
    """Return the number and method of the version that was proposed."""
    ((number, label),) = re.findall(
        r"machines-fault version (\d+) \((\w+), seed 0(?:, not shown to be better)?\)",
        mine.promoted.out,
    )
    return number, label


def test_a_final_fit_that_was_killed_ends_as_one_version_from_the_cache(mine: Mine):
    number, _ = chosen(mine)
    assert mine.fitting.seen.record["versions"] == mine.run.record["versions"] == 1
    done = {step["key"] for step in mine.fitting.seen.computed()}
    assert done
    assert not done & {step["key"] for step in mine.fitted.computed()}
    assert mine.fitted.record["versions"] == mine.run.record["versions"] + 1
    assert mine.again.record == mine.fitted.record
    assert mine.again.steps == []
    (final,) = (tags for tags in versions(mine).values() if "fedcore.final_fit_of" in tags)
    assert final["fedcore.final_fit_of"] == number
    assert final["fedcore.partition"] == versions(mine)[number]["fedcore.partition"]


def test_a_promotion_says_before_what_it_trains_on(mine: Mine):
    number, label = chosen(mine)
    assert mine.fitted.said is not None
    assert mine.again.said is not None
    first, *_, last = mine.fitted.said.out.partition("for clones: ")[0].splitlines()
    assert re.fullmatch(
        rf"final fit of version {number}: {label}, seed 0, on 300 rows of 6 devices in place of \d+; training takes "
        r"about \d+ s, start and saving 10 to 60 s more",
        first,
    )
    assert last.endswith("promoted: models:/fedcore-machines-fault@champion")
    assert "is the champion: models:/" in mine.again.said.out
    (final,) = (key for key, tags in versions(mine).items() if "fedcore.final_fit_of" in tags)
    assert re.search(rf"^--version={final} +{label} .* - +- +- +(\S+ +)?champion, ", mine.listed.out, re.M)
    assert (mine.listed.out.count("final fit"), mine.listed.out.count("candidate")) == (1, 0)  # that is in use


def test_a_final_fit_trains_on_every_row_of_the_table(mine: Mine):
    _, label = chosen(mine)
    card = json.loads(artifact(mine, "final fit", label, "final_fit.json"))
    assert card["rows"] == machines().groupby("site").size().to_dict()
    assert card["shared_rows_left_out"] == 0
    assert card["held_out"] == []
    table = pd.read_parquet(BytesIO(artifact(mine, "final fit", label, "table.parquet")))
    assert not {"val", "test", "shared"} & {*table["split"]}


def test_the_champion_predicts_as_the_final_fit_of_a_script(mine: Mine):
    _, label = chosen(mine)
    origin = Origin.from_json(artifact(mine, "method", label, "setting.json"))
    of = origin.setting.federation
    data = fc.load("table", path=mine.csv, label="fault", device="site", missing="median")
    shares = {key: of[key] for key in ("val", "test", "shared_test")}
    fed = fc.federate(data, fc.by_device(), net=net_of(origin.setting.net), scale="device", **shares)
    result = fc.final_fit(origin.row, fed, 0, progress=False)
    classes = np.array(data.classes)
    for site, deployed in result.models.items():
        here = (mine.new["site"] == site).to_numpy()
        said = mine.final_labels[here]
        probabilities = deployed.probabilities(mine.new[here])
        assert list(said["label"]) == list(classes[probabilities.argmax(1)])
        np.testing.assert_allclose(said["probability"], probabilities.max(1), rtol=1e-5)


def net_of(section: dict[str, Any]) -> Any:
    return fc.net(section["name"], **{key: value for key, value in section.items() if key != "name"})


def test_a_final_fit_of_other_data_or_code_is_refused(mine: Mine):
    reasons = ("the data, or how they are read, have"), ("code, packages or hardware have")
    for said, what in zip((mine.changed, mine.edited), reasons, strict=True):
        (line,) = said.err.splitlines()
        number = re.escape(line.split()[2].rstrip(":"))
        advice = "run its study again, or promote it as it is with: fedcore promote machines-fault"
        assert re.fullmatch(
            f"fedcore: version {number}: {what} changed since its run; {advice} --version {number} --no-final-fit", line
        )


def test_a_shifted_column_name_is_refused_by_name(mine: Mine):
    (line,) = mine.shifted.err.splitlines()
    assert line.startswith("fedcore: column 'sensor 3' is not there; the model needs ")


def test_a_sensor_that_reads_more_is_told_by_exit_code_3(mine: Mine):
    """The same rows without the shift end with 0, or the scenario would have failed."""
    assert "fedcore: drift: column 'sensor 3' moved in all rows: " in mine.drifted.err
    assert mine.drifted.err.count("drift: column") == 1
    head, *rows = mine.drifted.out.splitlines()
    classes = ["probability_leak", "probability_none", "probability_worn"]
    assert head.split(",") == ["row", "sensor 3", "site", "label", "probability", *classes]
    assert len(rows) == len(mine.new)


def test_every_run_of_the_record_has_the_schema(mine: Mine):
    with closing(sqlite3.connect(mine.project.folder / "mlflow.db")) as db:
        query = (
            "select r.artifact_uri from runs r join tags t using (run_uuid) where t.key = 'fedcore.kind' "
            "and t.value in ('method', 'control')"
        )
        places = [mine.project.folder / uri for (uri,) in db.execute(query)]
        tasks = {*db.execute("select value from params where key = 'data.task'")}
    assert (len(places), tasks) == (len(LABELS), {("classification",)})  # what ran, not `auto`
    assert all(from_json((place / "schema.json").read_text()) == found(mine) for place in places)


def test_the_devices_of_the_schema_are_those_of_the_table(mine: Mine):
    schema = found(mine)
    assert sorted(schema.devices) == SITES
    assert (schema.label, schema.device, schema.missing) == ("fault", "site", "median")
    assert schema.inputs[-3:] == ("model=A1", "model=B2", "model=C3")
    assert len(schema.inputs) == 15
