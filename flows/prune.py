"""Prune the cache: delete the steps that no run has used for long, and their blobs.

python -m flows.prune            those that were not used for 30 days
python -m flows.prune days=7
python -m flows.prune --dry-run  says what it would delete, and deletes nothing
"""

from __future__ import annotations

import sys

from tasks.config import environment

environment.prepare()

DAYS = 30.0
DRY_RUN = "--dry-run"


def main(words: list[str]) -> None:
    from fedcore.types import InputError
    from tasks.cache import prune
    from tasks.cache.store import Store
    from tasks.config.params import parse

    dry_run = DRY_RUN in words
    given = parse([word for word in words if word != DRY_RUN])
    days = given.pop("days", DAYS)
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there are days, as in days={DAYS:g}, and {DRY_RUN}")
    if type(days) not in (int, float) or not 0 <= days < float("inf"):
        raise InputError(f"days: {days!r} is not a number from 0")
    pruned = prune.prune(environment.STEPS, Store(environment.BLOBS), days, dry_run)
    done = "would prune" if dry_run else "pruned"
    print(
        f"{done} {pruned.steps} steps and {pruned.blobs} blobs not used for {days:g} days, "
        f"{pruned.nbytes / 1e6:.1f} MB; blobs of {pruned.left / 1e6:.1f} MB stay"
    )


if __name__ == "__main__":
    from tasks.config.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
