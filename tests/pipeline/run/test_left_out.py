"""What is said of runs without a device."""

from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from fedcore.pipeline import environment
from fedcore.results.criterion import Criterion

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.run import left_out


def test_the_line_before_runs_without_a_device_says_how_to_skip_them(monkeypatch: pytest.MonkeyPatch):
    answers: dict[str, Any] = {
        "rows_with_model": frozenset(), "compared": (None, frozenset()), "rows_to_leave_out": {"fedavg"},
        "build": None, "count_local_steps": 1, "read_prepared": (Mock(ids=None), Mock(names=("a", "b", "c"))),
        "trained": [], "replace": None,
    }  # fmt: skip
    for name, value in answers.items():
        monkeypatch.setattr(left_out, name, Mock(return_value=value))
    monkeypatch.setattr(left_out.left_out, "leave_out", Mock(return_value=[None, None]))
    session, result = MagicMock(), MagicMock()
    result.row.label, result.fed.devices = "fedavg", dict.fromkeys("abc")
    left_out.leave_out(session, [result, result], Criterion())
    session.print_line.assert_called_once_with(
        "  for a new device: fedavg without each of 3 devices, 6 runs (run.new_device=shared skips them)"
    )
