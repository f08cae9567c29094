"""A user's own table, as it is: preview and the default study, as docs/data.md describes them."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pandas as pd
import pytest
import torch
from scenarios import Mine, machines
from torch import Tensor

from fedcore import nets
from fedcore.data.encoding import encode, from_json
from fedcore.data.schema import Schema
from fedcore.pipeline.cache.store import Ref, Store

SITES = [f"plant {name}" for name in "ABCDEF"]
LABELS = ["local_only", "fedavg", "majority"]


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
    assert mine.preview.said is not None
    assert mine.run.said is not None
    shown, out = mine.preview.said.out, mine.run.said.out
    assert out.startswith(shown)
    (line,) = (line for line in out.splitlines() if "is left out" in line)
    assert line.strip().startswith("fedasa is left out: the server has 0 examples; ")
    assert "bearings and cwru alone give the server examples" in line
    assert [label for label in LABELS if f"{label} seed 0 " not in out] == []


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
    (leaves,) = model.members
    module = nets.net("mlp", shape=schema.shape, classes=len(schema.classes), widths=[16, 8]).build()
    module.load_state_dict(leaves)
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
    if label != "local_only":  # one model for all, on rows prepared as on the sites they come from
        right = [
            classes[predicted(mine, label, site, here)] == here["fault"].to_numpy()
            for site, here in shared.groupby("site")
        ]
        assert np.concatenate(right).mean() == last[SITES[0], "shared"]


def test_the_champion_predicts_the_test_rows_exactly_as_it_was_scored(mine: Mine):
    """By `fedcore promote` and `fedcore predict`, from a CSV file with rows of all sites."""
    (label,) = re.findall(r"fedcore-machines-fault version \d+ \((\w+), seed 0\)", mine.promoted.out)
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


def test_a_shifted_column_name_is_refused_by_name(mine: Mine):
    (line,) = mine.shifted.err.splitlines()
    assert line.startswith("fedcore: column 'sensor 3' is not there; the model needs ")


def test_every_run_of_the_record_has_the_schema(mine: Mine):
    with closing(sqlite3.connect(mine.project.folder / "mlflow.db")) as db:
        query = "select r.artifact_uri from runs r join tags t using (run_uuid) where t.key = 'fedcore.method'"
        places = [Path(urlparse(uri).path) for (uri,) in db.execute(query)]
    assert len(places) == len(LABELS)
    assert all(from_json((place / "schema.json").read_text()) == found(mine) for place in places)


def test_the_devices_of_the_schema_are_those_of_the_table(mine: Mine):
    schema = found(mine)
    assert sorted(schema.devices) == SITES
    assert (schema.label, schema.device, schema.missing) == ("fault", "site", "median")
    assert schema.inputs[-3:] == ("model=A1", "model=B2", "model=C3")
    assert len(schema.inputs) == 15
