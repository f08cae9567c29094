"""Prune the cache: delete the steps that no run has used for long, and their blobs.

python -m flows.prune            those that were not used for 30 days
python -m flows.prune days=7
"""

from __future__ import annotations

import sys

from tasks.config import environment

environment.prepare()

DAYS = 30.0


def main(words: list[str]) -> None:
    from fedcore.types import InputError
    from tasks.cache import prune
    from tasks.cache.store import Store
    from tasks.config.params import parse

    given = parse(words)
    days = given.pop("days", DAYS)
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there is days, as in days={DAYS:g}")
    if type(days) not in (int, float) or not 0 <= days < float("inf"):
        raise InputError(f"days: {days!r} is not a number from 0")
    pruned = prune.prune(environment.STEPS, Store(environment.BLOBS), days)
    print(
        f"pruned {pruned.steps} steps and {pruned.blobs} blobs not used for {days:g} days, "
        f"{pruned.nbytes / 1e6:.1f} MB; blobs of {pruned.left / 1e6:.1f} MB stay"
    )


if __name__ == "__main__":
    from tasks.config.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
