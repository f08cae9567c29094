"""Train, combine and evaluate: every method of a study, on one federation per setting and seed.

    python -m flows.federate [study=NAME] [size=NAME] [seed=N] [method=NAME] [section.key=value ...]

    python -m flows.federate plan study=dfl                    what it would compute, and how long; computes nothing
    python -m flows.federate study=dfl                         a study of studies/, all seeds of params.yaml
    python -m flows.federate method=code_ot seed=0             one method of a study, or any method by its name
    python -m flows.federate federation.devices=8 training.epochs=5
    python -m flows.federate data.name=table data.path=data/machines.csv data.label=fault data.device=machine

studies=[a,b], seeds=[0,1] and methods=[a,b] name several. Without a study it runs `mine` on data of your own (data.name
is table or image_folder), and otherwise the first one of run.studies. params.yaml lists the settings; docs/data.md,
docs/nets.md and docs/pipeline.md explain them. A preview of your own data: python -m flows.prepare preview --help.

The same flow runs under `dvc repro` (stage federate: one study, on the outputs of earlier stages) and as a Prefect
deployment.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fedcore.pipeline import environment

environment.prepare()

from fedcore.pipeline.command import report_bad_input, show_help

shown: Shown | None = None
"""What the preview of this command has read and divided."""

if __name__ == "__main__":  # bad input is refused before the imports below, which take seconds
    show_help(__doc__)
    from fedcore.execute.template import open_template
    from fedcore.execute.workers import serve

    open_template(serve)  # before the imports that follow start threads
    with report_bad_input():
        from fedcore.config.request import ask, plan_jobs

        asked = ask([word for word in sys.argv[1:] if word != "plan"])
        params, planned = plan_jobs(asked)
        if "plan" in sys.argv[1:]:
            from fedcore.pipeline.run.forecast import print_plan

            print_plan(params, planned)
            sys.exit()
        if not asked.prepared:
            from fedcore.report.preview import show_own

            shown = show_own(planned)

from prefect import flow, runtime

from fedcore.config.papers import Papers, read_papers
from fedcore.config.params import change, read
from fedcore.config.request import Job, Request, parse, plan_jobs
from fedcore.config.settings import MethodSettings, Setting
from fedcore.config.studies import run_section, title_for
from fedcore.core.rounds import require_devices
from fedcore.pipeline.cache.shared import open_store
from fedcore.pipeline.cache.store import Ref
from fedcore.pipeline.files import CURVES, METRICS, PAGE
from fedcore.pipeline.orchestration.artifacts import publish
from fedcore.pipeline.orchestration.engine import choose_engine
from fedcore.pipeline.orchestration.session import Session, console, open_session, prefect_server
from fedcore.pipeline.record.result import PreparedData, Result, digest
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run import comparison, partitions
from fedcore.pipeline.run import run_method as play
from fedcore.report.preview import Shown
from fedcore.report.terminal import print_answers, print_claims, print_summary
from fedcore.types import Federation, InputError

__all__ = ["Job", "Request", "parse", "plan_jobs", "run"]

PIPELINE = Path("pipeline")
SECONDS = Path("runs") / "seconds"
NO_SECONDS = {"wall": math.nan, "cpu": math.nan}
"""Columns of a summary whose text should be the same in each run."""

Sources: TypeAlias = dict[str, Ref]
"""Where a setting's data are -> the dataset."""


def name_run() -> str:
    """Return a flow run's name: its studies, size and seeds."""
    request = Request.model_validate(runtime.flow_run.parameters["request"])
    section = run_section(change(read(), {k: v for k, v in request.changes.items() if k.startswith("run.")}))
    seeds = sorted(request.seeds or section.seeds)
    whole = seeds == list(range(seeds[0], seeds[-1] + 1))
    shown = f"{seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))
    studies = " + ".join(request.studies or section.studies)
    return f"{studies}, {request.size or section.size}, seed{'s' * (len(seeds) > 1)} {shown}"


@flow(name="federate", flow_run_name=name_run, persist_result=False)
def run(request: Request) -> None:
    """Run every job of a request; outside of `dvc repro` also compare them."""
    params, jobs = plan_jobs(request)
    run_settings, papers = run_section(params), read_papers(params["studies"])
    results_by_job: list[list[Result]] = []
    with RecordWriter() as writer:
        store = open_store(run_settings.store)
        settings = [setting for job in jobs for setting in job.settings]
        engine = choose_engine(run_settings, settings, store, console.print)
        with open_session("federate", store, engine, run_settings.accelerator, writer.warm_up) as session:
            # All data are read and all methods built first, so that bad input is reported before any training.
            sources: Sources = {}
            rows_left_out = LeftOut(session)
            ready = [
                [
                    rows_left_out.drop(job, setting, *prepare(session, setting, job.seed, request, sources))
                    for setting in job.settings
                ]
                for job in jobs
            ]
            session.expect_steps(
                sum(play.count_all_steps(setting, fed) for points in ready for setting, _, fed in points)
            )
            for job, points in zip(jobs, ready, strict=True):
                results_by_job.append([])
                for setting, prepared, fed in points:
                    for row in setting.methods:
                        try:
                            result = play.run_method(
                                session, setting, prepared, fed, row, job.seed, job.size, setting.every, job.show
                            )
                        except InputError as refused:
                            rows_left_out.add(job, row, refused)
                            continue
                        computed = any(not step.cached for step in result.steps)
                        writer.save(session.store, result, title_for(job.title, [len(fed.devices)]), computed)
                        results_by_job[-1].append(result)
                        # `dvc repro` ends each study with its answer; the page has every row.
                        session.print_line(play.summary_line(result), terminal=not request.prepared)
                if not results_by_job[-1]:
                    raise InputError(f"study {job.study}: no method allows these data; the reasons are above")
            session.print_line(play.tally(session.steps.done), terminal=not request.prepared)
        everything = [result for results in results_by_job for result in results]
        answered = comparison.answer_results(params, everything)
        for study, text in comparison.notes(answered.summary.assign(**NO_SECONDS), answered.answers).items():
            publish(study, text)
        print_answers(answered.answers)
        if request.prepared:
            write_stage_outputs(jobs, results_by_job, session)
        else:
            write_comparison(params, papers, jobs, results_by_job, answered, session, writer, request.promote)
    for line in writer.proposed:
        print(line)


