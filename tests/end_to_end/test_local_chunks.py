"""A method's rounds as cached steps: equal to the library's loop for any chunks, and never repeated."""

from pathlib import Path
from typing import Any

import pytest
from federations import NETS, SGD, bits, federation

from fedcore.core.rounds import begin, run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.orchestration.graph import OnEngine
from fedcore.pipeline.run.chunks import compute_chunk

ROUNDS = {
    "one round": 1, "many rounds": 5, "some devices per round": 5, "one shot": 1, "few shots": 3, "nothing sent": 1,
}  # fmt: skip
REPEATED = {"many rounds": 5, "some devices per round": 5, "few shots": 2}
"""Rounds of the stage that repeats them; in `few shots` it is the second."""


@pytest.fixture
def found(probed: dict[str, Any]) -> dict[str, Any]:
    return probed["probe_chunks"]


@pytest.mark.parametrize("name", ROUNDS)
def test_steps_give_the_results_of_the_library(found: dict[str, Any], name: str):
    """Traffic and models to the last bit, scores except a last bit; the same bits for any chunks."""
    one = found[f"{name}, every 1"]
    assert one == {"any chunks": True, "the library's": True, "evaluated": [True] * ROUNDS[name], "models": True}


@pytest.mark.parametrize(
    ("name", "evaluated"), [("many rounds", [False, True, False, True, True]), ("few shots", [False, False, True])]
)
def test_rounds_are_evaluated_at_the_given_interval(found: dict[str, Any], name: str, evaluated: list[bool]):
    """After every second round of a stage, and at the end."""
    one = found[f"{name}, every 2"]
    assert one == {"any chunks": True, "the library's": True, "evaluated": evaluated, "models": True}


@pytest.mark.parametrize("name", ROUNDS)
def test_repeated_rounds_are_a_step_per_chunk(found: dict[str, Any], name: str):
    """Graph computed and asked for: all rounds are one if they take less than a chunk, one each if they take more."""
    rounds = REPEATED.get(name, 0)
    assert found[f"{name}, every 1, chunks of 30"] == [min(rounds, 1)] * 2
    assert found[f"{name}, every 1, chunks of 0"] == [rounds] * 2


def test_an_interrupted_run_continues_at_the_last_chunk(found: dict[str, Any]):
    first, second, same = found["interrupted"]
    assert first == [2, 2]
    assert second == [3, 5]
    assert same


def test_a_longer_run_continues_a_shorter_one(found: dict[str, Any]):
    assert found["longer"] == [[1, 2], True]


def test_a_shorter_run_is_not_misled_by_a_longer_one(found: dict[str, Any]):
    same, (stretches, scores) = found["shorter"]
    assert same
    assert stretches == [0, 2]  # the one that goes too far, then its own
    assert scores == [0, 0]  # its chunk has scored its last round, which is not done again


def test_methods_share_their_training(found: dict[str, Any]):
    """code_ot trained; local_only finds it, and so does code_ot with more shots."""
    assert found["shared training"] == [[4, 4], [0, 4]]
    trained, received = found["few shots go on"]
    assert trained == [0, 4]
    assert received == [0, 1]


def test_two_checkpoints_stay(found: dict[str, Any]):
    assert found["kept"]["whole"] == [False, False, False, True, True]


def test_a_run_is_a_cache_hit_without_its_inner_checkpoints(found: dict[str, Any]):
    assert found["kept"]["again"] == [[0, 5], True]


def test_a_lost_state_is_computed_from_the_last_intact_checkpoint(found: dict[str, Any]):
    assert found["kept"]["without the last"] == [[1, 5], True]
    assert found["kept"]["without any"] == [[1, 5], True]


def test_a_run_survives_lost_checkpoints(found: dict[str, Any]):
    """Neither a longer run nor one that was interrupted at that round."""
    assert found["kept"]["longer"] == [[3, 8], True]
    assert found["kept"]["gone when going on"] == [[2, 5], True]


def test_brief_memories_go_at_the_end_and_come_back_when_needed(found: dict[str, Any]):
    """Those that took long stay; a longer run has the bits of one that was never shorter."""
    assert found["let go"] == {
        "gone": [False] * 4, "again": [0, 1], "deployed": True, "longer": [[1, 2], True], "long": True
    }  # fmt: skip


def test_results_of_other_steps_are_not_deleted(found: dict[str, Any]):
    assert (found["kept"]["given"], found["kept"]["but"], found["kept"]["dropped"]) == (True, True, False)


def test_a_chunks_reports_are_those_of_the_loop_in_one_blob(tmp_path: Path):
    fed, store = federation(), Store(tmp_path)
    built = method(
        "dfl", nets=NETS, training=SGD, shared_init=True, rounds=3, fraction=1.0, ratio="dynamic", threshold=0.5,
        temperature=1.0, weighting="counts",
    )  # fmt: skip
    execute = OnEngine(store, Inline(), lambda count: None, None)  # type: ignore[arg-type]
    start = begin(built, fed, 0, Inline())
    kept = store.put(compute_chunk(execute, built, fed, 0, start, 1, 3, [start]))
    assert isinstance(kept["reports"], Ref)
    expected = [one.report for one in run(built, fed, 0, Inline())]
    assert bits(store.get(kept["reports"])) == bits(expected)
    assert all(report.matrices["soft_targets"].shape == (3, 3) for report in expected)
