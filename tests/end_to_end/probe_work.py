"""The functions of the probes' steps. Each call is noted in a file, since a step may run in another process."""

import os
import signal
import time
from typing import Any

import torch

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.types.federation import Params
from fedcore.types.method import Message, Update, step_word

LOG = environment.STATE / "done.txt"


def note(word: str) -> int:
    """Note a call; returns the number of earlier calls."""
    before = said(word)
    with LOG.open("a") as file:
        file.write(f"{word}\n")
    return before


def said(word: str) -> int:
    return LOG.read_text().splitlines().count(word) if LOG.exists() else 0


def double(word: str, update: Update) -> Message:
    note(word)
    return Message({name: 2 * tensor for name, tensor in update.params.items()})


def spread(word: str, x: Params) -> dict[str, Any]:
    """Return blobs and plain values, mixed."""
    note(word)
    message = Message({"w": x["w"] + 1})
    return {"sent": (message, message), "own": {"a": {"w": x["w"] - 1}, "b": {}}, "plain": [1, 0.5, None, "x", True]}


def plain(word: str) -> dict[str, Any]:
    note(word)
    return {"nan": float("nan"), "inf": float("-inf"), ("a", "b"): (1, [2.5, "ü"], None), "empty": ({}, [], ())}


def bare(word: str) -> torch.Tensor:
    note(word)
    return torch.arange(6.0).reshape(2, 3)


def who(word: str) -> torch.Tensor:
    """Return the id of the process."""
    note(word)
    return torch.tensor(os.getpid())


def refuse(word: str) -> None:
    note(word)
    raise InputError("lr = -1: must be above 0")


def refuse_after(word: str, seconds: float) -> None:
    time.sleep(seconds)
    raise InputError(word)


def rest(word: str, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return bare(word)


def fail(word: str) -> None:
    note(word)
    raise ZeroDivisionError("not a refusal")


def die_once(word: str) -> Message:
    if note(word) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return Message({"w": torch.ones(2)})


def die(word: str) -> None:
    note(word)
    os.kill(os.getpid(), signal.SIGKILL)


@step_word("rounds")
def chunk(execute: Any, word: str, x: Params, left: int = 0) -> Params:
    """Run in the flow's process, with calls to the workers."""
    note(word)
    parts = execute.map(double, {i: (word + " part", Update(x)) for i in range(2)})
    return {"w": sum(part.params["w"] for part in parts.values()) + left}
