"""Scenarios: a user's work with the project, each in its own folder; tests inspect the results."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import refusals
import yaml
from PIL import Image
from project import LIMIT, ROOT, Process, Project, Said, Seen, digests, end, read_params, small, wait, write_params


@dataclass
class Place:
    """A scenario's place: a folder for its projects, the project whose server they use, and a record without runs."""

    folder: Path
    host: Project
    record: Path
    projects: list[Project] = field(default_factory=list)

    def copy(self, name: str, record: bool = True) -> Project:
        """Copy the project, with an empty record unless MLflow is to make it: that takes a second of a core."""
        project = self.join(Project.copy(self.folder / name, self.host.api, password=self.host.password))
        if record:
            shutil.copyfile(self.record, project.folder / "mlflow.db")
        return project

    def join(self, project: Project) -> Project:
        self.projects.append(project)
        return project

    def leave(self) -> None:
        """End what the scenario has started."""
        for project in self.projects:
            project.stop()


# repeated dvc repro


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
    """first: `dvc repro`. spoilt: the record's counts after one of its runs was spoilt, as if it had been ended in the
    middle of writing. forced: `dvc repro --force` after that. reg: `dvc exp run -S code_ot.reg=0.1`. edited: the flow
    by hand, after a line of the fusion's code had changed. runs: a copy of the record after the first `dvc repro`.
    reworded: `dvc status` after a claim's words had changed. foreign: the same after `dfl.threshold` had, of which the
    study has no row, and once more after `dvc repro plan`. columns: of `dvc exp show --only-changed` after `reg`.
    """

    project: Project
    runs: Path
    clone: Clone
    first: Seen
    spoilt: dict[str, int]
    forced: Seen
    reg: Seen
    edited: Seen
    reworded: dict[str, Any]
    foreign: tuple[dict[str, Any], dict[str, Any]]
    columns: list[str]


def repro(place: Place) -> Repro:
    piped = place.copy("piped", record=False)
    piped.run("git", "init", "--quiet")
    piped.run("dvc", "remote", "add", "--quiet", "--default", "store", str(place.folder / "remote"))
    first = piped.look(piped.run("dvc", "repro"))
    piped.commit("the first results")
    runs = place.folder / "first.db"
    shutil.copyfile(piped.folder / "mlflow.db", runs)
    piped.run("dvc", "push", "--quiet")
    clone = cloned(place, piped)
    reworded = status(piped, "claims/code.yaml", "The smaller alpha", "The less alpha")
    foreign = status(piped, "params.yaml", "threshold: 0.6", "threshold: 0.5", "repro", "plan")
    interrupt(piped.folder / "mlflow.db", "lmf")
    spoilt = piped.record()
    forced = piped.look(piped.repro("repro", "--force"))
    reg = piped.look(piped.repro("exp", "run", "-S", "code_ot.reg=0.1"))
    columns = piped.repro("exp", "show", "--only-changed", "--csv").out.splitlines()[0].split(",")
    piped.repro("exp", "show", "--only-changed")
    piped.repro("metrics", "diff")
    piped.run("dvc", "plots", "show", "--open", BROWSER="true")
    piped.run("git", "checkout", "--quiet", "--", "params.yaml")
    for function in ("lmf", "code"):
        piped.edit("fedcore/align/fusion.py", function, "len('a line that was not there')")
    edited = piped.look(piped.federate())
    return Repro(
        piped, runs, clone, first, spoilt, forced, reg, edited, reworded[0], (foreign[0], foreign[-1]), columns
    )


def status(project: Project, path: str, old: str, new: str, *command: str) -> list[dict[str, Any]]:
    """Return the output of `dvc status` after a change of a file, and after a DVC command; restores the file."""
    text = (project.folder / path).read_text()
    assert old in text
    (project.folder / path).write_text(text.replace(old, new))
    said = [json.loads(project.run("dvc", "status", "--json").out)]
    if command:
        project.repro(*command)
        said.append(json.loads(project.run("dvc", "status", "--json").out))
    project.run("git", "checkout", "--quiet", "--", path, "dvc.lock")
    return said


