"""Figures in matplotlib, without global state: the caller saves them."""

from fedcore.report.figures.drawing import Reports, drawings, heat_map, png
from fedcore.report.figures.insides import features, similarity
from fedcore.report.figures.results import (
    accuracy_along,
    accuracy_by_traffic,
    calibration,
    class_counts,
    comparison,
    curves,
    per_device,
)

__all__ = [
    "Reports",
    "accuracy_along",
    "accuracy_by_traffic",
    "calibration",
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
