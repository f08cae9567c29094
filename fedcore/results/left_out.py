"""Rows without each device in turn, scored on that device: what is expected on a new one."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedcore.core.new_device import has_model_for_new, score_new
from fedcore.core.rounds import Execute, State
from fedcore.errors import InputError
from fedcore.results.tidy import with_left_out
from fedcore.types.federation import Data, Federation, Handle
from fedcore.types.method import Method


@dataclass(frozen=True)
class Trained:
    """A row's run with all devices, in a script or in the pipeline.

    run: its result there. build: makes its method, of nets and the devices' numbers of examples. federation: makes the
    devices. state: after the last round.
    """

    run: Any
    label: str
    build: Callable[..., Method]
    federation: Callable[[], Federation]
    state: State
    table: pd.DataFrame


def rows_with_model(runs: Sequence[Trained], execute: Execute) -> frozenset[str]:
    """Return the labels of the rows that have a model for a device that took no part, in some seed."""
    able: set[str] = set()
    for run in runs:
        if run.label not in able:
            fed = run.federation()
            able |= {run.label} if has_model_for_new(run.build(fed.public.nets), fed, run.state, execute) else set()
    return frozenset(able)


def leave_out(
    runs: Sequence[Trained], rows: Collection[str], able: Collection[str], execute: Execute,
    without: Callable[[Any, str], tuple[Federation, Data | Handle]],
    train: Callable[[Any, str, Method, Federation], State], refused: Callable[[str, InputError], None] | None = None,
) -> list[pd.DataFrame]:  # fmt: skip
    """Return the runs' tables with the scores on each device that these rows reach without it, with the same seed.

    able: the rows that have a model for a new device; the others get nan. without: a run and a device -> the federation
    without the device, and all labelled examples of the device. train: a run, that device, its method and that
    federation -> the state after the last round. refused: is told which row other devices refuse or make diverge, which
    then has no such scores; None: that is an error.
    """
    scores: list[dict[str, dict[str, float]]] = []
    lost: set[str] = set()
    for run in runs:
        devices, table = run.federation().devices, run.table
        numbers = table[(table["split"] == "data") & (table["metric"] == "examples")]
        sizes = dict(zip(numbers["device"], numbers["value"].astype(int), strict=True))
        scores.append({})
        try:
            for name in devices if run.label in {*rows} - lost else ():
                fed, examples = without(run.run, name)
                method = run.build(fed.public.nets, {name: sizes[name] for name in fed.devices})
                state = train(run.run, name, method, fed)
                scores[-1] |= score_new(method, fed, state, execute, devices[name].net, {name: examples})
        except InputError as error:
            if refused is None:
                raise
            refused(run.label, error)
            lost.add(run.label)
        if run.label not in {*rows, *able}:
            scores[-1] = {name: {"accuracy": math.nan} for name in devices}
    return [with_left_out(run.table, {} if run.label in lost else of) for run, of in zip(runs, scores, strict=True)]