def interrupt(database: Path, method: str) -> None:
    """Make a method's run incomplete, as after a kill while it was written."""
    with closing(sqlite3.connect(database)) as open_one, open_one as db:
        query = "select run_uuid from tags where key = 'fedcore.method' and value = ?"
        ((run,),) = db.execute(query, [method]).fetchall()
        db.execute("update runs set status = 'RUNNING', end_time = null where run_uuid = ?", [run])
        db.execute("delete from tags where run_uuid = ? and key = 'fedcore.result'", [run])
        db.execute("delete from metrics where run_uuid = ? and rowid % 2", [run])
        db.execute("delete from params where run_uuid = ? and rowid % 2", [run])


def cloned(place: Place, origin: Project) -> Clone:
    origin.run("git", "clone", "--quiet", str(origin.folder), str(place.folder / "clone"))
    clone = place.join(Project(place.folder / "clone", origin.api, password=origin.password))
    pulled = clone.look(clone.run("dvc", "pull"))
    again = clone.look(clone.repro("repro"))
    table(clone.folder / "data" / "mine.csv", 0)
    params = yaml.safe_load((clone.folder / "params.yaml").read_text())
    params["data"] |= {"name": "table", "path": "data/mine.csv", "label": "y"}
    (clone.folder / "params.yaml").write_text(yaml.safe_dump(params))
    changed = clone.look(clone.repro("repro", "data"))
    clone.run("git", "checkout", "--quiet", "--", "params.yaml", "dvc.lock")
    back = clone.look(clone.run("dvc", "checkout"))
    return Clone(clone, pulled, again, changed, back)


# kill -9


SLOW = (
    "federation.devices=6", "training.batch=4", "training.epochs=150", "methods=[best_local,lmf]",
    "lmf.solver=sinkhorn", "lmf.tol=1.0e-300", "lmf.max_iterations=10000", "run.workers=2",
)  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """The state after kill -9: the project, the remaining processes, and Prefect's flow run."""

    seen: Seen
    left: dict[int, str]
    flow_run: str


@dataclass(frozen=True)
class Killed:
    """training, fusing: a kill in the middle of it. end: after the same command ran to its end. calm: the same command
    in another folder, undisturbed. states: what Prefect says in the end of the two flow runs that were killed."""

    project: Project
    undisturbed: Project
    training: Kill
    fusing: Kill
    end: Seen
    calm: Seen
    states: list[str]


def killed(place: Place) -> Killed:
    project = place.copy("killed")
    training = kill(project, SLOW, lambda steps: steps["train"] >= 1)
    # The second method finds its devices' training and exams in the cache; then it fuses, for seconds.
    fusing = kill(project, SLOW, lambda steps: steps["examine"] == 12 and steps["choose"] == 1)
    finished = project.look(project.federate(*SLOW))
    undisturbed = place.copy("undisturbed")
    calm = undisturbed.look(undisturbed.federate(*SLOW))
    states = [place.host.ask(f"flow_runs/{one.flow_run}")["state_type"] for one in (training, fusing)]
    return Killed(project, undisturbed, training, fusing, finished, calm, states)


def kill(project: Project, words: Sequence[str], when: Callable[[Counter[str]], bool]) -> Kill:
    """Start the flow, and kill it when `when` is true of the steps that have ended, by kind."""
    flow = project.start("python", "-m", "flows.federate", *words)
    before = project.read

    def now() -> bool:
        assert flow.poll() is None, f"ended before it was killed: {flow.communicate()}"
        return when(Counter(step["step"] for step in project.journal()[before:]))

    wait("the moment to kill", now, every=0.01)
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    seen = project.look()
    (mark,) = (project.folder / ".fedcore" / "flows").iterdir()
    with suppress(AssertionError):
        wait("no process left", lambda: not project.processes(), 120)
    left = project.processes()
    end(flow)
    return Kill(seen, left, mark.name)


# what a flow consists of is killed, or it is asked to end, or has a twin


WORK = (
    "federation.devices=6", "training.batch=4", "training.epochs=60", "methods=[local_only,fedavg_3]", "run.workers=2",
)  # fmt: skip


