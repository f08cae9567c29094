"""What a user's module is made of beside its source: its tensors, and the files that its constructor reads."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

_OPENED = threading.local()


@contextmanager
def files_read() -> Iterator[list[str]]:
    """Collect the paths of the files that this thread opens to read, but for those that a library opens in C."""
    _listen()
    paths: list[str] = []
    _OPENED.paths = paths
    try:
        yield paths
    finally:
        _OPENED.paths = None


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or (paths := getattr(_OPENED, "paths", None)) is None:
        return
    if isinstance(arguments[0], str | bytes) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        paths.append(os.fsdecode(arguments[0]))


def digest_of(module: nn.Module, paths: Iterable[str]) -> str:
    """Return a digest of all tensors of a module and of the contents of files, but programs: they count as source."""
    digest = hashlib.blake2b(digest_size=20)
    attributes = [pair for layer in module.modules() for pair in vars(layer).items()]
    for name, value in (*module.named_parameters(), *module.named_buffers(), *attributes):
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    for path in dict.fromkeys(map(Path, paths)):
        installed = any(path.is_relative_to(folder) for folder in {*sysconfig.get_paths().values()})
        if path.is_file() and not installed and path.suffix not in (".py", ".pyc"):
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
