"""A project that an earlier fedcore made, with which later ones must go on; kept as upgrade.tar.xz.

    PYTHONPATH=. python tests/end_to_end/upgrade.py

makes it anew by the code of COMMIT, in a minute: `fedcore init` on a table of four sites, three nights of its
deployment's run while the table grows, of which the first makes a champion, its labels of new rows, and a save.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from project import PIXEL, Project

COMMIT = "a346b8d3"
"""The code that made the project."""
ROOT = Path(__file__).parents[2]
ARCHIVE = Path(__file__).with_suffix(".tar.xz")
NIGHTS = (240, 280, 320)
"""Rows of the table in each night."""
MODEL, CHAMPION, CANDIDATE = "machines-state", "3", "6"
"""The model's name, and the versions that the nights made the champion and the candidate."""
METHODS = """
  new_device: shared
  optional: true
  methods:
    local_only: {}
    fedavg: {rounds: 3, training: {epochs: 2}}
    majority: {}
  sizes:
    small: {set: {federation.partition: auto}}
"""
LEFT = (
    ".git", ".fedcore/prefect", ".fedcore/locks", ".fedcore/password", ".fedcore/nightly.env", "ops", ".dockerignore",
)  # fmt: skip
"""Of the project, what is its machine's, and what a save leaves out."""


def rows(count: int) -> pd.DataFrame:
    """Return the first rows of the table, which stay as it grows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(count, 3)).round(3), columns=["load", "heat", "speed"])
    table["site"] = np.array(["north", "east", "south", "west"])[np.arange(count) % 4]
    table["state"] = np.where(table["load"] + table["heat"] > 0, "fault", "ok")
    return table


def new_rows() -> pd.DataFrame:
    """Return rows that the champion labels."""
    return rows(480)[440:].drop(columns="state")


def make(folder: Path) -> None:
    """Make the project `sites`, its save `saved`, and `predicted.csv`, by the code in `folder`/code."""
    code = folder / "code"
    code.mkdir()
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=code, input=archive, check=True)
    Project(code).edit(
        "fedcore/report/figures/drawing.py", "png", f"return {PIXEL!r}"
    )  # pictures are half of all bytes
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("FEDCORE_", "PREFECT_", "MLFLOW_", "GIT_"))}
    settings = {**kept, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "USER": "user", "LOGNAME": "user"}
    author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def fedcore(*words: str, where: Path) -> None:
        subprocess.run([sys.executable, "-m", "fedcore", *words], cwd=where, env={**settings, **author}, check=True)

    rows(NIGHTS[0]).to_csv(folder / "machines.csv", index=False)
    new_rows().to_csv(folder / "new.csv", index=False)
    words = ("--data", "machines.csv", "--label", "state", "--device", "site", "--nightly")
    fedcore("init", "sites", *words, where=folder)
    project = folder / "sites"
    study = project / "studies/my_data.yaml"
    study.write_text(re.sub(r"\n  new_device:.*", METHODS, study.read_text(), flags=re.DOTALL))
    params = project / "params.yaml"
    text = re.sub(r"  seeds:\n(  - \d\n)+", "  seeds: [0]\n", params.read_text())
    params.write_text(text.replace("  name: auto", "  name: mlp\n  widths: [4]").replace("workers:  ", "workers: 1"))
    try:
        for count in NIGHTS:
            rows(count).to_csv(project / "data/machines.csv", index=False)
            fedcore("run", "promote=true", where=project)
        fedcore("predict", "../new.csv", "--out", "../predicted.csv", where=project)
        fedcore("save", "../saved", "--cache", where=project)
    finally:
        stop = [sys.executable, "-m", "fedcore.pipeline.orchestration.server", "stop"]
        subprocess.run(stop, cwd=project, env=settings, check=True)
    for path in [project / name for name in LEFT]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def pack(folder: Path) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if "__pycache__" in entry.name or "server." in entry.name else entry

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in ("machines.csv", "new.csv", "predicted.csv", "saved", "sites"):
            archive.add(folder / name, name, filter=plain)


def unpack(folder: Path) -> Path:
    """Unpack the archive; returns the project."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "sites"


def night() -> None:
    """Run the deployment of prefect.yaml in the current folder, as a worker of Prefect does."""
    from fedcore.cli.project import enter_project, open_template

    enter_project()
    open_template()  # a worker does without; its flow's processes then import PyTorch anew, nine seconds of a core
    import yaml
    from prefect.context import refresh_global_settings_context
    from prefect.flows import load_flow_from_entrypoint

    refresh_global_settings_context()  # a fork has those of the process that imported Prefect

    (deployment,) = yaml.safe_load(Path("prefect.yaml").read_text())["deployments"]
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    flow(**flow.validate_parameters(deployment["parameters"]))


def main() -> None:
    made = Path(tempfile.gettempdir(), "fedcore-upgrade")  # MLflow's database has it as the artifacts' place
    made.mkdir()
    try:
        make(made)
        pack(made)
    finally:
        shutil.rmtree(made)


if __name__ == "__main__":
    night() if sys.argv[1:] == ["night"] else main()
