"""Who is a source and who a target, over which links (ST-LF)."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def measure_divergence(key: str, number: int) -> dict[str, Any]:
    """Train a classifier that tells two devices apart: their divergence (ST-LF, Algorithm 1)."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def form_links(key: str, number: int) -> dict[str, Any]:
    """Choose sources, targets and the weights of links under the cost of energy (ST-LF, Algorithm 2)."""
    return compute(key, number)
