"""kill -9 in the middle of FedASA's 100 rounds, then the same command."""

from __future__ import annotations

from project import digests
from scenarios import Long

DEVICES = 4


def test_the_kill_was_after_alignment_and_before_the_end(long: Long):
    steps = long.halfway.seen
    assert len(steps.computed("train")) == DEVICES
    assert len(steps.computed("rounds")) >= 3
    assert steps.count("evaluate") == 0  # the last round's, a step of its own
    assert steps.record["runs"] == 0
    assert long.halfway.left == {}


def test_rounds_before_the_last_checkpoint_are_not_repeated(long: Long):
    before, after = long.halfway.seen, long.end
    assert after.computed("train") == []
    assert after.count("train") == DEVICES
    played = [step["key"] for step in before.computed("rounds")]
    found = [step["key"] for step in after.steps if step["step"] == "rounds"]
    assert found[: len(played)] == played
    assert [step["key"] for step in after.computed("rounds")] == found[len(played) :] != []


def test_the_results_equal_those_of_an_undisturbed_run(long: Long):
    """Models, table and digests of the configurations, to the last byte, though checkpoints stood elsewhere."""
    mine, calm = (digests(project.folder / "runs") for project in (long.project, long.undisturbed))
    assert set(mine) == set(calm)
    measured = ("seconds.csv", "summary.csv", "report.html", "history.jsonl")
    exact = {path for path in calm if not path.endswith(measured)}
    assert {path.split("/")[-1] for path in exact} >= {"models.json", "table.parquet", "runs.json", "metrics.json"}
    assert {path: mine[path] for path in exact} == {path: calm[path] for path in exact}


def test_nothing_is_recorded_twice(long: Long):
    """One run of the study and one of the method, with as many points and models as without the kill."""
    assert long.end.record == long.calm.record
    assert long.calm.record["runs"] == 1 + 1


def test_a_refused_setting_stops_a_study_before_anything_is_trained(long: Long):
    """Also where it is the grid's second one and the first has nothing wrong."""
    said = long.refused.said
    assert said is not None
    assert (
        said.err == "fedcore: fedasa.budget: 2 numbers for 4 devices (A0, A1, A2, A3, in this order) (method fedasa)\n"
    )
    kinds = {step["step"] for step in long.refused.computed()}
    assert not kinds & {"begin", "train", "rounds", "evaluate", "deploy"}
    assert long.refused.record == long.end.record
