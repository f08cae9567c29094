"""Tiny federations for tests: a few devices with a few examples of four numbers, of three classes."""

import atexit
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.rounds import RoundResult, run
from fedcore.core.training import Training, train
from fedcore.execute.workers import Inline, Workers, one_thread
from fedcore.types.federation import Data, Device, Federation, Net, Params, Splits
from fedcore.types.method import Message, Method, StepId, Update, generator

NET = nets.net("mlp", shape=(4,), classes=3, widths=[5, 4])
NETS = {name: NET for letter in "abcdefghij" for name in (letter, f"device {letter}")}
"""The nets of all devices that a test may have."""

NBYTES = 4 * ((5 * 4 + 5) + (4 * 5 + 4) + (3 * 4 + 3))  # of its tensors: 64 float32

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch=4, epochs=2)
ADAM = replace(SGD, optimiser="adam", lr=0.02)
AT_THE_END = 10**6
"""Rounds from one evaluation to the next where only the last one is looked at."""

SIZES = {"a": 6, "b": 9, "c": 12}
"""Training examples of the first devices."""


def data(count: int, *words: object) -> Data:
    """Examples that depend on the words alone; an example's class is the largest of its first three numbers."""
    x = torch.randn(count, 4, generator=generator("data", *words))
    return Data(x, x[:, :3].argmax(1))


def device_of(name: str, net: Net = NET) -> Device:
    """A device whose examples depend on its name alone."""
    return Device(
        name, net, Splits(data(SIZES.get(name, 8), name, "train"), data(7, name, "val"), data(5, name, "test"))
    )


def federation(names: Iterable[str] = "abc", net: Net = NET) -> Federation:
    return Federation({name: device_of(name, net) for name in names}, data(20, "shared"), 3, data(24, "server"))


def half(names: str = "abcd", unknown: str = "cd") -> Federation:
    """Devices of which some know no label."""
    fed, none, blank = federation(names), data(0), {}
    for name in unknown:
        there = fed.devices[name]
        hidden = Data(there.data.train.x, torch.full_like(there.data.train.y, -1))
        blank[name] = replace(there, data=Splits(none, none, there.data.test, hidden))
    return replace(fed, devices={**fed.devices, **blank})


def model(*words: object, net: Net = NET) -> Params:
    """Fresh tensors that depend on the words alone."""
    return nets.init(net, generator("model", *words))


def shuffled(params: Params, net: Net, seed: int) -> Params:
    """The same function with every layer's hidden units in another order."""
    order: dict[str, Tensor] = {}
    moved = dict(params)
    for key, names in net.table.items():
        for axis, name in enumerate(names):
            if name is not None:
                count = moved[key].shape[axis]
                if name not in order:
                    order[name] = torch.randperm(count, generator=generator("shuffle", seed, name))
                moved[key] = moved[key].index_select(axis, order[name])
    return moved


def last(method: Method, fed: Federation, seed: int = 0) -> RoundResult:
    """Play a method to its end, in this process."""
    return list(run(method, fed, seed, Inline()))[-1]


def send(
    memory: Params, message: Message, device: Device, step_id: StepId, *, updates: Mapping[str, Update]
) -> tuple[Params, Update]:
    """A local step that sends what it is told to."""
    return memory, updates[device.name]


def sending(method: Method, updates: Mapping[str, Update]) -> Method:
    """The same method on devices that send these updates and do not train."""
    local = partial(send, updates=updates)
    return replace(method, stages=tuple(replace(stage, local=local) for stage in method.stages))


def fused(method: Method, updates: Mapping[str, Update], test: Data | None = None) -> Params:
    """What a method sends everyone after one round in which the devices sent these updates."""
    fed = federation(updates)
    messages = last(sending(method, updates), replace(fed, test=test or fed.test)).state.messages
    one = next(iter(messages.values()))
    assert all(message is one for message in messages.values())
    return one.params


def trained(
    fed: Federation, training: Training, seed: int, sent: Params | None = None, round: int = 0
) -> dict[str, Update]:
    """What each device sends after training from `sent`, or from its own initial model, in the first stage."""
    with one_thread():
        return {
            name: train({}, Message(sent or {}), there, StepId(seed, 0, round, name), training=training)[1]
            for name, there in fed.devices.items()
        }


def constant(number: float) -> Params:
    """A model with one number everywhere."""
    return {name: torch.full_like(x, number) for name, x in model().items()}


def says(answer: int) -> Params:
    """A model that takes every example for the same class."""
    params = model("says", answer)
    params["fc3.weight"].zero_()
    params["fc3.bias"].zero_()[answer] = 1.0
    return params


def ranked(*models: Params) -> dict[str, Update]:
    """Updates of devices a, b, c, ..., of which each is better than the one before."""
    return {chr(ord("a") + k): Update(params, score=k / 10) for k, params in enumerate(models)}


def disputed() -> tuple[dict[str, Update], Data]:
    """Models a, b, c, worst first by their own word, and examples by which the order is c, a, b."""
    return ranked(says(0), says(1), says(2)), Data(data(6).x, torch.tensor([0, 0, 1, 1, 1, 2]))


@cache
def workers(count: int) -> Workers:
    """So many worker processes, which all tests share: each takes seconds to start."""
    pool = Workers(count)
    atexit.register(pool.close)
    return pool


class Recorder(Inline):
    """Runs steps in this process and remembers what each of them returned: (function, unit, result)."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[..., Any], Any, Any]] = []

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        results = super().map(fn, calls)
        self.steps += [(fn, unit, result) for unit, result in results.items()]
        return results


def bits(value: Any, place: str = "") -> dict[str, str]:
    """Take a value apart: the place of every part -> what tells its bits from any others."""
    if isinstance(value, Tensor):
        digest = hashlib.blake2b(value.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        return {place: f"{value.dtype} {tuple(value.shape)} {digest}"}
    if is_dataclass(value):
        parts: dict[Any, Any] = {f.name: getattr(value, f.name) for f in fields(value)}
    elif isinstance(value, Mapping):
        parts = dict(value)
    elif isinstance(value, tuple | list):
        parts = dict(enumerate(value))
    else:
        return {place: repr(value)}
    inside = [bits(part, f"{place}/{name}") for name, part in parts.items()]
    return {place: type(value).__name__} | {key: found for part in inside for key, found in part.items()}
