"""A federation: devices with their nets and examples, how they misbehave, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeGuard

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.ranges import Positive, Share

Params: TypeAlias = dict[str, Tensor]
"""A model's parameters and buffers by name, as in a state_dict."""

Axes: TypeAlias = dict[str, tuple[str | None, ...]]
"""Which axis of which tensor carries which permutation, e.g. {"fc2.weight": ("h2", "h1"), "fc2.bias": ("h2",)}.

Axes that share a label are permuted together; None marks an axis that cannot be permuted (inputs, classes).
"""


def nbytes(params: Params) -> int:
    """Return the size of the tensors in bytes: elements times item size."""
    return sum(tensor.numel() * tensor.element_size() for tensor in params.values())


def add_prefix(prefix: str, params: Params) -> Params:
    """Return the tensors under names with the prefix."""
    return {f"{prefix}{name}": tensor for name, tensor in params.items()}


def strip_prefix(prefix: str, params: Params) -> Params:
    """Return the tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in params.items() if name.startswith(prefix)}


def by_word(prefix: str, params: Params) -> dict[str, Params]:
    """Return word -> its tensors, of names <prefix><word>/<name>; no parameter's name has a slash."""
    tensors_of: dict[str, Params] = {}
    for name, tensor in strip_prefix(prefix, params).items():
        word, _, parameter = name.rpartition("/")
        tensors_of.setdefault(word, {})[parameter] = tensor
    return tensors_of


class Handle(Protocol):
    """A reference to a value stored elsewhere, e.g. in a file; before loading, only these properties are used.

    digest: equal for equal values. nbytes: the size of the value when sent, in bytes.
    """

    @property
    def digest(self) -> str: ...

    @property
    def nbytes(self) -> int: ...


def is_handle(value: Any) -> TypeGuard[Handle]:
    """Tell whether a value is a handle: no other value has a digest."""
    return hasattr(value, "digest")  # isinstance takes ten times as long for a protocol


@dataclass(frozen=True)
class Data:
    """Examples: x (N, *shape), uint8 (images, scaled to [0, 1] when used) or float32; y: their labels.

    Before a device prepares them, numbers and quantities have more digits, see :mod:`fedcore.data.prepare`.

    y is (N,) int64, the numbers of classes, or float32, quantities; or (N, K) float32, 0 or 1 for each of K labels. See
    :mod:`fedcore.data.task`.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        kind = getattr(self.y, "dtype", None)
        if kind in (torch.uint8, torch.int8, torch.int16, torch.int32):
            object.__setattr__(self, "y", self.y.long())
        if kind in (torch.float16, torch.bfloat16):
            object.__setattr__(self, "y", self.y.float())

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return the chosen examples as they are; uint8 is divided by 255, to float32."""
        x = self.x[index]
        return x.float().div_(255) if x.dtype == torch.uint8 else x


NO_DATA = Data(torch.empty(0), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True)
class Splits:
    """One device's private examples. val orders and selects models, test is only ever reported.

    unlabelled: training examples without a known label; every y is -1. train and val are empty where no label is known.
    """

    train: Data
    val: Data
    test: Data
    unlabelled: Data = NO_DATA


@dataclass(frozen=True)
class Net:
    """An architecture: `build()` makes its module.

    build: a function with its settings bound (functools.partial), importable where results are cached between runs.
    axes: the table that alignment needs, or None. Training does not depend on it.
    misplaced: why the last of its layers, in the order of their names, is not the one that classifies; "": it is.
    content: of a user's module the digest of its tensors and of the files that its constructor reads. copied: whether
    copies of one module do what modules that are built do.
    """

    build: Callable[[], torch.nn.Module]
    axes: Axes | None = field(default=None, metadata={"digest": False})
    misplaced: str = field(default="", metadata={"digest": False})
    content: str = ""
    copied: bool = field(default=False, metadata={"digest": False})

    @property
    def table(self) -> Axes:
        """The axes table; raises InputError where the net has none."""
        if self.axes is None:
            lacks = "this net has no table of axes, its units cannot be aligned"
            raise InputError(f"net.name: {lacks}: `fedcore docs own_net`")
        return self.axes


