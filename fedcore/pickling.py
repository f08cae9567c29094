"""Pickles that another process can read: by reference, but what only this program knows by value."""

import io
import pickle
from types import FunctionType
from typing import Any

from fedcore.errors import InputError


class Pickler(pickle.Pickler):
    """Pickles by value the functions and classes that another process cannot import: those of the main program or of a
    notebook, those defined inside a function, and lambdas."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and (value.__module__ == "__main__" or "<" in value.__qualname__):
            import cloudpickle  # a device of the field has none

            try:
                return pickle.loads, (cloudpickle.dumps(value),)
            except (TypeError, pickle.PicklingError) as error:  # of a lock, or a file that is open
                name = f"{value.__qualname__} uses what cannot go to another process ({error})"
                raise InputError(f"{name}; make it inside, or in a file that is imported") from error
        return NotImplemented


def dumps(value: object) -> bytes:
    """Return a value as `pickle.loads` reads it, here or in another process."""
    stream = io.BytesIO()
    Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()
