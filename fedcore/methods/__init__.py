"""The methods, a folder per family."""

from fedcore.methods.registry import METHODS, builder, method, needs_sums_alone, require_real

__all__ = ["METHODS", "builder", "method", "needs_sums_alone", "require_real"]
