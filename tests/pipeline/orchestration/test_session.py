"""Sessions: the records of steps that ran within a task, which Prefect writes when that task ends; heartbeats."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings
from prefect.transactions import transaction

from fedcore.execute.workers import Inline
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store, flatten
from fedcore.pipeline.command import report_bad_input
from fedcore.pipeline.orchestration import cached_steps, session
from fedcore.pipeline.orchestration import records as step_records
from fedcore.pipeline.orchestration.cached_steps import Steps
from fedcore.pipeline.orchestration.records import SERIALIZER, with_checksum

PREFECTS_OWN = get_current_settings().flows.heartbeat_frequency


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of step records of a session without a server."""
    folder = tmp_path / "steps"
    folder.mkdir()
    monkeypatch.setattr(environment, "STEPS", folder)
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(session, "mark_running", lambda flow_run: nullcontext())
    monkeypatch.setattr(session, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(session.journal, "append", lambda line: None)
    monkeypatch.setattr(cached_steps, "in_order_of_completion", lambda calls, futures: calls)
    monkeypatch.setattr(cached_steps, "wait_for", lambda name, future: future)
    return folder


def compute_in_a_task(place: Path, records: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> int:
    """Run a step within a task; its record is written at the end of the task, or lost."""
    written: dict[str, Any] = {}

    def submit(steps: Any, kind: str, unit: Any, key: str, job: Any) -> dict[str, Any]:
        job.ran = True
        written[key] = with_checksum(key, {"value": flatten(8, "", {}), "wall": 1.0, "cpu": 0.5})
        return written[key]

    monkeypatch.setattr(Steps, "_submit", submit)
    with session.open_session("flow", Store(place / "blobs"), Inline()) as opened:
        with transaction(logger=logging.getLogger("test")):
            found = opened.steps(double, 4)
        for key, record in written.items() if kept else ():
            metadata = {"serializer": SERIALIZER, "expiration": None}
            (records / key).write_text(json.dumps({"metadata": metadata, "result": json.dumps(record)}))
    return int(found)


def test_a_record_that_is_written_at_the_end_of_the_task_is_enough(
    tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch
):
    assert compute_in_a_task(tmp_path, records, monkeypatch, kept=True) == 8


@pytest.mark.parametrize("full", [False, True])
def test_a_record_that_was_lost_ends_the_run_in_one_line(
    full: bool, tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A full disk is named."""

    def write(path: Path, content: bytes) -> None:
        raise OSError(ENOSPC, "No space left on device", str(path))

    if full:
        monkeypatch.setattr(step_records, "write_atomic", write)
    with pytest.raises(SystemExit) as leaving, report_bad_input():
        compute_in_a_task(tmp_path, records, monkeypatch, kept=False)
    assert leaving.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (str(records) in line and "no space" in line.lower()) if full else "the step's record was not kept" in line


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session.server, "lease", nullcontext)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    yield
    monkeypatch.undo()
    refresh_global_settings_context()


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({}, None),
        ({"PREFECT_API_URL": "http://10.0.0.5:4200/api"}, PREFECTS_OWN),
        ({"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "45"}, 45),
    ],
)
def test_heartbeats_go_to_a_users_own_server_or_where_the_user_asks(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], seconds: int | None
):
    """Whose automations may wait for them."""
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with session.prefect_server():
        assert PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() == seconds
    assert PREFECTS_OWN is not None
