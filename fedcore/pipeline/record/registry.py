"""The registered models by name, and a candidate beside the champion in words.

They are read without MLflow, whose import takes seconds: a wrong name is refused at once.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fedcore.errors import InputError, plural, printable
from fedcore.pipeline.record.database import database_file

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

FAMILY = "fedcore-"
CHAMPION, CANDIDATE, PREVIOUS = "champion", "candidate", "previous"

AT_THE_END = "a run proposes at its end: wait for one that is still recording, start one again that was cut off"
"""What may be the cause where nothing is proposed."""

PROPOSAL, BETTER, WHY, AGAINST = "fedcore.proposal", "fedcore.better", "fedcore.why", "fedcore.against"
"""The tags of a candidate: its comparison in a line, the word, the reason, and the champion's version."""

SIMULATED, PERSONAL = "fedcore.simulated", "fedcore.personal"
"""The tags of a version from real devices: false; and true, where its models stay on these devices."""

FINAL_FIT_OF, STUDY_RUN = "fedcore.final_fit_of", "fedcore.study_run"
"""The tags of a final fit: the version that it repeats on all rows, and the study's run of that version."""

BEFORE_DRIFT = "fedcore.before_drift"
"""The tag of a champion from whose training rows those of later runs have drifted: the last run before."""

SEEDS, WHOLE = "fedcore.seeds", "fedcore.whole"
"""The tags of a candidate: over how many seeds the study ran that proposed it, and whether with all that it has."""

SHOWN = "fedcore.shown"
"""The tag of what is proposed or promoted: a key of UNSHOWN if nothing shows that it is better for every device."""
UNSHOWN = {
    "no": ", not shown to be better", "guess": ", no better than guessing", "new": ", better for new devices alone",
}  # fmt: skip
BUT = {
    "no": "; its own study, over all its seeds, does not recommend it",
    "new": "; its own study recommends it for new devices alone",
    "guess": "; by the same metric always guessing does as well as this version",
}
"""What its study's answer says of a version that is better than the champion."""

QUERIES = (
    "select name from registered_models order by name",
    "select name, version, run_id, storage_location from model_versions where current_stage <> 'Deleted_Internal'",
    "select name, alias, version from registered_model_aliases",
    "select name, version, key, value from model_version_tags",
)
"""Of MLflow's database; it keeps a deleted version under that stage."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model. run_id: the run that logged it. location: where its files are."""

    name: str
    version: str
    run_id: str = field(default="", compare=False)
    location: str | None = field(default=None, compare=False)
    tags: dict[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Versions:
    """The versions of a registered model by their numbers, and alias -> number."""

    numbers: dict[str, Version] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def find(self, word: str) -> Version | None:
        """Return the version of a number or an alias."""
        return self.numbers.get(self.aliases.get(word, word))

    @property
    def challenge(self) -> str:
        """The line about the candidate, as it stood when it was proposed; empty if it was not."""
        candidate = self.find(CANDIDATE)
        return candidate.tags.get(PROPOSAL, "") if candidate else ""


AnyVersion: TypeAlias = "Version | ModelVersion"
"""A version of a registered model: as MLflow's database has it, or MLflow's own."""


def registered(model_name: str) -> str:
    """Return the full name of a registered model. model_name: see `fedcore.config.settings.Setting`."""
    return f"{FAMILY}{model_name}"


def read() -> dict[str, Versions] | None:
    """Return the versions in MLflow's database by model; None if it is no file here, or none that can be read."""
    if (path := database_file(os.environ["MLFLOW_TRACKING_URI"])) is None:
        return None
    if not path.exists():
        return {}
    place = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True, timeout=60)) as database:
            names, versions, aliases, tags = (database.execute(query).fetchall() for query in QUERIES)
    except sqlite3.Error:
        return None
    by_name = {name: Versions() for (name,) in names if name.startswith(FAMILY)}
    for name, number, run_id, location in versions:
        if name in by_name:
            by_name[name].numbers[str(number)] = Version(name, str(number), run_id, location)
    for name, number, key, value in tags:
        if name in by_name and (version := by_name[name].find(str(number))):
            version.tags[key] = value
    for name, alias, number in aliases:
        if name in by_name:
            by_name[name].aliases[alias] = str(number)
    return {name.removeprefix(FAMILY): versions for name, versions in by_name.items()}