@dataclass(frozen=True)
class Hurt:
    """calm: an undisturbed flow. twins: two such flows at once in one folder. healed: one whose server, one worker and
    the record's process were killed in its middle. spread: one on a Dask cluster, a worker of which was killed in its
    middle. ended: a flow after SIGTERM. left: the processes then left, but for the server. alone: a flow whose server
    was stopped. again: the flow of `alone` once more, to its end. plans: what a plan says before and after `calm`.
    """

    calm: Seen
    twins: Seen
    healed: Seen
    spread: Seen
    ended: Said
    left: list[str]
    alone: Said
    again: Seen
    same: bool
    plans: list[str]


def hurt(place: Place) -> Hurt:
    undisturbed, paired, clustered = (place.copy(name) for name in ("calm", "twins", "clustered"))
    plans = [undisturbed.federate("plan", *WORK).out]
    calm = undisturbed.look(undisturbed.federate(*WORK))
    plans.append(undisturbed.federate("plan", *WORK).out)
    pair = [paired.start("python", "-m", "flows.federate", *WORK, log=place.folder / f"twin{i}.log") for i in range(2)]
    assert [flow.wait() for flow in pair] == [0, 0]
    twins = paired.look()
    flow = in_the_middle(clustered, *WORK, "run.engine=dask")
    dask_workers(flow)[0].kill()
    spread = clustered.look(said_by(flow))

    project = place.join(Project.copy(place.folder / "hurt"))  # with a server of its own
    lend_database(place.host, project)
    try:
        flow = in_the_middle(project, *WORK)
        parts = wait("a worker and the record's process", lambda: parts_of(flow))
        for process in parts:
            process.kill()
        os.killpg(project.server(), signal.SIGKILL)
        healed = project.look(said_by(flow))
        flow = in_the_middle(project, *WORK, "seed=1")
        flow.terminate()
        ended = said_by(flow)
        left = [command for command in project.processes().values() if "prefect" not in command]
        flow = in_the_middle(project, *WORK, "seed=2")
        project.run("python", "-m", "tasks.prefect.server", "stop")
        alone = said_by(flow)
        project.api, project.password = place.host.api, place.host.password  # another server takes seconds to start
        again = project.look(project.federate(*WORK, "seed=2"))
    finally:
        project.run("python", "-m", "tasks.prefect.server", "stop")
    runs = [{p: d for p, d in digests(one.folder / "runs").items() if "table.parquet" in p or "models.json" in p}
            for one in (undisturbed, paired, clustered, project)]  # fmt: skip
    same = bool(runs[0]) and runs[0] == runs[1] == runs[2] and runs[0].items() <= runs[3].items()
    return Hurt(calm, twins, healed, spread, ended, left, alone, again, same, plans)


def lend_database(host: Project, project: Project) -> None:
    """Give a project a copy of another's database of Prefect: to make one takes six seconds of a core."""
    place = Path(".fedcore/prefect/prefect.db")
    (project.folder / place).parent.mkdir(parents=True)
    with (
        closing(sqlite3.connect(host.folder / place)) as theirs,
        closing(sqlite3.connect(project.folder / place)) as ours,
    ):
        theirs.backup(ours)


def in_the_middle(project: Project, *words: str) -> Process:
    """Start a flow and wait until it has trained a device."""
    project.look()
    flow = project.start("python", "-m", "flows.federate", *words, whole=True)

    def trained() -> bool:
        assert flow.poll() is None, f"ended too early: {flow.communicate()}"
        return any(step["step"] == "train" for step in project.journal()[project.read :])

    wait("a trained device", trained, every=0.01)
    return flow


def parts_of(flow: Process) -> list[psutil.Process]:
    """Return a worker of a flow and the process that writes its record, once there are both."""
    assert flow.poll() is None, f"ended too early: {flow.communicate()}"
    processes = sorted(psutil.Process(flow.pid).children(recursive=True), key=psutil.Process.create_time)
    parts = {process.nice(): process for process in processes}  # the template is older than its workers
    return list(parts.values()) if len(parts) == 2 else []


def dask_workers(flow: Process) -> list[psutil.Process]:
    """Return the workers of a flow's own Dask cluster, each a process that its nanny starts again."""
    processes = psutil.Process(flow.pid).children(recursive=True)
    return [one for one in processes if "spawn_main" in " ".join(one.cmdline())]


