"""Train, combine and evaluate: every method of a study, on one federation per setting and seed.

    python -m flows.federate [studies=[...] size=... seeds=[...] method=...] [section.key=value ...]

A command that names no studies runs the first one of run.studies.

The same flow runs under `dvc repro` (stage federate: one study, on the outputs of earlier stages) and as a Prefect
deployment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

from tasks.config import environment

environment.prepare()

from fedcore.execute.template import open_template
from fedcore.execute.workers import serve

if __name__ == "__main__":
    open_template(serve)  # before the imports that follow start threads

from prefect import flow, runtime
from pydantic import BaseModel, ConfigDict

from fedcore.settings import check
from fedcore.types import Federation
from tasks.cache.store import Ref
from tasks.config.command import report_bad_input
from tasks.config.files import CURVES, METRICS, PAGE
from tasks.config.papers import Papers, read_papers
from tasks.config.params import change, read
from tasks.config.params import parse as parse_words
from tasks.config.settings import Setting
from tasks.config.studies import EVERY, Seeds, find_study, grid_points, run_section
from tasks.prefect.artifacts import publish
from tasks.prefect.session import Session, open_session, prefect_server
from tasks.record.result import PreparedData, Result, digest
from tasks.record.writer import RecordWriter
from tasks.report.terminal import print_answers, print_claims, print_summary
from tasks.run import comparison, partitions, play

PIPELINE = Path("pipeline")
SECONDS = Path("runs") / "seconds"

Sources: TypeAlias = dict[str, Ref]
"""Section data of a setting -> the dataset."""


class Request(BaseModel):
    """The studies, seeds and methods to run, and changed settings; params.yaml has the defaults.

    studies, size, seeds: of section run. methods: labels of the study or names of methods. changes: dotted keys of
    params.yaml and their values. prepared: take data and partition from the pipeline's earlier stages and write to its
    outputs, for `dvc repro`.
    """

    model_config = ConfigDict(extra="forbid")

    studies: list[str] | None = None
    size: str | None = None
    seeds: Seeds | None = None
    methods: list[str] = []
    changes: dict[str, Any] = {}
    prepared: bool = False
    promote: bool = False


class Job(BaseModel):
    """One study and seed, on all of the study's settings. show: further pictures, for the first seed only."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    study: str
    title: str
    size: str
    seed: int
    settings: list[Setting]
    show: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.study}-{self.seed}"


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
        with open_session("federate", run_settings.workers, run_settings.accelerator, writer.warm_up) as session:
            # All data are read and all methods built first, so that bad input is reported before any training.
            sources: Sources = {}
            ready = [
                [(setting, *prepare(session, setting, job.seed, request, sources)) for setting in job.settings]
                for job in jobs
            ]
            session.expect_steps(
                sum(play.count_all_steps(setting, fed) for points in ready for setting, _, fed in points)
            )
            for job, points in zip(jobs, ready, strict=True):
                results_by_job.append([])
                for setting, prepared, fed in points:
                    for row in setting.methods:
                        result = play.run_method(
                            session, setting, prepared, fed, row, job.seed, job.size, setting.every, job.show
                        )
                        writer.save(session.store, result, job.title)
                        results_by_job[-1].append(result)
                        session.print_line(play.summary_line(result))
            session.print_line(play.tally(session.steps.done))
        everything = [result for results in results_by_job for result in results]
        summary, answers = comparison.answer_results(params, everything)
        for study, text in comparison.notes(summary, answers).items():
            publish(study, text)
        print_answers(answers)
        if request.prepared:
            write_stage_outputs(jobs, results_by_job, session)
        else:
            write_comparison(params, papers, jobs, results_by_job, session, writer, request.promote)
    print(*writer.proposed, sep="\n")


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
        partitions.save_partition(session.store, result.prepared.dataset, result.prepared.partition, place)
        pictures.append(place / "who.png")
    made = comparison.compare(params, places, places, pictures, papers)
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
    source = json.dumps(setting.data, sort_keys=True)
    if source not in sources:
        sources[source] = partitions.read_dataset(session.store, setting.data)
    return PreparedData(
        sources[source], partitions.divide_dataset(session.steps, sources[source], setting.federation, seed)
    )


def read_stages(session: Session, setting: Setting, seed: int) -> PreparedData:
    """Import the outputs of the pipeline's earlier stages."""
    dataset = partitions.import_dataset(session.store, PIPELINE / "data" / setting.study / setting.dataset)
    folder = PIPELINE / "partition" / setting.study / setting.slug / f"seed-{seed}"
    return PreparedData(dataset, partitions.import_partition(session.store, folder))


def plan_jobs(request: Request) -> tuple[dict[str, Any], list[Job]]:
    """Return the parameters and the jobs; raises InputError before anything is computed."""
    # Sections run and studies come first; the other changes apply to each point of a study's grid.
    mine = {key: value for key, value in request.changes.items() if key.partition(".")[0] in ("run", "studies")}
    changes = {key: value for key, value in request.changes.items() if key not in mine or key == EVERY}
    params = change(read(), mine)
    run_settings = run_section(params)
    size = request.size or run_settings.size
    jobs = []
    for name in request.studies or run_settings.studies:
        study = find_study(params, name)
        points = grid_points(params, name, size, changes, request.methods)
        seeds = request.seeds or run_settings.seeds
        first = min(run_settings.seeds if request.prepared else seeds)
        for seed in seeds:
            show = tuple(study.show) if seed == first else ()
            jobs.append(Job(study=name, title=study.title, size=size, seed=seed, settings=points, show=show))
    return params, jobs


def parse(words: list[str]) -> Request:
    """Parse the arguments of the command line."""
    given = parse_words(words)
    asked = {key: given.pop(key) for key in list(given) if key in Request.model_fields and key != "changes"}
    for one, many in (("study", "studies"), ("seed", "seeds"), ("method", "methods")):
        if one in given:
            asked[many] = [given.pop(one)]
    return check(Request, "request", {**asked, "changes": given})


def main(words: list[str]) -> None:
    with report_bad_input():
        request = parse(words)
        if request.studies is None and "run.studies" not in request.changes:
            request.studies = run_section(read()).studies[:1]
        plan_jobs(request)
        with prefect_server():
            run(request)


if __name__ == "__main__":
    main(sys.argv[1:])
