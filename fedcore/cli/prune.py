"""The cache's old steps, and what Prefect knows of old runs."""

from __future__ import annotations

import click

from fedcore.errors import InputError


@click.command()
@click.option("--days", type=float, default=30.0, show_default=True, help="Delete what no run has used for so long.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--store", help="A shared store's folder or URL; run.store by default.")
@click.option(
    "--record",
    type=float,
    help="Also delete MLflow's runs of data that no run has read for so many days; keep.record of nightly.yaml by "
    "default, and without it none.",
)
def prune(days: float, dry_run: bool, store: str | None, record: float | None) -> None:
    """Delete steps that no run has used for long, and their blobs; and what Prefect knows of runs that ended as long
    ago.

    Of MLflow's record, runs that a champion, a candidate or a previous champion is of stay, and each study's run with
    its numbers.

    A shared store loses the blobs that are older than that and that no run here has used since.
    """
    for option, value in (("--days", days), ("--record", record)):
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(f"{option} = {value!r}: must be a number from 0")
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.config import nightly
    from fedcore.config.params import change, read
    from fedcore.config.studies import run_section
    from fedcore.pipeline import environment
    from fedcore.pipeline.cache import journal
    from fedcore.pipeline.cache.prune import prune
    from fedcore.pipeline.cache.shared import SharedStore, open_store
    from fedcore.pipeline.cache.store import Store
    from fedcore.pipeline.orchestration import retention, server

    record = nightly.read().keep.record if record is None else record
    shared = open_store(run_section(change(read(), {} if store is None else {"run.store": store})).store)
    pruned = {"": prune(environment.STEPS, Store(environment.BLOBS), days, dry_run)}
    if isinstance(shared, SharedStore):
        pruned[f" in {shared.location}"] = shared.prune(journal.blobs(), days, dry_run)
    done = "would prune" if dry_run else "pruned"
    for location, counts in pruned.items():
        print(
            f"{done} {counts.steps} steps and {counts.blobs} blobs not used for {days:g} days{location}, "
            f"{counts.nbytes / 1e6:.1f} MB; blobs of {counts.left / 1e6:.1f} MB stay"
        )
    freed = retention.prune(days, dry_run)
    if freed is not None:
        shrunk = "" if dry_run else f"; its database shrank by {freed.nbytes / 1e6:.1f} MB"
        print(f"{done} {freed.runs} flow runs and {freed.events} events of Prefect older than {days:g} days{shrunk}")
    elif server.alive():
        print(
            "Prefect's database stays while its server runs; that ends five minutes after its last use, or by: "
            "python -m fedcore.pipeline.orchestration.server stop"
        )
    if record is not None:
        from fedcore.pipeline.record.retention import prune as prune_record

        summary = prune_record(record, dry_run)
        if summary is not None:
            print(
                f"{done} {summary.runs} runs of MLflow and the pages of {summary.pages} studies whose data no run has "
                f"read for {record:g} days, {summary.nbytes / 1e6:.1f} MB"
            )
