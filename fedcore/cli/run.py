"""A run, what it would compute, and the data before it."""

from __future__ import annotations

import click

SETTINGS = """\b
fedcore {name} study=dfl                             a study of studies/, all seeds of params.yaml
fedcore {name} method=code_ot seed=0                 one method of a study, or any method by its name
fedcore {name} federation.devices=8 training.epochs=5
fedcore {name} data.name=table data.path=data/machines.csv data.label=fault data.device=machine

studies=[a,b], seeds=[0,1] and methods=[a,b] name several. Without a study it takes the one for data of your own
(data.name is table or image_folder), and otherwise the first one of run.studies."""


KEYS = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")


@click.command(help=f"Train, combine and evaluate: every method of a study.\n\n{SETTINGS.format(name='run')}")
@KEYS
def run(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.pipeline.orchestration import server

    with server.begun():  # beside all imports; what is refused ends it
        _run(settings)


def _run(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import flow, open_template

    open_template()
    from fedcore.config.request import ask, first_own, plan_jobs

    request = ask([*settings])
    _, jobs = plan_jobs(request)
    if not request.prepared and (own := first_own(jobs)) is not None:
        from fedcore.report.preview import print_preview

        (setting, seed), (dataset, divided) = own, own[0].read_data(own[1])
        print_preview(setting, dataset, divided)
        request = request.with_data(setting, seed, dataset, divided)
    from fedcore.pipeline import alerts
    from fedcore.pipeline.orchestration.session import prefect_server

    with alerts.watch():
        federate = flow("federate", "federate")
        with prefect_server():
            federate(request)


@click.command(
    help=f"Say what a run would compute, and how long; computes nothing.\n\n    {SETTINGS.format(name='plan')}"
)
@KEYS
def plan(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import enter_project, open_template

    enter_project()
    open_template()
    from fedcore.config.request import ask, plan_jobs

    jobs = plan_jobs(ask([*settings]))
    from fedcore.pipeline.run.forecast import print_plan

    print_plan(*jobs)


@click.command(
    help="Show your data before a run: which columns are used and which are left out and why, how many cells are "
    "missing, how the scales differ, and which device holds how many examples of which class. Computes and writes "
    f"nothing.\n\n{SETTINGS.format(name='preview')}"
)
@KEYS
def preview(settings: tuple[str, ...]) -> None:
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.config.request import ask, plan_jobs

    job = plan_jobs(ask([*settings]))[1][0]
    from fedcore.report.preview import preview as show

    show(job.settings[0], job.seed)
