"""A method: stages of a device's step on its data (`local`) and the server's step on the updates (`combine`).

The loop in :mod:`fedcore.core.rounds` does the rest. Everything here is a value: state goes in and comes out.
Memory is a dict of tensors: as a frozen dataclass of each method it took 45 lines more, and read better in one method.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.federation import Device, Net, Params, Public, nbytes

Function = TypeVar("Function", bound=Callable[..., Any])

Pair: TypeAlias = tuple[str, str]
Unit: TypeAlias = str | Pair
"""A local step runs on a device, by its name, or in a stage over pairs on two devices."""

Numbers: TypeAlias = Mapping[str, Mapping[str, float]]
"""device -> metric -> value"""

Scores: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""device -> split ("val", "test", "shared"; "inference" for the model's cost) -> metric -> value"""

HeldOut: TypeAlias = Literal["val", "shared"]
"""Examples that a method needs although nobody trains on them: a device's validation split, the shared test set."""

Sends: TypeAlias = Literal["model", "change", "masked", "counts"]
"""The tensors of an update: a model's, how training changed them, masked ones, or a control's, which nobody attacks."""

Weights: TypeAlias = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""Weights of a model's members: (M,), or (M, K) if a member counts more for some classes than for others."""


@dataclass(frozen=True)
class Message:
    """A message from the server to one device: a model (or part of one) and any other tensors."""

    params: Params = field(default_factory=dict)
    extra: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_tensors("message", self.params, self.extra)

    @property
    def nbytes(self) -> int:
        return nbytes(self.params) + nbytes(self.extra)


@dataclass(frozen=True)
class Update:
    """A device's update to the server: its model (or part of one), any other tensors, and three plain numbers.

    size: number of training examples. score: accuracy of the device's model on its validation split, in [0, 1];
    nan without one. steps: minibatches that this model was trained on; 0 if its method does not say. These numbers are
    not counted as traffic.
    """

    params: Params = field(default_factory=dict)
    extra: Params = field(default_factory=dict)
    size: int = 1
    score: float = float("nan")
    steps: int = field(default=0, metadata={"optional": True})

    def __post_init__(self) -> None:
        require_tensors("update", self.params, self.extra)

    @property
    def nbytes(self) -> int:
        return nbytes(self.params) + nbytes(self.extra)


@dataclass(frozen=True)
class Report:
    """The server's findings in a turn, besides models. It goes to tables, figures and records, never to a later turn.

    series: topic -> metric -> this turn's number, the same for all devices: a row of the table for each device and
    evaluated turn, whose split is the topic. devices: topic -> device -> metric -> number: the last ones of a topic
    become rows of the table. matrices: name -> tensor of any shape, e.g. "plan/<fold>/<label>". words: name -> text;
    "warning" is shown to the user, with the name of class k in the place of {k}. counts: like devices, but a topic's
    numbers are summed over the turns.
    """

    series: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    devices: Mapping[str, Numbers] = field(default_factory=dict)
    matrices: Params = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, Numbers] | None = field(default=None, metadata={"optional": True})


@dataclass(frozen=True)
class Model:
    r"""A deployed model: its members' class probabilities combined (one member: that model); of numbers their mean.

        p_c(x) = sum_i w_i p_ic(x)           weights by member, (M,), on the simplex
        p_c(x) ~ sum_i w_ic p_ic(x)^power    weights by member and class, (M, K), or a power; normalised over classes

    members: each a net's parameters and buffers, or a model. head: a linear layer on the members' logits side by side,
    "weight" (K, M K) and "bias" (K,), which takes the place of the mean, p = softmax(head(z_1, ..., z_M)); of a model
    its log-probabilities. net: the net that the members run on where it is not the device's own.
    """

    members: tuple[Params | Model, ...]
    weights: Weights = (1.0,)
    power: float = field(default=1.0, metadata={"optional": True})
    head: Params | None = field(default=None, metadata={"optional": True})
    net: Net | None = field(default=None, metadata={"optional": True})

    def __post_init__(self) -> None:
        if not isinstance(self.members, tuple):
            raise InputError(f"Model: members is {type(self.members).__name__}, must be a tuple of models: (params,)")
        weights = np.array(self.weights, float)
        if len(self.members) != len(weights):
            raise InputError(f"Model: {len(self.members)} members have {len(weights)} weights")
        low, high = (0.999, 1.001) if weights.ndim == 1 and self.power == 1 else (1e-30, 1e30)
        if not ((weights >= 0).all() and low < weights.sum() < high):
            raise InputError(f"Model: weights are {self.weights}, must be 0 or more and sum to 1 (by class: not all 0)")

    @property
    def params(self) -> tuple[Params, ...]:
        """The parameters and buffers of every net that the model runs."""
        parts = (member.params if isinstance(member, Model) else (member,) for member in self.members)
        return tuple(params for part in parts for params in part)


