"""A scenario's place; the server and the empty record that all scenarios share."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from project import Project, digests, small


@dataclass
class Place:
    """A scenario's place: a folder for its projects, the project whose server they use, and a record without runs."""

    folder: Path
    host: Project
    record: Path
    projects: list[Project] = field(default_factory=list)

    def copy(self, name: str, record: bool = True, pictures: bool = False) -> Project:
        """Copy the project, with an empty record unless MLflow is to make it: that takes a second of a core.

        pictures: as of `Project.copy`.
        """
        folder, host = self.folder / name, self.host
        project = self.join(Project.copy(folder, host.api, password=host.password, pictures=pictures))
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


def cached(project: Project) -> dict[str, str]:
    """Return the digests of the cache's files."""
    return {f"{name}/{path}": digest for name in ("blobs", "steps") for path, digest in
            digests(project.folder / ".fedcore" / name).items()}  # fmt: skip


# one server and one empty record for all


def empty_record(path: Path) -> Path:
    """Have MLflow make a record without runs."""
    project = Project(path.parent)
    project.run("python", "-m", "empty_record", path.name)
    return path


def serve(host: Project) -> list[str]:
    """Start the host's server by two concurrent commands; returns the addresses that they print."""
    keepers = [host.start("python", "-m", "fedcore.pipeline.orchestration.server", "keep") for _ in range(2)]
    answers = [str(keeper.stdout and keeper.stdout.readline()).strip() for keeper in keepers]
    host.api, host.password = answers[0], (host.folder / ".fedcore" / "password").read_text().strip()
    return answers


def lone(params: dict[str, Any]) -> None:
    """The small study with a single method."""
    small(params)
    params["studies"]["code"]["methods"] = {"lmf": {}}


def probed(place: Place) -> dict[str, Any]:
    """Run the probes (tests/end_to_end/run_probes.py) on a copy of the project; returns their results."""
    said = place.copy("probed").run("python", "-m", "run_probes")
    found: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return found
