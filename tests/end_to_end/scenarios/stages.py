"""Repeated `dvc repro`: DVC's stages after changes of settings, code and data, and in a clone."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from project import Project, Seen

from scenarios.data import table
from scenarios.place import Place


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
    study has no row, and once more after `dvc repro plan`. planned: the plan, those of PLANNED, and the first again.
    columns: of `dvc exp show --only-changed --md` after `reg`.
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
    planned: list[str]
    columns: list[str]


def repro(place: Place) -> Repro:
    piped = place.copy("piped", record=False, pictures=True)
    piped.run("git", "init", "--quiet")
    piped.run("dvc", "remote", "add", "--quiet", "--default", "store", str(place.folder / "remote"))
    first = piped.look(piped.repro("repro"))
    piped.commit("the first results")
    runs = place.folder / "first.db"
    shutil.copyfile(piped.folder / "mlflow.db", runs)
    piped.run("dvc", "push", "--quiet")
    clone = cloned(place, piped)
    reworded = status(piped, "claims/code.yaml", "The smaller alpha", "The less alpha")
    foreign = status(piped, "params.yaml", "threshold: 0.6", "threshold: 0.5", "repro", "plan")
    planned = plans(piped)
    interrupt(piped.folder / "mlflow.db", "lmf")
    spoilt = piped.record()
    forced = piped.look(piped.repro("repro", "--force"))
    reg = piped.look(piped.repro("exp", "run", "-S", "code_ot.reg=0.1"))
    heads = piped.repro("exp", "show", "--only-changed", "--md", "--drop", "params.yaml|pipeline|State|Executor")
    columns = [cell.strip() for cell in heads.out.splitlines()[0].split("|")]
    piped.repro("metrics", "diff")
    piped.run("dvc", "plots", "diff", "--open", BROWSER="true")
    piped.run("git", "checkout", "--quiet", "--", "params.yaml")
    for function in ("lmf", "code"):
        piped.edit("fedcore/methods/code/fusion.py", function, "len('a line that was not there')")
    edited = piped.look(piped.federate())
    return Repro(
        piped, runs, clone, first, spoilt, forced, reg, edited, reworded[0], (foreign[0], foreign[-1]), planned, columns
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


PLANNED = (
    ("size: small", "size: paper"), ("alpha: 1.0", "alpha: 2.0"), ("lr: 0.01", "lr: 0.02"), ("batch: 32", "batch: 64"),
    ("reg: 0.01", "reg: 0.02"),
)  # fmt: skip


def plans(project: Project) -> list[str]:
    """Return the plan before, with and after each change of PLANNED; restores the file."""
    params, found = project.folder / "params.yaml", []
    first = params.read_text()
    for text in (first, *(first.replace(*change) for change in PLANNED), first):
        params.write_text(text)
        project.repro("repro", "plan")
        found.append((project.folder / "pipeline/plan/federate/code.json").read_text())
    project.run("git", "checkout", "--quiet", "--", "dvc.lock")
    return found


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
