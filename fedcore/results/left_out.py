"""What is run once all rows have: rows without each device in turn, and simple models where no row has learnt.

A row without a device is scored on it: what is expected on a new one. A probe tells whether the columns tell nothing of
the label or training fails. A linear and a nearest-neighbour model predict each device's own training rows, out of five
folds. Compared are the covariances of predictions and labels within a device, summed over devices, with those of DRAWS
permutations of the labels.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from fedcore.core.new_device import has_model_for_new, score_new
from fedcore.core.rounds import Execute, State
from fedcore.data.task import SEQUENCES, label_kind_of
from fedcore.errors import InputError
from fedcore.nets.inputs import require_quantities
from fedcore.results.chance import PROBE
from fedcore.results.tidy import with_left_out
from fedcore.types.federation import Data, Device, Federation, Handle
from fedcore.types.method import Method, generator, step_word

DRAWS = 199
"""Permutations of the labels in a probe."""

FOLDS, MOST, NEIGHBOURS = 5, 2000, 10
"""Of a probe: folds, the most rows of a device, which are drawn, and neighbours."""


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


def probe(devices: Mapping[str, Device], classes: int, execute: Execute) -> dict[str, float]:
    """Return, for each simple model, the share of permuted labels that it predicts as well as the devices' own.

    Empty where inputs stand for something, such as words, and where each step has a label.
    """
    found = execute.map(probe_device, {name: (device, classes) for name, device in devices.items()})
    by_model: dict[str, list[list[float]]] = {}
    for of_device in found.values():
        for name, covariances in of_device.items():
            by_model.setdefault(name, []).append(covariances)
    sums = {name: torch.tensor(rows, dtype=torch.float64).sum(0) for name, rows in by_model.items()}
    return {name: float((values[1:] >= values[0]).double().mean()) for name, values in sums.items()}


@step_word("probe", trains=False)
def probe_device(device: Device, classes: int) -> dict[str, list[float]]:
    """Return each model's covariance with a device's labels, and with DRAWS permutations of them."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, draws = device.data.train, generator(device.name, PROBE)
    kind = label_kind_of(data.y)
    try:
        require_quantities(PROBE, {device.name: device.net})
    except InputError:
        return {}
    if kind is SEQUENCES or len(data) < 2 * FOLDS:
        return {}
    chosen = torch.randperm(len(data), generator=draws)[:MOST]
    x, y = data.inputs(chosen).flatten(1).numpy(), kind.targets(data.y[chosen], classes).double()
    y, orders = y - y.mean(0), [torch.randperm(len(y), generator=draws) for _ in range(DRAWS)]
    near = KNeighborsRegressor(min(NEIGHBOURS, len(y) // 2))
    covariances = {}
    for name, model in (("linear", Ridge()), ("nearest-neighbour", near)):
        folds = KFold(FOLDS, shuffle=True, random_state=0)
        predicted = cross_val_predict(make_pipeline(StandardScaler(), model), x, y.numpy(), cv=folds)
        answers = torch.from_numpy(predicted).view(len(y), -1)
        covariances[name] = [float((answers * labels).sum()) for labels in (y, *(y[order] for order in orders))]
    return covariances
