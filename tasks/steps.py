"""The tasks that run cached steps, by the word of a step (:func:`fedcore.types.method.step_word`)."""

from __future__ import annotations

from typing import Any

from prefect import Task

from tasks.average import average, begin, share_cells
from tasks.distil import distil
from tasks.evaluate import deploy, embed, evaluate
from tasks.fuse import fuse
from tasks.link import form_links, measure_divergence
from tasks.partition import describe, distribute, partition
from tasks.sums import combine_sums, send_sums
from tasks.train import rank, rounds, train

STEPS: dict[str, Task[..., Any]] = {
    "partition": partition,
    "distribute": distribute,
    "describe": describe,
    "begin": begin,
    "train": train,
    "rank": rank,
    "measure": evaluate,
    "rounds": rounds,
    "fuse": fuse,
    "fold": fuse,
    "halve": fuse,
    "choose": fuse,
    "average": average,
    "exchange": average,
    "align": share_cells,
    "mix": share_cells,
    "distil": distil,
    "compare": measure_divergence,
    "gather": measure_divergence,
    "link": form_links,
    "identify": form_links,
    "report": form_links,
    "send": send_sums,
    "sketch": send_sums,
    "sum": send_sums,
    "count": send_sums,
    "offer": combine_sums,
    "solve": combine_sums,
    "merge": combine_sums,
    "evaluate": evaluate,
    "deploy": deploy,
    "embed": embed,
}
"""A step without a task of its own is run by `fedcore.pipeline.orchestration.steps.step`."""
