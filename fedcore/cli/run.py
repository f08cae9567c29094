"""A run, what it would compute, the data before it, its stages in `dvc repro`, and one of the record made again."""

from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from fedcore.cli.project import PATH, enter_project, flow, load, open_template, open_yaml
from fedcore.pipeline.state import write_atomic

SETTINGS = """\b
fedcore {name} study=dfl                             a study of studies/, all seeds of params.yaml
fedcore {name} method=code_ot seed=0                 one method of a study, or any method by its name
fedcore {name} federation.scale=common training.epochs=5
fedcore {name} data.name=table data.path=data/machines.csv data.label=fault data.device=site

studies=[a,b], seeds=[0,1] and methods=[a,b] name several. Without a study it takes the one for data of your own
(data.name is table or image_folder), and otherwise the first one of run.studies."""


def _plan(settings: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the request, the parameters and the jobs; prints which edits of params.yaml a study overrides."""
    from fedcore.config.request import ask, plan_jobs, unused_settings
    from fedcore.pipeline.run import repeat

    request = ask([*settings])
    planned = plan_jobs(request)
    with repeat.printed("stderr"):
        for line in unused_settings(request, planned[1]):
            click.echo(f"fedcore: {line}", err=True)
    return request, *planned


KEYS = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
SAVE = click.option(
    "--save", "keep", is_flag=True,
    help="Also write typed settings (section.key) into params.yaml, for later runs; not seeds, size and methods.",
)  # fmt: skip


@click.command(help=f"Train, combine and evaluate: every method of a study.\n\n{SETTINGS.format(name='run')}")
@KEYS
@SAVE
def run(settings: tuple[str, ...], keep: bool = False) -> None:
    enter_project()
    from fedcore.pipeline.run import repeat

    key = repeat.key_of(settings)
    if not keep and repeat.show(key):
        return
    from fedcore.pipeline.orchestration import server

    with server.begun():  # beside all imports; what is refused ends it
        open_template()
        with repeat.watch(key) as watch:
            watch.plan(*(planned := _plan(settings)))
            request, _, jobs = planned
            from fedcore.config.request import first_own
            from fedcore.pipeline import alerts

            if not request.prepared and (own := first_own(jobs)) is not None:
                from fedcore.report.preview import print_preview

                setting, seed = own
                with alerts.watch():  # a night's new rows may be refused
                    request.loaded[setting.source], divided = setting.read_data(seed)
                criterion = next(job.criterion for job in jobs if setting in job.settings)
                print_preview(setting, request.loaded[setting.source], divided, criterion=criterion)
            if keep:
                save(request)
            from fedcore.pipeline.orchestration.session import prefect_server

            with alerts.watch():
                federate = flow("federate", "federate")
                with prefect_server():
                    federate(**request.to_flow())


def save(request: Any) -> None:
    """Write typed settings into params.yaml; says which of them a study overrides in later runs.

    Seeds, size and methods are of one run: a first look with three seeds must not shorten later ones.
    """
    from fedcore.config.request import Request, overridden
    from fedcore.methods import METHODS

    (params, text), typed = open_yaml(path := Path("params.yaml")), dict(request.changes)
    alone = ", ".join(key for key in ("seeds", "size", "methods") if getattr(request, key))
    for key, value in typed.items():
        *sections, name = key.split(".")
        for own in METHODS if sections == ["methods"] else ():
            params.get(own, {}).pop(name, None)
        reduce(lambda values, section: values.setdefault(section, {}), sections, params)[name] = value
    write_atomic(path, text().encode())
    print(f"params.yaml: has {', '.join(typed) or 'nothing more'} now{f'; not saved: {alone}' * bool(alone)}")
    print(*(f"{line}\n" for line in overridden(Request(studies=request.studies), typed)), sep="", end="")


@click.command(
    help=f"Say what a run would compute, and how long; computes nothing.\n\n    {SETTINGS.format(name='plan')}"
)
@KEYS
def plan(settings: tuple[str, ...]) -> None:
    enter_project()
    _, *jobs = _plan(settings)
    if Path("tasks").is_dir():
        load("tasks")  # what is edited there has other steps
    from fedcore.pipeline.run.forecast import print_plan

    print_plan(*jobs)


@click.command(
    help="Show your data before a run; computes nothing. Which columns are used and which are left out and why, how "
    "many cells are missing, how the scales differ, and which device holds how many examples of which class."
    f"\n\n{SETTINGS.format(name='preview')}"
)
@KEYS
@SAVE
def preview(settings: tuple[str, ...], keep: bool = False) -> None:
    enter_project()
    request, _, jobs = _plan(settings)
    job = jobs[0]
    from fedcore.pipeline.run.partitions import learners
    from fedcore.pipeline.run.step_functions import describe
    from fedcore.report.preview import preview as show

    first = job.settings[0]
    show(first, job.seed, criterion=job.criterion, check=lambda dataset: learners(first, describe(dataset)))
    if keep:
        save(request)


@click.command()
@click.argument("run")
@click.option("--run", "now", is_flag=True, help="Type these commands, and compare the digests of the result.")
@click.option("--folder", type=PATH, help="Make it here; by default beside the project.")
def reproduce(run: str, now: bool, folder: Path | None) -> None:
    """Print the commands that make a run again. They bring commit, changes, data and settings as they were.

    RUN is the id of a method's run with one seed in MLflow, or its first digits.

    \b
    fedcore reproduce 3fa9c2d1
    fedcore reproduce 3fa9c2d1 --run
    """
    home = enter_project()
    from fedcore.pipeline import reproduction
    from fedcore.pipeline.record.runs import Record

    found = reproduction.find(Record().client, run)
    folder = (folder or home.with_name(f"{home.name}-{found.info.run_id[:8]}")).absolute()
    lines = reproduction.commands(found, folder)
    print(reproduction.in_words(lines, folder))
    if now:
        print(reproduction.make(found, lines, folder))


@click.group(hidden=True)
def stage() -> None:
    """Run one stage of dvc.yaml."""
    enter_project()


@stage.command("plan")
def plan_stage() -> None:
    """Write all settings that the studies use -> pipeline/plan."""
    from fedcore.config.request import ask, unused_settings
    from fedcore.pipeline.run.outputs import write_plan

    write_plan()
    print(*(f"fedcore: {line}\n" for line in unused_settings(ask([]), [])), sep="", end="")


def _prepare(name: str) -> None:
    from fedcore.pipeline.orchestration.session import prefect_server
    from fedcore.pipeline.run.outputs import plan_settings

    plan_settings()  # refuses bad settings before a server starts
    with prefect_server():
        flow("prepare", name)()


for _name, _help in (("data", "Read the studies' datasets"), ("partition", "Divide them among devices")):
    stage.command(_name, help=f"{_help} -> pipeline/{_name}.")(partial(_prepare, _name))


@stage.command()
@click.argument("study")
def federate(study: str) -> None:
    """Run a study on the outputs of the earlier stages -> pipeline/federate/STUDY."""
    run.callback((f"study={study}", "prepared=true"))  # type: ignore[misc]


@stage.command()
def compare() -> None:
    """Compare the studies -> pipeline/compare, results."""
    open_template()  # the record's process need not import PyTorch again
    flow("compare", "compare")()
