"""Evaluation: the models that devices would run now, on their own and on the shared test examples."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def evaluate(key: str, number: int) -> dict[str, Any]:
    """Score a deployed model on the devices that run it."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def deploy(key: str, number: int) -> dict[str, Any]:
    """Make the model that a device runs."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def embed(key: str, number: int) -> dict[str, Any]:
    """Place examples in the plane by the features of the shared parts of the devices' models."""
    return compute(key, number)