def require(catalogue: Mapping[str, Versions], model_name: str, word: str | None = None) -> None:
    """Raise InputError, which names what there is, if no model has that name, or no version of that number or alias."""
    if model_name not in catalogue:
        names = ", ".join(catalogue) or "none; run fedcore run, or wait for one that still records"
        raise InputError(f"model = {model_name!r}: not registered; there is: {names}")
    versions = catalogue[model_name]
    if word is not None and word not in (versions.numbers if word.isdigit() else versions.aliases):
        aliases = sorted(versions.aliases.items())
        listing = ", ".join(f"{alias} (version {number})" for alias, number in aliases) or "no alias"
        advice = f"; {AT_THE_END}" if word == CANDIDATE else ""
        raise InputError(f"version = {word!r}: {registered(model_name)} has no such version; it has {listing}{advice}")


def only_champion(catalogue: Mapping[str, Versions]) -> str:
    """Return the only model that has a champion; raises InputError, which says what to do, if it is not one."""
    led = [model_name for model_name, versions in catalogue.items() if CHAMPION in versions.aliases]
    if len(led) == 1:
        return led[0]
    if led:
        raise InputError(f"--model: must be one of {', '.join(led)}")
    if not catalogue:
        raise InputError("--model: no model is registered; run fedcore run")
    which = next(iter(catalogue)) if len(catalogue) == 1 else f"NAME, NAME is {' or '.join(catalogue)}"
    raise InputError(f"--model: no model has been promoted; promote one: fedcore promote {which}")


def choose(catalogue: Mapping[str, Versions], asked: str | None) -> tuple[str, str]:
    """Return the name and version of "name", "name@alias" or "name/number"; None: the only champion's."""
    if asked is None:
        asked = only_champion(catalogue)
    model_name, _, word = re.split("([@/])", f"{asked}@", maxsplit=1)
    word = word.removesuffix("@")
    try:
        require(catalogue, model_name, word or CHAMPION)
    except InputError as error:
        advice = "" if word or model_name not in catalogue else f"; promote one: fedcore promote {model_name}"
        raise InputError(f"{error}{advice}") from None
    return model_name, word or CHAMPION


