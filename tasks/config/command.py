"""How a command ends: what it refuses is one line on stderr and exit code 2. Imports nothing that takes time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a refusal into one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        from fedcore.types import InputError

        if not isinstance(error, InputError):
            raise
        sys.stderr.write(f"fedcore: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("fedcore: stopped; what was computed is kept, run the same command to go on\n")
        sys.exit(130)
