"""What a run would compute, and how long it would take."""

from __future__ import annotations

import click

from fedcore.cli.run import SETTINGS


@click.command(
    help=f"Say what a run would compute, and how long; computes nothing.\n\n    {SETTINGS.format(name='plan')}"
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def plan(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import enter_project, open_template

    enter_project()
    open_template()
    from fedcore.config.request import ask, plan_jobs

    jobs = plan_jobs(ask([*settings]))
    from fedcore.pipeline.run.forecast import print_plan

    print_plan(*jobs)
