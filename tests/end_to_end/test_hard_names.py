"""Names that are hard for some place that they reach: Prefect's names, MLflow's tags, files, page, CSV, kits."""

import json

import pandas as pd
from scenarios import Named
from scenarios.names import CLASSES, DEVICE, NAMES


def test_every_command_takes_them(named: Named):
    for what, said in named.said.items():
        assert "Traceback" not in said.all, what
        assert not [line for line in said.err.splitlines() if "Warning" in line], what


def test_each_device_keeps_its_name_in_results_predictions_and_the_page(named: Named):
    (table,) = (named.project.folder / "runs").glob("*/code-0/table.parquet")
    assert {*pd.read_parquet(table)["device"]} == {*NAMES}
    (history,) = (named.project.folder / "runs" / "history.jsonl").read_text("utf-8").splitlines()
    assert json.loads(history)["devices"] == len(NAMES)
    first, restored = named.predicted
    pd.testing.assert_frame_equal(first, restored)
    assert first[DEVICE].tolist() == [*NAMES] * 2
    assert {*first["label"]} == {*CLASSES}


def test_a_line_has_one_name_and_a_kit_a_plain_one(named: Named):
    lines = named.said["field init"].out.splitlines()
    assert [line for line in lines if line.startswith(("x", "\u202e", "../x"))] == [
        line for line in lines if line.startswith(("x\\ny: ", "../x: "))
    ]
    assert len(named.kits) == len(NAMES)
    assert all(kit.stem.replace("-", "").isalnum() for kit in named.kits)


def test_what_was_run_is_shown_and_what_was_promoted_is_the_status(named: Named):
    last = (named.project.folder / "runs" / "last").read_text().strip()
    assert f"page: runs/{last}/" in named.said["show"].out
    champions, challenge = named.said["status"].out.splitlines()[-2:]
    assert champions.startswith("champions")
    assert champions.endswith(", version 1")
    assert "no champion" not in challenge
