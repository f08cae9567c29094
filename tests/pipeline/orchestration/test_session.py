"""Sessions: heartbeats; engines; what Prefect's database keeps."""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from uuid import UUID

import httpx
import pytest
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.context import refresh_global_settings_context
from prefect.logging import disable_run_logger
from prefect.server.database.orm_models import Base
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings
from project_params import copied, refusal
from sqlalchemy import create_engine
from sqlalchemy.schema import CreateTable

from fedcore.cli import show
from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, run_section
from fedcore.core.training import Training
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.orchestration import server, session
from fedcore.pipeline.orchestration.session import choose_engine, own_modules
from fedcore.pipeline.run import forecast

PREFECTS_OWN = get_current_settings().flows.heartbeat_frequency


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session.server, "lease", nullcontext)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    yield
    monkeypatch.undo()
    refresh_global_settings_context()


def test_a_new_client_waits_for_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(request.url.path)
        if len(tries) % 3:
            raise httpx.ConnectError("All connection attempts failed")
        return httpx.Response(200)

    async def ask() -> int:
        async with PrefectHttpxAsyncClient(transport=httpx.MockTransport(answer)) as client:
            return (await client.get("http://127.0.0.1:1/api")).status_code

    async def no_wait(_: float) -> None: ...

    monkeypatch.setattr("prefect.client.base.time.sleep", lambda _: None)
    monkeypatch.setattr("prefect.client.base.anyio.sleep", no_wait)
    for client in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):  # undone after the test
        monkeypatch.setattr(client, "_has_connected", False, raising=False)
    session.try_again()
    assert asyncio.run(ask()) == 200
    with PrefectHttpxSyncClient(transport=httpx.MockTransport(answer)) as client:
        assert client.get("http://127.0.0.1:1/api").status_code == 200
    assert len(tries) == 6


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


def test_the_pages_ask_the_server_of_this_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also one that has just started elsewhere than Prefect was told when it was imported; MLflow's page ends, too."""
    asked, page = list[str | None](), MagicMock()

    @contextmanager
    def lease() -> Iterator[str]:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4321/api")
        yield "http://127.0.0.1:4321/api"

    def stop(address: str) -> list[tuple[str, str]]:
        raise KeyboardInterrupt

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(show, "enter_with_record", lambda: None)
    monkeypatch.setattr("fedcore.pipeline.record.runs.Record", MagicMock())
    monkeypatch.setattr("fedcore.pipeline.record.mlflow_page.settings", lambda *_: {})
    monkeypatch.setattr(show.subprocess, "Popen", lambda *_, **__: page)
    monkeypatch.setattr(server, "lease", lease)
    monkeypatch.setattr(server, "password", lambda: "fedcore:word")
    monkeypatch.setattr(server, "running", lambda: None)
    monkeypatch.setattr(session, "end_killed", lambda: asked.append(get_current_settings().api.url))
    monkeypatch.setattr(session, "answer_links", stop)
    try:
        assert show.ui.callback is not None
        show.ui.callback()
    finally:
        monkeypatch.undo()
        refresh_global_settings_context()
    assert asked == ["http://127.0.0.1:4321/api"]
    page.terminate.assert_called_once_with()