def said_by(flow: Process) -> Said:
    out, err = flow.communicate(timeout=LIMIT)
    return Said(flow.returncode, out, err)


# kill -9 in the middle of 200 rounds


LONG = (
    "data.name=bearings", "data.locations=[A]", "data.window=64", "data.train=1", "data.test=1", "data.server=1",
    "federation.partition=by_device", "federation.min_size=1", "federation.val=0", "federation.shared_test=0",
    "net.name=cells", "net.width=0.125", "training.init=common", "training.moments=kept", "training.epochs=1",
    "fedasa.rounds=200", "run.every=20", "methods=[fedasa]",
)  # fmt: skip


@dataclass(frozen=True)
class Long:
    """halfway: a kill after alignment and some checkpoints. end: after the same command ran to its end. calm: the same
    in another folder, undisturbed. refused: a grid whose second point has a budget that does not fit.
    """

    project: Project
    undisturbed: Project
    halfway: Kill
    end: Seen
    calm: Seen
    refused: Seen


def long(place: Place) -> Long:
    project, undisturbed = hasty(place.copy("long"), 0.5), hasty(place.copy("long-undisturbed"), 0.5)
    halfway = kill(project, LONG, lambda steps: steps["rounds"] >= 3)
    finished = project.look(project.federate(*LONG))
    calm = undisturbed.look(undisturbed.federate(*LONG))
    params = read_params(project.folder)
    params["studies"]["code"]["sizes"]["small"] = {"grid": {"fedasa.budget": [1.0e6, [1.0e6, 1.0e6]]}}
    write_params(project.folder, params)
    refused = project.look(project.federate(*LONG, "training.lr=0.02", code=2, whole=True))
    return Long(project, undisturbed, halfway, finished, calm, refused)


def hasty(project: Project, seconds: float) -> Project:
    """Make a project write checkpoints at this interval."""
    file = project.folder / "tasks" / "run" / "segments.py"
    assert file.read_text().count("SEGMENT = 30.0\n") == 1
    file.write_text(file.read_text().replace("SEGMENT = 30.0\n", f"SEGMENT = {seconds}\n"))
    return project


# kill -9 where some devices take part in a round, twice: each method in the middle of its 100 rounds


SAMPLED = (
    "federation.devices=10", "federation.val=0", "federation.test=0", "training.init=common", "training.moments=kept",
    "training.epochs=1", "dfl.rounds=100", "dfl.fraction=0.3", "scaffold.rounds=100", "scaffold.fraction=0.3",
    "run.every=25", "methods=[dfl,scaffold]",
)  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """dfl, scaffold: kills after checkpoints of each. end: after the same command ran to its end. calm: the same in
    another folder, undisturbed.
    """

    project: Project
    undisturbed: Project
    dfl: Kill
    scaffold: Kill
    end: Seen
    calm: Seen


def sampled(place: Place) -> Sampled:
    project, undisturbed = hasty(place.copy("sampled"), 0.1), hasty(place.copy("sampled-undisturbed"), 0.1)
    dfl = kill(project, SAMPLED, lambda steps: steps["rounds"] >= 2)
    before: list[int] = []

    def two_of_the_second(steps: Counter[str]) -> bool:
        if steps["deploy"]:  # the first method's end
            before.append(steps["rounds"])
        return bool(before) and steps["rounds"] - before[0] >= 2

    scaffold = kill(project, SAMPLED, two_of_the_second)
    finished = project.look(project.federate(*SAMPLED))
    calm = undisturbed.look(undisturbed.federate(*SAMPLED))
    return Sampled(project, undisturbed, dfl, scaffold, finished, calm)


# a table per device


@dataclass(frozen=True)
class Tables:
    """first: a folder with a file per device. second: the same after the file of `changed` had changed."""

    project: Project
    changed: str
    first: Seen
    second: Seen


BY_DEVICE = (
    "study=code", "data.name=table", "data.path=devices", "data.label=y", "federation.partition=by_device", "seeds=[3]",
    "methods=[local_only,lmf,st_lf]",
)  # fmt: skip


