"""The history of a project: what a run appends to it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from answer_tables import CONTROLS, plus, table

from fedcore.data import Dataset
from fedcore.pipeline import environment

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.record.registry import Versions
from fedcore.pipeline.run import history
from fedcore.results.answer import answers
from fedcore.types.federation import Data


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(history, "HISTORY", tmp_path / "runs" / "history.jsonl")
    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(
        history.registry, "read", lambda: {"machines": Versions(aliases={"champion": "7"}, challenge="better? no")}
    )
    return history.HISTORY


def line(result: str = "r", date: str = "2026-01-01T02:00:00+00:00", **more: Any) -> history.Line:
    return {
        "date": date, "study": "s", "size": "small", "setting": "base", "data": "d", "task": "machines",
        "result": result, "champion": None, **more,
    }  # fmt: skip


def test_a_line_is_completed_by_the_champion_and_kept_once_a_day(file: Path):
    history.append([line(), line(study="t")])
    history.append([line(date="2026-01-01T23:00:00+00:00")])
    assert [(one["study"], one["champion"]) for one in history.read()] == [("s", "7"), ("t", "7")]
    assert {one["challenge"] for one in history.read()} == {"better? no"}
    history.append([line(date="2026-01-02T02:00:00+00:00"), line("another")])
    assert [one["date"][8:10] for one in history.read()] == ["01", "01", "02", "01"]


def test_half_a_line_is_no_line_and_the_next_one_is_whole(file: Path):
    history.append([line()])
    with file.open("ab") as opened:
        opened.write(b'{"date": "2026-01-02T')
    history.append([line("another")])
    assert [one["result"] for one in history.read()] == ["r", "another"]
    assert file.read_bytes().endswith(b"\n")


def test_nothing_is_written_without_lines(file: Path):
    history.append([])
    assert not file.exists()
    assert history.read() == []


def test_a_line_has_the_answer_and_what_this_run_computed(tmp_path: Path):
    store = Store(tmp_path)
    ref: Any = store.put(Dataset(Data(torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)), None, ("a", "b")))
    scores = table({"local_only": plus(0.0), "fedavg": plus(0.1)})
    told = answers(scores, CONTROLS)
    ((study, _, setting),) = told
    steps = (SimpleNamespace(key="train", cached=False, wall=2.0), SimpleNamespace(key="read", cached=True, wall=50.0))
    made: Any = [
        SimpleNamespace(
            setting=SimpleNamespace(study=study, name=setting, data_name="m", model_name="m-y"),
            size="small", seed=seed,
            prepared=SimpleNamespace(dataset=ref, partition=SimpleNamespace(digest=f"p{seed}")),
            fed=SimpleNamespace(devices={"a": 0, "b": 0}), steps=steps, config=f"c{seed}", digest=f"r{seed}",
            row=SimpleNamespace(label=row), table=scores[(scores["method"] == row) & (scores["seed"] == seed)],
        )
        for seed in (1, 0) for row in ("fedavg", "local_only")
    ]  # fmt: skip
    (found,) = history.lines_of(made, told, store)
    assert (found["action"], found["method"], found["rows"], found["devices"]) == ("use", "fedavg", 5, 2)
    assert (found["seconds"], found["seeds"], found["data"]) == (2.0, [0, 1], ref.digest)
    assert found["value"] == found["best_value"] == pytest.approx(0.75)
    assert found["alone_value"] == pytest.approx(0.65)
    assert found["worst"] == pytest.approx(0.7)
    assert found["sites"] == pytest.approx({"d00": 0.81, "d01": 0.7})
    assert found["gain_low"] <= found["gain"] == pytest.approx(0.1)
    (again,) = history.lines_of(made[::-1], told, store)
    assert again["result"] == found["result"]
