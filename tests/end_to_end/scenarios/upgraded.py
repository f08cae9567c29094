"""A project that an earlier fedcore made (upgrade.py), in the hands of today's."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from project import Project, Said, Seen
from upgrade import CANDIDATE, MODEL, NIGHTS, rows, unpack

from scenarios.place import Place


@dataclass(frozen=True)
class Upgraded:
    """status, before, labels: of the project as it came: its status, what `fedcore promote` lists, and its champion's
    labels of new rows.

    outdated: what is said of the project's flows and tasks, which are those of today from then on.
    refused: a final fit of a version that other code has trained. promoted: what that line says to type, and the labels
    then. night: the deployment's run on a table that has grown; again: the same by `fedcore run`. parts: the device and
    split of each row, in the nights before and in the new one. restored: a clone that has the earlier save; listed,
    restored_labels: as before, by the clone.
    """

    status: Said
    before: Said
    labels: pd.DataFrame
    outdated: Said
    refused: Said
    promoted: Said
    promoted_labels: pd.DataFrame
    night: Seen
    again: Seen
    parts: list[pd.DataFrame]
    restored: Said
    listed: Said
    restored_labels: pd.DataFrame


def upgraded(place: Place) -> Upgraded:
    folder = unpack(place.folder)

    def opened(folder: Path) -> Project:
        """Use the sources of the host, whose figures are one pixel."""
        return place.join(Project(folder, place.host.api, place.host.folder, place.host.password))

    def labels(project: Project) -> pd.DataFrame:
        project.run("fedcore", "predict", "../new.csv", "--out", "labels.csv")
        return pd.read_csv(project.folder / "labels.csv")

    def parts() -> dict[str, pd.DataFrame]:
        files = folder.glob("runs/*/partition/my_data/base/seed-0/index.parquet")
        return {file.parts[-6]: pd.read_parquet(file).set_index("index").sort_index() for file in files}

    project, clone = opened(folder), folder.with_name("clone")
    shutil.copytree(folder, clone, ignore=shutil.ignore_patterns(".fedcore", "mlflow.db", "mlruns", "runs"))
    status, before, first = project.run("fedcore", "status"), project.run("fedcore", "promote"), labels(project)
    earlier = parts()
    outdated = project.run("fedcore", "promote", MODEL, "--version", CANDIDATE, code=2, whole=True)
    for name in ("flows", "tasks"):
        shutil.rmtree(folder / name)
        shutil.copytree(place.host.folder / name, folder / name)
    shutil.copyfile(place.host.folder / "prefect.yaml", folder / "prefect.yaml")
    refused = project.run("fedcore", "promote", MODEL, "--version", CANDIDATE, code=2, whole=True)
    command = refused.err.rpartition(": ")[2].split()
    assert command[0] == "fedcore", refused.err
    promoted = project.run(*command)
    second = labels(project)
    rows(NIGHTS[-1] + 40).to_csv(folder / "data/machines.csv", index=False)
    project.look()
    night = project.look(
        project.run("python", "-m", "upgrade", "night", PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="600")
    )
    again = project.look(project.federate("promote=true"))
    (new,) = parts().keys() - earlier.keys()
    other = opened(clone)
    restored = other.run("fedcore", "restore", "../saved")
    return Upgraded(
        status, before, first, outdated, refused, promoted, second, night, again, [*earlier.values(), parts()[new]],
        restored, other.run("fedcore", "promote"), labels(other),
    )  # fmt: skip
