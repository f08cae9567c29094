"""The stages of `dvc repro`."""

from __future__ import annotations

import click


@click.group(hidden=True)
def stage() -> None:
    """Run one stage of dvc.yaml."""
    from fedcore.cli.project import enter_project

    enter_project()


@stage.command()
def plan() -> None:
    """Write all settings that the studies use -> pipeline/plan."""
    from fedcore.pipeline.orchestration import server

    server.start_early()  # beside this stage; the next one needs it
    from fedcore.pipeline.run.outputs import write_plan

    write_plan()


@stage.command()
def data() -> None:
    """Read the studies' datasets -> pipeline/data."""
    _prepare("data")


@stage.command()
def partition() -> None:
    """Divide them among devices -> pipeline/partition."""
    _prepare("partition")


def _prepare(name: str) -> None:
    from fedcore.cli.project import flow
    from fedcore.pipeline.orchestration.session import prefect_server
    from fedcore.pipeline.run.outputs import plan_settings

    plan_settings()  # refuses bad settings before a server starts
    with prefect_server():
        flow("prepare", name)()


@stage.command()
@click.argument("study")
def federate(study: str) -> None:
    """Run a study on the outputs of the earlier stages -> pipeline/federate/STUDY."""
    from fedcore.cli.run import run

    run.callback((f"study={study}", "prepared=true"))  # type: ignore[misc]


@stage.command()
def compare() -> None:
    """Compare the studies -> pipeline/compare, results."""
    from fedcore.cli.project import flow, open_template

    open_template()  # the record's process need not import PyTorch again
    flow("compare", "compare")()
