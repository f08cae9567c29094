"""A simulated accelerator: tensors that claim to be on "meta" and hold their values on the CPU.

An operation on tensors of different devices fails, as on CUDA (zero-dimensional tensors aside); any other runs on the
CPU, so that its result can be compared bit by bit. PyTorch's own "meta" stands for the accelerator because autograd
needs no driver for it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

KIND = "meta"


class MixedDevices(RuntimeError):
    """An operation on tensors of two devices."""


class DeviceTensor(Tensor):
    """A tensor on the simulated device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=KIND
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class SimulatedDevice(TorchDispatchMode):
    """Makes what is asked for on "meta". count: how many operations were done there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._written = Written()

    def __enter__(self) -> "SimulatedDevice":
        self._written.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._written.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += any(isinstance(part, DeviceTensor) for part in tree_iter((args, kwargs)))
        return compute(func, args, kwargs)


class Written(TorchFunctionMode):
    """Brings numbers that are written down there, which "meta" would forget, and reads them in one call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].held.tolist()
        if func is not torch.tensor or torch.device(kwargs.get("device") or "cpu").type != KIND:
            return func(*args, **kwargs)
        return DeviceTensor(torch.tensor(*args, **{**kwargs, "device": "cpu"}))


COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
"""What may go from one device to the other."""


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    parts = [part for part in tree_iter((args, kwargs)) if isinstance(part, Tensor)]
    inside = [part for part in parts if isinstance(part, DeviceTensor)]
    outside = [part for part in parts if not isinstance(part, DeviceTensor) and part.dim() > 0]
    if inside and outside and func not in COPIES:
        raise MixedDevices(f"{func}: {len(inside)} tensors there, {len(outside)} on the CPU")
    asked = kwargs.get("device")
    there = bool(inside) if asked is None else torch.device(asked).type == KIND
    given = {**kwargs, "device": torch.device("cpu")} if asked is not None else kwargs
    done = func(*tree_map(_held, args), **tree_map(_held, given))
    if func is torch.ops.aten.copy_.default or (func._schema.is_mutable and not there):
        return args[0]
    known = {id(part.held): part for part in inside}
    return (
        tree_map(lambda x: (known[id(x)] if id(x) in known else DeviceTensor(x)) if isinstance(x, Tensor) else x, done)
        if there
        else done
    )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value
