"""Bad input to a project that holds results: the answers, and the stored files before and after."""

from dataclasses import dataclass

import refusals
from project import Project, Said, digests

from scenarios.place import Place, cached


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
