"""The first stages of `dvc repro`: read the studies' datasets, and divide them among devices."""

from __future__ import annotations

from prefect import flow

from fedcore.execute.workers import Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.orchestration.session import open_session
from fedcore.pipeline.run.outputs import plan_settings
from tasks.prepare import read_dataset, save_partition


@flow(name="prepare-data", persist_result=False)
def data() -> None:
    """Read every dataset that the studies' settings name."""
    run, settings = plan_settings()
    with open_session("data", Store(environment.BLOBS), Workers(run.workers)) as session:
        for setting in settings:
            read_dataset(session, setting)


@flow(name="prepare-partition", persist_result=False)
def partition() -> None:
    """Divide each setting's dataset among devices, for every seed."""
    run, settings = plan_settings()
    with open_session("partition", Store(environment.BLOBS), Workers(run.workers)) as session:
        for setting in settings:
            for seed in run.seeds:
                save_partition(session, setting, seed)
