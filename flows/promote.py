"""Show the models that runs proposed, or make one the champion, which `flows.predict` uses.

python -m flows.promote                        each dataset's champion and candidate, and which is better
python -m flows.promote digits versions        every version: its method, where it comes from, its accuracy, its alias
python -m flows.promote digits                 promotes the candidate, unless it is not better
python -m flows.promote digits version=12      promotes any version: a number, candidate or previous
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.record import registry

if TYPE_CHECKING:
    from mlflow import MlflowClient

environment.prepare()


VERSIONS = "versions"
"""The word that asks for a list, after a dataset."""
USAGE = f"usage: python -m flows.promote [DATASET [{VERSIONS} | version=NUMBER]]"


class Asked(NamedTuple):
    """What the command line asks for. version: None if it is not given. listed: to list the versions."""

    task: str | None
    version: str | None
    listed: bool


def arguments(words: list[str]) -> Asked:
    """Parse the arguments of the command line."""
    tasks = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    asked = given.pop("version", None)
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there is version, as in version=previous")
    listed = tasks[1:] == [VERSIONS]
    if (tasks[1:] and not listed) or (asked is not None and (listed or not tasks)):
        raise InputError(USAGE)
    return Asked(tasks[0] if tasks else None, asked, listed)


def main(words: list[str]) -> None:
    task, asked, listed = arguments(words)
    known = registry.read()
    if task is not None and known is not None:  # a wrong name is refused before the imports below, which take seconds
        registry.require(known, task, None if listed else asked or registry.CANDIDATE)
    from fedcore.pipeline.record import promotion
    from fedcore.pipeline.record.runs import Record

    client = Record().client
    if task is None:
        names = promotion.names(client)
        print(*(summary(client, name) for name in names), sep="\n")
        if not names:
            print("no model is registered; run python -m flows.federate")
        return
    if listed:
        show_versions(client, task)
        return
    version = promotion.find(client, task, asked or registry.CANDIDATE)
    found = promotion.compare(client, version)
    if asked is None and found.better in ("no", "not comparable"):
        raise InputError(f"{found}; to promote it all the same, add version={version.version}")
    promotion.promote(client, version)
    print(f"{found.promoted}: models:/{version.name}@{registry.CHAMPION}")


def show_versions(client: MlflowClient, task: str) -> None:
    """Print a line for each version of a registered model."""
    from fedcore.pipeline.record import promotion
    from fedcore.report.terminal import print_table

    registry.require(promotion.all_versions(client), task)
    print_table(promotion.COLUMNS, promotion.version_table(client, task))
    print(f"to promote one: python -m flows.promote {task} version=NUMBER")


def summary(client: MlflowClient, name: str) -> str:
    """Return a registered model's champion and candidate, and which is better, as a line."""
    from fedcore.pipeline.record import promotion

    champion, candidate = (promotion.alias(client, name, word) for word in (registry.CHAMPION, registry.CANDIDATE))
    if candidate is None:
        return f"{name}: nothing was proposed"
    shown = "none" if champion is None else f"version {champion.version} ({promotion.describe(champion)})"
    return f"{name}: champion {shown}\n  {promotion.compare(client, candidate)}"


if __name__ == "__main__":
    from fedcore.pipeline.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
