"""Architectures by name, and the parameters and buffers of their modules."""

from fedcore.nets.leaves import init, key, leaves, require_equal, shapes
from fedcore.nets.randomness import use_generator
from fedcore.nets.registry import NETS, maker, net

__all__ = ["NETS", "init", "key", "leaves", "maker", "net", "require_equal", "shapes", "use_generator"]