def test_the_answers_on_prefects_page_have_links(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MagicMock()
    client.__enter__().read_latest_artifacts.return_value = [SimpleNamespace(key="answer-my-data")]
    monkeypatch.setattr(session, "get_client", lambda sync_client: client)
    place = "http://127.0.0.1:1"
    assert session.answer_links(place) == [("answer-my-data in Prefect", f"{place}/artifacts/key/answer-my-data")]


def test_a_line_that_is_printed_is_in_the_log_at_its_level() -> None:
    """So that the terminal's handler does not print it once more."""
    own = MagicMock()
    session.Session.print_line(own, "  a is left out: why", level=logging.WARNING)
    (level, line), more = own.log.log.call_args
    assert (level, line, own.progress.console.print.call_count) == (logging.WARNING, "a is left out: why", 1)
    assert not session._is_not_printed(logging.makeLogRecord(more["extra"]))


def test_a_run_uses_processes_of_this_machine_unless_told(tmp_path: Path):
    engine = choose_engine(section(workers=3), [], Store(tmp_path), print)
    assert isinstance(engine, Workers)
    assert engine.count == 3


@pytest.mark.slow
def test_a_run_and_its_plan_say_first_what_a_gpu_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    run = section(workers=1, together=16)
    line = "GPU (cuda): trains steps of at least 1,000,000,000 multiplications, up to 16 devices at a time; off: "
    for kind in ("cuda", None):
        for module in (session, forecast):
            monkeypatch.setattr(module, "find_accelerator", {"auto": kind}.get)
        with disable_run_logger(), session.open_run_session("federate", run, [], lambda: None):
            first = " ".join(capsys.readouterr().out.split())
        forecast.print_plan({**copied(), "run": {**copied()["run"], "together": 16}}, [])
        plan = " ".join(capsys.readouterr().out.partition("study")[0].split())
        assert {first, plan} == {line + "run.accelerator=none"} if kind else not {first, plan} & {line}


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
    asked = [setting("deep_one.nets:Small", "fedavg", "flat_one:median"), setting("torch.nn:Linear", "flat_one:mode")]
    assert own_modules(asked) == ["deep_one", "flat_one"]
    assert own_modules([setting("mlp", "fedavg")]) == []


def test_a_process_that_cannot_read_the_store_says_so(tmp_path: Path):
    assert store_error(Store(tmp_path), Ref("0" * 40, 4)) == f"cannot read the store {tmp_path}"


environment.prepare()  # Prefect reads its settings when it is imported


@pytest.fixture
def prefect_db(tmp_path: Path) -> Path:
    """Prefect's own tables, made by its models."""
    path = tmp_path / "prefect.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as opened:
        for table in Base.metadata.sorted_tables:
            opened.execute(CreateTable(table))
        opened.exec_driver_sql("insert into flow (id, name) values ('f', 'federate')")
    engine.dispose()
    return path


def test_the_next_run_is_the_first_that_is_still_to_come(prefect_db: Path, tmp_path: Path):
    now = datetime.now(UTC)
    assert server.next_run(prefect_db) is None
    with closing(sqlite3.connect(prefect_db)) as opened, opened:
        for hours, state in ((-1, "SCHEDULED"), (1, "RUNNING"), (30, "SCHEDULED"), (6, "SCHEDULED")):
            then = (now + timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S.%f")
            opened.execute(
                "insert into flow_run (id, flow_id, name, state_type, expected_start_time) values (?, 'f', 'n', ?, ?)",
                (f"at-{hours}", state, then),
            )
    assert server.next_run(prefect_db) == now + timedelta(hours=6)
    prefect_db.write_bytes(b"no database" * 100)
    assert server.next_run(prefect_db) is server.next_run(tmp_path / "none") is None


def test_what_a_killed_process_had_not_ended_is_marked_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its flow run, those of its methods, and their steps."""
    monkeypatch.setattr(journal, "FLOWS", tmp_path)
    killed, method, step, *others = (UUID(int=number) for number in range(5))
    (tmp_path / str(killed)).write_text("9" * 30)
    client = MagicMock()
    client.__enter__.return_value = client
    pages = [[SimpleNamespace(id=method)], [SimpleNamespace(id=other) for other in others]]  # Prefect's, of 200 each
    client.read_flow_runs.side_effect = lambda flow_run_filter, offset: pages.pop(0) if pages else []
    client.read_task_runs.side_effect = lambda flow_run_filter, task_run_filter, offset: (
        [SimpleNamespace(id=step)] if flow_run_filter.id.any_ == [method] and not offset else []
    )
    monkeypatch.setattr(session, "get_client", lambda sync_client: client)
    session.end_killed()
    assert [call.args[0] for call in client.set_flow_run_state.call_args_list] == [killed, method, *others]
    ((ended, state),) = [call.args for call in client.set_task_run_state.call_args_list]
    assert (ended, state.name, journal.marks()) == (step, "Crashed", [])
