"""Temporary replacement of the state of the global generators: PyTorch's, NumPy's and Python's."""

import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedcore.types.method import GLOBAL_RANDOMNESS, seed_all

_HELD = threading.local()


@contextmanager
def use_generator(generator: torch.Generator) -> Iterator[None]:
    """Make PyTorch draw from `generator` instead of its global generator (initial weights, dropout).

    The global generator's state is restored at the end; threads take turns.
    """
    everyones = torch.default_generator
    with GLOBAL_RANDOMNESS:
        before = everyones.get_state()
        everyones.set_state(generator.get_state())
        outer, _HELD.here = holds_generator(), True
        try:
            yield
        finally:
            _HELD.here = outer
            generator.set_state(everyones.get_state())
            everyones.set_state(before)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Restore the global generators at the end: steps seed them."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


@contextmanager
def construct_with(generator: torch.Generator) -> Iterator[None]:
    """Let PyTorch draw from `generator`, and NumPy and Python by its state: a user's constructor may use them."""
    with use_generator(torch.Generator()), keep_generators():
        before = generator.get_state()
        seed_all(zlib.crc32(before.numpy().tobytes()))
        torch.set_rng_state(before)
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())


def holds_generator() -> bool:
    """Tell whether this thread is inside of `use_generator`, so that others that want to be must wait."""
    return getattr(_HELD, "here", False)
