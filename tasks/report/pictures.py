"""What is to be seen beside scores: likeness of data, what the server found, features of shared parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from fedcore.data import Dataset
from fedcore.partition import Partition
from fedcore.partition.tables import groups, similarity, training_numbers
from fedcore.results import figures, reports
from fedcore.results.figures import png
from fedcore.types import Params, Report
from tasks.cache.keys import Digest
from tasks.cache.store import Ref, Store

Picture: TypeAlias = Callable[[], bytes]
"""Draws when it is called; returns a PNG file."""

CAPTIONS = {
    "similarity": "How alike the devices' data are: cosine between their mean features.",
    "features": "Test examples of all devices as they leave the parts that each one shares, embedded by t-SNE.",
}


@cache
def holds(store: Store, dataset: Ref, partition: Ref) -> dict[str, dict[str, float]]:
    """Return what the devices hold, worked out once for all methods."""
    return training_numbers(store.get(dataset), store.get(partition))


def picture(draw: Callable[[], Figure]) -> Picture:
    """Return what draws a figure of some numbers once: rivals share divergences, the page shows what the record has."""
    return partial(_drawn, draw)


def _drawn(draw: Callable[[], Figure]) -> bytes:
    key = Digest().of(draw)
    if key not in _DRAWN:
        while len(_DRAWN) >= KEPT:
            _DRAWN.pop(next(iter(_DRAWN)), None)
        _DRAWN[key] = png(draw())
    return _DRAWN[key]


_DRAWN: dict[str, bytes] = {}
KEPT = 256
"""Pictures that are kept, some 20 kB each: those of a study's first rows are asked for again at its end."""


@cache
def likeness(store: Store, dataset: Ref, partition: Ref) -> bytes:
    """Draw the devices' similarity, once for all methods."""
    data: Dataset = store.get(dataset)
    made: Partition = store.get(partition)
    return png(figures.similarity(similarity(data, made), groups(data, made)))


def found(paths: Sequence[str], label: str, told: Sequence[Report]) -> dict[str, Picture]:
    """Draw what the server found of one method: by `Method.figures`, or without any its matrices as heat maps."""
    made = {
        name.removesuffix(f"-{label}"): picture(draw)
        for path in paths
        for name, _, draw in figures.drawings(path, {label: told})
    }
    if paths:
        return made
    flat = {name: matrix.numpy() for name, matrix in reports.matrices(told).items() if matrix.ndim == 2}
    return {name.replace("/", "-"): picture(partial(figures.heat_map, x, name)) for name, x in flat.items()}


def shown(paths: Mapping[str, Sequence[str]], told: figures.Reports) -> Iterator[tuple[str, str, Picture]]:
    """Yield the pictures of some methods: a name, a caption, the picture. paths: label -> functions that draw it."""
    for path in dict.fromkeys(path for of in paths.values() for path in of):
        mine = {label: told[label] for label, of in paths.items() if path in of}
        for name, caption, draw in figures.drawings(path, mine):
            yield name, caption, picture(draw)


def features(store: Store, dataset: Ref, partition: Ref, planes: Mapping[str, Ref]) -> bytes:
    """Draw the embedded examples of some methods, label -> what :func:`fedcore.results.embedding.embed` found."""
    data: Dataset = store.get(dataset)
    made: Partition = store.get(partition)
    of = groups(data, made)
    names = [of.get(name, "") for name in made.devices]
    return png(figures.features({label: _plane(store.get(ref), names) for label, ref in planes.items()}, data.classes))


def _plane(found: Params, groups: list[str]) -> pd.DataFrame:
    x, y = found["xy"].T.tolist()
    columns: dict[str, Any] = {"x": x, "y": y, "label": found["y"].tolist()}
    return pd.DataFrame({**columns, "group": [groups[i] for i in found["device"].tolist()]})
