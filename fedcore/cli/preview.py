"""Your own data before a run."""

from __future__ import annotations

import click

from fedcore.cli.run import SETTINGS


@click.command(
    help="Show your data before a run: which columns are used and which are left out and why, how many cells are "
    "missing, how the scales differ, and which device holds how many examples of which class. Computes and writes "
    f"nothing.\n\n{SETTINGS.format(name='preview')}"
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def preview(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.config.request import ask, plan_jobs

    job = plan_jobs(ask([*settings]))[1][0]
    from fedcore.report.preview import print_preview

    print_preview(job.settings[0], job.seed, tolerant=True)
