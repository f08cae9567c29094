"""Show your own data before a run; read the datasets of a run's studies, and divide them among devices.

    python -m flows.prepare preview [study=NAME] [section.key=value ...]     computes and writes nothing
    python -m flows.prepare data                                             -> pipeline/data/STUDY
    python -m flows.prepare partition                                        -> pipeline/partition/STUDY

    python -m flows.prepare preview data.name=table data.path=data/machines.csv data.label=fault data.device=machine

A preview takes the arguments of flows.federate. It says which columns are used and which are left out and why, how many
cells are missing, how the scales differ, and which device holds how many examples of which class.

data and partition are stages of `dvc repro`. One process serves all studies, since its start takes longer than the work
for a study.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedcore.pipeline import environment

environment.prepare()

from fedcore.pipeline.command import report_bad_input, show_help

if __name__ == "__main__":  # before the imports below, which take seconds
    show_help(__doc__)
    with report_bad_input():
        match sys.argv[1:]:
            case ["data"] | ["partition"]:
                pass
            case ["preview", *given]:
                from fedcore.config.request import ask, plan_jobs

                job = plan_jobs(ask(given))[1][0]
                from fedcore.report.preview import print_preview

                print_preview(job.settings[0], job.seed, tolerant=True)
                sys.exit()
            case _:
                from fedcore.types import InputError

                raise InputError("usage: python -m flows.prepare preview|data|partition; --help explains them")

from prefect import flow

from fedcore.config.params import read as read_params
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, grid_points, run_section
from fedcore.execute.workers import Workers
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.orchestration.session import open_session, prefect_server
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.partitions import divide_dataset, import_dataset, read_dataset, save_dataset, save_partition

PIPELINE = Path("pipeline")


@flow(name="prepare-data", persist_result=False)
def data() -> None:
    """Read every dataset that the studies' settings name."""
    run, points = plan_settings()
    with open_session("data", Store(environment.BLOBS), Workers(run.workers)) as session:
        for study, setting in points:
            save_dataset(
                session.store, read_dataset(session.store, setting.data), PIPELINE / "data" / study / setting.dataset
            )


@flow(name="prepare-partition", persist_result=False)
def partition() -> None:
    """Divide each setting's dataset among devices, for every seed."""
    run, points = plan_settings()
    with open_session("partition", Store(environment.BLOBS), Workers(run.workers)) as session:
        for study, setting in points:
            dataset = import_dataset(session.store, PIPELINE / "data" / study / setting.dataset)
            for seed in run.seeds:
                made = divide_dataset(session.steps, dataset, setting.federation, seed)
                folder = PIPELINE / "partition" / study / setting.slug / f"seed-{seed}"
                save_partition(session.store, PreparedData(dataset, made), folder)


def plan_settings() -> tuple[Run, list[tuple[str, Setting]]]:
    """Return params.yaml's section run, and the settings of its studies; raises InputError before anything is read."""
    params = read_params()
    run = run_section(params)
    return run, [(study, one) for study in run.studies for one in grid_points(params, study, run.size, {})]


def main(chosen: str) -> None:
    with report_bad_input():
        plan_settings()
        with prefect_server():
            {"data": data, "partition": partition}[chosen]()


if __name__ == "__main__":
    main(sys.argv[1])
