"""Which steps run again after a change: the journal records whether each step was computed."""

from collections import Counter

import pandas as pd
from project import METHODS, Seen
from scenarios import Repro, Tables

DEVICES = 4
ONE_SHOT = [label for label in METHODS if label != "fedavg_3"]


OF_REQUEST = len(METHODS) + 1
"""Runs in the record that a request has of its own: one of each method, and one of the study."""

BEST = "compare/metrics.json"
"""The best row, and the mean of each."""


def computed(seen: Seen) -> Counter[str]:
    return Counter(step["step"] for step in seen.computed())


def test_the_first_run_computes_everything_once(repro: Repro):
    """Four devices train once for all one-shot methods; later steps differ by method."""
    found = computed(repro.first)
    assert found["train"] == DEVICES
    assert repro.first.count("train") == DEVICES * len(ONE_SHOT)
    assert (found["fuse"], found["choose"]) == (2, 1)  # lmf and code_ot; best_local
    assert found["rank"] == DEVICES  # once for the three
    assert found["rounds"] == 1  # fedavg_3
    assert found["partition"] == found["distribute"] == 1
    keys = [step["key"] for step in repro.first.computed()]
    assert len(set(keys)) == len(keys)


def test_the_first_run_writes_its_outputs(repro: Repro):
    expected = {"table.parquet", "models.json", "runs.json", "outcomes.json", "pictures/index.csv"}
    folder = "federate/code/code-0/"
    assert {path.removeprefix(folder) for path in repro.first.outs if path.startswith(folder)} == expected
    kinds = {"plan", "data", "partition", "federate", "compare"}
    assert {path.split("/")[0] for path in repro.first.outs} == kinds
    assert {BEST, "compare/curves/code.csv"} <= {*repro.first.outs}
    table = pd.read_parquet(repro.project.folder / "pipeline" / "compare" / "table.parquet")
    assert list(table.columns) == [
        "study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value",
    ]  # fmt: skip
    assert set(table["method"]) == set(METHODS)
    page = (repro.project.folder / "results" / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page.split("<body")[1].replace("http-equiv", "")


def test_a_forced_run_uses_the_cache_for_every_step(repro: Repro):
    assert repro.forced.computed() == []
    assert len(repro.forced.steps) == len(repro.first.steps)
    assert repro.forced.said is not None
    for stage in ("data", "partition", "federate@code", "compare"):
        assert f"Running stage '{stage}'" in repro.forced.said.out


def test_a_forced_run_writes_the_same_outputs(repro: Repro):
    """DVC deletes outputs before it runs a stage, so that they were written again, with the same bytes."""
    assert repro.forced.outs == repro.first.outs


def test_a_forced_run_records_nothing_new(repro: Repro):
    """It also fills a gap: half of a run's record was deleted before."""
    assert repro.spoilt["points"] < repro.first.record["points"]
    assert repro.forced.record == repro.first.record
    assert repro.first.record["runs"] == len(METHODS) + OF_REQUEST


def test_the_flow_on_the_command_line_is_the_same_flow(repro: Repro):
    """A command finds the stages' steps in the cache, writes to the same record, and has the same results."""
    (by_hand,) = (repro.project.folder / "runs").glob("*/code-0/models.json")
    staged = repro.clone.project.folder / "pipeline" / "federate" / "code" / "code-0" / "models.json"
    assert by_hand.read_bytes() == staged.read_bytes()
    assert computed(repro.edited)["partition"] == computed(repro.edited)["distribute"] == 0
    # a seed's of the two methods whose code had changed, and the request's
    assert repro.edited.record["runs"] == repro.reg.record["runs"] + 2 + OF_REQUEST


def test_another_regularisation_retrains_nobody(repro: Repro):
    """`dvc exp run -S code_ot.reg=0.1`: one fusion, and the steps that depend on it."""
    assert computed(repro.reg) == {"fuse": 1, "evaluate": 1, "deploy": 1}
    assert [step for step in repro.reg.steps if step["step"] == "train" and not step["cached"]] == []
    assert repro.reg.count("train") == DEVICES * len(ONE_SHOT)
    assert repro.reg.record["runs"] == repro.forced.record["runs"] + 1 + OF_REQUEST
    changed = {path for path, digest in repro.reg.outs.items() if repro.first.outs[path] != digest}
    # None names a score: with one seed nothing can be said. Of the records below only those of a fusion change.
    same = {"federate/code/code-0/pictures/index.csv", "compare/claims.csv", "compare/answers.txt"}
    recorded = {path for path in repro.first.outs if path.startswith("federate/code/record/")}
    assert {path.split("/")[3] for path in changed & recorded} == {"code_ot_seed_0"}
    written = ("plan/federate/code", "federate/", "compare/")
    assert changed - recorded == {path for path in repro.first.outs if path.startswith(written)} - same - recorded
    assert repro.reg.said is not None
    assert "Stage 'partition' didn't change, skipping" in repro.reg.said.out


def test_a_changed_line_of_the_fusion_retrains_nobody(repro: Repro):
    """Both methods that fuse do so again with equal results, so that no other step runs."""
    assert computed(repro.edited) == {"fuse": 2}
    assert repro.edited.count("train") == DEVICES * len(ONE_SHOT)
    assert (repro.edited.count("fuse"), repro.edited.count("choose")) == (2, 1)


def test_one_changed_file_trains_one_device(tables: Tables):
    """A folder with a file per device, of which one has other rows and one row more.

    It trains twice: once for local_only and lmf, once for ST-LF, which starts all devices from one model.
    """
    first, second = tables.first, tables.second
    assert [*Counter(step["unit"] for step in first.computed("train")).values()] == [2] * DEVICES
    assert [step["unit"] for step in second.computed("train")] == [tables.changed] * 2
    assert second.count("train") == first.count("train") == 3 * DEVICES
    assert len(second.computed("fuse")) == 1  # what was sent is another, so it is fused again


def test_one_changed_file_compares_that_devices_pairs_again(tables: Tables):
    """ST-LF's divergences: a step per pair, keyed by both devices' data."""
    first, second = (seen.computed("compare") for seen in (tables.first, tables.second))
    assert len(first) == DEVICES * (DEVICES - 1) / 2
    assert len(second) == DEVICES - 1
    assert all(tables.changed in step["unit"] for step in second)
    assert tables.second.count("compare") == tables.first.count("compare") == len(first)


def test_the_journal_describes_every_step(repro: Repro):
    for step in repro.first.steps:
        shared = {"calls"} if " to " in step["unit"] else set()  # small models are scored and deployed together
        known = {"time", "process", "flow", "step", "unit", "key", "cached", "wall", "cpu", "blobs"}
        assert set(step) == known | shared
        assert step["wall"] >= 0
    walls = {step["key"]: step["wall"] for step in repro.first.steps}
    assert all(step["wall"] == walls[step["key"]] for step in repro.forced.steps)  # of when it was computed
