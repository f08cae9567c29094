"""Architectures by name, and the parameters and buffers of their modules."""

from fedcore.nets.params import frozen, init, key, parameters, params_of, require_equal, shapes
from fedcore.nets.randomness import use_generator
from fedcore.nets.registry import NETS, as_data_need, maker, net

__all__ = [
    "NETS", "as_data_need", "frozen", "init", "key", "maker", "net", "parameters", "params_of", "require_equal",
    "shapes", "use_generator",
]  # fmt: skip
