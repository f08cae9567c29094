"""Report what the results say."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.pipeline.run import outputs
from fedcore.pipeline.run.requests import Run


@task(cache_policy=NO_CACHE)
def report(run: Run) -> None:
    """Print the answers, leave them on Prefect's page, write tables and the page, and propose models."""
    outputs.report(
        run.params, run.jobs, run.results, run.session.store, run.writer, run.request.prepared, run.request.promote
    )
