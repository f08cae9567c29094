"""kill -9 in the middle of training, of fusing, and of rounds, then the same command."""

import pytest
from project import digests
from scenarios import Kill, Killed, Long, Sampled

DEVICES = 6


def finished(kill: Kill) -> set[str]:
    """The devices that a killed run had trained."""
    return {step["unit"] for step in kill.seen.steps if step["step"] == "train"}


def test_the_first_kill_was_in_the_middle_of_training(killed: Killed):
    assert 1 <= len(killed.training.seen.computed("train")) <= DEVICES  # all, where they end between two looks
    assert killed.training.seen.computed("choose") == []
    # What workers have stored and nobody has noted yet comes from the cache: the second run may train fewer than noted.
    assert len(killed.fusing.seen.computed("train")) <= DEVICES - len(killed.training.seen.computed("train"))


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


def test_there_is_one_run_per_method(killed: Killed):
    """As many runs, metric points, model versions and models as without the kills, whatever those left."""
    assert killed.end.record == killed.calm.record
    assert killed.calm.record["runs"] == 2 * 2 + 1
    assert killed.fusing.seen.record["runs"] <= 1 + 1 + 1


@pytest.mark.parametrize("moment", ["training", "fusing"])
def test_no_process_is_left_behind(killed: Killed, moment: str):
    kill: Kill = getattr(killed, moment)
    assert kill.left == {}


def test_prefect_knows_that_the_killed_runs_ended(killed: Killed):
    assert killed.states == ["CRASHED", "CRASHED"]
    assert "CRASHED" in killed.inner <= {"CRASHED", "COMPLETED"}


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("scenario", ["killed", "long", "sampled"])
def test_the_results_equal_those_of_an_undisturbed_run(request: pytest.FixtureRequest, scenario: str):
    """Models, table, and digests of the configurations, to the last byte, though checkpoints stood elsewhere."""
    done = request.getfixturevalue(scenario)
    mine, calm = (digests(project.folder / "runs") for project in (done.project, done.undisturbed))
    assert set(mine) == set(calm)
    measured = ("seconds.csv", "summary.csv", "report.html", "history.jsonl")
    exact = {path for path in calm if not path.endswith(measured)}
    assert {path.split("/")[-1] for path in exact} >= {"models.json", "table.parquet", "runs.json", "metrics.json"}
    assert {path: mine[path] for path in exact} == {path: calm[path] for path in exact}


# in the middle of FedASA's 100 rounds


def test_the_kill_was_after_alignment_and_before_the_end(long: Long):
    steps = long.halfway.seen
    assert len(steps.computed("train")) == 4
    assert len(steps.computed("rounds")) >= 3
    assert steps.count("evaluate") == 0  # the last round's, a step of its own
    assert steps.record["runs"] == 0
    assert long.halfway.left == {}


def test_rounds_before_the_last_checkpoint_are_not_repeated(long: Long):
    before, after = long.halfway.seen, long.end
    assert after.computed("train") == []
    assert after.count("train") == 4
    played = [step["key"] for step in before.computed("rounds")]
    found = [step["key"] for step in after.steps if step["step"] == "rounds"]
    assert found[: len(played)] == played
    assert [step["key"] for step in after.computed("rounds")] == found[len(played) :] != []


def test_a_method_that_goes_on_is_recorded_once(long: Long):
    """One run of the study, of the method and of its seed, with as many points and models as without the kill."""
    assert long.end.record == long.calm.record
    assert long.calm.record["runs"] == 1 + 1 + 1


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


# in the middle of 50 rounds of DFL and of SCAFFOLD, in each of which three of ten devices take part


def test_each_kill_was_after_checkpoints_and_before_the_end(sampled: Sampled):
    dfl, scaffold = sampled.dfl.seen, sampled.scaffold.seen
    assert len(dfl.computed("rounds")) >= 2
    assert dfl.count("deploy") == 0
    assert dfl.record["runs"] == 0
    assert scaffold.count("deploy") == 1
    assert [step["step"] for step in scaffold.computed()][-2:] == ["rounds", "rounds"]
    assert sampled.dfl.left == sampled.scaffold.left == {}


def test_rounds_of_some_devices_are_not_repeated(sampled: Sampled):
    def chunks(steps):
        return [step["key"] for step in steps if step["step"] == "rounds"]

    first, second, end = sampled.dfl.seen, sampled.scaffold.seen, sampled.end
    assert chunks(second.steps)[: first.count("rounds")] == chunks(first.computed())
    assert chunks(end.steps)[: second.count("rounds")] == chunks(second.steps)
    assert chunks(end.computed()) == chunks(end.steps)[second.count("rounds") :] != []


def test_methods_that_go_on_are_recorded_once(sampled: Sampled):
    assert sampled.end.record == sampled.calm.record
    assert sampled.calm.record["runs"] == 1 + 2 * 2
