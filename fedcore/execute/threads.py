"""The cores of this machine, and one thread per process, as a worker computes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """Return the number of cores that this process may use; where the system does not tell, of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a worker does: in one thread, with denormal numbers flushed to zero.

    More threads would hardly speed up a server's sums, and are much slower when other processes use the cores.
    """
    threads, flushed = torch.get_num_threads(), flushes_denormals()
    compute_alone()
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def compute_alone() -> None:
    """Let this thread compute as `one_thread` says from now on."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Tell whether this thread takes denormal numbers as zero."""
    return not (torch.full((), 1e-39) * 1.0).item()
