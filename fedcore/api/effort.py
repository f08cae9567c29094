"""How much work a run is, by arithmetic of rows, epochs and parameters: how often to evaluate, in how many processes.

The constants are of one core of an AMD EPYC. What they decide changes no bit, but which rounds have scores.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import pickle
import re
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from fedcore.core.messages import received_model
from fedcore.core.together import products
from fedcore.core.training_settings import Training
from fedcore.execute.accelerator import cores
from fedcore.execute.workers import Engine
from fedcore.nets import init, key, shapes
from fedcore.pickling import Pickler, is_users, to_bytes, values_of
from fedcore.types.federation import Device, Federation, Net
from fedcore.types.method import Method, PairStage

PRODUCTS = 3e10
"""Multiplications a second; training takes three for each of a prediction."""

STEP, PART = 2e-4, 5e-4
"""Seconds of a training step, and of a scored split, beside products."""

UPDATE = 3e-9
"""Seconds of an optimiser's step for each parameter."""

SHARE = 0.25
"""The most that evaluation should take, of training's time: a fifth of both."""

QUICK = 2.0
"""Evaluations that take fewer seconds in all follow every round."""

TORCH = re.compile(r"torch(\.nn\.(functional|modules\.\w+))?")
"""The modules in which a function that is replaced is looked for."""

WORTH = 4.0
"""Seconds of work for each process: it starts in two to three."""


@dataclass(frozen=True)
class Effort:
    """Seconds of one core. rounds: of all stages. training, evaluation: of a round, on average. units: of a round."""

    rounds: int
    training: float
    evaluation: float
    units: int

    @property
    def every(self) -> int:
        """How many rounds one evaluation should serve; one follows the last round in any case."""
        if self.rounds == 1 or self.rounds * self.evaluation < QUICK or not self.training:
            return 1
        return math.ceil(self.rounds / max(1, int(SHARE * self.rounds * self.training / self.evaluation)))

    def seconds(self, every: int) -> float:
        """Return those of a run that is evaluated after every so many rounds."""
        return self.rounds * self.training + math.ceil(self.rounds / every) * self.evaluation


def effort(method: Method, training: Training, fed: Federation) -> Effort:
    """Return the work of a method on a federation, from its settings and the sizes of data and nets."""
    stages = [(stage, len(fed.devices) ** (2 if isinstance(stage, PairStage) else 1)) for stage in method.stages]
    rounds = sum(stage.rounds for stage in method.stages)
    one = sum(_training(device, training) for device in fed.devices.values())
    rows = sum(len(part) for device in fed.devices.values() for part in (device.data.val, device.data.test))
    some = next(iter(fed.devices.values()))
    models = len({key(d.net) for d in fed.devices.values()} if method.deploy is received_model else fed.devices)
    scoring = (rows + models * len(fed.test)) * products(some) / PRODUCTS + 2 * len(fed.devices) * PART
    trained = sum(stage.rounds * stage.fraction for stage in method.stages) * one
    units = max(max(1, round(stage.fraction * count)) for stage, count in stages)
    return Effort(rounds, trained / max(rounds, 1), scoring, units)


def _training(device: Device, training: Training) -> float:
    rows = len(device.data.train)
    steps = training.steps or training.epochs * math.ceil(rows / training.batch)
    parameters = sum(math.prod(shape) for shape in shapes(device.net).values())
    examples = min(steps * training.batch, training.epochs * rows) if training.steps is None else steps * training.batch
    return 3 * examples * products(device) / PRODUCTS + steps * (STEP + UPDATE * parameters)


def processes(efforts: Collection[Effort], every: int, runs: int, travels: Sequence[Any]) -> int | None:
    """Return in how many worker processes a script's runs are faster; None: in this one.

    They stay here where they are short, where this process is one of a pool or this thread one of several, and where a
    function of the program itself would have to travel: it might change what only this process sees. A line says so.
    """
    seconds = runs * sum(each.seconds(every) for each in efforts)
    count = min(cores(), int(seconds / WORTH), max((each.units for each in efforts), default=1))
    pooled = multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread()
    if count < 2 or pooled or not hasattr(socket, "send_fds"):
        return None
    if (why := stays(travels)) is not None:
        sys.stderr.write(f"trains in one process, since {why}; workers={count} shares it out all the same\n")
        return None
    return count


