"""README from top to bottom: a fresh clone of fedcore, an environment of one's own, and a project far from both."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from project import LIMIT, ROOT, Project, Said, forks, small

from fedcore.config.request import USER_STUDY
from scenarios.place import Place

METHODS = ("local_only", "fedavg", "fedprox", "analytic", "majority")


@dataclass(frozen=True)
class Environment:
    """A folder outside of the repository, and an environment `venv` in it, or another, for the commands there."""

    folder: Path
    venv: str = "venv"

    def make(self) -> None:
        """Make an environment that has what fedcore needs, not fedcore itself; its pip asks no package index."""
        venv = self.folder / self.venv
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib"))
        for name, words in (("pip", f"{sys.executable} -m pip --python {venv}/bin/python"), ("dvc", "python -m dvc")):
            (venv / "bin" / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (venv / "bin" / name).chmod(0o755)

    @property
    def packages(self) -> Path:
        return next((self.folder / self.venv / "lib").glob("*/site-packages"))

    def variables(self, **more: str) -> dict[str, str]:
        own = ("FEDCORE_", "PREFECT_", "MLFLOW_", "PYTHONPATH", "GIT_", "DVC_", "MAKE", "PIP_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        path = os.pathsep.join([str(self.folder / self.venv / "bin"), os.environ["PATH"]])
        pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return {**kept, **author, **pip, "PATH": path, "COLUMNS": "200", **more}

    def run(self, *command: str, where: str = ".", **more: str) -> Said:
        """Run a command in a new process."""
        env = self.variables(**more)
        done = subprocess.run(command, cwd=self.folder / where, env=env, capture_output=True, text=True, timeout=LIMIT)
        return Said(done.returncode, done.stdout, done.stderr)

    def fork(self, *words: str, where: str = "my-sites", module: str = "fedcore", **more: str) -> Said:
        """Run `python -m module words` in a fork (command_forks.py), which imports the environment's fedcore."""
        env = self.variables(PYTHONPATH=str(self.packages), **more)
        command = forks().start(module, words, self.folder / where, env, None, whole=False)
        out, err = command.communicate(LIMIT)
        return Said(command.wait(), out, err)


@dataclass(frozen=True)
class Installed:
    """runs: `make run` in the clone, and once more. tests: what `make test` would run there.

    wheel: the file, built as the project's requirements.txt says; required: by pip from that file. folder: where the
    clone, the environment and the project `my-sites` are. imported: where fedcore comes from; flows: what is said to
    the import of flows. made: by `fedcore init`; files: those of the project then.

    look, answer: of the first two runs; status: after them. promoted: the proposed model; grown: the same run on more
    rows, and the status after it; nights: two more, on rows that DVC tracks. predicted, aliases: by the project;
    pulled: by a clone of it, of which `dvc pull` brought the files; steps: what that computed; saved: it.
    restored: the clone; reproduced: a run on the first rows, made again; data_md5: the digest of its data;
    predicted_again, aliases_again, again: by the clone. staged: by `dvc repro data`. clean: what `git status` says of
    the project after `init`, the runs, and `dvc repro`.
    """

    runs: tuple[Said, Said]
    tests: Said
    wheel: Path
    required: Said
    folder: Path
    imported: Said
    flows: Said
    made: Said
    files: set[str]
    look: Said
    answer: Said
    repeated: Said
    status: Said
    promoted: Said
    grown: tuple[Said, Said]
    nights: list[Said]
    predicted: Said
    pulled: Said
    steps: list[Path]
    saved: Said
    restored: Said
    reproduced: Said
    data_md5: str | None
    predicted_again: Said
    aliases: tuple[Said, Said]
    again: Said
    staged: Said
    clean: tuple[Said, Said, Said]


def installed(place: Place) -> Installed:
    """What a stranger calls first is a new process each; the commands after that are forks, those of DVC too."""
    shared = {"PREFECT_API_URL": str(place.host.api), "PREFECT_API_AUTH_STRING": str(place.host.password)}
    folder = place.folder / "elsewhere"
    there = Environment(folder)
    clone_into(folder / "fedcore")
    there.make()
    said = there.run("pip", "install", ".[pipeline,trees]", "--constraint", "constraints.txt", where="fedcore")
    assert said.code == 0, said.err
    imported = there.run("python", "-c", "import fedcore; print(fedcore.__file__)")
    flows = there.run("python", "-c", "import flows")
    made = there.run(
        "fedcore", "init", "../my-sites", "--data", "examples/machines.csv", "--label", "fault", "--device", "site",
        where="fedcore",
    )  # fmt: skip
    project = folder / "my-sites"
    files = {path.relative_to(project).as_posix() for path in project.rglob("*")}

    def changes() -> Said:
        return there.run("git", "status", "--porcelain", where="my-sites")

    clean = [changes()]
    wheel, required = require(there)
    inside = Environment(folder / "fedcore", ".venv")
    inside.make()
    reduce_default(inside.folder)  # now that the wheel has the real settings
    runs = inside.run("make", "run", PIP_NO_DEPS="1", **shared), inside.run("make", "run", **shared)
    tests = inside.run("make", "--dry-run", "test")
    reduce(project)
    there.run("git", "add", "--all", where="my-sites")
    there.run("git", "commit", "--quiet", "--message", "A small study, and fedcore", where="my-sites")

    place.join(Project(project))
    try:
        look = there.run(
            "fedcore",
            "run",
            "seeds=[0,1,2]",
            "methods=[local_only,analytic_local,fedavg,fedprox,analytic]",
            where="my-sites",
        )
        answer = there.run("fedcore", "run", where="my-sites")
        repeated = there.run("fedcore", "run", where="my-sites")
        clean.append(changes())
        status = there.fork("status")
        promoted = there.fork("promote", "machines-fault")
        table = project / "data" / "machines.csv"
        grow(table, 1)
        grown = there.fork("run"), there.fork("status")
        nights = []
        for night in (2, 3):
            grow(table, night)
            there.fork("add", "data/machines.csv", module="dvc")
            nights.append(there.fork("run"))
        pd.read_csv(table).drop(columns="fault").to_csv(folder / "new.csv", index=False)
        predicted = there.fork("predict", "../new.csv")
        saved = there.fork("save", "../saved", "--cache")
        share(there)
        pulled = there.fork("predict", "../new.csv", where="clone")
        steps = [*(folder / "clone" / ".fedcore" / "steps").glob("*")]
        run, md5 = first_run(project / "mlflow.db", "fedavg seed 1")
        reproduced = there.fork("reproduce", run[:8], "--run", **shared)
        restored = there.fork("restore", "../saved", where="clone")
        predicted_again = there.fork("predict", "../new.csv", where="clone")
        aliases = there.fork("promote"), there.fork("promote", where="clone")
        again = there.fork("run", where="clone", **shared)  # a server of the clone's own takes eleven seconds
        staged = there.fork("repro", "data", module="dvc")
        clean.append(changes())
    finally:
        there.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop", where="my-sites")
    return Installed(
        runs, tests, wheel, required, folder, imported, flows, made, files, look, answer, repeated, status, promoted,
        grown, nights, predicted, pulled, steps, saved, restored, reproduced, md5, predicted_again, aliases, again,
        staged, (clean[0], clean[1], clean[2]),
    )  # fmt: skip


