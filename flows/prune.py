"""Prune the cache: delete the steps that no run has used for long, and their blobs.

python -m flows.prune            those that were not used for 30 days
python -m flows.prune days=7

If run.store names a shared store, it loses the blobs that are older than that and that no run here has used since.
"""

from __future__ import annotations

import sys

from tasks.config import environment

environment.prepare()

DAYS = 30.0


def main(words: list[str]) -> None:
    from fedcore.types import InputError
    from tasks.cache import journal, prune
    from tasks.cache.shared import SharedStore, open_store
    from tasks.cache.store import Store
    from tasks.config.params import change, parse, read
    from tasks.config.studies import run_section

    given = parse(words)
    days = given.pop("days", DAYS)
    typed = {key: given.pop(key) for key in ("run.store",) if key in given}
    if given:
        raise InputError(f"{', '.join(given)}: unknown; there is days, as in days={DAYS:g}")
    if type(days) not in (int, float) or not 0 <= days < float("inf"):
        raise InputError(f"days: {days!r} is not a number from 0")
    store = open_store(run_section(change(read(), typed)).store)
    pruned = {"": prune.prune(environment.STEPS, Store(environment.BLOBS), days)}
    if isinstance(store, SharedStore):
        pruned[f" in {store.place}"] = store.prune(journal.blobs(), days)
    for place, found in pruned.items():
        print(
            f"pruned {found.steps} steps and {found.blobs} blobs not used for {days:g} days{place}, "
            f"{found.nbytes / 1e6:.1f} MB; blobs of {found.left / 1e6:.1f} MB stay"
        )


if __name__ == "__main__":
    from tasks.config.command import report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        main(sys.argv[1:])
