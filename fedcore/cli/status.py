"""The state of a project."""

from __future__ import annotations

import click

PARTS = {
    "rounds": "memories and messages of devices after rounds",
    "deploy": "deployed models",
    "distribute": "devices' examples",
    "": "data and partitions",
}
"""Kind of step -> what it leaves in the cache."""
OTHERS = "models, messages and reports of other steps"


@click.command()
def status() -> None:
    """Say how large the project's state is, when it ran last and will run, and which models are champions."""
    from fedcore.cli.project import enter_project

    home = enter_project()
    import shutil
    from collections import Counter
    from datetime import datetime
    from pathlib import Path

    from fedcore import __version__
    from fedcore.pipeline import environment
    from fedcore.pipeline.cache import journal
    from fedcore.pipeline.orchestration import retention, server
    from fedcore.pipeline.record import registry
    from fedcore.pipeline.run import history

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
        return (
            f"{line['date'][:16].replace('T', ' ')}, {line['study']}: {line['setting']} ({line['dataset']}), {answer}"
        )

    log = journal.JOURNAL
    last = datetime.fromtimestamp(log.stat().st_mtime).isoformat(" ", "minutes") if log.is_file() else "none"
    catalogue = registry.read() or {}
    champions = [
        f"{name}, version {versions.aliases[registry.CHAMPION]}"
        for name, versions in catalogue.items()
        if registry.CHAMPION in versions.aliases
    ]
    lines = history.read(home / history.HISTORY)
    scheduled = retention.next_run(environment.PREFECT / "prefect.db")
    rows = {
        "fedcore": __version__,
        "project": str(home),
        "last step": last,
        "last run": describe(lines[-1]) if lines else "none",
        "next run": scheduled.astimezone().strftime("%Y-%m-%d %H:%M") if scheduled else "none by Prefect's schedule",
        "cache": size(environment.BLOBS) + " of results, " + size(environment.STEPS) + " of steps",
        "results": parts(),
        "Prefect": f"{size(environment.PREFECT)}, server {server.running() or 'not running'}",
        "MLflow": f"{size(home / 'mlflow.db')}, artifacts {size(environment.ARTIFACTS)} beside models that are results",
        "runs": size(home / "runs"),
        "free disk": f"{shutil.disk_usage(home).free / 1e9:,.1f} GB",
        "champions": "; ".join(champions) or "none",
        "challenge": "; ".join(entry.challenge for entry in catalogue.values() if entry.challenge) or "none",
    }
    width = max(map(len, rows))
    print(*(f"{name:<{width}}  {value}" for name, value in rows.items()), sep="\n")
