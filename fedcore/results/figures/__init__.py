"""Pictures, as matplotlib figures that own no global state: the caller saves them."""

from fedcore.results.figures.drawing import heat_map, png
from fedcore.results.figures.insides import alignment, features, similarity, soft_targets, transport
from fedcore.results.figures.links import descent, divergences, link_graph, link_weights
from fedcore.results.figures.results import accuracy_by_traffic, along, comparison, curves, per_device, who_holds_what

__all__ = [
    "accuracy_by_traffic",
    "alignment",
    "along",
    "comparison",
    "curves",
    "descent",
    "divergences",
    "features",
    "heat_map",
    "link_graph",
    "link_weights",
    "per_device",
    "png",
    "similarity",
    "soft_targets",
    "transport",
    "who_holds_what",
]
