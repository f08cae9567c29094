"""The data's versions: a fresh clone that pulls has everything and runs nothing, and older data come back."""

import copy
import json
import re
import shutil
import sys
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from project import ROOT
from scenarios import Repro

from fedcore.pipeline.environment import processor_name


def test_a_fresh_clone_pulls_what_was_pushed(repro: Repro):
    assert repro.clone.pulled.outs == repro.first.outs
    assert len(repro.first.outs) > 8


def test_a_fresh_clone_runs_nothing(repro: Repro):
    again = repro.clone.again
    assert again.said is not None
    assert "Running stage" not in again.said.out
    assert again.said.out.count("didn't change, skipping") == 5
    assert again.steps == []
    assert again.outs == repro.first.outs
    assert again.record == dict.fromkeys(again.record, 0)


def test_a_reworded_claim_concerns_the_comparison_alone(repro: Repro):
    assert set(repro.reworded) == {"compare"}


def test_a_setting_that_no_study_uses_runs_the_plan_alone(repro: Repro):
    assert set(repro.foreign[0]) == {"plan"}
    assert repro.foreign[1] == {}


def test_a_changed_setting_is_planned_though_the_run_cache_has_the_other(repro: Repro):
    """DVC's run cache looks at no parameter that is named `size` or `nfiles` (its issue 10296)."""
    first, *changed, last = repro.planned
    assert first == last
    assert len({first, *changed}) == 1 + len(changed)


@pytest.mark.slow
def test_each_setting_is_an_input_of_the_plan_to_the_run_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also one named `size` or `nfiles`, at any depth."""
    from dvc.repo import Repo
    from dvc.stage.cache import _get_stage_hash

    shutil.copyfile(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    for name in ("studies", "fedcore", "tasks", "flows"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True).close()
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["net"]["deep"] = {"size": 1, "nfiles": 1}

    def key(changed: dict[str, Any]) -> str:
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
        with Repo() as repo:
            stage = repo.stage.load_one("dvc.yaml", "plan")
            stage.save_deps()
            return str(_get_stage_hash(stage))

    first = key(params)
    settings = [*paths_of(params)]
    assert {("run", "size"), ("net", "deep", "size"), ("net", "deep", "nfiles")} <= {*settings}
    unseen = []
    for path in settings:
        changed = copy.deepcopy(params)
        section = reduce(getitem, path[:-1], changed)
        section[path[-1]] = "another"
        if key(changed) == first:
            unseen.append(path)
    assert unseen == []


def paths_of(section: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting."""
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from ((name, *rest) for rest in paths_of(value))
        else:
            yield (name,)


def test_other_data_are_another_version(repro: Repro):
    changed = {path for path in repro.clone.changed.outs if path not in repro.first.outs}
    assert {path.split("/")[-1] for path in changed} == {"dataset.safetensors", "card.json"}
    assert all(path.startswith("data/code/table-") for path in changed)
    assert not any(path.startswith("data/code/digits-") for path in repro.clone.changed.outs)


def test_checkout_brings_older_data_back(repro: Repro):
    assert repro.clone.back.outs == repro.first.outs
    assert repro.clone.changed.outs != repro.first.outs


def test_the_card_says_what_the_data_are(repro: Repro):
    (path,) = (repro.project.folder / "pipeline" / "data" / "code").glob("*/card.json")
    card = json.loads(path.read_text())
    assert card["classes"] == list("0123456789")
    assert card["shape"] == [1, 8, 8]
    assert card["examples"] == 1797


def test_outputs_name_no_folder_and_no_user_of_this_machine(repro: Repro):
    words = [str(repro.project.folder), sys.prefix, "mlflow.user"]
    outputs = [path for path in (repro.project.folder / "pipeline").rglob("*.*") if path.is_file()]
    assert len(outputs) > 8
    assert [path for path in outputs if any(word.encode() in path.read_bytes() for word in words)] == []


def test_the_lock_names_its_processor(repro: Repro):
    model, instructions = (repro.project.folder / "dvc.processor").read_text().strip().rsplit(", ", 1)
    assert model == processor_name()
    assert instructions == torch.backends.cpu.get_cpu_capability()
    assert "dvc.processor" in (repro.project.folder / "dvc.lock").read_text()


def test_metrics_name_their_methods_and_plots_draw_curves(repro: Repro):
    shown = json.loads(repro.project.run("dvc", "metrics", "show", "--json").out)
    numbers = shown[""]["data"]["pipeline/compare/metrics.json"]["data"]
    assert [*numbers] == ["code"]
    assert [*numbers["code"]] == ["metric", "best", "gain", "methods"]
    assert numbers["code"]["best"]["value"] == numbers["code"]["methods"][numbers["code"]["best"]["method"]]
    assert "local_only" in numbers["code"]["methods"]
    page = (repro.project.folder / "dvc_plots" / "index.html").read_text()
    assert 'src="static/' in page
    assert "code-base.png" in page
    assert {'"field": "round"', '"field": "value"', '"field": "method"'} <= {*re.findall('"field": "[a-z]+"', page)}


def test_experiments_are_compared_in_a_few_columns(repro: Repro):
    """Without --only-changed DVC lists every setting of params.yaml, whatever dvc.yaml says."""
    assert {"code_ot.reg", "code.methods.code_ot"} <= {*repro.columns}
    assert len(repro.columns) <= 20


def test_no_output_holds_seconds_or_dates(repro: Repro):
    """Else a stage that finds the same would look changed."""
    found = repro.clone.project.folder / "pipeline"
    for name in (
        "federate/code/code-0/models.json",
        "federate/code/code-0/runs.json",
        "compare/metrics.json",
        "compare/curves/code.csv",
    ):
        text = (found / name).read_text()
        assert not {"wall", "cpu", "seconds", "time", "date", "2026"} & set(text.replace('"', " ").split())


@pytest.mark.slow
def test_a_stage_depends_on_its_own_code_alone():
    """Prefect's and MLflow's stores are no outputs, and every stage lists the code that it runs."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["plan", "data", "partition", "federate", "compare"]
    outs = [
        str(out) for stage in stages.values() for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])
    ]
    assert outs
    assert not [out for out in outs for store in ("mlflow", "mlruns", ".fedcore", "runs/") if store in out]
    for name, stage in stages.items():
        assert name == "plan" or any(dep.startswith("flows/") for dep in stage["deps"]), name
    assert {"fedcore", "tasks", "flows/federate.py"} <= set(stages["federate"]["deps"])
    assert not any("claims" in stage["deps"] for name, stage in stages.items() if name != "compare")


@pytest.mark.slow
def test_dvc_does_not_track_the_caches():
    ignored = (ROOT / ".dvcignore").read_text().split()
    assert {"__pycache__", "*.pyc"} <= set(ignored)
