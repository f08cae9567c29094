"""A candidate beside the champion, in words. Imports no MLflow, whose import takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedcore.pipeline.record import registry
from fedcore.pipeline.record.registry import FAMILY

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

PROPOSAL, BETTER, WHY, AGAINST = "fedcore.proposal", "fedcore.better", "fedcore.why", "fedcore.against"
"""The tags of a candidate: its comparison in a line, the word, the reason, and the champion's version."""

SIMULATED, PERSONAL = "fedcore.simulated", "fedcore.personal"
"""The tags of a version from real devices: false; and true, where its models stay on these devices."""

FINAL_FIT_OF, STUDY_RUN = "fedcore.final_fit_of", "fedcore.study_run"
"""The tags of a final fit: the version that it repeats on all rows, and the study's run of that version."""

BEFORE_DRIFT = "fedcore.before_drift"
"""The tag of a champion from whose training rows those of later runs have drifted: the last run before."""

SHOWN = "fedcore.shown"
"""The tag of a first champion, or one proposed as such, that the answer did not recommend: no."""


Version: TypeAlias = "registry.Version | ModelVersion"
"""A version of a registered model: as MLflow's database has it, or MLflow's own."""


@dataclass(frozen=True)
class Proposal:
    """better: "yes", "no", "not comparable", or "" if there is no champion. why: the numbers, or the difference."""

    version: Version
    champion: Version | None
    better: str
    why: str

    def __str__(self) -> str:
        if self.champion is None:
            return f"{self._what}: no champion yet"
        if self.champion.version == self.version.version:
            return f"{self._what} is the champion"
        number = f"version {self.champion.version}"
        if self.of_champion:
            what = "its final fit" if self.champion.tags.get(FINAL_FIT_OF) else "the model of its study"
            return f"{self._what}: the champion is {what}, {number}"
        if self.champion.tags.get(FINAL_FIT_OF):
            number += f", the final fit of version {self.champion.tags[FINAL_FIT_OF]}"
        return f"{self._what}: better than the champion, {number}? {self.better}; {self.why}"

    @property
    def of_champion(self) -> bool:
        """Whether it and the champion are of one study's run: the champion itself, or one is the other's final fit."""
        return self.champion is not None and study_run(self.champion) == study_run(self.version)

    @property
    def accepted(self) -> bool:
        """Whether the nightly rule promotes it: if it is better than the champion, or there is none."""
        return not self.of_champion and self.better in ("", "yes")

    @property
    def advice(self) -> str:
        """What to say of it if it is not promoted."""
        if self.of_champion:
            return str(self)
        command = f"fedcore promote {self.version.name.removeprefix(FAMILY)}"
        command += "" if self.accepted else f" --version {self.version.version}"  # without, it is refused
        if self.version.tags.get(SIMULATED) == "false":
            return f"{self}; to promote it: {command} (its devices have trained it)"
        return f"{self}; to promote it: {command} (trains it once more on all rows first)"

    @property
    def promoted(self) -> str:
        """What to say after its promotion."""
        if self.champion is None:
            return f"{self._what}: promoted; it is the first champion"
        return str(self) if self.champion.version == self.version.version else f"{self}; promoted"

    def promoted_as(self, final: Version) -> str:
        """What to say after the promotion of its final fit."""
        if self.champion is None:
            return f"{self._what}: its final fit, version {final.version}, promoted; it is the first champion"
        if self.champion.version == final.version:
            return f"{self._what}: its final fit, version {final.version}, is the champion"
        how = "promoted" if self.accepted or self.of_champion else "promoted all the same, as asked"
        return f"{self}; its final fit, version {final.version}, {how}"

    @property
    def _what(self) -> str:
        return f"{self.version.name} version {self.version.version} ({describe(self.version)})"


def describe(version: Version) -> str:
    """Return where a version comes from."""
    of = version.tags.get(FINAL_FIT_OF)
    final = "" if of is None else f", final fit of version {of}"
    shown = ", no gain over local training shown" if version.tags.get(SHOWN) == "no" else ""
    return f"{version.tags.get('fedcore.method')}, seed {version.tags.get('fedcore.seed')}{final}{shown}"


def study_run(version: Version) -> str:
    """Return the study's run whose score stands for a version: its own, or of a final fit that of its origin."""
    return str(version.tags.get(STUDY_RUN, version.run_id))


def standing_proposal(version: Version, champion: Version | None) -> Proposal | None:
    """Return a candidate's comparison as its tags keep it; None if the champion is another now."""
    if champion is None or study_run(champion) == study_run(version):
        return Proposal(version, champion, "", "")
    if version.tags.get(AGAINST) == str(champion.version):
        return Proposal(version, champion, version.tags[BETTER], version.tags[WHY])
    return None
