"""Sessions: records of steps that ran within a task, which Prefect writes when that task ends; heartbeats; engines."""

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from prefect.context import refresh_global_settings_context
from prefect.filesystems import LocalFileSystem
from prefect.locking.protocol import LockManager
from prefect.results import ResultStore
from prefect.server.database.orm_models import Base
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings
from prefect.transactions import IsolationLevel, transaction
from project import ROOT
from project_params import copied, refusal
from sqlalchemy import create_engine
from sqlalchemy.schema import CreateTable

from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, run_section
from fedcore.core.training import Training
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Inline, Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.store import Ref, Store, flatten
from fedcore.pipeline.command import Failed, report_bad_input
from fedcore.pipeline.orchestration import cached_steps, retention, server, session
from fedcore.pipeline.orchestration import records as step_records
from fedcore.pipeline.orchestration.cached_steps import Steps
from fedcore.pipeline.orchestration.records import SERIALIZER, StepLocks, with_checksum
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


# Locks of steps: of processes that ask for one step at once, one computes it.
ASK = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_session import compute
print(compute(Path({folder!r}), sys.argv[1]))
"""


def compute(folder: Path, name: str, seconds: float = 0.2) -> str:
    """Compute a step as Prefect's engine does: look for its record under its lock, and write it."""
    locks = StepLocks(folder / "locks", folder / "none")
    store = ResultStore(
        result_storage=LocalFileSystem(basepath=str(folder / "steps")), lock_manager=locks, cache_result_in_memory=False
    )
    with transaction("key", store=store, isolation_level=IsolationLevel.SERIALIZABLE, write_on_commit=True) as here:
        if here.is_committed():
            record = here.read()
            assert record is not None
            return str(record.result)
        with (folder / "computed").open("a") as told:
            told.write(f"{name}\n")
        time.sleep(seconds)
        here.stage(f"the result of {name}")
        return f"the result of {name}"


def test_prefect_takes_it_for_a_lock_manager(tmp_path: Path):
    assert isinstance(StepLocks(tmp_path), LockManager)


@pytest.mark.slow
def test_one_process_computes_a_step_and_the_other_takes_it(tmp_path: Path):
    script = ASK.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "end_to_end")])
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for number in range(2)
    ]  # fmt: skip
    answers = {one.communicate(timeout=120)[0] for one in asked}
    (computed,) = (tmp_path / "computed").read_text().split()
    assert answers == {f"the result of {computed}\n"}
    assert [one.returncode for one in asked] == [0, 0]
    assert list((tmp_path / "locks").iterdir()) == []


def test_threads_of_one_flow_wait_for_each_other_too(tmp_path: Path):
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(compute(tmp_path, name, 0.05))) for name in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (computed,) = (tmp_path / "computed").read_text().split()
    assert found == [f"the result of {computed}"] * 8


