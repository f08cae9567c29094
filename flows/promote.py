"""Show the models that runs proposed, or make one the champion, which `flows.predict` uses.

python -m flows.promote                        each dataset's champion and candidate, and which is better
python -m flows.promote digits                 promotes the candidate, unless it is not better
python -m flows.promote digits version=12      promotes any version: a number, candidate or previous
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedcore.errors import InputError
from tasks.config import environment
from tasks.record import registry

if TYPE_CHECKING:
    from mlflow import MlflowClient

environment.prepare()


def arguments(words: list[str]) -> tuple[str | None, str | None]:
    """Parse the arguments of the command line: the dataset and the version, None if they are not given."""
    tasks = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    asked = given.pop("version", None)
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there is version, as in version=previous")
    if len(tasks) > 1 or (asked is not None and not tasks):
        raise InputError("usage: python -m flows.promote [DATASET [version=NUMBER]]")
    return (tasks[0] if tasks else None), asked


def main(words: list[str]) -> None:
    task, asked = arguments(words)
    known = registry.read()
    if task is not None and known is not None:  # a wrong name is refused before the imports below, which take seconds
        registry.require(known, task, asked or registry.CANDIDATE)
    from tasks.record import promotion
    from tasks.record.runs import Record

    client = Record().client
    if task is None:
        names = promotion.names(client)
        print(*(summary(client, name) for name in names), sep="\n")
        if not names:
            print("no model is registered; run python -m flows.federate")
        return
    version = promotion.find(client, task, asked or registry.CANDIDATE)
    found = promotion.compare(client, version)
    if asked is None and found.better in ("no", "not comparable"):
        raise InputError(f"{found}; to promote it all the same, add version={version.version}")
    promotion.promote(client, version)
    print(f"{found.promoted}: models:/{version.name}@{registry.CHAMPION}")


def summary(client: MlflowClient, name: str) -> str:
    """Return a registered model's champion and candidate, and which is better, as a line."""
    from tasks.record import promotion

    champion, candidate = (promotion.alias(client, name, word) for word in (registry.CHAMPION, registry.CANDIDATE))
    if candidate is None:
        return f"{name}: nothing was proposed"
    shown = "none" if champion is None else f"version {champion.version} ({promotion.describe(champion)})"
    return f"{name}: champion {shown}\n  {promotion.compare(client, candidate)}"


if __name__ == "__main__":
    from tasks.config.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
