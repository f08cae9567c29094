"""Functions of the pipeline that a worker process runs. Imports nothing that a worker does not need."""

from __future__ import annotations

from typing import Any

from fedcore.data import Dataset
from fedcore.partition import Partition, partition, server_examples, splits
from fedcore.types import Data, Deploy, Message, Model, Params, Splits, step_word


@step_word("partition")
def divide(dataset: Dataset, *, federation: dict[str, Any], seed: int) -> Partition:
    """Say who holds which example."""
    return partition(dataset, seed=seed, **federation)


def distribute(dataset: Dataset, made: Partition, *, scale: str) -> tuple[dict[str, Splits], Data, Data]:
    """Give each device its own examples; beside them the shared test set and what the server holds itself."""
    return *splits(dataset, made, scale), server_examples(dataset, scale)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return the shape of an example and the names of the classes."""
    return {"shape": tuple(dataset.train.x.shape[1:]), "classes": list(dataset.classes)}


def deploy(how: Deploy, memory: Params, message: Message) -> Model:
    """Return what a device runs."""
    return how(memory, message)
