"""Prune the cache: delete the steps that no run has used for long, and their blobs.

python -m flows.prune            those that were not used for 30 days
python -m flows.prune days=7
python -m flows.prune --dry-run  says what it would delete, and deletes nothing

If run.store names a shared store, it loses the blobs that are older than that and that no run here has used since.
"""

from __future__ import annotations

import sys

from fedcore.pipeline import environment

environment.prepare()

DAYS = 30.0
DRY_RUN = "--dry-run"


def main(words: list[str]) -> None:
    from fedcore.config.params import change, parse, read
    from fedcore.config.studies import run_section
    from fedcore.pipeline.cache import journal, prune
    from fedcore.pipeline.cache.shared import SharedStore, open_store
    from fedcore.pipeline.cache.store import Store
    from fedcore.types import InputError

    dry_run = DRY_RUN in words
    given = parse([word for word in words if word != DRY_RUN])
    days = given.pop("days", DAYS)
    typed = {key: given.pop(key) for key in ("run.store",) if key in given}
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there are days, as in days={DAYS:g}, and {DRY_RUN}")
    if type(days) not in (int, float) or not 0 <= days < float("inf"):
        raise InputError(f"days: {days!r} is not a number from 0")
    store = open_store(run_section(change(read(), typed)).store)
    pruned = {"": prune.prune(environment.STEPS, Store(environment.BLOBS), days, dry_run)}
    if isinstance(store, SharedStore):
        pruned[f" in {store.place}"] = store.prune(journal.blobs(), days, dry_run)
    done = "would prune" if dry_run else "pruned"
    for place, found in pruned.items():
        print(
            f"{done} {found.steps} steps and {found.blobs} blobs not used for {days:g} days{place}, "
            f"{found.nbytes / 1e6:.1f} MB; blobs of {found.left / 1e6:.1f} MB stay"
        )


if __name__ == "__main__":
    from fedcore.pipeline.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
