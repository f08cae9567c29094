"""Methods of one round that send sums, sketches or models, from which the server solves its model."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def send_sums(key: str, number: int) -> dict[str, Any]:
    """Send what one pass over a device's examples gives: sums, a sketch, counts, or its model."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def combine_sums(key: str, number: int) -> dict[str, Any]:
    """Solve for the server's model, or weigh the models that vote."""
    return compute(key, number)
