"""A project of one's own: from a wheel, in a fresh environment, far from fedcore's own repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asked import ROOT
from ruamel.yaml import YAML

from fedcore import __version__
from fedcore.cli import init
from fedcore.cli.main import main
from fedcore.config import nightly
from fedcore.config.request import USER_STUDY

pytestmark = pytest.mark.slow

METHODS = ["local_only", "fedavg", "analytic", "majority"]
RUN = ("fedcore", "run", f"methods=[{','.join(METHODS)}]", "seeds=[0,1]", "run.lr_factors=[]", "run.new_device=shared")


@dataclass(frozen=True)
class Installed:
    """The wheel, and a folder outside of the repository with an environment that has it."""

    wheel: Path
    folder: Path

    def run(self, *command: str, where: str = ".") -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder / "venv" / "bin"), os.environ["PATH"]])
        own = ("FEDCORE_", "PREFECT_", "MLFLOW_", "PYTHONPATH", "GIT_", "DVC_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return subprocess.run(
            command, cwd=self.folder / where, env={**kept, **author, "PATH": path, "COLUMNS": "200"},
            capture_output=True, text=True, timeout=1200,
        )  # fmt: skip


def rows(count: int = 320) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(count, 3)), columns=["load", "heat", "speed"])
    table["site"] = np.array(["a", "b", "c", "d"])[np.arange(count) % 4]
    table["state"] = np.where(table["load"] + table["heat"] > 0, "fault", "ok")
    return table


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("elsewhere")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*build, str(folder), str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    packages = next((folder / "venv" / "lib").glob("*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # what fedcore needs; not fedcore itself
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    rows().to_csv(folder / "machines.csv", index=False)
    return Installed(wheel, folder)


@pytest.fixture(scope="module")
def project(installed: Installed) -> Iterator[Installed]:
    made = installed.run(
        "fedcore", "init", "my-sites", "--data", "machines.csv", "--label", "state", "--device", "site"
    )
    assert (made.returncode, made.stderr) == (0, "")
    yield installed
    installed.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop", where="my-sites")


def test_the_wheel_installs_one_package(installed: Installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"fedcore", f"fedcore-{__version__}.dist-info"}
    where = installed.run("python", "-c", "import fedcore; print(fedcore.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed.folder)
    flows = installed.run("python", "-c", "import flows")
    assert "No module named 'flows'" in flows.stderr


def test_the_template_is_the_repositorys_own(installed: Installed):
    with zipfile.ZipFile(installed.wheel) as wheel:
        found = {name.removeprefix("fedcore/template/") for name in wheel.namelist() if "/template/" in name}
        assert {"params.yaml", "dvc.yaml", "flows/federate.py", "tasks/train.py", ".gitignore"} <= found
        for name in found:
            assert wheel.read(f"fedcore/template/{name}") == (ROOT / name).read_bytes()


def test_a_project_has_what_its_commands_need(project: Installed):
    folder = project.folder / "my-sites"
    params = YAML(typ="safe").load(folder / "params.yaml")
    assert (
        params["data"] | {"name": "table", "path": "data/machines.csv", "label": "state", "device": "site"}
        == (params["data"])
    )
    assert params["run"]["studies"] == [USER_STUDY] == [init.STUDY]
    assert len((folder / "params.yaml").read_text().splitlines()) < 100
    assert len((folder / "README.md").read_text().splitlines()) <= 20
    stages = YAML(typ="safe").load(folder / "dvc.yaml")["stages"]
    made = {out.split("$")[0].rstrip("/") for stage in stages.values() for out in stage["outs"]}
    for stage in stages.values():
        for dep in stage["deps"]:
            assert "$" in dep or (folder / dep).exists() or any(dep.startswith(out) for out in made), dep
    assert project.run("git", "status", "--porcelain", where="my-sites").stdout == ""


@pytest.fixture(scope="module")
def answered(project: Installed) -> str:
    """Run the project once; returns what it prints."""
    done = project.run(*RUN, where="my-sites")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_run_answers_and_leaves_the_repository_clean(project: Installed, answered: str):
    assert f"{USER_STUDY}: base (machines):" in answered
    assert "page: runs/" in answered
    assert project.run("git", "status", "--porcelain", where="my-sites").stdout == ""
    shown = project.run("fedcore", "status", where="my-sites").stdout
    assert f"fedcore    {__version__}" in shown
    assert "free disk" in shown


@pytest.mark.usefixtures("answered")
def test_a_champion_is_challenged_on_data_that_have_grown(project: Installed):
    """On test rows that trained neither, fewer than a fifth; the champion itself was fitted to all rows of its day."""
    place = project.folder / "my-sites" / "data" / "machines.csv"
    promoted = project.run("fedcore", "promote", "machines-state", where="my-sites")
    assert "it is the first champion" in promoted.stdout, promoted.stderr
    old = place.read_text()
    place.write_text(old + rows(400)[320:].to_csv(index=False, header=False))
    said = project.run(*RUN, where="my-sites").stdout
    place.write_text(old)
    (count,) = re.findall(r"better than the champion, .* on (\d+) rows of 4 devices that trained neither", said)
    assert 20 <= int(count) <= 0.2 * 400
    assert f"on {count} rows" in project.run("fedcore", "status", where="my-sites").stdout


@pytest.mark.usefixtures("answered")
def test_a_restored_clone_predicts_the_same_and_computes_nothing(project: Installed):
    project.run("fedcore", "promote", "machines-state", where="my-sites")  # unless it is promoted already
    rows().drop(columns="state").to_csv(project.folder / "new.csv", index=False)
    predicted = project.run("fedcore", "predict", "../new.csv", where="my-sites")
    assert predicted.returncode == 0, predicted.stderr
    saved = project.run("fedcore", "save", "../saved", "--cache", where="my-sites")
    assert (saved.returncode, saved.stderr) == (0, "")
    assert project.run("git", "clone", "--quiet", "my-sites", "clone").returncode == 0
    restored = project.run("fedcore", "restore", "../saved", where="clone")
    assert (restored.returncode, restored.stderr) == (0, "")
    again = project.run("fedcore", "predict", "../new.csv", where="clone")
    assert (again.stdout, again.returncode) == (predicted.stdout, 0), again.stderr
    aliases = [project.run("fedcore", "promote", where=where).stdout for where in ("my-sites", "clone")]
    assert aliases[0] == aliases[1]
    done = project.run(*RUN, where="clone")
    project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop", where="clone")
    counts = [int(count) for count in re.findall(r" (\d+)/\d+", done.stdout.partition("steps computed: ")[2])]
    assert (done.returncode, sum(counts)) == (0, 0), done.stdout


def test_a_stage_runs_in_the_project(project: Installed):
    done = project.run("dvc", "repro", "partition", where="my-sites")
    assert done.returncode == 0, done.stderr
    assert [*(project.folder / "my-sites" / "pipeline" / "partition").rglob("who.csv")]
    assert project.run("git", "status", "--porcelain", where="my-sites").stdout.split() in ([], ["??", "dvc.lock"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["full"], "full: is not empty; give a new folder"),
        (["new", "--data", "none.csv", "--label", "y"], "--data = none.csv: no such file or folder"),
        (["new", "--data", "t.csv"], "--label: must name the column to predict"),
        (["new", "--data", "t.csv", "--label", "z"], "--label = 'z': t.csv has no such column; it has x, y"),
        (["new", "--data", "t.csv", "--label", "y", "--device", "z"], "--device = 'z': t.csv has no such column"),
        (["new", "--data", "t.xlsx", "--label", "y"], "--data = t.xlsx: must be a file of .csv or .tsv or .parquet"),
        (["new", "--label", "y"], "--label = 'y': names a column of --data, which is not given"),
    ],
)
def test_what_no_project_can_be_made_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(SystemExit) as leaving:
        main(["init", *words])
    assert leaving.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_project_without_data_runs_the_embedded_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    main(["init", "empty"])
    params = YAML(typ="safe").load(tmp_path / "empty" / "params.yaml")
    assert params["data"]["name"] == "digits"
    assert params["federation"]["devices"] == 16
    shutil.rmtree(tmp_path / "empty")


def test_the_units_of_a_schedule_are_those_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    main(["init", "plain"])
    assert not (tmp_path / "plain" / "nightly.yaml").exists()
    main(["init", "own", "--nightly"])
    assert nightly.read(tmp_path / "own").retries == 2
    ops = tmp_path / "own" / "ops"
    service = (ops / "fedcore.service").read_text()
    assert f"WorkingDirectory={tmp_path / 'own'}\n" in service
    assert "FOLDER" not in service + (ops / "fedcore.timer").read_text()
    assert "promote=true" in (ops / "Containerfile").read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are not verified")
    units = [str(ops / name) for name in ("fedcore.service", "fedcore.timer")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_large_data_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "LARGE", 3)
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    main(["init", "far", "--data", "t.csv", "--label", "y"])
    params = YAML(typ="safe").load(tmp_path / "far" / "params.yaml")
    assert params["data"]["path"] == str(tmp_path / "t.csv")
    assert [*(tmp_path / "far" / "data").iterdir()] == []


@pytest.mark.parametrize(("rows", "seeds", "batch"), [(100, 10, 16), (20_000, 5, 16), (60_000, 3, 64)])
def test_seeds_and_batch_are_by_the_number_of_rows(tmp_path: Path, rows: int, seeds: int, batch: int):
    (tmp_path / "made.csv").write_text("a,site,fault\n" + "1,x,yes\n" * rows)
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "made.csv"), "--label", "fault"])
    params = YAML(typ="safe").load(tmp_path / "own" / "params.yaml")
    assert (params["run"]["seeds"], params["training"]["batch"]) == ([*range(seeds)], batch)


def test_a_columns_name_may_hold_a_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text('"load, kN",y\n1,2\n')
    main(["init", "quoted", "--data", "t.csv", "--label", "load, kN"])
    assert YAML(typ="safe").load(tmp_path / "quoted" / "params.yaml")["data"]["label"] == "load, kN"


def test_several_labels_are_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,leak,worn\n1,0,1\n2,1,0\n")
    main(["init", "own", "--data", "t.csv", "--label", "leak", "--label", "worn"])
    text = (tmp_path / "own" / "params.yaml").read_text()
    assert YAML(typ="safe").load(text)["data"]["label"] == ["leak", "worn"]
    assert "fedcore promote t-leak-worn" in (tmp_path / "own" / "README.md").read_text()
