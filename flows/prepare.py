"""Read the datasets of a run's studies, and say which device holds what.

python -m flows.prepare data STUDY        -> pipeline/data/STUDY
python -m flows.prepare partition STUDY   -> pipeline/partition/STUDY
"""

from __future__ import annotations

import sys
from pathlib import Path

from tasks import environment

environment.prepare()

from prefect import flow

from fedcore.types import Refused
from tasks import settings
from tasks.data import read, read_prepared, save_dataset, save_partition, who
from tasks.session import orchestrated, refusals, session

PIPELINE = Path("pipeline")


@flow(name="prepare-data", persist_result=False)
def data(study: str) -> None:
    """Read every dataset that a study's settings name."""
    params = settings.read()
    run = settings.run_section(params)
    with session("data", run.workers) as here:
        for setting in settings.settings(params, study, run.size, {}):
            save_dataset(here.store, read(here.store, setting.data), PIPELINE / "data" / study / setting.dataset)


@flow(name="prepare-partition", persist_result=False)
def partition(study: str) -> None:
    """Divide each setting's dataset among devices, for every seed."""
    params = settings.read()
    run = settings.run_section(params)
    with session("partition", run.workers) as here:
        for setting in settings.settings(params, study, run.size, {}):
            dataset = read_prepared(here.store, PIPELINE / "data" / study / setting.dataset)
            for seed in run.seeds:
                made = who(here.steps, dataset, setting.federation, seed)
                folder = PIPELINE / "partition" / study / setting.slug / f"seed-{seed}"
                save_partition(here.store, dataset, made, folder)


def main(words: list[str]) -> None:
    with refusals():
        match words:
            case ["data", study]:
                chosen, name = data, study
            case ["partition", study]:
                chosen, name = partition, study
            case _:
                raise Refused("usage: python -m flows.prepare data|partition STUDY")
        params = settings.read()
        settings.settings(params, name, settings.run_section(params).size, {})
        with orchestrated():
            chosen(name)


if __name__ == "__main__":
    main(sys.argv[1:])