@dataclass(frozen=True)
class Threshold:
    """Of two classes, `label` is predicted where its probability is at least `value`."""

    label: str
    value: float


def require_tensors(what: str, *parts: Params) -> None:
    """Refuse values that are no tensors, such as a number that a device wants to send."""
    for part in parts:
        for name, tensor in part.items():
            if not isinstance(tensor, Tensor):
                raise InputError(f"{what}: {name} is {type(tensor).__name__}, must be a tensor")


def step_word(word: str, trains: bool = True) -> Callable[[Function], Function]:
    """Set the word that a progress bar or an orchestrator shows for a step, such as "train" or "fuse".

    The default is the first word of the function's name (`train_corrected`: "train"). The word is not part of a step's
    key. trains: False for a step of a device that counts, sends or examines: it stays on the processor.
    """

    def mark(fn: Function) -> Function:
        fn.word, fn.trains = word, trains  # type: ignore[attr-defined]
        return fn

    return mark


def generator(*parts: object) -> torch.Generator:
    """Return a random generator that depends on the words alone, e.g. (seed, stage, round, device name)."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


GLOBAL_RANDOMNESS = threading.RLock()
"""Whoever replaces the state of the global generators holds it, so that threads take turns."""


def seed_all(seed: int) -> None:
    """Seed the global generators, which a user's loss, net or metric may draw from. seed: from 0, below 2^63."""
    with GLOBAL_RANDOMNESS:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)


@dataclass(frozen=True)
class StepId:
    """The identity of one local step, from which all its randomness derives."""

    seed: int
    stage: int
    round: int
    unit: Unit

    def generator(self, purpose: str = "") -> torch.Generator:
        return generator(self.seed, self.stage, self.round, self.unit, purpose)


@dataclass(frozen=True)
class RoundInfo:
    """One round of one stage: the participating units (after sampling) and the names of all devices."""

    seed: int
    stage: int
    round: int
    units: tuple[Unit, ...]
    names: tuple[str, ...]

    def step_id(self, unit: Unit) -> StepId:
        return StepId(self.seed, self.stage, self.round, unit)

    def generator(self, purpose: str = "") -> torch.Generator:
        return generator(self.seed, self.stage, self.round, "server", purpose)


Sent: TypeAlias = tuple[Params, Mapping[str, Message]] | tuple[Params, Mapping[str, Message], Report]
"""The server's memory, the messages to send (a device without one keeps the last one), and optionally a report."""


Local: TypeAlias = Callable[[Params, Message, Device, StepId], tuple[Params, Update]]
"""One device's step, a pure function and the only one that sees data: memory, message, device, step_id -> the device's
memory and its update. The memory: tensors that never leave this device; empty before its first turn."""

Attach: TypeAlias = Callable[[Update, Device, StepId], Update]
"""Adds to a device's update after its local step, in a step of its own, and leaves its memory as it is."""

PairLocal: TypeAlias = Callable[
    [tuple[Params, Params], tuple[Message, Message], tuple[Device, Device], StepId], tuple[Params, Update]
]
"""A step of two devices: memories, messages, devices, step_id -> a memory, which is dropped, and the update, which
counts as the first device's traffic."""

PairSide: TypeAlias = Callable[[Params, Message, Device, StepId, int], Generator[Params, Params, Params]]
"""One device's side of a step of two, by its position: it sees its own examples, and of the other messages alone.

A generator: it first yields an empty message, then in turns gets what the other sent and yields what it sends. The
first side, of position 0, sends first. It returns its part of the update.
"""

