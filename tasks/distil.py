"""Distil what models know: FedGen's generator, and nets that learn from draws of Gaussians."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def distil(key: str, number: int) -> dict[str, Any]:
    """Train the server's model on what the devices sent. (DFL distils on the devices, in the task `train`.)"""
    return compute(key, number)