def tables(place: Place) -> Tables:
    project = place.copy("tables")
    for seed, name in enumerate(("amsterdam", "berlin", "cairo", "são paulo #4")):
        table(project.folder / "devices" / f"{name}.csv", seed)
    first = project.look(project.federate(*BY_DEVICE))
    table(project.folder / "devices" / "cairo.csv", 7, rows=61)
    second = project.look(project.federate(*BY_DEVICE))
    return Tables(project, "cairo", first, second)


def table(path: Path, seed: int, rows: int = 60) -> None:
    """Write a table of three separable classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    frame = pd.DataFrame(rng.normal(y[:, None], 1.0, (rows, 5)), columns=list("abcde")).assign(
        y=[f"class {k}" for k in y]
    )
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)


# a user's own table, as it is


@dataclass(frozen=True)
class Mine:
    """preview: of a table that was not prepared for the project. run: the default study on it. csv: the table.

    promoted: after the proposed model was promoted. new: the test rows of all sites, without a label; labels: what the
    champion predicts of them. shifted: what was said to the same rows with a column renamed.
    """

    project: Project
    csv: Path
    preview: Seen
    run: Seen
    promoted: Said
    new: pd.DataFrame
    labels: pd.DataFrame
    shifted: Said


MACHINES = (
    "data.name=table", "data.path=data/machines.csv", "data.label=fault", "data.device=site", "data.missing=median",
    "federation.scale=device",
)  # fmt: skip


def mine(place: Place) -> Mine:
    project = place.copy("mine")
    csv = project.folder / "data" / "machines.csv"
    machines().to_csv(csv, index=False)
    preview = project.look(project.run("python", "-m", "flows.prepare", "preview", *MACHINES))
    run = project.look(project.federate(*MACHINES, "methods=[local_only,fedavg,fedasa,majority]", "fedavg.rounds=30"))
    promoted = project.run("python", "-m", "flows.promote", "machines-fault")
    project.run("python", "-m", "flows.promote")
    (index,) = project.folder.glob("runs/*/partition/mine/base/seed-0/index.parquet")
    parts = pd.read_parquet(index)
    new = pd.read_csv(csv).iloc[parts[parts["split"] == "test"]["index"]]
    new.drop(columns="fault").to_csv(project.folder / "new.csv", index=False)
    new.rename(columns={"sensor 3": "sensor_3"}).to_csv(project.folder / "shifted.csv", index=False)
    predict = ("python", "-m", "flows.predict")
    project.run(*predict, "new.csv", "--out", "labels.csv")
    shifted = project.run(*predict, "shifted.csv", code=2, whole=True)
    return Mine(project, csv, preview, run, promoted, new, pd.read_csv(project.folder / "labels.csv"), shifted)


def machines(rows: int = 50) -> pd.DataFrame:
    """Return rows of six sites: 12 numbers of unequal scale, a text, 5 % missing cells, a label of strings."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 6 * rows)
    x = rng.normal(0, 1, (len(y), 12)) + 2 * np.eye(3, 12)[y]
    frame = pd.DataFrame(x * 10.0 ** np.arange(-3, 9).clip(-3, 3), columns=[f"sensor {i}" for i in range(12)])
    frame["model"] = np.where(rng.random(len(y)) < 0.5, np.array(["A1", "B2", "C3"])[y], "A1")
    frame = frame.mask(rng.random(frame.shape) < 0.05)
    return frame.assign(
        unit="C",
        site=np.repeat([f"plant {name}" for name in "ABCDEF"], rows),
        fault=np.array(["leak", "none", "worn"])[y],
    )


# bad input


@dataclass(frozen=True)
class Refused:
    """answers: what was said to each of `refusals.CASES`, in a project that holds results; before, after: its stored
    files, and counts.
    """

    answers: dict[str, Said]
    before: tuple[dict[str, str], dict[str, int]]
    after: tuple[dict[str, str], dict[str, int]]


def refused(place: Place) -> Refused:
    project = place.copy("refused")
    project.federate("methods=[local_only]")
    before = stored(project)
    return Refused(refusals.ask(project), before, stored(project))


