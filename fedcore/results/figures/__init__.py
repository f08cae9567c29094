"""Figures in matplotlib, without global state: the caller saves them."""

from collections.abc import Iterator
from importlib import import_module

from fedcore.results.figures.drawing import Drawing, Reports, heat_map, png
from fedcore.results.figures.insides import features, similarity
from fedcore.results.figures.results import (
    accuracy_along,
    accuracy_by_traffic,
    class_counts,
    comparison,
    curves,
    per_device,
)

__all__ = [
    "Reports",
    "accuracy_along",
    "accuracy_by_traffic",
    "class_counts",
    "comparison",
    "curves",
    "drawings",
    "features",
    "heat_map",
    "per_device",
    "png",
    "similarity",
]


def drawings(path: str, reports: Reports) -> Iterator[Drawing]:
    """Return the drawings of some methods' reports by a function of `Method.figures`."""
    module, _, name = path.partition(":")
    found: Iterator[Drawing] = getattr(import_module(module), name)(reports)
    return found
