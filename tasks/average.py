"""Average what devices send: whole models, changes of them, or the cells that they share."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def begin(key: str, number: int) -> dict[str, Any]:
    """Draw the initial models and send the first messages."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def average(key: str, number: int) -> dict[str, Any]:
    """Average the updates by examples (McMahan et al. 2017, Algorithm 1), or aggregate them against outliers."""
    return compute(key, number)


@task(**STEP_OPTIONS)
def share_cells(key: str, number: int) -> dict[str, Any]:
    """Choose how many cells each device shares, and average cell by cell (FedASA, (8) and (9))."""
    return compute(key, number)
