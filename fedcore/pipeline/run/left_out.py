"""Scores on devices that took no part, in cached steps: new sites, and devices that are left out in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from fedcore.config.studies import MOST_LEFT_OUT, NewDeviceFrom
from fedcore.core.new_device import NEVER, score_new
from fedcore.core.rounds import State
from fedcore.data.task import CLASSIFICATION
from fedcore.errors import InputError, plural
from fedcore.partition.examples import label_scale, owners_of
from fedcore.partition.new_devices import leave_out as leave_out_of
from fedcore.partition.new_devices import new_sites
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.pipeline.run.chunks import count_local_steps, rounds
from fedcore.pipeline.run.partitions import read_prepared
from fedcore.pipeline.run.step_functions import distribute_without, prepare_sites
from fedcore.pipeline.work import build
from fedcore.results import left_out
from fedcore.results.answer import rows_to_leave_out
from fedcore.results.criterion import Criterion
from fedcore.results.left_out import Trained
from fedcore.types.federation import Federation
from fedcore.types.method import Method

if TYPE_CHECKING:
    from fedcore.pipeline.orchestration.session import Session  # which imports Prefect


def score_sites(
    steps: Graph, prepared: PreparedData, scale: str, method: Method, fed: Federation, state: State
) -> dict[str, dict[str, float]]:
    """Return the scores on the sites whose rows are all marked test; empty if the data have none."""
    dataset, partition = read_prepared(steps.store, prepared)
    if not new_sites(dataset, partition):
        return {}
    examples = steps.run_inline(partial(prepare_sites, scale=scale), prepared.dataset, prepared.partition)
    return score_new(method, fed, state, steps, next(iter(fed.devices.values())).net, examples)


def leaves_out(asked: NewDeviceFrom, store: Store, prepared: PreparedData) -> bool:
    """Tell whether devices are left out in turn: see `fedcore.config.studies.Run`."""
    if asked == "shared":
        return False
    dataset, partition = read_prepared(store, prepared)
    if asked == "left_out":
        if len(partition.names) < 2:
            raise InputError("run.new_device = 'left_out': needs at least two devices")
        return True
    own = dataset.device is not None and owners_of(dataset, partition) is dataset.device
    return own and 2 <= len(partition.names) <= MOST_LEFT_OUT and not new_sites(dataset, partition)


def leave_out(session: Session, results: Sequence[Result], criterion: Criterion) -> list[Result]:
    """Return one setting's results with the scores on each device that some rows reach without it.

    The rows are those of :func:`fedcore.results.answer.rows_to_leave_out`. One that the other devices refuse, or that
    diverges on them, has no such scores, and a line says why.
    """
    able = rows_with_model(session.steps, results)
    rows = rows_to_leave_out(*compared(results), able, criterion)
    chosen = [result for result in results if result.row.label in rows]
    if chosen:
        labels, devices = dict.fromkeys(result.row.label for result in chosen), len(chosen[0].fed.devices)
        methods = (build(result.row, result.fed.public.nets) for result in chosen)
        session.expect_steps(sum(devices * count_local_steps(method, devices - 1) for method in methods))
        session.print_line(
            f"  for a new device: {', '.join(labels)} without each of {devices} devices, {devices * len(chosen)} runs "
            "(run.new_device=shared skips them)"
        )
        dataset, partition = read_prepared(session.steps.store, chosen[0].prepared)
        known = sum(len(leave_out_of(dataset, partition, name)[2]) for name in partition.names if dataset.ids)
        if known:
            session.print_line(f"  {plural(known, 'row')} not scored: the same data.id trains on another device")

    def without(result: Result, device: str) -> tuple[Federation, Ref]:
        scale = result.setting.federation["scale"]
        return federation_without(session.steps, result.fed, result.prepared, scale, device)

    def train(result: Result, device: str, method: Method, fed: Federation) -> State:
        run = f"{result.setting.study} {result.setting.name} seed {result.seed}: {result.row.label} without {device}"
        with session.counting(run, method, count_local_steps(method, len(fed.devices))):
            *_, last = rounds(method, fed, result.seed, session.steps, NEVER)
        return last.state

    def refused(label: str, error: InputError) -> None:
        session.print_line(f"  {label} has no part in the answer for a new device: {error}")

    tables = left_out.leave_out(trained(results), rows, able, session.steps, without, train, refused)
    return [replace(result, table=table) for result, table in zip(results, tables, strict=True)]


def trained(results: Sequence[Result]) -> list[Trained]:
    """Return what runs these rows again without a device."""
    return [
        Trained(r, r.row.label, partial(build, r.row), partial(getattr, r, "fed"), r.state, r.table) for r in results
    ]


def rows_with_model(steps: Graph, results: Sequence[Result]) -> frozenset[str]:
    """Return the labels of the rows that have a model for a device that took no part, in some seed."""
    return left_out.rows_with_model(trained(results), steps)


def compared(results: Sequence[Result]) -> tuple[pd.DataFrame, frozenset[str]]:
    """Return the results' table, and the labels of controls."""
    controls = frozenset(result.row.label for result in results if result.row.control)
    return pd.concat([result.table for result in results], ignore_index=True), controls


def federation_without(
    steps: Graph, fed: Federation, prepared: PreparedData, scale: str, device: str
) -> tuple[Federation, Ref]:
    """Return the federation without a device, and the labelled examples that it alone knows, as references."""
    distributed = partial(distribute_without, device=device, scale=scale)
    if fed.task != CLASSIFICATION.name:
        dataset, partition = prepared.load(steps.store)
        others, *_ = leave_out_of(dataset, partition, device)
        fed = replace(fed, scoring=replace(fed.scoring, label_scale=label_scale(dataset, others)))
    parts_of, shared, servers, examples = steps.run_inline(distributed, prepared.dataset, prepared.partition)
    devices = {name: replace(fed.devices[name], data=data) for name, data in parts_of.items()}
    return replace(fed, devices=devices, test=shared, server_data=servers), examples
