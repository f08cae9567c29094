"""What a person does with the project, each scenario in a folder of its own; tests look at what was left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import refusals
import yaml
from project import Project, Said, Seen, digests, end, small, wait


@dataclass
class Place:
    """Where a scenario happens: a folder for its projects, and the house whose server they use."""

    folder: Path
    house: Project
    projects: list[Project] = field(default_factory=list)

    def copy(self, name: str) -> Project:
        return self.join(Project.copy(self.folder / name, self.house.api))

    def join(self, project: Project) -> Project:
        self.projects.append(project)
        return project

    def leave(self) -> None:
        """End what the scenario has started."""
        for project in self.projects:
            project.stop()


# dvc repro, over and over


@dataclass(frozen=True)
class Clone:
    """pulled: a fresh clone after `dvc pull`. again: `dvc repro` in it. changed: other data. back: `dvc checkout`."""

    project: Project
    pulled: Seen
    again: Seen
    changed: Seen
    back: Seen


@dataclass(frozen=True)
class Repro:
    """first: `dvc repro`. forced: `dvc repro --force`. interrupted: the flow by hand, after the record of one run was
    spoilt as if the run had been ended in the middle of writing it. reg: `dvc exp run -S code_ot.reg=0.1`. edited: the
    flow by hand, after a line of the fusion's code had changed. runs: the record after the first `dvc repro`."""

    project: Project
    runs: Path
    clone: Clone
    first: Seen
    forced: Seen
    interrupted: Seen
    reg: Seen
    edited: Seen


def repro(place: Place) -> Repro:
    piped = place.copy("piped")
    piped.run("git", "init", "--quiet")
    piped.run("dvc", "remote", "add", "--quiet", "--default", "store", str(place.folder / "remote"))
    first = piped.look(piped.run("dvc", "repro"))
    piped.commit("the first results")
    runs = place.folder / "first.db"
    shutil.copyfile(piped.folder / "mlflow.db", runs)
    piped.run("dvc", "push", "--quiet")
    clone = cloned(place, piped)
    forced = piped.look(piped.run("dvc", "repro", "--force"))
    interrupt(piped.folder / "mlflow.db", "lmf")
    interrupted = piped.look(piped.federate())
    reg = piped.look(piped.run("dvc", "exp", "run", "-S", "code_ot.reg=0.1"))
    piped.run("git", "checkout", "--quiet", "--", "params.yaml")
    for function in ("lmf", "code"):
        piped.edit("fedcore/fusion.py", function, "len('a line that was not there')")
    edited = piped.look(piped.federate())
    return Repro(piped, runs, clone, first, forced, interrupted, reg, edited)


def interrupt(database: Path, method: str) -> None:
    """Make a method's run look as if it had been ended while it was written: half of it is there."""
    with closing(sqlite3.connect(database)) as open_one, open_one as db:
        query = "select run_uuid from tags where key = 'fedcore.method' and value = ?"
        ((run,),) = db.execute(query, [method]).fetchall()
        db.execute("update runs set status = 'RUNNING', end_time = null where run_uuid = ?", [run])
        db.execute("delete from tags where run_uuid = ? and key = 'fedcore.result'", [run])
        db.execute("delete from metrics where run_uuid = ? and rowid % 2", [run])
        db.execute("delete from params where run_uuid = ? and rowid % 2", [run])


def cloned(place: Place, origin: Project) -> Clone:
    origin.run("git", "clone", "--quiet", str(origin.folder), str(place.folder / "clone"))
    clone = place.join(Project(place.folder / "clone", origin.api))
    pulled = clone.look(clone.run("dvc", "pull"))
    again = clone.look(clone.run("dvc", "repro"))
    table(clone.folder / "data" / "mine.csv", 0)
    params = yaml.safe_load((clone.folder / "params.yaml").read_text())
    params["data"] |= {"name": "table", "path": "data/mine.csv", "label": "y"}
    (clone.folder / "params.yaml").write_text(yaml.safe_dump(params))
    changed = clone.look(clone.run("dvc", "repro", "data@code"))
    clone.run("git", "checkout", "--quiet", "--", "params.yaml", "dvc.lock")
    back = clone.look(clone.run("dvc", "checkout"))
    return Clone(clone, pulled, again, changed, back)


# kill -9


SLOW = (
    "federation.devices=6", "training.batch=4", "training.epochs=300", "methods=[best_local,lmf]",
    "lmf.solver=sinkhorn", "lmf.tol=1.0e-300", "lmf.max_iterations=20000",
)  # fmt: skip


@dataclass(frozen=True)
class Killed:
    """training, fusing: what was seen just after a kill -9 in the middle of it, and the processes left behind. end:
    after the same command ran to its end. calm: the same command in another folder, undisturbed."""

    project: Project
    undisturbed: Project
    training: Seen
    fusing: Seen
    left: list[dict[int, str]]
    end: Seen
    calm: Seen


def killed(place: Place) -> Killed:
    project = place.copy("killed")
    training, left = kill(project, lambda trained, fused: trained >= 1)
    # The second method's devices are found trained; then it fuses, for seconds.
    fusing, more = kill(project, lambda trained, fused: trained == 12 and fused == 1)
    finished = project.look(project.federate(*SLOW))
    undisturbed = place.copy("undisturbed")
    calm = undisturbed.look(undisturbed.federate(*SLOW))
    return Killed(project, undisturbed, training, fusing, [left, more], finished, calm)