@dataclass(frozen=True)
class Proposal:
    """better: "yes", "no", "not comparable", or "" if there is no champion. why: the numbers, or the difference.

    stays: the candidate of a whole study, or of more seeds, that this version does not replace, uncompared.
    """

    version: AnyVersion
    champion: AnyVersion | None
    better: str
    why: str
    stays: AnyVersion | None = None

    def __str__(self) -> str:
        if self.champion is None:
            return f"{self.name}: no champion yet"
        if self.champion.version == self.version.version:
            return f"{self.name} is the champion"
        number = f"version {self.champion.version}"
        if self.of_champion:
            what = "its final fit" if self.champion.tags.get(FINAL_FIT_OF) else "the model of its study"
            return f"{self.name}: the champion is {what}, {number}"
        of = self.champion.tags.get(FINAL_FIT_OF)  # what is compared: nothing tests a final fit
        rival = f"version {of}, whose final fit, {number}, is the champion" if of else f"the champion, {number}"
        verdicts = {"yes": "is better than", "no": "is not shown to be better than"}
        verdict = verdicts.get(self.better, "is not comparable with")
        but = BUT.get(str(self.version.tags.get(SHOWN, "")), "") * (self.better == "yes")
        return f"{self.name} {verdict} {rival}. Reason: {self.why}{but}"

    @property
    def shown(self) -> str:
        """The tag SHOWN of its version as the champion: of a first one the answer's, later by the champion before."""
        own = str(self.version.tags.get(SHOWN, ""))
        if self.of_champion and self.champion is not None:
            return str(self.champion.tags.get(SHOWN, ""))
        return own if self.champion is None or own == "guess" or self.better not in ("yes", "no") else self.better

    @property
    def name(self) -> str:
        """Its version's model, number and origin, before a verdict that says itself what is shown."""
        return title(self.version, "" if (self.better, self.shown) == ("no", "no") else self.shown)

    @property
    def of_champion(self) -> bool:
        """Whether it and the champion are of one study's run: the champion itself, or one is the other's final fit."""
        return self.champion is not None and study_run(self.champion) == study_run(self.version)

    @property
    def accepted(self) -> bool:
        """Whether the nightly rule promotes it: if it is better than the champion, or there is none; no guess."""
        return not self.of_champion and self.better in ("", "yes") and self.stays is None and not self.guesses

    @property
    def guesses(self) -> bool:
        """Whether it is no better than always guessing, by its study's answer."""
        return self.version.tags.get(SHOWN) == "guess"

    @property
    def advice(self) -> str:
        """What to say of it if it is not promoted."""
        if (stays := self.stays) is not None:
            many = plural(int(stays.tags[SEEDS]), "seed")
            name = f"version {stays.version} ({describe(stays)})"
            return (
                f"{self.name} is not proposed: fewer seeds, or a part of a study, cannot say. "
                f"The candidate is still that of {many}, {name}"
            )
        if self.of_champion:
            return str(self)
        command = f"fedcore promote {self.version.name.removeprefix(FAMILY)}"
        command += "" if self.accepted else f" --version {self.version.version}"  # without, it is refused
        if self.version.tags.get(SIMULATED) == "false":
            return f"{self}; to promote it: {command} (its devices have trained it)"
        return f"{self}; to promote it: {command} (trains it once more on all rows first)"

    def promoted(self, final: AnyVersion | None = None) -> str:
        """Return what to say after its promotion, or after that of its final fit."""
        fit = "" if final is None else f"its final fit, version {final.version}, "
        if self.champion is None:
            return f"{self.name}: {fit}promoted; it is the first champion"
        if self.champion.version == (final or self.version).version:
            return f"{self.name}: {fit}is the champion" if final else str(self)
        asked = final is not None and not self.accepted and not self.of_champion
        return f"{self}; {fit}promoted{' all the same, as asked' * asked}"


def title(version: AnyVersion, shown: str | None = None) -> str:
    """Return a version's model, number and origin. shown: in place of its tag SHOWN."""
    return f"{version.name.removeprefix(FAMILY)} version {version.version} ({describe(version, shown)})"


def describe(version: AnyVersion, shown: str | None = None) -> str:
    """Return where a version comes from, and whether it is shown to be better. shown: in place of its tag SHOWN."""
    of = version.tags.get(FINAL_FIT_OF)
    final = "" if of is None else f", final fit of version {of}"
    words = UNSHOWN.get(str(version.tags.get(SHOWN, "")) if shown is None else shown, "")
    return printable(f"{version.tags.get('fedcore.method')}, seed {version.tags.get('fedcore.seed')}{final}{words}")


def rank(version: AnyVersion) -> tuple[bool, int]:
    """Return how much a proposal rests on: on a whole study or a part of one, and on how many seeds."""
    return version.tags.get(WHOLE) != "false", int(version.tags.get(SEEDS, 0))


def study_run(version: AnyVersion) -> str:
    """Return the study's run whose score stands for a version: its own, or of a final fit that of its origin."""
    return str(version.tags.get(STUDY_RUN, version.run_id))


def standing_proposal(version: AnyVersion, champion: AnyVersion | None) -> Proposal | None:
    """Return a candidate's comparison as its tags keep it; None if the champion is another now."""
    if champion is None or study_run(champion) == study_run(version):
        return Proposal(version, champion, "", "")
    if version.tags.get(AGAINST) == str(champion.version):
        return Proposal(version, champion, version.tags[BETTER], version.tags[WHY])
    return None
