"""Figures in matplotlib, without global state: the caller saves them.

What is asked for is imported then: matplotlib takes half a second, and a run draws nothing before its first results.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.report.figures.drawing import Reports as Reports
    from fedcore.report.figures.drawing import drawings as drawings
    from fedcore.report.figures.drawing import heat_map as heat_map
    from fedcore.report.figures.drawing import png as png
    from fedcore.report.figures.results import accuracy_along as accuracy_along
    from fedcore.report.figures.results import calibration as calibration
    from fedcore.report.figures.results import class_counts as class_counts
    from fedcore.report.figures.results import comparison as comparison
    from fedcore.report.figures.results import curves as curves
    from fedcore.report.figures.results import features as features
    from fedcore.report.figures.results import per_device as per_device
    from fedcore.report.figures.results import similarity as similarity

_NAMES = {
    "drawing": ["Reports", "drawings", "heat_map", "png"],
    "results": [
        "accuracy_along", "calibration", "class_counts", "comparison", "curves", "features", "per_device", "similarity",
    ],
}  # fmt: skip
_PLACE = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_PLACE)


def __getattr__(name: str) -> Any:
    if name in _PLACE:
        return getattr(import_module(_PLACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
