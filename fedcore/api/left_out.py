"""Rows without each device in turn, scored on that device: what is expected on a new one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal

import pandas as pd
import torch

from fedcore.api.federation import DividedDataset, classes_of, federation_of
from fedcore.api.results import Result
from fedcore.core.new_device import NEVER, has_model_for_new, score_new
from fedcore.core.rounds import Execute
from fedcore.core.rounds import run as rounds
from fedcore.errors import InputError
from fedcore.results import tidy
from fedcore.results.answer import rows_to_leave_out
from fedcore.results.criterion import Criterion, Extra, scoring
from fedcore.types.federation import Data


def leave_out(
    results: Sequence[Result],
    controls: frozenset[str],
    decides: Criterion,
    which: Literal["best", "all"],
    extra: Extra | None,
    opening: AbstractContextManager[Execute],
) -> tuple[Result, ...]:
    """Return the results with the scores on each device that some rows reach without it.

    which: of the rows. extra: what models are measured by beside what they always are. opening: of what runs the steps.
    """
    table = pd.concat([result.table for result in results], ignore_index=True)
    with opening as execute:
        able = {
            result.config.label
            for result in results
            if has_model_for_new(
                result.method, federation_of(result.fed, result.seed), result.rounds[-1].state, execute
            )
        }
        rows = able if which == "all" else rows_to_leave_out(table, controls, frozenset(able), decides)
        tables = []
        for result in results:
            label, names = result.config.label, [*federation_of(result.fed, result.seed).devices]
            if len(names) < 2:
                raise InputError("compare.new_device = 'left_out': needs at least two devices")
            if label in rows:
                scores = {name: _score_left_out(result, name, execute, extra) for name in names}
            else:
                scores = {} if label in able else {name: {"accuracy": math.nan} for name in names}
            more = tidy.left_out_rows(result.table, scores)
            whole = pd.concat([result.table, more], ignore_index=True) if len(more) else result.table
            tables.append(replace(result, table=whole))
    return tuple(tables)


def _score_left_out(result: Result, device: str, execute: Execute, extra: Extra | None) -> dict[str, float]:
    """Run a result's method without a device, with the same seed, and score it on that device's labelled examples."""
    whole = federation_of(result.fed, result.seed)
    net = whole.devices[device].net
    if isinstance(result.fed, DividedDataset):
        fed, examples = result.fed.left_out(device, result.seed)
    else:
        own = whole.devices[device].data
        parts = [part for part in (own.train, own.val, own.test) if len(part)]
        examples = Data(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
        fed = replace(whole, devices={name: rest for name, rest in whole.devices.items() if name != device})
    if extra is not None:
        scored = scoring(**extra, classes=classes_of(result.fed))
        fed = replace(fed, scoring=replace(scored, label_scale=fed.scoring.label_scale))
    method = result.config.build(
        fed.public.nets, {name: len(device.data.train) for name, device in fed.devices.items()}
    )
    *_, last = rounds(method, fed, result.seed, execute, every=NEVER)
    return score_new(method, fed, last.state, execute, net, {device: examples})[device]
