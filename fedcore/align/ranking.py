"""Ranking the devices' models by accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

from fedcore.local import accuracy
from fedcore.messages import initial_messages
from fedcore.types import Data, Message, Net, Params, Public, Update

Exam: TypeAlias = Literal["validation", "test"]
"""The data that models are ranked on: each device's validation split (it sends the accuracy), or the server's test set.

The second is the CODE paper's setting; it selects a model on the same examples that evaluate it.
"""


def begin(public: Public, seed: int, *, common: bool, exam: Exam) -> tuple[Params, Mapping[str, Message]]:
    """Begin as `messages.initial_messages` does; with exam "test" the server also remembers its test set."""
    server, messages = initial_messages(public, seed, common=common)
    return (server | {"exam/x": public.test.x, "exam/y": public.test.y} if exam == "test" else server), messages


def rank_ascending(server: Params, updates: Mapping[str, Update], nets: Mapping[str, Net]) -> list[str]:
    """Return the devices' names, the least accurate model first; equal ones in the order of their names.

    A device without validation examples (score nan) comes first.
    """
    scores = {name: update.score for name, update in updates.items()}
    if "exam/x" in server:
        data = Data(server["exam/x"], server["exam/y"])
        scores = {name: accuracy(update.params, nets[name], data) for name, update in updates.items()}
    return sorted(updates, key=lambda name: (-math.inf if math.isnan(scores[name]) else scores[name], name))