PairJoin: TypeAlias = Callable[[Params, Params], Update]
"""Makes the update of a pair from what its two sides returned. Raises InputError for results that are none."""

Combine: TypeAlias = Callable[[Params, Mapping[str, Update], RoundInfo], Sent]
"""The server's step, which sees only its own memory and the devices' updates.

Returns its memory, the messages to send and optionally a `Report`. The memory holds only values that later turns
need. A function with a keyword-only argument `sent` is given what the devices that took part were sent, by name.
"""

PairCombine: TypeAlias = Callable[[Params, Mapping[Pair, Update], RoundInfo], Sent]
"""The server's step after a stage over pairs; otherwise as `Combine`."""

Begin: TypeAlias = Callable[[Public, int], tuple[Params, Mapping[str, Message]]]
"""What the server knows, and the seed -> its memory and first messages."""

Deploy: TypeAlias = Callable[[Params, Message], Model]
"""Returns the model that a device runs, from its memory and the last message it received.

A function with a keyword-only argument `device` is given the device, too: its name and its net, without examples.
"""

Review: TypeAlias = Callable[[Mapping[str, Numbers], Scores], Mapping[str, Numbers]]
"""Completes the reports' numbers of devices after the final models were tested.

Takes topic -> device -> metric -> number, the last of each topic, and returns the same with more metrics.
"""

Check: TypeAlias = Callable[[Mapping[str, int]], None]
"""Raises InputError for devices whose data the method cannot use; called before anything runs.

Takes device -> its labelled training examples.
"""


@dataclass(frozen=True)
class Stage:
    """`rounds` times: local on every sampled device, then combine.

    combine None: nothing is sent; the model in a device's update becomes its memory.
    fraction: share of the devices that take part in a round, at least one.

    local and combine are functions with their settings bound (functools.partial). The pipeline needs module-level ones,
    so that a step can be named and keyed by the source it reaches; a script or a notebook may use any.

    attach: adds to what each device sends. Methods with one local step, whose devices send different things beside
    the model, share its result. sends: what updates hold, models or changes of them.
    """

    local: Local
    combine: Combine | None
    rounds: int = field(default=1, metadata={"digest": False})  # a round does not depend on how many follow
    fraction: float = 1.0
    attach: Attach | None = None
    sends: Sends = field(default="model", metadata={"digest": False})  # local says so too


@dataclass(frozen=True)
class Sides:
    """A step of two devices in two sides, which gives the bits of the step in one piece."""

    side: PairSide
    join: PairJoin


@dataclass(frozen=True)
class PairStage:
    """A stage over pairs of devices, unordered: `fraction` is of the pairs, at least one; otherwise as `Stage`.

    sides: the step for real devices, which `local` runs in one place; None: it is possible in a simulation only.
    """

    local: PairLocal
    combine: PairCombine
    rounds: int = field(default=1, metadata={"digest": False})
    fraction: float = 1.0
    sides: Sides | None = field(default=None, metadata={"digest": False})


@dataclass(frozen=True)
class Method:
    """A method: its initial state, its stages, and the model that each device runs in the end.

    review: completes the reports' numbers of devices after the final models were tested. figures: functions that draw
    the reports, as "package.module:function", so that a worker need not import matplotlib; see
    :mod:`fedcore.results.reports`. check: refuses data that the method cannot use, before anything runs. held_out: the
    examples by which its steps choose or weigh models, so that a final fit must not train on them, see
    :func:`fedcore.partition.final_partition`.
    """

    begin: Begin
    stages: tuple[Stage | PairStage, ...]
    deploy: Deploy
    review: Review | None = field(default=None, metadata={"digest": False})
    figures: tuple[str, ...] = field(default=(), metadata={"digest": False})
    check: Check | None = field(default=None, metadata={"digest": False})
    held_out: tuple[HeldOut, ...] = field(default=(), metadata={"digest": False})

    def __post_init__(self) -> None:
        if not isinstance(self.stages, tuple) or not all(isinstance(stage, Stage | PairStage) for stage in self.stages):
            kind = type(self.stages).__name__
            raise InputError(f"Method.stages: must be a tuple of stages, (Stage(...),), not {kind}")