@pytest.mark.slow
def test_a_killed_process_holds_no_lock(tmp_path: Path):
    """What it leaves is an empty file."""
    hold = f"""
import sys, time
from filelock import FileLock
lock = FileLock({str(tmp_path / "key")!r})
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""
    locks = StepLocks(tmp_path, tmp_path / "none")
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not locks.acquire_lock("key", "me", acquire_timeout=0.01)
        holder.send_signal(signal.SIGKILL)
    assert locks.acquire_lock("key", "me", acquire_timeout=10)
    locks.release_lock("key", "me")
    assert not (tmp_path / "key").exists()


def test_a_flow_that_ends_waits_no_longer(tmp_path: Path):
    locks, found = StepLocks(tmp_path, tmp_path / "none"), []
    with FileLock(tmp_path / "key"):
        waiting = threading.Thread(target=lambda: found.append(locks.acquire_lock("key", "me")))
        waiting.start()
        locks.close()
        waiting.join(60)
    assert found == [False]
    assert not locks.is_locked("key")


def test_only_its_holder_releases_a_lock(tmp_path: Path):
    locks = StepLocks(tmp_path, tmp_path / "none")
    assert locks.acquire_lock("key", "me")
    assert locks.acquire_lock("key", "me")
    assert not locks.acquire_lock("key", "you", acquire_timeout=0.01)
    locks.release_lock("key", "you")
    assert locks.is_lock_holder("key", "me")
    locks.release_lock("key", "me")
    assert locks.acquire_lock("key", "you")


def test_a_damaged_record_goes_while_the_lock_is_held(tmp_path: Path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "key").write_text("half a rec")
    locks = StepLocks(tmp_path / "locks", tmp_path / "steps")
    with FileLock(tmp_path / "other"):
        assert locks.acquire_lock("key", "me")
    assert not (tmp_path / "steps" / "key").exists()


# What Prefect's database keeps: old runs go with all that is of them, others stay whole.
environment.prepare()  # Prefect reads its settings when it is imported


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect's own tables, made by its models."""
    path = tmp_path_factory.mktemp("prefect") / "prefect.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as opened:
        for table in Base.metadata.sorted_tables:
            opened.execute(CreateTable(table))
    engine.dispose()
    return path


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> Path:
    """Runs that ended 40, 20 and 0 days ago, and one that began 40 days ago and still runs."""
    path = tmp_path / "prefect.db"
    path.write_bytes(empty.read_bytes())
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute("insert into flow (id, name) values ('f', 'federate')")
        for run, days, state in (
            ("old", 40, "COMPLETED"),
            ("recent", 20, "FAILED"),
            ("new", 0, "COMPLETED"),
            ("on", 40, "RUNNING"),
        ):
            then = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
            end = None if state == "RUNNING" else then
            for statement, values in (
                ("flow_run (id, flow_id, name, state_type, end_time)", (run, "f", run, state, end)),
                ("flow_run_state (id, flow_run_id, type, name)", (f"{run}-s", run, state, state)),
                ("task_run (id, flow_run_id, name, task_key, dynamic_key)", (f"{run}-t", run, "t", "k", run)),
                ("task_run_state (id, task_run_id, type, name)", (f"{run}-ts", f"{run}-t", state, state)),
                ("log (id, flow_run_id, name, level, message, timestamp)", (run, run, "l", 20, "x" * 9000, then)),
                ("artifact (id, flow_run_id, key)", (run, run, "answer-" + run)),
                ("artifact_collection (id, key, latest_id)", (run, "answer-" + run, run)),
                (
                    "events (id, occurred, event, resource_id, resource, payload, received, recorded)",
                    (run, then, "e", "r", "{}", '"' + "x" * 90000 + '"', then, then),
                ),
                (
                    "event_resources (id, occurred, resource_id, resource_role, resource, event_id)",
                    (run, then, "r", "", "{}", run),
                ),
            ):
                opened.execute(f"insert into {statement} values ({', '.join('?' * len(values))})", values)
    return path


OF_A_RUN = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "artifact_collection")


def left(path: Path) -> dict[str, set[str]]:
    """Table -> the runs of which it knows."""
    with closing(sqlite3.connect(path)) as opened:
        return {
            table: {one.split("-")[0] for (one,) in opened.execute(f"select id from {table}")}
            for table in (*OF_A_RUN, "events", "event_resources")
        }


def test_an_old_run_goes_with_all_that_is_of_it(database: Path):
    before = database.stat().st_size
    freed = retention.prune_database(database, 30)
    assert (freed.runs, freed.events) == (1, 2)
    assert freed.nbytes == before - database.stat().st_size > 90000
    kept = left(database)
    assert all(kept[table] == {"recent", "new", "on"} for table in OF_A_RUN)
    assert kept["events"] == kept["event_resources"] == {"recent", "new"}
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("pragma foreign_key_check").fetchall() == []
    assert retention.prune_database(database, 30) == retention.Freed(0, 0, 0)


def test_a_dry_run_deletes_nothing(database: Path):
    before = left(database)
    assert retention.prune_database(database, 10, dry_run=True) == retention.Freed(2, 3, 0)
    assert left(database) == before
    assert retention.prune_database(database, 1e300) == retention.Freed(0, 0, 0)


def test_a_database_in_use_or_damaged_is_left_alone(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "PREFECT", tmp_path)
    monkeypatch.setattr(server, "LOCK", tmp_path / "server.lock")
    monkeypatch.setattr(server, "alive", lambda: True)
    before = left(database)
    assert retention.prune(0) is None
    assert left(database) == before
    monkeypatch.setattr(server, "alive", lambda: False)
    database.write_bytes(b"no database" * 100)
    with pytest.raises(Failed, match="cannot be pruned: file is not a database"):
        retention.prune(0)
    database.unlink()
    assert retention.prune(0) is None


def test_the_next_run_is_the_first_that_is_still_to_come(database: Path, tmp_path: Path):
    now = datetime.now(UTC)
    assert retention.next_run(database) is None
    with closing(sqlite3.connect(database)) as opened, opened:
        for hours, state in ((-1, "SCHEDULED"), (1, "RUNNING"), (30, "SCHEDULED"), (6, "SCHEDULED")):
            then = (now + timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S.%f")
            opened.execute(
                "insert into flow_run (id, flow_id, name, state_type, expected_start_time) values (?, 'f', 'n', ?, ?)",
                (f"at-{hours}", state, then),
            )
    assert retention.next_run(database) == now + timedelta(hours=6)
    database.write_bytes(b"no database" * 100)
    assert retention.next_run(database) is retention.next_run(tmp_path / "none") is None
