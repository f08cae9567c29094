"""Modules of a net with given tensors: many small models need two for each device and round.

A module is built by its builder and filled by its own `load_state_dict`, as in plain PyTorch. Where copies of one
module do the same (:mod:`fedcore.nets.trial` finds out for a user's), they are made instead, in a tenth of the time.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.nets.params import frozen, is_frozen, key, net_of
from fedcore.nets.randomness import construct_with
from fedcore.types.federation import Net, Params


def load(net: Net, params: Params) -> nn.Module:
    """Return a new module of the net with its frozen parameters; the others share memory with those in `params`."""
    of, where = key(net), next((of.device for of in params.values()), torch.get_default_device())
    fixed = {name: tensor.to(where, copy=bool(net.content)) for name, tensor in _frozen(of).items()}  # merged by LoRA
    tensors = fixed | params
    copy = _copy_of(of) if net.copied else None
    if copy is not None and copy.shapes == {name: tensor.shape for name, tensor in tensors.items()}:
        return copy.load(tensors, where)
    with construct_with(torch.Generator()):
        module = net.build()
    module.load_state_dict(tensors)  # raises the error that says what does not fit
    for name, parameter in module.named_parameters():
        if name in params:
            parameter.data = params[name]
    return module


def load_to_evaluate(net: Net, params: Params) -> nn.Module:
    """Return a module in evaluation mode; one of a user's own has copies, which its `eval()` or forward may change."""
    return load(net, {name: tensor.clone() for name, tensor in params.items()} if net.content else params).eval()


def train(module: nn.Module) -> None:
    """Put a module into training mode by its own `train()`, frozen layers with statistics into evaluation mode."""
    module.train()
    for layer in module.modules():
        if is_frozen(layer) and any(True for _ in layer.buffers(recurse=False)):
            layer.training = False


def template(net: Net) -> nn.Module:
    """Return a module of the net that is only looked at and copied, never used."""
    return _template(key(net))


@functools.lru_cache(maxsize=64)
def _template(key: bytes) -> nn.Module:
    with construct_with(torch.Generator()):
        return net_of(key).build()


@functools.lru_cache(maxsize=64)
def _frozen(key: bytes) -> Params:
    return frozen(_template(key))


@functools.lru_cache(maxsize=64)
def _copy_of(key: bytes) -> Copy | None:
    """Return copies of a net's module; None if it cannot be pickled, as a lambda or a weak reference in it."""
    try:
        copy = Copy(module := _template(key))
        copy.load(module.state_dict(), torch.device("cpu"))
    except Exception:
        return None
    return copy


class Copy:
    """A module's pickle without its tensors. shapes: of those in its `state_dict`, by name."""

    def __init__(self, module: nn.Module) -> None:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(module)
        names = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
        self._content = stream.getvalue()
        self._kept = [(names.get(id(value)), value) for value in pickler.kept]
        self.shapes = {name: of.shape for name, of in self._kept if name is not None and isinstance(of, Tensor)}

    def load(self, tensors: Mapping[str, Tensor], where: torch.device) -> nn.Module:
        """Return a module with these tensors, by name, on their device; others are copied."""
        unpickler = _Unpickler(io.BytesIO(self._content))
        unpickler.begin(self._kept, tensors, where)
        module: nn.Module = unpickler.load()
        return module


class _Pickler(pickle.Pickler):
    """Pickles everything except tensors, classes and functions, which it collects: a name may have another later."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.kept: list[object] = []
        self._index: dict[int, int] = {}

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, Tensor | type | FunctionType) or "<" in getattr(value, "__qualname__", ""):
            return None  # a local function may hold the module: it has no pickle
        if id(value) not in self._index:
            self._index[id(value)] = len(self.kept)
            self.kept.append(value)
        return self._index[id(value)]


class _Unpickler(pickle.Unpickler):
    def begin(self, known: list[tuple[str | None, Any]], given: Mapping[str, Tensor], where: torch.device) -> None:
        self._known, self._given, self._where = known, given, where
        self._loaded: dict[int, Any] = {}

    def persistent_load(self, index: int) -> Any:
        if index not in self._loaded:
            name, kept = self._known[index]
            if isinstance(kept, Tensor):
                tensor = kept.detach().clone().to(self._where) if name is None else self._given[name]
                kept = nn.Parameter(tensor, kept.requires_grad) if isinstance(kept, nn.Parameter) else tensor
            self._loaded[index] = kept
        return self._loaded[index]
