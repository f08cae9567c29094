"""kill -9 in the middle of 50 rounds of DFL and of SCAFFOLD, in each of which three of ten devices take part."""

from __future__ import annotations

from project import digests
from scenarios import Sampled


def test_each_kill_was_after_checkpoints_and_before_the_end(sampled: Sampled):
    dfl, scaffold = sampled.dfl.seen, sampled.scaffold.seen
    assert len(dfl.computed("rounds")) >= 2
    assert dfl.count("deploy") == 0
    assert dfl.record["runs"] == 0
    assert scaffold.count("deploy") == 1
    assert [step["step"] for step in scaffold.computed()][-2:] == ["rounds", "rounds"]
    assert sampled.dfl.left == sampled.scaffold.left == {}


def test_rounds_before_the_last_checkpoint_are_not_repeated(sampled: Sampled):
    def chunks(steps):
        return [step["key"] for step in steps if step["step"] == "rounds"]

    first, second, end = sampled.dfl.seen, sampled.scaffold.seen, sampled.end
    assert chunks(second.steps)[: first.count("rounds")] == chunks(first.computed())
    assert chunks(end.steps)[: second.count("rounds")] == chunks(second.steps)
    assert chunks(end.computed()) == chunks(end.steps)[second.count("rounds") :] != []


def test_the_results_equal_those_of_an_undisturbed_run(sampled: Sampled):
    """Models, table and digests of the configurations, to the last byte, though checkpoints stood elsewhere."""
    mine, calm = (digests(project.folder / "runs") for project in (sampled.project, sampled.undisturbed))
    assert set(mine) == set(calm)
    measured = ("seconds.csv", "summary.csv", "report.html", "history.jsonl")
    exact = {path for path in calm if not path.endswith(measured)}
    assert {path.split("/")[-1] for path in exact} >= {"models.json", "table.parquet", "runs.json", "metrics.json"}
    assert {path: mine[path] for path in exact} == {path: calm[path] for path in exact}


def test_nothing_is_recorded_twice(sampled: Sampled):
    assert sampled.end.record == sampled.calm.record
    assert sampled.calm.record["runs"] == 1 + 2