def kill(project: Project, when: Any) -> tuple[Seen, dict[int, str]]:
    """Start the flow, kill it when so many training and combining steps have ended; returns what is left after it."""
    flow = project.start("python", "-m", "flows.federate", *SLOW)
    before = project.read

    def now() -> bool:
        assert flow.poll() is None, f"ended before it was killed: {flow.communicate()}"
        steps = [step["step"] for step in project.journal()[before:]]
        return bool(when(steps.count("train"), steps.count("receive")))

    wait("the moment to kill", now, 120, every=0.01)
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    with_left = project.look()
    try:
        wait("no process left", lambda: not project.processes(), 10)
    except AssertionError:
        return with_left, project.processes()
    finally:
        end(flow)
    return with_left, {}


# a table per device, and bad input


@dataclass(frozen=True)
class Tables:
    """first: a folder with a file per device. second: the same after the file of `changed` had changed. refused: what
    was said to each of `refusals.CASES`, in a project that holds results; before, after: its stored files, and counts.
    """

    changed: str
    first: Seen
    second: Seen
    refused: dict[str, Said]
    before: tuple[dict[str, str], dict[str, int]]
    after: tuple[dict[str, str], dict[str, int]]


BY_DEVICE = (
    "data.name=table", "data.path=devices", "data.label=y", "federation.partition=by_device", "seeds=[0,1]",
    "methods=[local_only,lmf]",
)  # fmt: skip


def tables(place: Place) -> Tables:
    project = place.copy("tables")
    for seed, name in enumerate(("amsterdam", "berlin", "cairo", "delhi")):
        table(project.folder / "devices" / f"{name}.csv", seed)
    first = project.look(project.federate(*BY_DEVICE))
    table(project.folder / "devices" / "cairo.csv", 7, rows=61)
    second = project.look(project.federate(*BY_DEVICE))
    before = stored(project)
    refused = refusals.ask(project)
    return Tables("cairo", first, second, refused, before, stored(project))


def table(path: Path, seed: int, rows: int = 60) -> None:
    """Write a table of three classes that can be told apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    frame = pd.DataFrame(rng.normal(y[:, None], 1.0, (rows, 5)), columns=list("abcde")).assign(
        y=[f"class {k}" for k in y]
    )
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)


def stored(project: Project) -> tuple[dict[str, str], dict[str, int]]:
    """Return the digests of all that a project has stored, and the counts of its record."""
    kept = {f"{name}/{path}": digest for name in ("blobs", "steps") for path, digest in
            digests(project.folder / ".fedcore" / name).items()}  # fmt: skip
    return kept | {f"runs/{p}": d for p, d in digests(project.folder / "runs").items()}, project.record()


# a deployment


@dataclass(frozen=True)
class Deployed:
    """first, second: `prefect deployment run` twice. wrong: with a wrong parameter. scheduled: after an interval
    schedule was added. runs: all flow runs of the deployment. schedules: those of prefect.yaml, as deployed."""

    first: Seen
    second: Seen
    wrong: Said
    scheduled: Seen
    schedules: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    log: str


def deployed(place: Place) -> Deployed:
    """Everything by the project's own server, without a setting: prefect.toml says where it is."""
    house, here = place.house, place.join(Project(place.house.folder))
    here.look()
    here.run("prefect", "work-pool", "create", "local", "--type", "process", "--overwrite")
    here.run("prefect", "--no-prompt", "deploy", "--all")
    log = place.folder / "worker.log"
    worker = here.start("prefect", "worker", "start", "--pool", "local", log=log, PREFECT_WORKER_QUERY_SECONDS="2")
    try:
        run = ("prefect", "deployment", "run", "federate/nightly")
        first = here.look(here.run(*run, "--watch"))
        second = here.look(here.run(*run, "--watch"))
        wrong = here.run(*run, "--params", '{"request": {"methodz": ["lmf"]}}', code=None)
        (plan,) = house.ask("deployments/filter", {})
        here.run("prefect", "deployment", "schedule", "create", "federate/nightly", "--interval", "20", "--accept-yes")

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = house.ask("flow_runs/filter", {"deployments": {"id": {"any_": [plan["id"]]}}})
            return [r for r in found if r["state_type"] not in ("SCHEDULED", "PENDING", "RUNNING")]

        wait("a scheduled run that has ended", lambda: [r for r in runs() if r["auto_scheduled"]], 90, every=0.5)
        return Deployed(first, second, wrong, here.look(), plan["schedules"], runs(), log.read_text())
    finally:
        end(worker)


# one server for all


def serve(house: Project) -> list[str]:
    """Start the house's server, asked for twice at once; returns the addresses that were answered."""
    keepers = [house.start("python", "-m", "tasks.server", "keep") for _ in range(2)]
    answers = [str(keeper.stdout and keeper.stdout.readline()).strip() for keeper in keepers]
    house.api = answers[0]
    return answers


def lone(params: dict[str, Any]) -> None:
    """The small study with a single method."""
    small(params)
    params["studies"]["code"]["methods"] = {"lmf": {}}


# steps by themselves


def probed(place: Place) -> dict[str, Any]:
    """Run the probes beside this file, on a copy of the project; returns what they found."""
    project = place.copy("probed")
    found = {}
    for name in ("probe_steps", "probe_segments"):
        said = project.run("python", "-m", name)
        found[name] = json.loads(said.out.splitlines()[-1])
    return found
