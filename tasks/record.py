"""Record results in MLflow."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.pipeline.record.result import Result
from fedcore.pipeline.run.requests import ReadySetting, Run


@task(cache_policy=NO_CACHE, task_run_name="record {result.name}")
def record(run: Run, ready: ReadySetting, result: Result) -> None:
    """Write a method's result to its MLflow run: models, matrices, metrics, pictures and the digest of its data."""
    run.record(ready, result)
