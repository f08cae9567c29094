"""Which devices' calls share a step of Prefect."""

from functools import partial
from typing import Any

import pytest

from fedcore.core.evaluation import score
from fedcore.core.training import train
from fedcore.pipeline.cache.store import Ref
from fedcore.pipeline.orchestration.shards import FEW, MANY, SHARD, SMALL, into_shards
from fedcore.pipeline.run.step_functions import deploy


def calls(*sizes: int) -> dict[str, tuple[Any, ...]]:
    return {f"d{i}": (Ref(f"model {i}", size), {"data": Ref("data", 0)}) for i, size in enumerate(sizes)}


def shared(fn: Any, *sizes: int) -> list[list[str]]:
    given = calls(*sizes)
    shards = into_shards(fn, given)
    assert {unit: args for shard in shards.values() for unit, args in shard.items()} == given
    return [[*shard] for shard in shards.values()]


@pytest.mark.parametrize("fn", [score, deploy, partial(deploy, "how")])
def test_small_models_are_scored_and_deployed_together(fn: Any):
    assert shared(fn, 1, 1, 1) == [["d0", "d1", "d2"]]
    assert shared(fn, SMALL // 2, SMALL // 2, 1) == [["d0", "d1"], ["d2"]]


def test_large_models_are_scored_one_by_one():
    assert shared(score, SMALL, SMALL, 2 * SMALL, 2 * SMALL) == [["d0"], ["d1"], ["d2"], ["d3"]]


def test_a_call_that_scores_many_devices_is_a_step_of_its_own():
    few, many = ({f"d{i}": Ref("data", 0) for i in range(count)} for count in (FEW // 2, FEW))
    shards = into_shards(score, {"a": (few,), "b": (few,), "c": (few,), "d": (many,), "e": (many,)})
    assert [[*shard] for shard in shards.values()] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_devices_that_train_together_share_a_step():
    given = calls(1, 1, 1)
    shards = into_shards(partial(train, training=None), given, together=2)
    assert shards == {"d0 to d1": {unit: given[unit] for unit in ("d0", "d1")}, "d2 to d2": {"d2": given["d2"]}}
    assert into_shards(score, given, together=2) == into_shards(score, given)


def test_training_is_a_step_of_each_device_unless_they_are_many():
    assert shared(partial(train, training=None), 1, 1) == [["d0"], ["d1"]]
    assert [len(part) for part in shared(train, *[SMALL] * (MANY + 1))] == [SHARD] * 4 + [1]
