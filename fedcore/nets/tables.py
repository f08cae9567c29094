"""Tables of axes, derived from a module: the units along each axis of each tensor (`fedcore.types.federation.Axes`)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedcore.errors import InputError
from fedcore.nets.mlp import LARGEST
from fedcore.types.federation import Axes, Net, Params


class Images(nn.Sequential):
    """Layers on images that work in any memory order: channels may be innermost, see `flat_nets.view_of`."""

    channels_last = True


class Residual(nn.Module):
    """x -> branch(x) + shortcut(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        summed: Tensor = self.branch(x) + self.shortcut(x)
        return summed


def table(module: nn.Module) -> Axes:
    """Return the axes of a module made of Sequential, Residual, Linear, Conv2d, norms and layers without parameters.

    Units are named after the layer whose outputs they are. A depthwise convolution and a norm keep their input's units;
    the outputs of a residual branch take the name of the shortcut's units; flattening leaves k adjacent entries of each
    unit. The module's inputs and outputs (classes) have no units.
    """
    axes, last = _follow(module, "", None)
    return _rename(axes, last, None)


def units(params: Params, axes: Axes) -> dict[str, int]:
    """Return the number of units of every label, in the order in which the parameters introduce them."""
    for name, labels in axes.items():
        if name not in params or params[name].dim() != len(labels):
            shape = f"is {tuple(params[name].shape)}" if name in params else "is missing"
            raise InputError(f"axes: {name} {shape}, the table names {len(labels)} axes")
    sizes = [(label, n) for name, labels in axes.items() for label, n in zip(labels, params[name].shape, strict=True)]
    widths = dict.fromkeys(labels[0] for labels in axes.values() if labels and labels[0])
    found = {label: min(n for other, n in sizes if other == label) for label in widths}
    for label, n in sizes:
        if label in found and n % found[label]:
            raise InputError(f"axes: an axis has {n} entries for the {found[label]} units of {label!r}")
    return found


def reorder(params: Params, orders: Mapping[str, Tensor], axes: Axes) -> Params:
    """Return a model with its units in these orders, label -> (n,) int64; the function that it computes stays."""
    moved = dict(params)
    for name, labels in axes.items():
        for axis, label in enumerate(labels):
            if label is not None and label in orders:
                entries = torch.arange(moved[name].shape[axis]).view(len(orders[label]), -1)[orders[label]].flatten()
                moved[name] = moved[name].index_select(axis, entries)
    return moved


def with_table(build: Callable[[], nn.Module]) -> Net:
    """Return the net with this builder and its table of axes. Raises InputError for one that is too large."""
    return Net(build, table(require_size(build)), copied=True)


def require_size(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the module without its numbers. Raises InputError if no memory would hold them."""
    try:
        module = without_numbers(build)
    except RuntimeError as error:  # its bytes are no number
        raise InputError(f"net: more parameters than can be counted, at most {LARGEST:,}; {error}") from None
    if (size := sum(tensor.numel() for tensor in module.parameters())) > LARGEST:
        raise InputError(f"net: these settings give {size:,} parameters, at most {LARGEST:,}")
    return module


def without_numbers(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the module with the shapes of its parameters, and no memory for them."""
    with torch.device("meta"), _Uninitialised():
        return build()


class _Uninitialised(TorchFunctionMode):
    """Leaves parameters as they are: to draw or divide numbers on "meta", PyTorch imports its compiler, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]
        name = getattr(func, "__name__", "").removesuffix("__")
        same = name.endswith("_") or name == "div"
        return values[0] if same and values and isinstance(values[0], Tensor) else func(*args, **(kwargs or {}))


def _follow(module: nn.Module, name: str, units: str | None) -> tuple[Axes, str | None]:
    """Return the axes of a part with input units `units`, and its output units."""
    axes: Axes = {}
    match module:
        case nn.Sequential():
            for child, part in module.named_children():
                more, units = _follow(part, f"{name}.{child}" if name else child, units)
                axes |= more
            return axes, units
        case Residual():
            branch, end = _follow(module.branch, f"{name}.branch", units)
            shortcut, stream = _follow(module.shortcut, f"{name}.shortcut", units)
            return _rename(branch | shortcut, end, stream), stream
        case nn.Linear() | nn.Conv2d(groups=1):
            units_name: str | None = name
            before = [units]
        case nn.Conv2d() if module.groups == module.in_channels == module.out_channels:
            units_name, before = units, [None]
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            units_name, before = units, []
        case _ if not module.state_dict():
            return {}, units
        case _:
            raise TypeError(f"{name}: the axes of {type(module).__name__} are not known")
    for key, x in module.state_dict().items():
        if x.dim():  # a counter has no axis
            axes[f"{name}.{key}"] = (units_name, *[*before, None, None][: x.dim() - 1])
    return axes, units_name


def _rename(axes: Axes, old: str | None, new: str | None) -> Axes:
    return {name: tuple(new if label == old else label for label in labels) for name, labels in axes.items()}
