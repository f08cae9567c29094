"""A project of one's own, made by an installed wheel: its files, answers, grown data and clone."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

from project import ROOT
from ruamel.yaml import YAML
from scenarios import Installed

from fedcore import __version__
from fedcore.cli import init
from fedcore.config.request import USER_STUDY


def test_make_run_answers_in_a_fresh_clone_and_then_computes_nothing(installed: Installed):
    first, second = installed.runs
    assert (first.code, second.code, second.err) == (0, 0, ""), first.all
    assert "first use: installing into .venv" in first.out
    assert "code (digits): " in first.out
    last = first.out.splitlines()[-2:]
    assert second.out.splitlines() == last
    assert last[0].startswith("code: ")
    assert "page: results/report.html" in last[1]


def test_make_test_runs_every_folder_and_file_of_tests_once(installed: Installed):
    assert installed.tests.code == 0, installed.tests.err
    ran, left = [], []
    for line in installed.tests.out.splitlines():
        if "/pytest " in line:
            words = line.partition("/pytest ")[2].split()
            named = [word for word in words if word.startswith("tests/")]
            (left if "--ignore" in words else ran).extend(named)
    assert sorted(ran) == sorted(left)
    assert len({*ran}) == len(ran) > 5
    assert [path for path in ran if not (ROOT / path).exists()] == []


def test_a_project_says_how_to_install_its_version(installed: Installed):
    assert installed.required.code == 0, installed.required.all
    assert (installed.folder / "required" / f"fedcore-{__version__}.dist-info").is_dir()


def test_the_wheel_installs_one_package(installed: Installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"fedcore", f"fedcore-{__version__}.dist-info"}
    assert Path(installed.imported.out.strip()).is_relative_to(installed.folder)
    assert "No module named 'flows'" in installed.flows.err


def test_the_template_is_the_repositorys_own(installed: Installed):
    with zipfile.ZipFile(installed.wheel) as wheel:
        found = {name.removeprefix("fedcore/template/") for name in wheel.namelist() if "/template/" in name}
        assert {"params.yaml", "dvc.yaml", "flows/federate.py", "tasks/train.py", ".gitignore"} <= found
        for name in found:
            assert wheel.read(f"fedcore/template/{name}") == (ROOT / name).read_bytes()


def test_a_project_has_what_its_commands_need(installed: Installed):
    assert (installed.made.code, installed.made.err) == (0, "")
    folder = installed.folder / "my-sites"
    params = YAML(typ="safe").load(folder / "params.yaml")
    assert (
        params["data"] | {"name": "table", "path": "data/machines.csv", "label": "fault", "device": "site"}
        == (params["data"])
    )
    assert params["run"]["studies"] == [USER_STUDY] == [init.STUDY]
    assert len((folder / "params.yaml").read_text().splitlines()) < 125
    assert len((folder / "README.md").read_text().splitlines()) <= 20
    stages = YAML(typ="safe").load(folder / "dvc.yaml")["stages"]
    outs = [out if isinstance(out, str) else next(iter(out)) for stage in stages.values() for out in stage["outs"]]
    made = {out.split("$")[0].rstrip("/") for out in outs}
    for stage in stages.values():
        for dep in stage["deps"]:
            assert "$" in dep or dep in installed.files or any(dep.startswith(out) for out in made), dep
    assert (installed.clean[0].code, installed.clean[0].all) == (0, "")


def test_a_run_answers_and_leaves_the_repository_clean(installed: Installed):
    look, answer = installed.look, installed.answer
    assert (look.code, look.err) == (0, "")
    assert "so far" in look.out
    assert f"{USER_STUDY} (machines): " in look.out
    assert re.search(r"^0 steps computed, [1-9]\d* from the cache$", answer.out, re.M), "of the first look"
    assert (answer.code, answer.err) == (0, "")
    assert f"{USER_STUDY} (machines):" in answer.out
    assert "page: runs/" in answer.out
    unchanged, _, result = installed.repeated.out.partition("\n\n")
    assert unchanged.startswith("nothing has changed since ")
    assert re.sub("saving the record.*\n", "", answer.out).endswith(result)
    assert (installed.clean[1].code, installed.clean[1].all) == (0, "")
    assert re.match(rf"fedcore +{__version__}\n", installed.status.out)
    assert "free disk" in installed.status.out


def test_a_champion_is_challenged_on_data_that_have_grown(installed: Installed):
    """On test rows that trained neither, fewer than a fifth; the champion itself was fitted to all rows of its day."""
    assert "it is the first champion" in installed.promoted.out, installed.promoted.err
    said, status = installed.grown
    pattern = r"better than .*champion.* on (\d+) rows of ([1-4]) devices?, new to both models"
    ((count, _),) = re.findall(pattern, said.out)  # of those with as many rows as count
    assert 20 <= int(count) <= 0.2 * 400
    assert f"on {count} rows" in status.out


def test_a_clone_predicts_the_same_by_what_dvc_brings(installed: Installed):
    """After three nights with new rows. Nothing is computed there: it has no cache and no record."""
    assert [(said.code, "since DVC tracked it" in said.out) for said in installed.nights] == [(0, False)] * 2
    assert len((installed.folder / "my-sites/data/machines.csv").read_text().splitlines()) == 1 + 320 + 3 * 80
    assert (installed.pulled.code, installed.pulled.out, installed.steps) == (0, installed.predicted.out, [])
    project, clone = (installed.folder / name for name in ("my-sites", "clone"))
    assert {"data/machines.csv", "champions/machines-fault"} & tracked_by_git(project) == set()
    assert {"data/machines.csv.dvc", "champions/machines-fault.dvc"} <= tracked_by_git(project)
    assert (clone / "data/machines.csv").read_bytes() == (project / "data/machines.csv").read_bytes()
    assert "data/machines.csv has changed since DVC tracked it" in installed.grown[0].out
    assert "since DVC tracked it" not in installed.answer.out


def tracked_by_git(folder: Path) -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=folder, check=True, capture_output=True, text=True)
    return {*listed.stdout.split()}


def test_a_run_is_made_again_with_the_same_result(installed: Installed):
    """In a clone with an empty cache, on the data of that day, which has grown since."""
    assert (installed.reproduced.code, installed.reproduced.err) == (0, ""), installed.reproduced.all
    (folder,) = installed.folder.glob("my-sites-????????")
    assert re.search(r"^the same result: [0-9a-f]{40}$", installed.reproduced.out, re.MULTILINE)
    assert (folder / "data/machines.csv").read_bytes() == (ROOT / "examples" / "machines.csv").read_bytes()
    assert installed.data_md5 is not None
    assert installed.data_md5 in (folder / "data/machines.csv.dvc").read_text()


def test_a_restored_clone_predicts_the_same_and_computes_nothing(installed: Installed):
    for said in (installed.saved, installed.restored):
        assert (said.code, said.err) == (0, "")
    assert installed.predicted.code == 0, installed.predicted.err
    assert (installed.predicted_again.out, installed.predicted_again.code) == (installed.predicted.out, 0)
    assert installed.aliases[0].out == installed.aliases[1].out != ""
    counts = re.findall(r"^(\d+) steps computed, [1-9]", installed.again.out, re.MULTILINE)
    assert (installed.again.code, counts) == (0, ["0"]), installed.again.all


def test_a_stage_runs_in_the_project(installed: Installed):
    assert installed.staged.code == 0, installed.staged.err
    (card,) = (installed.folder / "my-sites" / "pipeline" / "data").rglob("card.json")
    assert json.loads(card.read_text())["classes"] == ["no", "yes"]
    assert installed.clean[2].out.split() in ([], ["??", "dvc.lock"])
