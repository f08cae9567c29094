"""What stage plan of `dvc repro` says of files that settings name and dvc.yaml does not."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from project_params import ROOT, ask, copied, points

from fedcore.pipeline.cache import keys
from fedcore.pipeline.run import outputs

NET = """from torch import nn
from {} import WIDTH

class Small(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], WIDTH), nn.Linear(WIDTH, classes))
"""
FILES = {
    "base.safetensors": "", "data/a.csv": "", "data/b.csv": "", "sets/one": "", "photos/one.png": "", "ids.csv": "",
    "missed_nets.py": NET.format("missed_widths"), "missed_widths.py": "WIDTH = 4\n", "missed/__init__.py": "",
    "missed/losses.py": "def loss(batch):\n    return batch.logits.sum()\n",
    "missed_data.py": "def read(path, ids, also=()):\n    ...\n", "fedavg": "", "table": "", "y": "",
}  # fmt: skip
"""The last three have names that settings have as words."""
TABLE = {"data.name": "table", "data.label": "y", "data.path": "data/a.csv"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    keys._find.cache_clear()
    for name in [name for name in sys.modules if name.startswith("missed")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def missed(changes: dict[str, Any], path: str = "data") -> list[tuple[str, str]]:
    """Return the files of which stage plan says that a stage misses their changes, each with the stage."""
    params = copied()
    params["data"]["path"] = path
    of = points(ask(params, {"fedavg": {}}, grid=changes.pop("grid", {}), set=changes))
    lines = [line.split('"') for line in outputs.missed_files(params, of)]
    assert {line[0] for line in lines} <= {"dvc.yaml: add "}
    return [(line[1].removeprefix("- "), line[2].split(",")[0].removeprefix(" to deps of stage ")) for line in lines]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"net.weights": "base.safetensors"}, [("base.safetensors", "federate")]),
        ({"net.name": "missed_nets:Small"}, [("missed_nets.py", "federate"), ("missed_widths.py", "federate")]),
        ({"training.loss": "missed.losses:loss"}, [("missed", "federate")]),
        ({**TABLE, "grid": {"data.path": ["data/a.csv", "data/b.csv"]}}, [("data/b.csv", "data")]),
        (
            {"data.name": "mnist_m", "data.root": "sets", "data.photos": "photos"},
            [("sets", "data"), ("photos", "data")],
        ),
        (
            {
                "data.name": "missed_data:read",
                "data.path": "data/a.csv",
                "data.ids": "ids.csv",
                "data.also": ["data/b.csv"],
            },
            [("ids.csv", "data"), ("data/b.csv", "data"), ("missed_data.py", "data")],
        ),
        ({"data.name": "table", "data.label": "y", "data.path": "../elsewhere.csv"}, []),
    ],
)
def test_the_plan_names_each_file_whose_change_dvc_would_miss(project: Path, changes: Any, expected: list[Any]):
    (project.parent / "elsewhere.csv").write_text("")
    assert sorted(missed(dict(changes), "data/a.csv")) == sorted(expected)


def test_the_plan_names_no_file_that_a_dep_covers(project: Path):
    config = yaml.safe_load(Path("dvc.yaml").read_text())
    config["stages"]["data"]["deps"] += ["./ids.csv", {"missed_data.py": {"cache": False}}]
    config["stages"]["federate"]["deps"].append(str(project / "base.safetensors"))
    Path("dvc.yaml").write_text(yaml.dump(config))
    own = {"data.name": "missed_data:read", "data.ids": "ids.csv", "data.path": "data/b.csv"}
    assert missed({**own, "net.weights": "base.safetensors"}, "data") == []


@pytest.mark.parametrize(
    "text",
    [None, "", "stages: 3", "stages: {federate: {foreach: []}}", "stages: {federate: {deps: [1]}}"],
)
def test_a_plan_without_stages_of_dvc_names_no_file(project: Path, text: str | None):
    Path("dvc.yaml").unlink()
    if text is not None:
        Path("dvc.yaml").write_text(text)
    assert missed({"net.weights": "base.safetensors"}) == []


def test_the_plan_writes_a_loss_by_its_place_and_names_its_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    params = ask(copied(), {"fedavg": {}}, set={"training.loss": "missed.losses:loss"})
    params["run"]["studies"] = ["asked"]
    monkeypatch.setattr(outputs, "read", lambda: params)
    outputs.write_plan()
    words = 'add "- missed" to deps of stage federate, or dvc repro misses a change of it'
    assert capsys.readouterr().out == f"fedcore: dvc.yaml: {words}\n"
    (setting,) = json.loads(Path("pipeline/plan/federate/asked.json").read_text())["settings"]
    assert setting["methods"][0]["training"]["loss"] == "missed.losses:loss"


@pytest.mark.parametrize(("study", "chooses"), [("my_data", True), ("hostile", False)])
def test_a_stage_that_chooses_by_a_rule_runs_again_if_it_changes(
    project: Path, monkeypatch: pytest.MonkeyPatch, study: str, chooses: bool
) -> None:
    """Rates, rows that stop and rows that are left out are chosen in stage federate."""
    params, plans = copied(), list[str]()
    for weigh, least in (("devices", 0), ("examples", 0), ("devices", 5)):
        params["run"] |= {"studies": [study], "weigh": weigh, "least_test": least}
        monkeypatch.setattr(outputs, "read", lambda: params)
        outputs.write_plan()
        plans.append((outputs.PIPELINE / f"plan/federate/{study}.json").read_text())
    assert len({*plans}) == (3 if chooses else 1)
