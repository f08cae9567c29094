"""A project of one's own: from a wheel, in a fresh environment, far from fedcore's own repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from project import LIMIT, ROOT, Project, Said, nursery

from scenarios.place import Place

METHODS = ["local_only", "fedavg", "analytic", "majority"]
RUN = ("fedcore", "run", f"methods=[{','.join(METHODS)}]", "seeds=[0,1]", "run.lr_factors=[]", "run.new_device=shared")


@dataclass(frozen=True)
class Environment:
    """An environment that has the wheel, in a folder outside of the repository."""

    folder: Path

    @property
    def packages(self) -> Path:
        return next((self.folder / "venv" / "lib").glob("*/site-packages"))

    def variables(self, **more: str) -> dict[str, str]:
        own = ("FEDCORE_", "PREFECT_", "MLFLOW_", "PYTHONPATH", "GIT_", "DVC_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        path = os.pathsep.join([str(self.folder / "venv" / "bin"), os.environ["PATH"]])
        return {**kept, **author, "PATH": path, "COLUMNS": "200", **more}

    def run(self, *command: str, where: str = ".") -> Said:
        """Run a command in a new process."""
        done = subprocess.run(
            command, cwd=self.folder / where, env=self.variables(), capture_output=True, text=True, timeout=LIMIT
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def fork(self, *words: str, where: str = "my-sites", **more: str) -> Said:
        """Run `fedcore words` in a fork (nursery.py), which imports the environment's fedcore."""
        env = self.variables(PYTHONPATH=str(self.packages), **more)
        command = nursery().start("fedcore", words, self.folder / where, env, None, whole=False)
        out, err = command.communicate(LIMIT)
        return Said(command.wait(), out, err)


@dataclass(frozen=True)
class Installed:
    """wheel: the file. folder: where the environment and the project `my-sites` are. imported: where fedcore comes
    from; flows: what is said to the import of flows. made: by `fedcore init`; files: those of the project then.

    answer: of the first run; status: after it. promoted: its proposed model; grown: the same run on more rows, and the
    status after it. predicted, aliases: by the project; saved: it. restored: a clone of it; predicted_again,
    aliases_again, again: by the clone. staged: by `dvc repro data`. clean: what `git status` says of the project
    after `init`, the first run, and `dvc repro`.
    """

    wheel: Path
    folder: Path
    imported: Said
    flows: Said
    made: Said
    files: set[str]
    answer: Said
    status: Said
    promoted: Said
    grown: tuple[Said, Said]
    predicted: Said
    saved: Said
    restored: Said
    predicted_again: Said
    aliases: tuple[Said, Said]
    again: Said
    staged: Said
    clean: tuple[Said, Said, Said]


def installed(place: Place) -> Installed:
    """What a stranger calls first is a new process each; the commands after that are forks."""
    folder = place.folder / "elsewhere"
    there = Environment(folder)
    wheel = install(folder)
    rows().to_csv(folder / "machines.csv", index=False)
    imported = there.run("python", "-c", "import fedcore; print(fedcore.__file__)")
    flows = there.run("python", "-c", "import flows")
    made = there.run("fedcore", "init", "my-sites", "--data", "machines.csv", "--label", "state", "--device", "site")
    project = folder / "my-sites"
    files = {path.relative_to(project).as_posix() for path in project.rglob("*")}

    def changes() -> Said:
        return there.run("git", "status", "--porcelain", where="my-sites")

    clean = [changes()]
    place.join(Project(project))
    try:
        answer = there.run(*RUN, where="my-sites")
        clean.append(changes())
        status = there.fork("status")
        promoted = there.fork("promote", "machines-state")
        table = project / "data" / "machines.csv"
        old = table.read_text()
        table.write_text(old + rows(400)[320:].to_csv(index=False, header=False))
        grown = there.fork(*RUN[1:]), there.fork("status")
        table.write_text(old)
        rows().drop(columns="state").to_csv(folder / "new.csv", index=False)
        predicted = there.fork("predict", "../new.csv")
        saved = there.fork("save", "../saved", "--cache")
        there.run("git", "clone", "--quiet", "my-sites", "clone")
        restored = there.fork("restore", "../saved", where="clone")
        predicted_again = there.fork("predict", "../new.csv", where="clone")
        aliases = there.fork("promote"), there.fork("promote", where="clone")
        shared = {"PREFECT_API_URL": str(place.host.api), "PREFECT_API_AUTH_STRING": str(place.host.password)}
        again = there.fork(*RUN[1:], where="clone", **shared)  # a server of the clone's own takes eleven seconds
        staged = there.run("dvc", "repro", "data", where="my-sites")
        clean.append(changes())
    finally:
        there.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop", where="my-sites")
    return Installed(
        wheel, folder, imported, flows, made, files, answer, status, promoted, grown, predicted, saved, restored,
        predicted_again, aliases, again, staged, (clean[0], clean[1], clean[2]),
    )  # fmt: skip


def install(folder: Path) -> Path:
    """Build a wheel and install it into an environment; returns it."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    packages = Environment(folder).packages
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # what fedcore needs; not fedcore itself
    target = ["--python", str(folder / "venv" / "bin" / "python")]
    words = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *target, *words], check=True, capture_output=True)
    return wheel


def rows(count: int = 320) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(count, 3)), columns=["load", "heat", "speed"])
    table["site"] = np.array(["a", "b", "c", "d"])[np.arange(count) % 4]
    table["state"] = np.where(table["load"] + table["heat"] > 0, "fault", "ok")
    return table