def stored(project: Project) -> tuple[dict[str, str], dict[str, int]]:
    """Return the digests of all that a project has stored, and the counts of its record."""
    return cached(project) | {f"runs/{p}": d for p, d in digests(project.folder / "runs").items()}, project.record()


# a user's pictures and module


@dataclass(frozen=True)
class Own:
    """first: pictures in folders and the module of docs/nets.md. commented, edited: the same after a comment in the
    module's file, and after a changed line. refused: what was said to what cannot be used. pruned: what
    `flows.prune` said when all but the steps of edited were 40 days old. cache: files of steps and of blobs before it
    and after. again: edited once more. methods: a method of one's own, and one whose file was put beside the project's.
    """

    project: Project
    first: Seen
    commented: Seen
    edited: Seen
    refused: dict[str, Said]
    pruned: Said
    cache: tuple[dict[str, str], dict[str, str]]
    again: Seen
    methods: Seen


PICTURES = (
    "study=code", "data.name=image_folder", "data.path=data/shapes", "data.size=16", "federation.min_size=4",
)  # fmt: skip
MODULE = "net.name=mynets:Small"
TYPED = (
    "methods=[own_method:median,fedavg,throwaway]", "median.rounds=2", "fedavg.rounds=2", "throwaway.rounds=3",
    "training.init=common",
)  # fmt: skip
THROWAWAY = """
from fedcore.methods.fedavg import fedavg


def throwaway(*, nets, training, common: bool, rounds: int = 1):
    return fedavg(nets=nets, training=training, common=common, rounds=rounds, weights="even")
"""


def own(place: Place) -> Own:
    project = place.copy("own")
    shapes(project.folder / "data" / "shapes")
    file = project.folder / "mynets.py"
    file.write_text(documented())
    seen = [project.look(project.federate(*PICTURES, MODULE))]
    line = "        x = F.relu(F.max_pool2d"
    for other in (f"        # the largest of 4 x 4\n{line}", "        x = F.relu(F.avg_pool2d"):
        assert file.read_text().count(line) == 1
        file.write_text(file.read_text().replace(line, other))
        age(project, 40)
        seen.append(project.look(project.federate(*PICTURES, MODULE)))
    before = cached(project)
    pruned = project.run("python", "-m", "flows.prune")
    project.read = len(project.journal())
    after = cached(project)
    again = project.look(project.federate(*PICTURES, MODULE))
    shutil.copyfile(ROOT / "examples" / "own_method.py", project.folder / "own_method.py")
    (project.folder / "fedcore" / "methods" / "throwaway.py").write_text(THROWAWAY)
    methods = project.look(project.federate(*TYPED))
    file.write_text(file.read_text() + "\n\nclass Plain:\n    pass\n")
    picture = project.folder / "data" / "shapes" / "stripe" / "07.png"
    picture.write_bytes(picture.read_bytes()[:200])
    names = {"no such file": "mynet:Small", "no such class": "mynets:Smal", "no module": "mynets:Plain"}
    words = {what: f"{' '.join(PICTURES)} net.name={name}" for what, name in names.items()}
    words["damaged picture"] = " ".join([*PICTURES, MODULE])
    cases = {what: {"module": "flows.federate", "words": typed, "folder": "."} for what, typed in words.items()}
    refused = refusals.type_all(project, cases)
    return Own(project, *seen, refused, pruned, (before, after), again, methods)


def cached(project: Project) -> dict[str, str]:
    """Return the digests of the cache's files."""
    return {f"{name}/{path}": digest for name in ("blobs", "steps") for path, digest in
            digests(project.folder / ".fedcore" / name).items()}  # fmt: skip


