"""A user's files that draw random numbers when they are imported: the same in every process, as of one seed."""

import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcore.errors import is_installed

OURS = "fedcore", "flows", "tasks"

_importing: list[set[int]] = []
"""Of the user's modules that are being imported, one inside the other: which of the generators each has seeded."""


class _Seeded:
    """A loader whose module draws by its name.

    A generator that it leaves alone stays as it was; so does one that a module inside another draws from, unless this
    one seeds it, as it would without fedcore.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_loader"], name)

    def exec_module(self, module: ModuleType) -> None:
        from fedcore.types.method import GLOBAL_RANDOMNESS, seed_all

        if not GLOBAL_RANDOMNESS.acquire(timeout=1):  # whoever has it may wait for this import
            self._loader.exec_module(module)
            return
        before = [get() for get, _ in generators()]
        with _noting_seeds():
            _importing.append(set())
            seed_all(zlib.crc32(module.__name__.encode()))
            _importing[-1].clear()
            seeded = [_bytes_of(get()) for get, _ in generators()]
            try:
                self._loader.exec_module(module)
            finally:
                own = _importing.pop()
                for at, ((get, set_back), old, new) in enumerate(zip(generators(), before, seeded, strict=True)):
                    if _bytes_of(get()) == new or (_importing and at not in own):
                        set_back(old)
                GLOBAL_RANDOMNESS.release()


def generators() -> Sequence[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Return what gets and what sets the state of each global generator."""
    import random

    import numpy as np
    import torch

    return (
        (torch.get_rng_state, torch.set_rng_state),
        (np.random.get_state, np.random.set_state),
        (random.getstate, random.setstate),
    )


@contextmanager
def _noting_seeds() -> Iterator[None]:
    """Note which generators are seeded by the module that is being imported."""
    import random

    import numpy as np
    import torch

    places = (torch, "manual_seed"), (np.random, "seed"), (random, "seed")
    seeds = [getattr(where, name) for where, name in places]

    def noting(at: int) -> Callable[..., Any]:
        @wraps(seeds[at])
        def seed(*args: Any, **kwargs: Any) -> Any:
            if _importing:
                _importing[-1].add(at)
            return seeds[at](*args, **kwargs)

        return seed

    for at, (where, name) in enumerate(() if _importing else places):
        setattr(where, name, noting(at))
    try:
        yield
    finally:
        for (where, name), seed in () if _importing else zip(places, seeds, strict=True):
            setattr(where, name, seed)


def _bytes_of(state: Any) -> bytes:
    return state.numpy().tobytes() if hasattr(state, "numpy") else pickle.dumps(state)


class Users(MetaPathFinder):
    """Finds a user's modules as Python does; they are loaded by `_Seeded`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        users = spec is not None and spec.has_location and name.split(".")[0] not in OURS
        if (
            spec is not None
            and users
            and hasattr(spec.loader, "exec_module")
            and not is_installed(Path(str(spec.origin)))
        ):
            spec.loader = _Seeded(spec.loader)  # type: ignore[assignment]
        return spec


def draw_alike() -> None:
    """From now on seed the global generators by the name of each user's module that is imported."""
    if not any(isinstance(finder, Users) for finder in sys.meta_path):
        at = next((at for at, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))
        sys.meta_path.insert(at, Users())
