"""The state of a project."""

from __future__ import annotations

import click


@click.command()
def status() -> None:
    """Say how large the project's state is, when it ran last and will run, and which models are champions."""
    from fedcore.cli.project import enter_project

    home = enter_project()
    import shutil
    from datetime import datetime
    from pathlib import Path

    from fedcore import __version__
    from fedcore.pipeline import environment
    from fedcore.pipeline.orchestration import retention, server
    from fedcore.pipeline.record import registry
    from fedcore.pipeline.run import history

    def size(path: Path) -> str:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"

    def words(line: history.Line) -> str:
        answer = f"use {line['method']}" if line["action"] == "use" else line["action"]
        return (
            f"{line['date'][:16].replace('T', ' ')}, {line['study']}: {line['setting']} ({line['dataset']}), {answer}"
        )

    journal = environment.STATE / "journal.jsonl"
    last = datetime.fromtimestamp(journal.stat().st_mtime).isoformat(" ", "minutes") if journal.is_file() else "none"
    known = registry.read() or {}
    champions = [
        f"{name}, version {versions.aliases[registry.CHAMPION]}"
        for name, versions in known.items()
        if registry.CHAMPION in versions.aliases
    ]
    lines = history.read(home / history.HISTORY)
    scheduled = retention.next_run(environment.PREFECT / "prefect.db")
    rows = {
        "fedcore": __version__,
        "project": str(home),
        "last step": last,
        "last run": words(lines[-1]) if lines else "none",
        "next run": scheduled.astimezone().strftime("%Y-%m-%d %H:%M") if scheduled else "none by Prefect's schedule",
        "cache": size(environment.BLOBS) + " of results, " + size(environment.STEPS) + " of steps",
        "Prefect": f"{size(environment.PREFECT)}, server {server.running() or 'not running'}",
        "MLflow": f"{size(home / 'mlflow.db')}, artifacts {size(environment.ARTIFACTS)}",
        "runs": size(home / "runs"),
        "free disk": f"{shutil.disk_usage(home).free / 1e9:,.1f} GB",
        "champions": "; ".join(champions) or "none",
        "challenge": "; ".join(one.challenge for one in known.values() if one.challenge) or "none",
    }
    width = max(map(len, rows))
    print(*(f"{name:<{width}}  {value}" for name, value in rows.items()), sep="\n")
