"""What holds for a flow that a deployment runs."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcore.config import nightly
from fedcore.pipeline.orchestration import schedule


def test_a_run_by_hand_has_no_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    assert schedule.options() == {}


def test_a_deployment_has_those_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a")
    keeps = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    command = json.dumps([sys.executable, "-c", keeps])
    (tmp_path / nightly.NIGHTLY).write_text(
        f"retries: 2\ntime_limit: 3600\nalerts: {{events: [failed], command: {command}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = schedule.options()
    hooks = found.pop("on_failure")
    assert hooks == found.pop("on_crashed")
    assert found == {"retries": 2, "retry_delay_seconds": 300.0, "timeout_seconds": 3600.0}
    from prefect import flow

    assert flow(**found, on_failure=hooks)(lambda: None).retries == 2
    run: Any = SimpleNamespace(name="my_data, small")
    state: Any = SimpleNamespace(message="Flow run exceeded timeout of 3600.0 second(s)\nmore", name="TimedOut")
    hooks[0](None, run, state)
    told = json.loads((tmp_path / "got").read_text())
    assert told["text"].endswith("failed: my_data, small: Flow run exceeded timeout of 3600.0 second(s)")