def age(project: Project, days: float) -> None:
    """Make the cache and its journal older by this number of days."""
    for name in cached(project):
        path = project.folder / ".fedcore" / name
        os.utime(path, (path.stat().st_mtime - days * 86400,) * 2)
    lines = [line | {"time": line["time"] - days * 86400} for line in project.journal()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (project.folder / ".fedcore" / "journal.jsonl").write_text(text)


def documented() -> str:
    """Return the user's module that docs/nets.md shows."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "nets.md").read_text(), re.DOTALL))


def shapes(folder: Path) -> None:
    """Write 40 pictures of each of three shapes."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:24, :30]
    for i in range(40):
        y, x = row - rng.integers(8, 16), column - rng.integers(10, 20)
        found = {"circle": y**2 + x**2 < 40, "square": (abs(y) < 5) & (abs(x) < 5), "stripe": x % 6 < 3}
        for name, shape in found.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = 180 * shape[..., None] + rng.integers(0, 60, (24, 30, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:02d}.png")


# a deployment


@dataclass(frozen=True)
class Deployed:
    """first: `prefect deployment run`. wrong: with a wrong parameter. scheduled: after an interval
    schedule was added. runs: all flow runs of the deployment. schedules: those of prefect.yaml, as deployed. answers:
    the artifacts of the studies' answers. aliases: of registered models, with their versions.
    """

    first: Seen
    wrong: Said
    scheduled: Seen
    schedules: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    log: str
    answers: list[dict[str, Any]]
    aliases: dict[str, int]


def deployed(place: Place) -> Deployed:
    """Use the project's own server, which prefect.toml names, without any setting."""
    host, here = place.host, place.join(Project(place.host.folder))
    here.look()
    here.run("prefect", "work-pool", "create", "local", "--type", "process", "--overwrite")
    here.run("prefect", "--no-prompt", "deploy", "--all")
    log = place.folder / "worker.log"
    worker = here.start("prefect", "worker", "start", "--pool", "local", log=log, PREFECT_WORKER_QUERY_SECONDS="2")
    try:
        run = ("prefect", "deployment", "run", "federate/nightly")
        first = here.look(here.run(*run, "--watch"))
        here.run("prefect", "deployment", "schedule", "ls", "federate/nightly")
        wrong = here.run(*run, "--params", '{"request": {"methodz": ["lmf"]}}', code=None)
        (plan,) = host.ask("deployments/filter", {})
        here.run("prefect", "deployment", "schedule", "create", "federate/nightly", "--interval", "60", "--accept-yes")

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = host.ask("flow_runs/filter", {"deployments": {"id": {"any_": [plan["id"]]}}})
            return [r for r in found if r["state_type"] not in ("SCHEDULED", "PENDING", "RUNNING")]

        wait("a scheduled run that has ended", lambda: [r for r in runs() if r["auto_scheduled"]], every=0.5)
        answers = host.ask("artifacts/filter", {"artifacts": {"key": {"like_": "answer-"}}})
        with closing(sqlite3.connect(here.folder / "mlflow.db")) as db:
            aliases = dict(db.execute("select alias, version from registered_model_aliases").fetchall())
        done = here.look()
        return Deployed(first, wrong, done, plan["schedules"], runs(), log.read_text(), answers, aliases)
    finally:
        end(worker)


# one server and one empty record for all


def empty_record(path: Path) -> Path:
    """Have MLflow make a record without runs."""
    project = Project(path.parent)
    project.run("python", "-m", "empty_record", path.name)
    return path


def serve(host: Project) -> list[str]:
    """Start the host's server by two concurrent commands; returns the addresses that they print."""
    keepers = [host.start("python", "-m", "tasks.prefect.server", "keep") for _ in range(2)]
    answers = [str(keeper.stdout and keeper.stdout.readline()).strip() for keeper in keepers]
    host.api, host.password = answers[0], (host.folder / ".fedcore" / "password").read_text().strip()
    return answers


def lone(params: dict[str, Any]) -> None:
    """The small study with a single method."""
    small(params)
    params["studies"]["code"]["methods"] = {"lmf": {}}


# steps by themselves


def probed(place: Place) -> dict[str, Any]:
    """Run the probes beside this file, on a copy of the project; returns their results."""
    said = place.copy("probed").run("python", "-m", "probes")
    found: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return found


SCENARIOS: dict[str, Callable[[Place], Any]] = {
    "repro": repro, "deployed": deployed, "tables": tables, "mine": mine, "refused": refused, "killed": killed,
    "hurt": hurt,
    "long": long, "sampled": sampled, "own": own, "probed": probed,
}  # fmt: skip
"""Scenarios in the order of their start, the longest first."""
