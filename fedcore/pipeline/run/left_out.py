"""Scores on devices that took no part, in cached steps."""

from __future__ import annotations

from functools import partial

from fedcore.core.new_device import score_new
from fedcore.core.rounds import State
from fedcore.partition.new_devices import new_sites
from fedcore.pipeline.orchestration.steps import Steps
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.partitions import read
from fedcore.pipeline.run.step_functions import prepare_sites
from fedcore.types import Federation, Method


def score_sites(
    steps: Steps, prepared: PreparedData, scale: str, method: Method, fed: Federation, state: State
) -> dict[str, dict[str, float]]:
    """Return the scores on the sites whose rows are all marked test; empty if the data have none."""
    dataset, made = read(steps.store, prepared)
    if not new_sites(dataset, made):
        return {}
    examples = steps.run_inline(partial(prepare_sites, scale=scale), prepared.dataset, prepared.partition)
    return score_new(method, fed, state, steps, next(iter(fed.devices.values())).net, examples)
