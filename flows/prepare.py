"""Read the datasets of a run's studies, and say which device holds what.

python -m flows.prepare data        -> pipeline/data/STUDY
python -m flows.prepare partition   -> pipeline/partition/STUDY

One process for all studies: starting one takes longer than what it does for a study.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.config import environment

environment.prepare()

from prefect import flow

from fedcore.types import InputError
from tasks.config.command import refusals
from tasks.config.params import read as read_params
from tasks.config.settings import Setting
from tasks.config.studies import Run, grid_points, run_section
from tasks.prefect.session import orchestrated, session
from tasks.run.partitions import read, read_prepared, save_dataset, save_partition, who

PIPELINE = Path("pipeline")


@flow(name="prepare-data", persist_result=False)
def data() -> None:
    """Read every dataset that the studies' settings name."""
    run, points = planned()
    with session("data", run.workers) as here:
        for study, setting in points:
            save_dataset(here.store, read(here.store, setting.data), PIPELINE / "data" / study / setting.dataset)


@flow(name="prepare-partition", persist_result=False)
def partition() -> None:
    """Divide each setting's dataset among devices, for every seed."""
    run, points = planned()
    with session("partition", run.workers) as here:
        for study, setting in points:
            dataset = read_prepared(here.store, PIPELINE / "data" / study / setting.dataset)
            for seed in run.seeds:
                made = who(here.steps, dataset, setting.federation, seed)
                folder = PIPELINE / "partition" / study / setting.slug / f"seed-{seed}"
                save_partition(here.store, dataset, made, folder)


def planned() -> tuple[Run, list[tuple[str, Setting]]]:
    """Return params.yaml's section run, and the settings of its studies; raises InputError before anything is read."""
    params = read_params()
    run = run_section(params)
    return run, [(study, one) for study in run.studies for one in grid_points(params, study, run.size, {})]


def main(words: list[str]) -> None:
    with refusals():
        match words:
            case ["data"]:
                chosen = data
            case ["partition"]:
                chosen = partition
            case _:
                raise InputError("usage: python -m flows.prepare data|partition")
        planned()
        with orchestrated():
            chosen()


if __name__ == "__main__":
    main(sys.argv[1:])