def first_run(database: Path, name: str) -> tuple[str, str | None]:
    """Return the id of the first run of a name, and its MD5 digest of data."""
    query = (
        "select run_uuid, value from runs left join tags using (run_uuid) where name = ? and key = 'data_md5' "
        "order by start_time"
    )
    with closing(sqlite3.connect(database)) as opened:
        run: tuple[str, str | None] = opened.execute(query, [name]).fetchone()
    return run


def share(there: Environment) -> None:
    """Commit the champion, share what DVC tracks by a remote, and clone the project."""
    git = ("add", "--all"), ("commit", "--quiet", "--message", "A champion"), ("clone", "--quiet", ".", "../clone")
    dvc = ("remote", "add", "--quiet", "--default", "store", "../store"), ("push", "--quiet")
    done = [there.fork(*words, module="dvc") for words in dvc]
    done += [there.run("git", *words, where="my-sites") for words in git]
    done.append(there.fork("pull", "--quiet", "--allow-missing", module="dvc", where="clone"))
    assert [said.code for said in done] == [0] * 6, [said.all for said in done]


def clone_into(folder: Path) -> None:
    """Clone the repository, with what is not committed yet."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        elif name:
            (folder / name).unlink(missing_ok=True)


def reduce_default(clone: Path) -> None:
    """Reduce the default study to seconds."""
    study = clone / "studies" / "code.yaml"
    studies = yaml.safe_load(study.read_text())
    params = yaml.safe_load((clone / "params.yaml").read_text())
    small(params | {"studies": studies})
    studies["code"]["methods"] = {"local_only": {}, "lmf": {}}
    for path, content in ((study, studies), (clone / "params.yaml", params)):
        path.write_text(yaml.safe_dump(content, sort_keys=False))


def require(there: Environment) -> tuple[Path, Said]:
    """Follow requirements.txt of the project; returns the wheel and what pip says that installs from it."""
    project = there.folder / "my-sites"
    lines = (project / "requirements.txt").read_text().splitlines()
    (build,) = (line.removeprefix("#").replace("PROJECT", "../my-sites") for line in lines if " pip wheel " in line)
    (install,) = (line.partition(": ")[2] for line in lines if "pip install " in line)
    said = there.run(*build.split(), where="fedcore")
    assert said.code == 0, said.err
    (wheel,) = (project / "wheels").iterdir()
    return wheel, there.run(*install.split(), "--no-deps", "--target", "../required", where="my-sites")


def reduce(project: Path) -> None:
    """Reduce the study of all methods to a few, one learning rate and three seeds."""
    study = project / "studies" / f"{USER_STUDY}.yaml"
    studies = yaml.safe_load(study.read_text())
    rows = {name: row for name, row in studies[USER_STUDY]["methods"].items() if name in METHODS}
    studies[USER_STUDY] |= {"methods": rows, "new_device": "shared"}
    studies[USER_STUDY]["sizes"]["small"]["set"]["run.lr_factors"] = []
    study.write_text(yaml.safe_dump(studies, sort_keys=False))
    params = project / "params.yaml"
    text, count = re.subn(r"(?<=  seeds:\n)(  - \d+\n)+", "  - 0\n  - 1\n  - 2\n", params.read_text())
    assert count == 1
    params.write_text(text)


def grow(table: Path, night: int) -> None:
    """Append 80 rows like those of examples/machines.csv."""
    rows = pd.DataFrame(np.random.default_rng(night).normal(size=(80, 3)), columns=["load", "heat", "speed"])
    rows.insert(0, "site", np.array(["a", "b", "c", "d"])[np.arange(80) % 4])
    rows["fault"] = np.where(rows["load"] + rows["heat"] > 0, "yes", "no")
    rows.to_csv(table, mode="a", index=False, header=False)
