"""Local training: the steps of single devices on their own examples."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def train(key: str, number: int) -> dict[str, Any]:
    """Train a device's model on its examples, as its method does: `local` of a stage of one round."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def rank(key: str, number: int) -> dict[str, Any]:
    """Train, and measure what the ranking of models needs (CODE, Algorithm 1, line 5)."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def rounds(key: str, number: int) -> dict[str, Any]:
    """Play the next rounds of a stage, at most half a minute of them: a chunk is the unit that a crash can lose."""
    return compute(key, number)
