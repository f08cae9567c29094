"""From a dataset to a federation."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.config.settings import Setting
from fedcore.pipeline.orchestration.session import Session
from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run import partitions
from fedcore.pipeline.run.outputs import data_folder, partition_folder


@task(**STEP_OPTIONS)
def partition(key: str, number: int) -> dict[str, Any]:
    """Assign the examples of a dataset to devices, and each device's to training, validation and test."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def distribute(key: str, number: int) -> dict[str, Any]:
    """Scale the examples and hand them to the devices."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def describe(key: str, number: int) -> dict[str, Any]:
    """Say the shape of an example and the names of the classes."""
    return compute(key, number)


@task(cache_policy=NO_CACHE, task_run_name="read {setting.dataset}")
def read_dataset(session: Session, setting: Setting) -> None:
    """Read a setting's dataset from its source, and save it for the next stage."""
    dataset = partitions.read_dataset(session.store, setting.data)
    partitions.save_dataset(session.store, dataset, data_folder(setting))


@task(cache_policy=NO_CACHE, task_run_name="divide {setting.dataset}, seed {seed}")
def save_partition(session: Session, setting: Setting, seed: int) -> None:
    """Divide a setting's dataset among devices, and save who holds what."""
    dataset = partitions.import_dataset(session.store, data_folder(setting))
    divided = partitions.divide_dataset(session.steps, dataset, setting.federation, seed)
    partitions.save_partition(session.store, PreparedData(dataset, divided), partition_folder(setting, seed))