@dataclass(frozen=True)
class Device:
    """A device: its stable name, its net and its private examples (between steps possibly a `Handle`)."""

    name: str
    net: Net
    data: Splits


@dataclass(frozen=True)
class Public:
    """The server's knowledge before the first message: names, nets, classes, its test set and its own examples."""

    nets: Mapping[str, Net]
    test: Data
    classes: int
    server_data: Data = NO_DATA

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.nets)


Attack: TypeAlias = Literal["sign_flip", "scale", "noise", "stale", "duplicate"]


@dataclass(frozen=True)
class Threats:
    """How devices misbehave, and what the server does about it, see :mod:`fedcore.core.threats`.

    hostile: share of the devices (rounded) that send false updates. attack: sign_flip, scale and noise change the
    update, by `strength` (1: sign_flip only turns the change around, noise is as large as the change); stale: its
    first update of the stage, every time; duplicate: the update of the first honest device. drop: chance that a device
    trains in a round and sends nothing. deadline: how long the server waits, in mean durations of a device's round;
    later updates are left out. None: for all. bound: the greatest norm of an update, measured from the model that the
    device was sent. None: any. beyond: longer updates are clipped to the bound ("clip") or left out ("refuse").
    """

    hostile: Share = 0.0
    attack: Attack = "sign_flip"
    strength: Positive = 10.0
    drop: Annotated[float, Ge(0), Lt(1)] = 0.0
    deadline: Positive | None = None
    bound: Positive | None = None
    beyond: Literal["clip", "refuse"] = "clip"

    def __bool__(self) -> bool:
        """Tell whether anything differs from a federation of honest and punctual devices."""
        return bool(self.hostile or self.drop or self.deadline or self.bound)


OwnMetric: TypeAlias = Callable[[Tensor, Tensor], float]
"""A metric of one's own: probabilities (N, K), or predicted numbers (N,), and labels (N,) of at least one example -> a
number, which depends on nothing else."""

LabelScale: TypeAlias = tuple[float, float]
"""The mean and the deviation by which a number as label was standardised; (0, 1): it is as it was loaded."""

Costs: TypeAlias = tuple[tuple[float, ...], ...]
"""The cost of a row of class i that is taken for class j, (K, K)."""


@dataclass(frozen=True)
class Scoring:
    """What is measured beside what always is, see :mod:`fedcore.core.metrics`.

    metric: the name of a further one; None: none. positive: the class that the metrics of one label are of. costs: of
    mistakes; a model predicts the class of least expected cost, without them the most probable one. own: names and
    functions of a script's metrics. train: whether training examples are scored, too. label_scale: of a number as
    label, whose errors are measured in its own unit.
    """

    metric: str | None = None
    positive: int = 0
    costs: Costs | None = None
    own: tuple[tuple[str, OwnMetric], ...] = field(default=(), metadata={"optional": True})
    train: bool = field(default=False, metadata={"optional": True})
    label_scale: LabelScale = field(default=(0.0, 1.0), metadata={"optional": True})

    def __bool__(self) -> bool:
        """Tell whether anything is measured beside what always is, or in another unit."""
        return bool(self.metric or self.own or self.train or self.label_scale != (0.0, 1.0))


@dataclass(frozen=True)
class Federation:
    """The devices in the order of their names, the shared test set and the number of classes, or of a net's outputs.

    server_data: training examples held by the server; most methods need none. threats: None where nobody misbehaves.
    scoring: further metrics. task: the name of what labels are, see :mod:`fedcore.data.task`. A number as label is
    learnt as it is here: :func:`fedcore.federate` and the pipeline standardise it.
    """

    devices: Mapping[str, Device]
    test: Data
    classes: int
    server_data: Data = NO_DATA
    threats: Threats | None = None
    scoring: Scoring = Scoring()
    task: str = "classification"

    @property
    def public(self) -> Public:
        nets = {name: device.net for name, device in self.devices.items()}
        return Public(nets, self.test, self.classes, self.server_data)
