"""Train, combine and evaluate: every method of a study, on one federation per setting and seed.

    python -m flows.federate [studies=[...] size=... seeds=[...] method=...] [section.key=value ...]

By hand the first study of run.studies is run unless others are named, since what is typed is meant for one.

The same flow runs under `dvc repro` (stage federate: one study, on what the stages before it wrote) and as a Prefect
deployment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

from tasks.config import environment

environment.prepare()

from prefect import flow
from pydantic import BaseModel, ConfigDict

from fedcore.settings import check
from fedcore.types import Federation
from tasks.cache.store import Ref
from tasks.config.command import refusals
from tasks.config.files import CURVES, METRICS, PAGE
from tasks.config.params import change, read
from tasks.config.params import parse as parse_words
from tasks.config.settings import Setting
from tasks.config.studies import EVERY, Seeds, find_study, grid_points, run_section
from tasks.prefect.session import Session, orchestrated, session
from tasks.record.result import Prepared, Result, digest
from tasks.record.writer import RecordWriter
from tasks.report.terminal import print_claims, print_summary
from tasks.run import comparison, partitions, play

PIPELINE = Path("pipeline")
SECONDS = Path("runs") / "seconds"

Seen: TypeAlias = dict[str, Ref]
"""Section data of a setting -> what was read as it says."""


class Request(BaseModel):
    """What to run; what is left out is taken from params.yaml.

    studies, size, seeds: of section run. methods: labels of the study or names of methods. changes: dotted keys of
    params.yaml and their values. prepared: take data and partition from the pipeline's earlier stages and write to its
    outputs, as `dvc repro` wants it.
    """

    model_config = ConfigDict(extra="forbid")

    studies: list[str] | None = None
    size: str | None = None
    seeds: Seeds | None = None
    methods: list[str] = []
    changes: dict[str, Any] = {}
    prepared: bool = False


class Job(BaseModel):
    """One study and seed, on all of the study's settings. show: what else is drawn, with the first seed only."""

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


@flow(name="federate", persist_result=False)
def run(request: Request) -> None:
    """Run every job of a request; outside of `dvc repro` compare them at once."""
    params, jobs = planned(request)
    limits = run_section(params)
    found: list[list[Result]] = []
    with RecordWriter() as clerk:
        with session("federate", limits.workers, limits.accelerator, clerk.expect) as here:
            # All data are read and all methods built first: what they refuse is refused before anything is trained.
            seen: Seen = {}
            ready = [
                [(setting, *gathered(here, setting, job.seed, request, seen)) for setting in job.settings]
                for job in jobs
            ]
            here.expect(sum(play.work_of(setting, fed) for points in ready for setting, _, fed in points))
            for job, points in zip(jobs, ready, strict=True):
                found.append([])
                for setting, prepared, fed in points:
                    for row in setting.methods:
                        result = play.run_method(
                            here, setting, prepared, fed, row, job.seed, job.size, setting.every, job.show
                        )
                        clerk.keep(here.store, result, job.title)
                        found[-1].append(result)
                        here.say(play.line(result))
            here.say(play.tally(here.steps.done))
        if request.prepared:
            hand_on(jobs, found, here)
        else:
            answer(params, jobs, found, here, clerk)


def hand_on(jobs: list[Job], found: list[list[Result]], here: Session) -> None:
    """Write what a stage of `dvc repro` found where the next one and DVC's own commands look for it."""
    for job, results in zip(jobs, found, strict=True):
        folder, seed = PIPELINE / "federate" / job.study / job.name, f"seed-{job.seed}"
        play.save(results, folder)
        play.save_pictures(here.store, results, folder)
        metrics, curves = (PIPELINE / kind / job.study for kind in ("metrics", "curves"))
        play.save_shown(results, metrics / f"{seed}.json", curves / f"{seed}.csv")
        play.save_seconds(results, SECONDS / job.name)


