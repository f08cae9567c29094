"""Temporary replacement of the state of PyTorch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GLOBAL_RANDOMNESS = threading.RLock()
_HELD = threading.local()


@contextmanager
def use_generator(generator: torch.Generator) -> Iterator[None]:
    """Make PyTorch draw from `generator` instead of its global generator (initial weights, dropout).

    The global generator's state is restored at the end; threads take turns.
    """
    everyones = torch.default_generator
    with _GLOBAL_RANDOMNESS:
        before = everyones.get_state()
        everyones.set_state(generator.get_state())
        outer, _HELD.here = holds_generator(), True
        try:
            yield
        finally:
            _HELD.here = outer
            generator.set_state(everyones.get_state())
            everyones.set_state(before)


def holds_generator() -> bool:
    """Tell whether this thread is inside of `use_generator`, so that others that want to be must wait."""
    return getattr(_HELD, "here", False)
