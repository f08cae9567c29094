"""Champions: the version of a registered model that predictions use, for each dataset and task.

A run proposes a version: alias `candidate`. It is better than the champion if its accuracy exceeds the champion's on
the same held-out data (equal digests of data and partition), by more than the standard error over devices of the
differences by device. Otherwise it is not, and on other data the two are not comparable.

Only :func:`promote` sets the alias `champion`; the version before stays as `previous`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from fedcore.api.serving import ServedModels
from fedcore.pipeline.record import models, registry
from fedcore.pipeline.record.metrics import DEVICES, read_device_table
from fedcore.pipeline.record.registry import CANDIDATE, CHAMPION, FAMILY, PREVIOUS, Versions, registered
from fedcore.report.phrases import points
from fedcore.results.summary import SPLITS, is_tie

PROPOSAL = "fedcore.proposal"
SAME = ("fedcore.data", "fedcore.partition")
"""The tags of a version that name the data which its run held out."""

SCORES = {
    "accuracy": "own test, %",
    "shared_accuracy": "shared test, %",
    "validation_accuracy": "validation, %",
}  # fmt: skip
"""The metrics of a version's run that a list of versions shows -> their columns."""
COLUMNS = ("version", "method", "seed", "study", "setting", *SCORES.values(), "is")
"""The columns of a list of versions; the last one has the aliases."""


@dataclass(frozen=True)
class Proposal:
    """better: "yes", "no", "not comparable", or "" if there is no champion. why: the numbers, or the difference."""

    version: ModelVersion
    champion: ModelVersion | None
    better: str
    why: str

    def __str__(self) -> str:
        if self.champion is None:
            return f"{self._what}: there is no champion yet"
        if self.champion.version == self.version.version:
            return f"{self._what} is the champion"
        return f"{self._what}: better than the champion, version {self.champion.version}? {self.better}; {self.why}"

    @property
    def promoted(self) -> str:
        """What to say after its promotion."""
        if self.champion is None:
            return f"{self._what}: promoted; it is the first champion"
        return str(self) if self.champion.version == self.version.version else f"{self}; promoted"

    @property
    def _what(self) -> str:
        return f"{self.version.name} version {self.version.version} ({describe(self.version)})"


def describe(version: ModelVersion) -> str:
    """Return where a version comes from."""
    return f"{version.tags.get('fedcore.method')}, seed {version.tags.get('fedcore.seed')}"


def alias(client: MlflowClient, name: str, word: str) -> ModelVersion | None:
    """Return the version that an alias names, or None."""
    try:
        return client.get_model_version_by_alias(name, word)
    except MlflowException:
        return None


def propose(client: MlflowClient, version: ModelVersion, promote_better: bool) -> str:
    """Propose a version; returns a line about it.

    promote_better: also promote it, if it is better than the champion or there is none.
    """
    found = compare(client, version)
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)
    client.set_model_version_tag(version.name, version.version, PROPOSAL, str(found))
    if found.champion is not None and found.champion.version == version.version:
        return str(found)
    if promote_better and found.better in ("", "yes"):
        promote(client, version)
        return found.promoted
    return f"{found}; to promote it: fedcore promote {version.name.removeprefix(FAMILY)}"


def compare(client: MlflowClient, version: ModelVersion) -> Proposal:
    """Compare a version with the champion of its registered model."""
    champion = alias(client, version.name, CHAMPION)
    if champion is None or champion.version == version.version:
        return Proposal(version, champion, "", "")
    for tag in SAME:
        if version.tags.get(tag) != champion.tags.get(tag):
            return Proposal(version, champion, "not comparable", f"its {tag.rpartition('.')[2]} is another")
    tables = [
        read_device_table(Path(mlflow.artifacts.download_artifacts(f"runs:/{one.run_id}/{DEVICES}")).read_bytes())
        for one in (version, champion)
    ]
    for split, where in SPLITS.items():
        column = f"{split}.accuracy"
        if all(column in table for table in tables):
            change = (tables[0][column] - tables[1][column]).dropna().astype(float)
            if len(change):
                error = float(change.std() / len(change) ** 0.5) if len(change) > 1 else 0.0
                better = not is_tie(float(change.mean()), error)
                size = f"{points(float(change.mean()))} ± {100 * error:.1f} points on {where} data"
                return Proposal(version, champion, "yes" if better else "no", f"{size} ± devices")
    return Proposal(version, champion, "not comparable", "there are no test data")


def promote(client: MlflowClient, version: ModelVersion) -> None:
    """Make a version the champion; the champion before becomes `previous`."""
    before = alias(client, version.name, CHAMPION)
    if before is not None and before.version == version.version:
        return
    if before is not None:
        client.set_registered_model_alias(version.name, PREVIOUS, before.version)
    client.set_registered_model_alias(version.name, CHAMPION, version.version)


def names(client: MlflowClient) -> list[str]:
    """Return the names of the registered models of this record."""
    found = client.search_registered_models(f"name LIKE '{FAMILY}%'", max_results=1000)
    return sorted(one.name for one in found)


def all_versions(client: MlflowClient) -> dict[str, Versions]:
    """Return the versions of this record by task, wherever it is (fedcore/pipeline/record/registry.py reads a file)."""
    return {
        name.removeprefix(FAMILY): Versions(
            {str(one.version) for one in client.search_model_versions(f"name = '{name}'")},
            {word: str(number) for word, number in client.get_registered_model(name).aliases.items()},
        )
        for name in names(client)
    }


def version_table(client: MlflowClient, task: str) -> list[list[str]]:
    """Return a row of texts for each version of a task's model, with the columns of COLUMNS, the oldest first."""
    named: dict[str, list[str]] = {}
    for word, number in all_versions(client)[task].aliases.items():
        named.setdefault(number, []).append(word)
    found = client.search_model_versions(f"name = '{registered(task)}'")
    return [
        _cells(client, one, ", ".join(sorted(named.get(str(one.version), []))))
        for one in sorted(found, key=lambda one: int(one.version))
    ]


def _cells(client: MlflowClient, version: ModelVersion, aliases: str) -> list[str]:
    tags = version.tags
    try:
        scores = client.get_run(version.run_id).data.metrics
    except MlflowException:  # deleted for good
        scores = {}
    shown = [f"{100 * scores[name]:.1f}" if name in scores else "-" for name in SCORES]
    study = f"{tags.get('fedcore.study', '-')} ({tags.get('fedcore.size', '-')})"
    named = [tags.get(f"fedcore.{key}", "-") for key in ("method", "seed", "setting")]
    return [str(version.version), *named[:2], study, named[2], *shown, aliases]


def find(client: MlflowClient, task: str, word: str) -> ModelVersion:
    """Return a version by its number or alias; raises InputError, which names what there is."""
    registry.require(all_versions(client), task, word)
    name = registered(task)
    return client.get_model_version(name, word) if word.isdigit() else client.get_model_version_by_alias(name, word)


def load(client: MlflowClient, asked: str | None) -> tuple[str, ServedModels]:
    """Return the task and the models of a version.

    asked: "task", "task@alias" or "task/number"; None: the only champion.
    """
    task, word = registry.choose(all_versions(client), asked)
    version = find(client, task, word)
    place = mlflow.artifacts.download_artifacts(f"models:/{version.name}/{version.version}")
    return task, models.load(Path(place))