def answer(
    params: dict[str, Any], jobs: list[Job], found: list[list[Result]], here: Session, clerk: RecordWriter
) -> None:
    """Write, compare and print what a run by hand found."""
    folder = Path("runs") / digest(result for results in found for result in results)
    places = []
    for job, results in zip(jobs, found, strict=True):
        places.append(folder / job.name)
        play.save(results, places[-1])
        play.save_shown(results, places[-1] / METRICS, places[-1] / CURVES)
        play.save_seconds(results, places[-1])
        play.save_pictures(here.store, results, places[-1])
    pictures = []
    for result in {(r.setting.study, r.setting.name): r for results in reversed(found) for r in results}.values():
        place = folder / "partition" / result.setting.study / result.setting.slug / f"seed-{result.seed}"
        partitions.save_partition(here.store, result.prepared.dataset, result.prepared.partition, place)
        pictures.append(place / "who.png")
    made = comparison.compare(params, places, places, pictures)
    comparison.write(made, folder, folder)
    for alias, config in comparison.champions(places).items():
        clerk.set_champion(alias, config)
    print_summary(made.summary)
    print_claims(made.claims)
    print(f"page: {folder / PAGE}   record: make ui")


def gathered(here: Session, setting: Setting, seed: int, request: Request, seen: Seen) -> tuple[Prepared, Federation]:
    """Return what is read and divided, and the federation that holds it."""
    prepared = fetch(here, setting, seed) if request.prepared else make(here, setting, seed, seen)
    return prepared, partitions.gather(here.steps, setting, prepared)


def make(here: Session, setting: Setting, seed: int, seen: Seen) -> Prepared:
    """Read the data, once in a run, and divide them."""
    source = json.dumps(setting.data, sort_keys=True)
    if source not in seen:
        seen[source] = partitions.read(here.store, setting.data)
    return Prepared(seen[source], partitions.who(here.steps, seen[source], setting.federation, seed))


def fetch(here: Session, setting: Setting, seed: int) -> Prepared:
    """Take what the pipeline's earlier stages wrote."""
    dataset = partitions.read_prepared(here.store, PIPELINE / "data" / setting.study / setting.dataset)
    folder = PIPELINE / "partition" / setting.study / setting.slug / f"seed-{seed}"
    return Prepared(dataset, partitions.read_partition(here.store, folder))


def planned(request: Request) -> tuple[dict[str, Any], list[Job]]:
    """Return the parameters and the jobs; raises InputError before anything is computed."""
    # What is run is settled first; the other changes are made at each point of a study's grid.
    mine = {key: value for key, value in request.changes.items() if key.partition(".")[0] in ("run", "studies")}
    changes = {key: value for key, value in request.changes.items() if key not in mine or key == EVERY}
    params = change(read(), mine)
    limits = run_section(params)
    size = request.size or limits.size
    jobs = []
    for name in request.studies or limits.studies:
        study = find_study(params, name)
        points = grid_points(params, name, size, changes, request.methods)
        seeds = request.seeds or limits.seeds
        first = min(limits.seeds if request.prepared else seeds)
        for seed in seeds:
            show = tuple(study.show) if seed == first else ()
            jobs.append(Job(study=name, title=study.title, size=size, seed=seed, settings=points, show=show))
    return params, jobs


def parse(words: list[str]) -> Request:
    """Read the words of the command line."""
    given = parse_words(words)
    asked = {key: given.pop(key) for key in list(given) if key in Request.model_fields and key != "changes"}
    for one, many in (("study", "studies"), ("seed", "seeds"), ("method", "methods")):
        if one in given:
            asked[many] = [given.pop(one)]
    return check(Request, "request", {**asked, "changes": given})


def main(words: list[str]) -> None:
    with refusals():
        request = parse(words)
        if request.studies is None and "run.studies" not in request.changes:
            request.studies = run_section(read()).studies[:1]
        planned(request)
        with orchestrated():
            run(request)


if __name__ == "__main__":
    main(sys.argv[1:])
