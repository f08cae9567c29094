"""The pictures of a run. Imports no MLflow: another process draws them while the record's process writes."""

from __future__ import annotations

from functools import partial

from fedcore.pipeline import pictures
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.record.result import Result
from fedcore.report import figures
from fedcore.results import tidy
from fedcore.results.summary import curves


def draw(store: Store, result: Result) -> dict[str, bytes]:
    """Return a run's pictures: its metric by device and over rounds, the method's figures, and the study's pictures."""
    return {name: picture() for name, picture in _pictures(store, result).items()}


def warm_up() -> None:
    """Draw an empty picture, for which matplotlib reads its fonts."""
    from matplotlib.figure import Figure  # takes half a second, and the record's process draws nothing

    figure = Figure()
    figure.subplots()
    figures.png(figure)


def _pictures(store: Store, result: Result) -> dict[str, pictures.Picture]:
    split = "test" if tidy.has(result.table, "test") else "shared"
    drawings: dict[str, pictures.Picture] = {
        "devices": lambda: figures.png(figures.per_device(result.table, result.metric, split=split))
    }
    if result.table["round"].max() > 1:
        drawings["rounds"] = lambda: figures.png(figures.curves(curves(result.table), result.metric))
    drawings |= pictures.of_method(result.figures, result.row.label, result.reports)
    refs = (store, result.prepared.dataset, result.prepared.partition)
    if "similarity" in result.extra_figures:
        drawings["similarity"] = partial(pictures.similarity_map, *refs)
    if result.embedding is not None:
        drawings["features"] = partial(pictures.feature_map, *refs, {result.row.label: result.embedding})
    return drawings