class _Travelling(Pickler):
    """Refuses functions of the program itself, which workers would get by value."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and (value.__module__ == "__main__" or "<" in value.__qualname__):
            raise pickle.PicklingError(f"{value.__qualname__} is a function of this program")
        return super().reducer_override(value)


def stays(values: Sequence[Any]) -> str | None:
    """Return why values should not be sent to other processes; None if they may."""
    try:
        with open(os.devnull, "wb") as nowhere:
            _Travelling(nowhere, protocol=5).dump(values)
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None


def differing_value(engine: Engine, nets: Collection[Net], values: Sequence[Any]) -> str | None:
    """Return a value of the user's files or program that workers have otherwise; None: there is none."""
    given = [*{key(net): net for net in nets}.values()], values
    here = users_values(*given)
    if not here:
        return None
    engine.start()
    above = {path[:end] for path in here for end, mark in enumerate(path) if mark == "."}
    files = [name for name in sys.modules if name in above and is_users(name)]
    try:
        there = engine.call(users_values, *given, files)
    except AttributeError as error:  # of a cached function of the program, which has no pickle
        if lacks := str(error).partition("Can't get attribute '")[2]:
            return lacks.partition("'")[0]
        raise
    return next((path for path in {**here, **there} if here.get(path) != there.get(path)), None)


def users_values(nets: Collection[Net], values: Sequence[Any], files: Collection[str] = ()) -> dict[str, bytes]:
    """Return the values and the code that users' code reaches, after their constructors, by path.

    Beside them is what is called by another name than its own in PyTorch, as where a program has replaced a function.
    files: what to import before, as the code might do later.
    """
    for name in files:
        with suppress(Exception, SystemExit):
            importlib.import_module(name)
    for net in nets:
        init(net, torch.Generator())
    plain = (Number, str, bytes, bytearray, set, frozenset, slice, range, type, type(None), CodeType, FunctionType,
             BuiltinFunctionType, torch.Tensor, np.ndarray, np.generic, np.ufunc, torch.dtype)  # fmt: skip
    found = [pair for pair in values_of(*(net.build for net in nets), *values) if isinstance(pair[1], plain)]
    own: dict[str, set[bytes]] = {}
    for path, value in found if any(isinstance(value, CodeType) for _, value in found) else ():
        own.setdefault(path, set()).add(blake2b(_bytes_of(value)).digest())
    return {path: b"".join(sorted(of)) for path, of in own.items()} | replaced()


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, set | frozenset):
        return repr(sorted(map(repr, value))).encode()
    name = getattr(value, "__qualname__", getattr(value, "__name__", "")) if callable(value) else ""
    of_name = f"{getattr(value, '__module__', '')} {name}".encode()
    return to_bytes(value) if isinstance(value, type) or not name else of_name


def replaced() -> dict[str, bytes]:
    """Return what is called by another name than its own, or is not PyTorch's, in PyTorch's functions and layers."""
    modules: list[Any] = [of for name, of in sys.modules.items() if TORCH.fullmatch(name)]
    inside = [of for module in modules for of in vars(module).values() if isinstance(of, type)]
    found = {}
    for place in [*modules, *(of for of in inside if of.__module__.startswith("torch"))]:
        prefix = f"{place.__qualname__}." if isinstance(place, type) else ""
        where = place.__module__ if isinstance(place, type) else place.__name__
        for name, value in vars(place).items():
            if callable(value):
                own, home = getattr(value, "__qualname__", ""), str(getattr(value, "__module__", ""))
                if own != prefix + name or not home.startswith("torch"):
                    code = to_bytes(getattr(value, "__code__", None))
                    found[f"{where}.{prefix}{name}"] = f"{home} {own}".encode() + code
    return found | modes()


def modes() -> dict[str, bytes]:
    """Return what a program has set for all of PyTorch's calls: hooks of all modules, modes, and the precision."""
    module: Any = torch.nn.modules.module
    found = {f"{module.__name__}.{name}": [*hooks.values()] for name, hooks in vars(module).items()
             if name.startswith("_global") and isinstance(hooks, dict)}  # fmt: skip
    functions: Any = torch.overrides._get_current_function_mode_stack
    found["torch.overrides"] = functions()
    found["torch.utils._python_dispatch"] = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    names = {name: repr([type(part).__name__ for part in parts]) for name, parts in found.items() if parts}
    names["torch.set_float32_matmul_precision"] = torch.get_float32_matmul_precision()
    return {name: of.encode() for name, of in names.items()}
