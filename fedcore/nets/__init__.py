"""Architectures by name, and the parameters and buffers of their modules."""

from fedcore.nets.leaves import frozen, init, is_frozen, key, leaves, parameters, require_equal, shapes
from fedcore.nets.randomness import use_generator
from fedcore.nets.registry import NETS, as_data_need, maker, net

__all__ = [
    "NETS",
    "as_data_need",
    "frozen",
    "init",
    "is_frozen",
    "key",
    "leaves",
    "maker",
    "net",
    "parameters",
    "require_equal",
    "shapes",
    "use_generator",
]
