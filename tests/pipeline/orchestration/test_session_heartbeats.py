"""Heartbeats of flows: sent to a server of the user's, whose automations may wait for them, or where the user asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings

from fedcore.pipeline.orchestration import session

PREFECTS_OWN = get_current_settings().flows.heartbeat_frequency


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session.server, "lease", nullcontext)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    yield
    monkeypatch.undo()
    refresh_global_settings_context()


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({}, None),
        ({"PREFECT_API_URL": "http://10.0.0.5:4200/api"}, PREFECTS_OWN),
        ({"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "45"}, 45),
    ],
)
def test_heartbeats(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], seconds: int | None):
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with session.prefect_server():
        assert PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() == seconds
    assert PREFECTS_OWN is not None