class LeftOut:
    """The rows of an optional study whose methods refuse the data; the reason is printed once for all seeds."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.said: set[tuple[str, str]] = set()

    def add(self, job: Job, row: MethodSettings, refused: InputError) -> None:
        """Print why a row is left out; raises the error again if the study needs all of its rows."""
        if not job.optional:
            raise refused
        if (job.study, row.label) not in self.said:
            self.said.add((job.study, row.label))
            why = str(refused).removeprefix(f"{row.label}: ").removesuffix(f" (row {row.label})")
            self.session.print_line(f"  {row.label} is left out: {why}")

    def drop(
        self, job: Job, setting: Setting, prepared: PreparedData, fed: Federation
    ) -> tuple[Setting, PreparedData, Federation]:
        """Return a setting without the rows that cannot be built for these devices' nets and data."""
        kept, sizes = [], play.count_examples(self.session.store, prepared)
        for row in setting.methods:
            try:
                require_devices(row.build(fed.public.nets, sizes), fed)
            except InputError as refused:
                self.add(job, row, refused)
            else:
                kept.append(row)
        return replace(setting, methods=tuple(kept)), prepared, fed


def write_stage_outputs(jobs: list[Job], results_by_job: list[list[Result]], session: Session) -> None:
    """Write the outputs of a stage of `dvc repro`, for the next stage and for DVC's commands."""
    for job, results in zip(jobs, results_by_job, strict=True):
        folder, seed = PIPELINE / "federate" / job.study / job.name, f"seed-{job.seed}"
        play.save(results, folder)
        play.save_pictures(session.store, results, folder)
        play.save_schemas(session.store, results, folder)
        metrics, curves = (PIPELINE / kind / job.study for kind in ("metrics", "curves"))
        play.save_metrics(results, metrics / f"{seed}.json", curves / f"{seed}.csv")
        play.save_seconds(results, SECONDS / job.name)


def write_comparison(
    params: dict[str, Any],
    papers: Papers,
    jobs: list[Job],
    results_by_job: list[list[Result]],
    answered: comparison.Answered,
    session: Session,
    writer: RecordWriter,
    promote: bool,
) -> None:
    """Write, compare and print the results of a run outside of `dvc repro`, and propose models."""
    folder = Path("runs") / digest(result for results in results_by_job for result in results)
    places = []
    for job, results in zip(jobs, results_by_job, strict=True):
        places.append(folder / job.name)
        play.save(results, places[-1])
        play.save_metrics(results, places[-1] / METRICS, places[-1] / CURVES)
        play.save_seconds(results, places[-1])
        play.save_pictures(session.store, results, places[-1])
        play.save_schemas(session.store, results, places[-1])
    pictures = []
    for result in {
        (r.setting.study, r.setting.name): r for results in reversed(results_by_job) for r in results
    }.values():
        place = folder / "partition" / result.setting.study / result.setting.slug / f"seed-{result.seed}"
        partitions.save_partition(session.store, result.prepared, place)
        pictures.append(place / "who.png")
    made = comparison.compare(params, places, places, pictures, papers, answered)
    comparison.write(made, folder, folder)
    comparison.describe(made, {job.study: job.size for job in jobs}, writer, folder / PAGE)
    writer.propose(comparison.proposals(places, made.answers), promote)
    print_summary(made.summary)
    print_claims(made.claims)
    print(f"page: {folder / PAGE}   record: make ui")


def prepare(
    session: Session, setting: Setting, seed: int, request: Request, sources: Sources
) -> tuple[PreparedData, Federation]:
    """Return the data and their partition, and the federation that holds them."""
    prepared = read_stages(session, setting, seed) if request.prepared else make_data(session, setting, seed, sources)
    return prepared, partitions.build_federation(session.steps, setting, prepared)


def make_data(session: Session, setting: Setting, seed: int, sources: Sources) -> PreparedData:
    """Read the data, once in a run, and divide them among devices."""
    source, seen = setting.source, shown or Shown()
    if source not in sources:
        read = seen.datasets.pop(source, None)
        sources[source] = partitions.read_dataset(session.store, setting.data, read)
    divided = seen.partitions.pop((source, setting.division, seed), None)
    made = partitions.divide_dataset(session.steps, sources[source], setting.federation, seed, divided)
    return PreparedData(sources[source], made)


def read_stages(session: Session, setting: Setting, seed: int) -> PreparedData:
    """Import the outputs of the pipeline's earlier stages."""
    dataset = partitions.import_dataset(session.store, PIPELINE / "data" / setting.study / setting.dataset)
    folder = PIPELINE / "partition" / setting.study / setting.slug / f"seed-{seed}"
    return PreparedData(dataset, partitions.import_partition(session.store, folder))


def main(request: Request) -> None:
    with report_bad_input(), prefect_server():
        run(request)


if __name__ == "__main__":
    main(asked)
