"""What computes a run's steps, by section run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from project_params import copied, refusal

from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, run_section
from fedcore.core.training import Training
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Workers
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.orchestration.engine import choose_engine, own_modules


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
