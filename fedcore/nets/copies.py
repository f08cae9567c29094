"""Modules of a net with given leaves, by fast copies: many small models need two for each device and round."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedcore.nets.leaves import frozen, key
from fedcore.nets.randomness import use_generator
from fedcore.types import Net, Params


def load(net: Net, params: Params) -> nn.Module:
    """Return a new module of the net that uses `params` without copying them, and the net's frozen parameters."""
    of = key(net)
    module = _copier(of)()
    fixed = {name: leaf.to(next(iter(params.values())).device) for name, leaf in _frozen(of).items()}
    module.load_state_dict(fixed | params, assign=True)
    return module


def template(net: Net) -> nn.Module:
    """Return a module of the net that is only looked at and copied, never used."""
    return _template(key(net))


@functools.lru_cache(maxsize=64)
def _template(key: bytes) -> nn.Module:
    with use_generator(torch.Generator()):
        module: nn.Module = pickle.loads(key)()
    return module


@functools.lru_cache(maxsize=64)
def _frozen(key: bytes) -> Params:
    return frozen(_template(key))


@functools.lru_cache(maxsize=64)
def _copier(key: bytes) -> Callable[[], nn.Module]:
    return copier(_template(key))


def copier(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that copies a module; the module must not change meanwhile.

    A copy shares the module's parameters, which the caller replaces; everything else is copied. The module is pickled
    once and unpickled for each copy, in at most a tenth of the time of `copy.deepcopy`, which serves modules that
    cannot be pickled (a lambda).
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(module)
    except Exception:
        return partial(copy.deepcopy, module)
    return partial(_copy, stream.getvalue(), pickler.tensors)


def _copy(content: bytes, tensors: list[Tensor]) -> nn.Module:
    module: nn.Module = _Unpickler(content, tensors).load()
    return module


class _Pickler(pickle.Pickler):
    """Pickles everything except tensors, which it collects."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.tensors: list[Tensor] = []
        self._place: dict[int, int] = {}

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, Tensor):
            return None
        if id(value) not in self._place:
            self._place[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._place[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(content))
        self._tensors = tensors
        self._cloned: dict[int, Tensor] = {}

    def persistent_load(self, place: int) -> Tensor:
        kept = self._tensors[place]
        if isinstance(kept, nn.Parameter):
            return kept
        if place not in self._cloned:
            self._cloned[place] = kept.clone()
        return self._cloned[place]
