"""What is to be seen beside scores: likeness of devices' data, transport plans, alignment, features of shared parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from fedcore import figures, records
from fedcore.data import Dataset
from fedcore.figures import png
from fedcore.partition import Partition, groups, held, similarity
from fedcore.types import Params
from tasks.store import Ref, Store

Drawn: TypeAlias = Figure | bytes

CAPTIONS = {
    "similarity": "How alike the devices' data are: cosine between their mean features.",
    "transport": "Transport plans of {method}: shares of a unit's mass.",
    "alignment": "Distance of each device's cells from the server's auxiliary cell; framed: the one found for it.",
    "features": "Test examples of all devices as they leave the parts that each one shares, embedded by t-SNE.",
}


@cache
def holds(store: Store, dataset: Ref, partition: Ref) -> dict[str, dict[str, float]]:
    """Return what the devices hold, worked out once for all methods."""
    return held(store.get(dataset), store.get(partition))


@cache
def likeness(store: Store, dataset: Ref, partition: Ref) -> bytes:
    """Draw the devices' similarity, once for all methods."""
    data: Dataset = store.get(dataset)
    made: Partition = store.get(partition)
    return png(figures.similarity(similarity(data, made), groups(data, made)))


def recorded(server: Params, label: str) -> dict[str, Figure]:
    """Draw what the server recorded of a method: transport plans of the last fold, the alignment of devices."""
    made = {}
    if plans := records.last_fold(server):
        # The last fold is the one that counts most; one picture with all of a network's layers.
        made["transport"] = figures.transport({name: plan.numpy() for name, plan in plans.items()})
    if aligned := records.alignment(server):
        made["alignment"] = figures.alignment({label: aligned})
    return made


def features(store: Store, dataset: Ref, partition: Ref, planes: Mapping[str, Ref]) -> Figure:
    """Draw the embedded examples of some methods, label -> what :func:`fedcore.embedding.embed` found."""
    data: Dataset = store.get(dataset)
    made: Partition = store.get(partition)
    of = groups(data, made)
    names = [of.get(name, "") for name in made.devices]
    return figures.features({label: _plane(store.get(ref), names) for label, ref in planes.items()}, data.classes)


def _plane(found: Params, groups: list[str]) -> pd.DataFrame:
    x, y = found["xy"].T.tolist()
    columns: dict[str, Any] = {"x": x, "y": y, "label": found["y"].tolist()}
    return pd.DataFrame({**columns, "group": [groups[i] for i in found["device"].tolist()]})
