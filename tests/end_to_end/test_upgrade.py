"""What an earlier fedcore has made goes on with today's: run, predict, promote, a deployment, restore."""

import re

import pandas as pd
import pytest
from scenarios import Upgraded
from upgrade import ARCHIVE, CANDIDATE, CHAMPION, MODEL, NIGHTS, unpack


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """What the champion said of the new rows as the earlier code made it."""
    return pd.read_csv(unpack(tmp_path_factory.mktemp("earlier")).with_name("predicted.csv"))


def same_labels(labels: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(labels["label"]) == list(expected["label"])
    pd.testing.assert_frame_equal(labels, expected, rtol=0, atol=1e-6)


def test_the_champion_predicts_what_it_did(upgraded: Upgraded, predicted: pd.DataFrame):
    assert len(predicted) == 40
    same_labels(upgraded.labels, predicted)


def test_the_record_has_its_champion_and_candidate(upgraded: Upgraded):
    assert re.search(rf"^champions +{MODEL}, version {CHAMPION}$", upgraded.status.out, re.M)
    assert f"{MODEL}: champion version {CHAMPION} (local_only, seed 0, final fit of" in upgraded.before.out
    assert f"version {CANDIDATE} (local_only, seed 0) is " in upgraded.before.out
    assert re.search(r" the champion, version |, whose final fit, version \d+, is the champion", upgraded.before.out)


def test_flows_and_tasks_of_an_earlier_version_are_named_in_one_line(upgraded: Upgraded):
    (line,) = upgraded.outdated.err.splitlines()
    assert line.startswith("fedcore: flows/ and tasks/ are of an earlier version of fedcore: set them aside, type: ")


def test_a_version_of_other_code_is_promoted_by_the_command_that_is_named(upgraded: Upgraded, predicted: pd.DataFrame):
    (line,) = upgraded.refused.err.splitlines()
    command = f"fedcore promote {MODEL} --version {CANDIDATE} --no-final-fit"
    assert line == (
        f"fedcore: version {CANDIDATE}: the data, or how they are read, have changed since its run; run its study "
        f"again, or promote it as it is with: {command}"
    )
    assert f"version {CANDIDATE} " in upgraded.promoted.out
    assert not upgraded.promoted_labels.equals(predicted)
    assert list(upgraded.promoted_labels) == list(predicted)


def test_a_night_of_the_deployment_goes_on(upgraded: Upgraded):
    assert upgraded.night.said is not None
    assert "my_data (machines): " in upgraded.night.said.out
    assert f" the champion, version {CANDIDATE}" in upgraded.night.said.all
    assert upgraded.night.computed("train")


def test_the_same_night_by_hand_computes_nothing(upgraded: Upgraded):
    assert upgraded.again.computed() == []
    assert upgraded.again.record == upgraded.night.record


def test_rows_that_were_held_out_still_are(upgraded: Upgraded):
    *earlier, new = upgraded.parts
    assert sorted(map(len, earlier)) == [*NIGHTS]
    assert len(new) == NIGHTS[-1] + 40
    for parts in earlier:
        pd.testing.assert_frame_equal(new.loc[parts.index], parts)


def test_a_save_is_restored_into_a_clone(upgraded: Upgraded, predicted: pd.DataFrame):
    assert " restored from ../saved: " in upgraded.restored.out
    assert upgraded.listed.out == upgraded.before.out
    same_labels(upgraded.restored_labels, predicted)


def test_the_archive_is_small():
    assert ARCHIVE.stat().st_size < 2**19
