"""Functions of the pipeline that worker processes run. Imports nothing that a worker does not need."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import torch

from fedcore.core.evaluation import count_outcomes, outputs
from fedcore.data import Dataset, schema_of
from fedcore.nets.inputs import largest_integer
from fedcore.partition import Partition, final_partition, partition, server_examples, splits
from fedcore.partition.new_devices import leave_out, new_examples, new_sites
from fedcore.types.federation import Costs, Data, Device, Params, Splits
from fedcore.types.method import Deploy, HeldOut, Message, Model, step_word


@step_word("partition")
def divide(dataset: Dataset, *, federation: dict[str, Any], seed: int) -> Partition:
    """Assign the examples of a dataset to devices."""
    return partition(dataset, seed=seed, **federation)


@step_word("partition")
def divide_finally(dataset: Dataset, parts: Partition, *, held_out: tuple[HeldOut, ...]) -> Partition:
    """Give each device all its labelled examples to train on, see :func:`fedcore.partition.final_partition`."""
    return final_partition(dataset, parts, held_out)


def distribute(dataset: Dataset, parts: Partition, *, scale: str) -> tuple[dict[str, Splits], Data, Data]:
    """Return each device's examples, the shared test set and the server's examples."""
    return *splits(dataset, parts, scale), server_examples(dataset, parts, scale)


@step_word("distribute")
def distribute_without(
    dataset: Dataset, parts: Partition, *, device: str, scale: str
) -> tuple[dict[str, Splits], Data, Data, Data]:
    """Return what `distribute` does for the other devices, and the labelled examples that only this one knows."""
    others, rows, _ = leave_out(dataset, parts, device)
    return *distribute(dataset, others, scale=scale), new_examples(dataset, others, rows, scale)


@step_word("distribute")
def take_none(data: Data) -> Data:
    """Return no example of those; their shape is known."""
    return Data(data.x[:0], data.y[:0])


@step_word("distribute")
def prepare_sites(dataset: Dataset, parts: Partition, *, scale: str) -> dict[str, Data]:
    """Return the examples of the sites whose rows are all marked test."""
    return {name: new_examples(dataset, parts, rows, scale) for name, rows in new_sites(dataset, parts).items()}


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return what an example is: its shape, the classes, the largest number if all are whole, its task and inputs."""
    x = dataset.train.x
    largest = None if x.dtype == torch.uint8 else largest_integer(x)
    task = {} if dataset.task.has_classes else {"task": dataset.task.name}
    inputs = [astuple(entry) for entry in schema_of(dataset).several]
    several = {"several": inputs} if inputs else {}
    return {"shape": tuple(x.shape[1:]), "classes": list(dataset.classes), "largest": largest, **task, **several}


def deploy(
    how: Deploy, memory: Params, message: Message, devices: Mapping[str, Device], classes: int,
    costs: Costs | None = None,
) -> tuple[Model, Params]:  # fmt: skip
    """Return the model that some devices run, and what it does with their test examples, counted."""
    model = how(memory, message)
    return model, count_outcomes(model, devices.values(), classes, costs)


@step_word("evaluate")
def score_validation(models: Mapping[str, Model], devices: Mapping[str, Device], *, positive: int) -> Params:
    """Return the probability of a class on all devices' validation rows, (N,), and whether these are of it, (N,)."""
    parts = [
        (outputs(models[name], device.net, device.data.val.inputs())[:, positive].exp(), device.data.val.y == positive)
        for name, device in devices.items()
        if len(device.data.val)
    ]
    scores, labels = zip(*parts, strict=True) if parts else ((torch.empty(0),), (torch.empty(0, dtype=torch.bool),))
    return {"scores": torch.cat(scores), "positive": torch.cat(labels)}
