"""What is to be seen beside scores: likeness of data, transport plans, alignment, links, features of shared parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from fedcore import records
from fedcore.data import Dataset
from fedcore.partition import Partition
from fedcore.partition.tables import groups, held, similarity
from fedcore.results import figures
from fedcore.results.figures import png
from fedcore.types import Params
from tasks.cache.keys import Digest
from tasks.cache.store import Ref, Store

Picture: TypeAlias = Callable[[], bytes]
"""Draws when it is called; returns a PNG file."""

CAPTIONS = {
    "similarity": "How alike the devices' data are: cosine between their mean features.",
    "transport": "Transport plans of {method}: shares of a unit's mass.",
    "alignment": "Distance of each device's cells from the server's auxiliary cell; framed: the one found for it.",
    "soft_targets": "Soft targets over rounds: their labels down, probabilities of labels across. Left: the mean "
    "probability of the own label (diagonal), the share of soft targets that are largest there (right), and the hard "
    "labels' share of the loss (rho).",
    "links": "Weights of {method}: a row for each source, a column for each target.",
    "graph": "Links of {method}: sources (filled), targets (hollow), lines as wide as their weights.",
    "divergence": "How far each two devices' data are apart, d in 0 to 2 ({method}).",
    "descent": "The penalised objective after each iteration of Algorithm 2 ({method}).",
    "features": "Test examples of all devices as they leave the parts that each one shares, embedded by t-SNE.",
}


@cache
def holds(store: Store, dataset: Ref, partition: Ref) -> dict[str, dict[str, float]]:
    """Return what the devices hold, worked out once for all methods."""
    return held(store.get(dataset), store.get(partition))


def picture(draw: Callable[..., Figure], *args: Any) -> Picture:
    """Return what draws a figure of some numbers once: rivals share divergences, the page shows what the record has."""
    return partial(_drawn, draw, *args)


def _drawn(draw: Callable[..., Figure], *args: Any) -> bytes:
    key = Digest().of((draw, args))
    if key not in _DRAWN:
        while len(_DRAWN) >= KEPT:
            _DRAWN.pop(next(iter(_DRAWN)), None)
        _DRAWN[key] = png(draw(*args))
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


def recorded(server: Params, label: str) -> dict[str, Picture]:
    """Draw what the server recorded of a method: the last fold's transport plans, alignment, soft targets, links.

    Other matrices that it recorded are drawn under their own names.
    """
    made: dict[str, Picture] = {}
    if plans := records.last_fold(server):
        # The last fold is the one that counts most; one picture with all of a network's layers.
        made["transport"] = picture(figures.transport, {name: plan.numpy() for name, plan in plans.items()})
    if aligned := records.alignment(server):
        made["alignment"] = picture(figures.alignment, {label: aligned})
    if records.tables(server):
        made["soft_targets"] = soft_targets({label: server})
    if (links := records.who_sends_whom(server)) is not None:
        names, psi, alpha = links[0], links[1].numpy(), links[2].numpy()
        made |= {
            "links": picture(figures.link_weights, names, psi, alpha),
            "graph": picture(figures.link_graph, names, psi, alpha),
        }
        if (apart := server.get("record/divergence")) is not None:
            made["divergence"] = picture(figures.divergences, names, apart.numpy())
        if trace := server["record/trace"].tolist() if "record/trace" in server else []:
            made["descent"] = picture(figures.descent, {label: trace})
    shown = {*made, "alpha", "plan"}
    for name, x in server.items():
        what = name.removeprefix(records.PREFIX)
        if what != name and x.ndim == 2 and what.partition("/")[0] not in shown:
            made[what.replace("/", "-")] = picture(figures.heat_map, x.numpy(), what)
    return made


def soft_targets(servers: Mapping[str, Params]) -> Picture:
    """Draw the soft targets that some methods' servers recorded, label -> server, and their numbers over rounds."""
    tables = {
        label: {number: table.numpy() for number, table in records.tables(server).items()}
        for label, server in servers.items()
    }
    courses = {
        label: {name: course.numpy() for name, course in records.courses(server).items()}
        for label, server in servers.items()
    }
    return picture(figures.soft_targets, tables, courses)


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
