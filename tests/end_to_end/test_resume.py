"""kill -9 in the middle of training and in the middle of fusing, then the same command."""

from __future__ import annotations

import pytest
from project import digests
from scenarios import Kill, Killed

DEVICES = 6


def finished(kill: Kill) -> set[str]:
    """The devices that a killed run had trained."""
    return {step["unit"] for step in kill.seen.steps if step["step"] == "train"}


def test_the_first_kill_was_in_the_middle_of_training(killed: Killed):
    assert 1 <= len(killed.training.seen.computed("train")) < DEVICES
    assert killed.training.seen.computed("choose") == []
    assert len(killed.fusing.seen.computed("train")) >= 1  # there was something left to train


def test_the_second_kill_was_in_the_middle_of_fusing(killed: Killed):
    """The first method is done; of the second everything is trained and nothing is fused."""
    assert killed.fusing.seen.count("train") == 2 * DEVICES
    assert killed.fusing.seen.count("choose") == 1
    assert killed.fusing.seen.count("fuse") == 0
    (fused,) = killed.end.computed("fuse")
    assert fused["wall"] > 0.5
    assert killed.fusing.seen.steps[-1]["step"] == "rank"  # of a trained model


def test_finished_devices_are_not_trained_again(killed: Killed):
    runs = [killed.training.seen, killed.fusing.seen, killed.end]
    trained = [step["unit"] for run in runs for step in run.computed("train")]
    assert len(trained) == len(set(trained)) <= DEVICES
    assert finished(killed.training)
    again = {step["unit"] for step in killed.fusing.seen.computed("train")}
    assert not again & finished(killed.training)
    assert killed.end.computed("train") == []
    assert killed.end.count("train") == 2 * DEVICES


def test_the_results_equal_those_of_an_undisturbed_run(killed: Killed):
    """Models, table, and the digests of the configurations, to the last byte. Seconds are measured anew."""
    mine, calm = (digests(project.folder / "runs") for project in (killed.project, killed.undisturbed))
    assert set(mine) == set(calm)
    measured = ("seconds.csv", "summary.csv", "report.html", "history.jsonl")
    exact = {path for path in calm if not path.endswith(measured)}
    assert {path.split("/")[-1] for path in exact} >= {"models.json", "table.parquet", "runs.json", "metrics.json"}
    assert {path: mine[path] for path in exact} == {path: calm[path] for path in exact}


def test_there_is_one_run_per_method(killed: Killed):
    """As many runs, metric points, model versions and models as without the kills, whatever those left."""
    assert killed.end.record == killed.calm.record
    assert killed.calm.record["runs"] == 2 + 1
    assert killed.fusing.seen.record["runs"] <= 1 + 1


@pytest.mark.parametrize("moment", ["training", "fusing"])
def test_no_process_is_left_behind(killed: Killed, moment: str):
    kill: Kill = getattr(killed, moment)
    assert kill.left == {}


def test_prefect_knows_that_the_killed_runs_ended(killed: Killed):
    assert killed.states == ["CRASHED", "CRASHED"]
