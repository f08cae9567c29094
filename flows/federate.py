"""Train, combine and evaluate: every method of a study, on one federation per setting and seed.

    python -m flows.federate [studies=[...] size=... seeds=[...] method=...] [section.key=value ...]

The same flow runs under `dvc repro` (stage federate: one study and seed, on what the stages before it wrote) and as a
Prefect deployment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tasks import environment

environment.prepare()

from prefect import flow  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402

from fedcore.types import Refused  # noqa: E402
from tasks import compare, data, federate, report, settings, track  # noqa: E402
from tasks.session import Session, orchestrated, refusals, session  # noqa: E402
from tasks.settings import Setting  # noqa: E402

PIPELINE = Path("pipeline")


class Request(BaseModel):
    """What to run; what is left out is taken from params.yaml.

    studies, size, seeds: of section run. methods: labels of the study or names of methods. changes: dotted keys of
    params.yaml and their values. prepared: take data and partition from the pipeline's earlier stages and write to its
    outputs, as `dvc repro` wants it.
    """

    model_config = ConfigDict(extra="forbid")

    studies: list[str] | None = None
    size: str | None = None
    seeds: list[int] | None = None
    methods: list[str] = []
    changes: dict[str, Any] = {}
    prepared: bool = False


class Job(BaseModel):
    """One study and seed, on all of the study's settings."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    study: str
    title: str
    size: str
    seed: int
    settings: list[Setting]


@flow(name="federate", persist_result=False)
def run(request: Request) -> None:
    """Run every job of a request; outside of `dvc repro` compare them at once."""
    params, jobs = planned(request)
    limits = settings.run_section(params)
    folders = []
    record = track.Record()
    with session("federate", limits.workers) as here:
        here.plan(sum(len(setting.methods) for job in jobs for setting in job.settings))
        for job in jobs:
            results = []
            for setting in job.settings:
                prepared = fetch(here, setting, job.seed) if request.prepared else make(here, setting, job.seed)
                fed = data.gather(here.steps, setting, prepared)
                for row in setting.methods:
                    here.at(f"{setting.study} {setting.name} seed {job.seed}: {row.label}")
                    result = federate.run_method(
                        here, setting, prepared, fed, row, job.seed, job.size, limits.every
                    )
                    record.keep(here.store, result, job.title)
                    results.append(result)
                    here.say(federate.line(result))
                    here.advance()
            folders.append(finish(job, results, request.prepared))
        here.say(federate.tally(here.steps.done))
    if not request.prepared:
        answer = compare.compare(params, folders, folders, ())
        compare.write(answer, folders[0], folders[0])
        report.print_summary(answer.summary)
        for alias, config in compare.champions(folders).items():
            record.crown(alias, config)
        print(f"written to {folders[0]}")


def make(here: Session, setting: Setting, seed: int) -> data.Prepared:
    """Read the data and divide them, here and now."""
    dataset = data.read(here.store, setting.data)
    return data.Prepared(dataset, data.who(here.steps, dataset, setting.federation, seed))


def fetch(here: Session, setting: Setting, seed: int) -> data.Prepared:
    """Take what the pipeline's earlier stages wrote."""
    dataset = data.read_prepared(here.store, PIPELINE / "data" / setting.study / setting.dataset)
    folder = PIPELINE / "partition" / setting.study / setting.slug / f"seed-{seed}"
    return data.Prepared(dataset, data.read_partition(here.store, folder))


def finish(job: Job, results: list[federate.Result], prepared: bool) -> Path:
    """Write a job's results; returns the folder."""
    name = f"{job.study}-{job.seed}"
    folder = PIPELINE / "federate" / name if prepared else Path("runs") / track.digest(results)
    federate.save(results, folder)
    federate.save_seconds(results, Path("runs") / "seconds" / name if prepared else folder)
    return folder


def planned(request: Request) -> tuple[dict[str, Any], list[Job]]:
    """Return the parameters and the jobs; raises Refused before anything is computed."""
    params = settings.read()
    limits = settings.run_section(params)
    size = request.size or limits.size
    jobs = []
    for name in request.studies or limits.studies:
        study = settings.study(params, name)
        points = settings.settings(params, name, size, request.changes, request.methods)
        seeds = request.seeds or settings.seeds(params, name, size)
        jobs += [Job(study=name, title=study.title, size=size, seed=seed, settings=points) for seed in seeds]
    return params, jobs


def parse(words: list[str]) -> Request:
    """Read the words of the command line."""
    given = settings.parse(words)
    own = {key: given.pop(key) for key in list(given) if key in Request.model_fields and key != "changes"}
    for one, many in (("study", "studies"), ("seed", "seeds"), ("method", "methods")):
        if one in given:
            own[many] = [given.pop(one)]
    return settings.checked(Request, "request", {**own, "changes": given})


def main(words: list[str]) -> None:
    with refusals():
        request = parse(words)
        planned(request)
        with orchestrated():
            run(request)


if __name__ == "__main__":
    main(sys.argv[1:])
