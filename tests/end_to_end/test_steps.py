"""Cached steps on a real server: computed once, cached, and computed again if the cache is damaged."""

from typing import Any

import pytest


@pytest.fixture
def found(probed: dict[str, Any]) -> dict[str, Any]:
    return probed["probe_steps"]


def test_a_step_is_computed_once(found: dict[str, Any]):
    assert found["twice"] == {
        "cached": [False, True], "same": True, "ran": 1, "value": [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0],
    }  # fmt: skip


def test_a_step_that_several_methods_share_is_one_task(found: dict[str, Any]):
    """Without its blob it is computed again, which takes a second one."""
    assert found["again"] == {"tasks": 2, "cached": [False, True, False], "same": True, "ran": 2}


@pytest.mark.parametrize(
    "harm", ["missing", "truncated", "flipped", "emptied", "inside", "a folder", "its folder a file"]
)
def test_a_damaged_blob_is_rebuilt(found: dict[str, Any], harm: str):
    """Once; the next run finds it again. "inside": the blob is one of several in a result."""
    assert found[harm] == {"cached": [False, True], "same": [True, True], "whole": True, "ran": 2}


def test_a_damaged_record_is_rebuilt(found: dict[str, Any]):
    """A record that a killed run may leave, a failing disk, or a stranger."""
    harms = {harm: told for harm, told in found.items() if harm.startswith("record ")}
    assert len(harms) == 17
    for harm, told in harms.items():
        assert told == {"cached": [False, True], "same": [True, True], "ran": 2}, harm


def test_no_record_is_unpickled(found: dict[str, Any]):
    assert found["unpickled"] is False


def test_results_may_mix_blobs_and_plain_values(found: dict[str, Any]):
    assert found["mixed"] == {
        "cached": True, "same": True, "once": True, "refs": True, "sent": [float(i + 1) for i in range(8)],
        "own": [float(i - 1) for i in range(8)], "empty": True, "plain": [1, 0.5, None, "x", True],
    }  # fmt: skip
    value = "{'nan': nan, 'inf': -inf, ('a', 'b'): (1, [2.5, 'ü'], None), 'empty': ({}, [], ())}"
    assert found["plain"] == [value, value, False, True]


def test_a_result_may_be_a_bare_tensor(found: dict[str, Any]):
    tensor = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found["bare"] == [tensor, tensor, False, True]


def test_bad_input_is_reported_and_not_cached(found: dict[str, Any]):
    """Nor tried again: wrong input stays wrong. Asked for once more, it is computed once more."""
    assert found["refused"] == [["InputError", "lr = -1: must be above 0"]] * 2
    assert found["refused ran"] == 2


def test_an_error_of_a_step_is_raised_without_a_retry(found: dict[str, Any]):
    assert found["failed"] == ["ZeroDivisionError", "not a refusal"]
    assert found["failed ran"] == 1


def test_a_step_whose_worker_died_is_tried_again(found: dict[str, Any]):
    assert found["died"] == [[1.0, 1.0], False, 2]


def test_a_step_whose_worker_dies_each_time_is_named_in_one_line(found: dict[str, Any]):
    kind, line = found["killed"]
    assert kind == "Failed"
    assert line.startswith("die: a worker was ended by SIGKILL (out of memory?) while it ran ")
    assert line.endswith(", 3 times; finished steps are kept, run the same command to continue")
    assert "\n" not in line
    assert found["killed ran"] == 3


def test_a_step_in_the_flows_process_uses_the_workers(found: dict[str, Any]):
    """Its argument without a key takes no part: the second time, with another, the first result is found."""
    x = [4.0 * i for i in range(8)]
    assert found["here"] == {
        "cached": [False, True], "same": True, "ran": 2, "parts": 4, "value": [v + 1 for v in x],
        "keyed": [v + 5 for v in x],
    }  # fmt: skip


def test_a_short_step_runs_in_the_flows_process(found: dict[str, Any]):
    """Without a worker; told so, it starts them meanwhile, but for nothing when it is found."""
    assert found["short"] == {"started": [0, 0, 2], "here": [True, True, True], "cached": True}


def test_results_are_in_the_order_of_the_calls(found: dict[str, Any]):
    """The heaviest is begun first, and two calls with equal arguments are one result. Braces are part of a name."""
    units = ["li{0}ght {", "heavy", "same"]
    assert found["order"] == {"units": units, "steps": units, "lengths": [3, 3000, 3]}


def test_steps_are_reported_when_they_end_results_keep_their_order(found: dict[str, Any]):
    units = ["slow", "fast"]
    errors = [["InputError", "a"]] * 2
    assert found["as they end"] == {"seen": ["fast", "slow"], "units": units, "steps": units, "errors": errors}


def test_a_step_has_its_functions_word_whatever_is_bound(found: dict[str, Any]):
    assert found["name"] == "double"


def test_a_record_says_what_a_step_returned_and_took(found: dict[str, Any]):
    assert {tuple(fields) for fields in found["records"]} == {("cpu", "seal", "value", "wall")}
    assert len(found["records"]) > 10


def test_devices_steps_on_an_accelerator_have_keys_of_their_own(found: dict[str, Any]):
    first, other, again = found["there"]
    assert first == [["double", False], ["rounds", False], ["double", False]]
    assert other == [["double", False], ["rounds", False], ["double", True]]
    assert again == [["double", True], ["rounds", True], ["double", True]]


def test_devices_that_train_together_share_a_step(found: dict[str, Any]):
    assert found["together"]["steps"] == [["double", "a to b", 2], ["double", "c to c", 1]]
    assert found["together"]["same"] == [True, True, True]


def test_many_devices_share_steps_and_one_that_changes_costs_its_own(found: dict[str, Any]):
    """The results are those of a step per device, to the last bit."""
    shards = found["shards"]
    assert shards["same"] == [True, True]
    assert shards["changed"] == ["d5"]
    sizes = [("d0 to d3", 4), ("d4 to d7", 4), ("d8 to d8", 1)]
    assert shards["steps"] == [
        [[unit, cached, size, "double"] for (unit, size), cached in zip(sizes, hits, strict=True)]
        for hits in ([False] * 3, [True, False, True])
    ]
