"""Modules of a net with given tensors, by fast copies: many small models need two for each device and round."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcore.nets.params import frozen, key
from fedcore.nets.randomness import use_generator
from fedcore.types.federation import Net, Params


def load(net: Net, params: Params) -> nn.Module:
    """Return a new module of the net that uses `params` without copying them, and the net's frozen parameters."""
    of = key(net)
    module = _copier(of)()
    fixed = {name: tensor.to(next(iter(params.values())).device) for name, tensor in _frozen(of).items()}
    tensors, slots = fixed | params, _slots(of)
    if slots is None or tensors.keys() != slots.keys() or any(tensors[n].shape != slots[n].shape for n in tensors):
        module.load_state_dict(tensors, assign=True)  # an own way of loading, or the error that says what does not fit
        return module
    layers = [*module.modules()]
    for name, slot in slots.items():
        tensor, layer = tensors[name], layers[slot.layer]
        if slot.trains is None:
            layer._buffers[slot.name] = tensor
        else:
            layer._parameters[slot.name] = nn.Parameter(tensor, requires_grad=slot.trains)
    return module


class _Slot(NamedTuple):
    """Where a tensor is: the number of its layer in `modules()` and its name there. trains: None for a buffer."""

    layer: int
    name: str
    shape: torch.Size
    trains: bool | None


@functools.lru_cache(maxsize=64)
def _slots(key: bytes) -> dict[str, _Slot] | None:
    """Return where a net's tensors are, by name; None for modules that load them in a way of their own."""
    slots, template = {}, _template(key)
    for number, (path, layer) in enumerate(template.named_modules()):
        own = type(layer)._load_from_state_dict is not nn.Module._load_from_state_dict
        own = own and not isinstance(layer, nn.modules.batchnorm._NormBase)  # which only reads older files
        if own or layer._load_state_dict_pre_hooks or layer._load_state_dict_post_hooks:
            return None
        for kind in (layer._parameters, layer._buffers):
            for name, tensor in kind.items():
                if tensor is not None and name not in layer._non_persistent_buffers_set:
                    trains = tensor.requires_grad if kind is layer._parameters else None
                    slots[f"{path}.{name}" if path else name] = _Slot(number, name, tensor.shape, trains)
    return slots if slots.keys() == template.state_dict().keys() else None


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
        self._index: dict[int, int] = {}

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, Tensor):
            return None
        if id(value) not in self._index:
            self._index[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._index[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(content))
        self._tensors = tensors
        self._cloned: dict[int, Tensor] = {}

    def persistent_load(self, index: int) -> Tensor:
        original = self._tensors[index]
        if isinstance(original, nn.Parameter):
            return original
        if index not in self._cloned:
            self._cloned[index] = original.clone()
        return self._cloned[index]
