"""Steps that the cache has."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedcore.pipeline import environment
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.store import Store, flatten
from fedcore.pipeline.command import Failed
from fedcore.pipeline.orchestration import cached_steps
from fedcore.pipeline.orchestration.cached_steps import Steps
from fedcore.pipeline.orchestration.records import SERIALIZER, with_checksum


def double(number: int) -> int:
    return 2 * number


def test_what_the_cache_has_is_no_task_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prefect is asked for nothing: a night that computes nothing leaves nothing in its database."""
    monkeypatch.setattr(environment, "STEPS", tmp_path)
    key = Digest().of(("step", double, (4,)))
    record = with_checksum(key, {"value": flatten(7, "", {}), "wall": 1.0, "cpu": 0.5})
    metadata = {"serializer": SERIALIZER, "expiration": None}
    (tmp_path / key).write_text(json.dumps({"metadata": metadata, "result": json.dumps(record)}))
    nothing: Any = None
    steps = Steps(Store(tmp_path / "blobs"), nothing)
    asked: list[Any] = []
    monkeypatch.setattr(Steps, "_submit", lambda self, kind, unit, *rest, **more: asked.append(unit))
    assert steps(double, 4) == 7
    assert [(step.cached, step.wall) for step in steps.done] == [(True, 1.0)]
    assert asked == []


def test_a_record_that_was_not_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prefect goes on after a write that failed: the run would end well, and the next one compute everything again."""
    monkeypatch.setattr(environment, "STEPS", tmp_path)
    record = {"value": flatten(8, "", {}), "wall": 1.0, "cpu": 0.5}

    def submit(steps: Any, kind: str, unit: Any, key: str, job: Any) -> dict[str, Any]:
        job.ran = True
        return with_checksum(key, record)

    nothing: Any = None
    monkeypatch.setattr(Steps, "_submit", submit)
    monkeypatch.setattr(cached_steps, "in_order_of_completion", lambda calls, futures: calls)
    monkeypatch.setattr(cached_steps, "wait_for", lambda name, future: future)
    with pytest.raises(Failed, match="the step's record was not kept"):
        Steps(Store(tmp_path / "blobs"), nothing)(double, 4)
