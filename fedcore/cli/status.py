"""The state of a project: what there is, and to delete what is old of the cache and of what Prefect and MLflow know."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import click

from fedcore.cli.project import enter_project
from fedcore.errors import InputError, plural, printable
from fedcore.pipeline.record import registry

PARTS = {
    "rounds": "devices' states and messages after rounds", "deploy": "deployed models",
    "distribute": "devices' rows", "": "data and partitions",
}  # fmt: skip
"""Kind of step -> what it leaves in the cache."""
OTHERS = "other models, messages and reports"


def standing(catalogue: Mapping[str, registry.Versions]) -> Iterator[str]:
    """Yield a line for each candidate that is not the champion's own: how it stands beside the champion."""
    for versions in catalogue.values():
        candidate = versions.find(registry.CANDIDATE)
        champion = versions.find(registry.CHAMPION)
        proposal = None if candidate is None else registry.standing_proposal(candidate, champion)
        if proposal is not None and not proposal.of_champion:
            yield str(proposal)
        elif candidate is not None and proposal is None:
            which = f"{candidate.name.removeprefix(registry.FAMILY)} version {candidate.version}"
            yield f"{which} is not yet compared with this champion; fedcore promote does"


@click.command()
def status() -> None:
    """Say how large the project's state is, and who is champion. Also when it ran last, and will run."""
    home = enter_project()
    from fedcore import __version__
    from fedcore.pipeline import environment
    from fedcore.pipeline.cache import journal
    from fedcore.pipeline.orchestration import server
    from fedcore.pipeline.run import history
    from fedcore.report.names import in_words

    counted: set[tuple[int, int]] = set()

    def nbytes(path: Path) -> int:
        """Return the bytes of a file, or of those in a folder; of one with several names it is the first name's."""
        stats = [file.stat() for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
        sizes = {(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}
        new = sizes.keys() - counted
        counted.update(new)
        return sum(sizes[path] for path in new)

    def size(path: Path) -> str:
        return f"{nbytes(path) / 1e6:,.1f} MB"

    def parts() -> str:
        kinds, sizes = journal.kinds(), Counter[str]()
        for blob in environment.BLOBS.glob("*/*"):
            sizes[PARTS.get(kinds.get(blob.stem, ""), OTHERS)] += blob.stat().st_size
        return ", ".join(f"{size / 1e6:,.1f} MB {what}" for what, size in sizes.most_common()) or "none"

    def describe(line: history.Line) -> str:
        answer = f"use {line['method']}" if line["action"] == "use" else line["action"]
        where = in_words(*(line[key] for key in ("study", "setting", "dataset")))
        return f"{line['date'][:16].replace('T', ' ')}, {where}: {answer}"

    log = journal.JOURNAL
    last = datetime.fromtimestamp(log.stat().st_mtime).isoformat(" ", "minutes") if log.is_file() else "none"
    catalogue = registry.read() or {}
    champions = [
        f"{name}, version {versions.aliases[registry.CHAMPION]}"
        for name, versions in catalogue.items()
        if registry.CHAMPION in versions.aliases
    ]
    lines = history.read(home / history.HISTORY)
    scheduled = server.next_run(environment.PREFECT / "prefect.db")
    rows = {
        "fedcore": __version__, "project": str(home), "last step": last,
        "last finished run": describe(lines[-1]) if lines else "none",
        "next run": scheduled.astimezone().strftime("%Y-%m-%d %H:%M") if scheduled else "none scheduled in Prefect",
        "cache": f"results of steps {size(environment.BLOBS)}, their records {size(environment.STEPS)}",
        "  results": parts(),
        "Prefect": f"database {size(environment.PREFECT)}, server {server.running() or 'not running'}",
        "MLflow": f"database {size(home / 'mlflow.db')}, artifacts {size(environment.ARTIFACTS)}",
        "runs": f"pages and tables {size(home / 'runs')}", "free disk": f"{shutil.disk_usage(home).free / 1e9:,.1f} GB",
        "champions": "; ".join(champions) or "none",
        "candidate": "; ".join(standing(catalogue)) or "none",
    }  # fmt: skip
    width = max(map(len, rows))
    print(*(f"{name:<{width}}  {printable(value)}" for name, value in rows.items()), sep="\n")


@click.command()
@click.option("--days", type=float, default=30.0, show_default=True, help="Delete what no run has used for so long.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--store", help="A shared store's folder or URL; run.store by default.")
@click.option(
    "--record", type=float, help="Also runs of data unread for so many days; else keep.record of nightly.yaml."
)
def prune(days: float, dry_run: bool, store: str | None, record: float | None) -> None:
    """Delete steps that no run has used for long, and their blobs.

    In MLflow, runs of the champion, candidate and previous champion stay, and each study's numbers. A shared store
    loses older blobs that no run here has used since.
    """
    for option, value in (("--days", days), ("--record", record)):
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(f"{option} = {value!r}: must be a number from 0")
    enter_project()
    from fedcore.config import nightly
    from fedcore.config.params import change, read
    from fedcore.config.studies import run_section
    from fedcore.pipeline import environment
    from fedcore.pipeline.cache import journal
    from fedcore.pipeline.cache.shared import SharedStore, open_store, prune
    from fedcore.pipeline.cache.store import Store

    record = nightly.read().keep.record if record is None else record
    shared = open_store(run_section(change(read(), {} if store is None else {"run.store": store})).store)
    pruned = {"": prune(environment.STEPS, Store(environment.BLOBS), days, dry_run)}
    if isinstance(shared, SharedStore):
        pruned[f" in {shared.location}"] = shared.prune({*journal.kinds()}, days, dry_run)
    done = "would prune" if dry_run else "pruned"
    for location, counts in pruned.items():
        print(
            f"{done} {plural(counts.steps, 'step')} and {plural(counts.blobs, 'blob')} not used for {days:g} days"
            f"{location}, {counts.nbytes / 1e6:.1f} MB; blobs of {counts.left / 1e6:.1f} MB stay"
        )
    if record is not None:
        from fedcore.pipeline.record.retention import prune as prune_record

        if (counted := prune_record(record, dry_run)) is not None:
            runs, pages, nbytes = counted
            print(
                f"{done} {runs} runs of MLflow and the pages of {pages} studies whose data no run has "
                f"read for {record:g} days, {nbytes / 1e6:.1f} MB"
            )
