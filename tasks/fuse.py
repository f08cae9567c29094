"""Align the units of models by optimal transport and fuse them (CODE, Algorithm 1; LMF), and its controls."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.pipeline.orchestration.steps import STEP_OPTIONS, compute


@task(**STEP_OPTIONS)
def fuse(key: str, number: int) -> dict[str, Any]:
    """Fuse the devices' models, one after the other, layer after layer (CODE, (22) to (25))."""
    return compute(key, number)
