"""PyTorch's global generator, lent to whoever draws from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GLOBAL_RANDOMNESS = threading.RLock()


@contextmanager
def use_generator(generator: torch.Generator) -> Iterator[None]:
    """Let what PyTorch draws from its global generator (initial weights, dropout) come from `generator` instead.

    The global generator is given back as it was; threads that need it take turns.
    """
    everyones = torch.default_generator
    with _GLOBAL_RANDOMNESS:
        before = everyones.get_state()
        everyones.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(everyones.get_state())
            everyones.set_state(before)
