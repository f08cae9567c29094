"""Pickles that another process can read: by reference, but what only this program knows by value."""

import io
import pickle
from types import FunctionType
from typing import Any


class Pickler(pickle.Pickler):
    """Pickles by value the functions and classes that another process cannot import: those of the main program or of a
    notebook, those defined inside a function, and lambdas."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and (value.__module__ == "__main__" or "<" in value.__qualname__):
            import cloudpickle  # a device of the field has none

            return pickle.loads, (cloudpickle.dumps(value),)
        return NotImplemented


def dumps(value: object) -> bytes:
    """Return a value as `pickle.loads` reads it, here or in another process."""
    stream = io.BytesIO()
    Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()
