"""Sessions: records of steps that ran within a task, which Prefect writes when that task ends; heartbeats; engines."""

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
from project_params import copied, refusal

from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, run_section
from fedcore.core.training import Training
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Inline, Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.store import Ref, Store, flatten
from fedcore.pipeline.command import report_bad_input
from fedcore.pipeline.orchestration import cached_steps, session
from fedcore.pipeline.orchestration import records as step_records
from fedcore.pipeline.orchestration.cached_steps import Steps
from fedcore.pipeline.orchestration.records import SERIALIZER, with_checksum
from fedcore.pipeline.orchestration.session import choose_engine, own_modules

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


@pytest.mark.slow
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


def setting(net: str, *methods: str) -> Setting:
    rows = tuple(MethodConfig(name, name, Training(), {}) for name in methods)
    return Setting("asked", "base", {}, {}, {}, {"name": net}, rows, 1)


def section(**changes: Any) -> Run:
    params = copied()
    params["run"] |= changes
    return run_section(params)


def test_a_run_uses_processes_of_this_machine_unless_told(tmp_path: Path):
    engine = choose_engine(section(workers=3), [], Store(tmp_path), print)
    assert isinstance(engine, Workers)
    assert engine.count == 3


def test_a_cluster_is_where_section_run_says(tmp_path: Path):
    """Its workers must read the store; those of one of its own, on this machine, do."""
    for address in (None, "tcp://10.0.0.5:8786"):
        engine = choose_engine(section(engine="dask", cluster=address), [], Store(tmp_path), print)
        assert isinstance(engine, Cluster)
        assert engine.address == address
    assert [*tmp_path.rglob("*.safetensors")]


def test_each_run_asks_its_workers_for_something_new(tmp_path: Path):
    """What a worker holds from the run before would not show that it reads the store."""
    for _ in range(2):
        choose_engine(section(engine="dask", cluster="tcp://10.0.0.5:8786"), [], Store(tmp_path), print)
    assert len([*tmp_path.rglob("*.safetensors")]) == 2


def test_an_address_without_dask_is_refused():
    line = refusal(section, cluster="tls://10.0.0.5:8786")
    assert line == "run.cluster = 'tls://10.0.0.5:8786': is for run.engine = 'dask', not 'local'"


def test_a_users_own_modules_are_sent_and_installed_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "flat_one.py").touch()
    (tmp_path / "deep_one").mkdir()
    for name in ("__init__.py", "nets.py"):
        (tmp_path / "deep_one" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    settings = [
        setting("deep_one.nets:Small", "fedavg", "flat_one:median"),
        setting("torch.nn:Linear", "flat_one:mode"),
    ]
    assert own_modules(settings) == ["deep_one", "flat_one"]
    assert own_modules([setting("mlp", "fedavg")]) == []


def test_a_process_that_cannot_read_the_store_says_so(tmp_path: Path):
    assert store_error(Store(tmp_path), Ref("0" * 40, 4)) == f"cannot read the store {tmp_path}"
