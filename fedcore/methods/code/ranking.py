"""Ranking the devices' models by accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.core.messages import initial_messages
from fedcore.core.training import SCORING_BATCH, Training, accuracy, predict, train
from fedcore.types import Combine, Data, Device, Message, Net, Params, Public, Stage, StepId, Update, step_word

Exam: TypeAlias = Literal["classes", "validation", "test"]
"""How models are ranked: by the accuracy that devices report of their own model on each class (:func:`class_scores`),
by their accuracy on their own validation split, or by the accuracy on the server's test set.

The last is the CODE paper's setting; it selects a model on the same examples that evaluate it. The second prefers a
device with a single class, whose model is hardly ever wrong about it.
"""

MARKS = "marks"
"""Entry of an update: for each class the device's validation examples, and how many its model gets right, (2, K)."""


def begin_ranking(public: Public, seed: int, *, common: bool, exam: Exam) -> tuple[Params, Mapping[str, Message]]:
    """Begin as `messages.initial_messages` does; with exam "test" the server also remembers its test set."""
    server, messages = initial_messages(public, seed, common=common)
    return (server | {"exam/x": public.test.x, "exam/y": public.test.y} if exam == "test" else server), messages


def train_for_exam(training: Training, combine: Combine, exam: Exam) -> Stage:
    """Return the stage of one round in which devices train and send what the exam needs beside their model."""
    return Stage(partial(train, training=training), combine, attach=mark if exam == "classes" else None)


@step_word("examine")
def mark(update: Update, device: Device, step_id: StepId) -> Update:
    """Add the marks of the device's model on its validation examples."""
    val = device.data.val
    logits = predict(update.params, device.net, val.x, SCORING_BATCH)
    right = val.y[logits.argmax(1) == val.y]
    marks = torch.stack([torch.bincount(y, minlength=logits.shape[1]) for y in (val.y, right)])
    return replace(update, extra={**update.extra, MARKS: marks})


def class_scores(marks: Mapping[str, Tensor]) -> dict[str, float]:
    r"""Return the accuracy to expect of each device's model on the examples of all devices.

    sum_c p_c right_ic / (seen_ic + 1),   p_c: the share of class c of all devices' validation examples

    marks: device -> seen and right (2, K). A model gets a wrong answer in each class beside its own: of a class that
    its device does not hold it has most likely learnt nothing, and a single right answer tells little. All are nan
    where nobody has an example.
    """
    counts = torch.stack([of[0] for of in marks.values()]).sum(0).double()
    shares = counts / counts.sum()
    return {name: float((shares * right / (seen + 1)).sum()) for name, (seen, right) in marks.items()}


def rank_ascending(server: Params, updates: Mapping[str, Update], nets: Mapping[str, Net]) -> list[str]:
    """Return the devices' names, the least accurate model first; equal ones in the order of their names.

    A device without validation examples (score nan) comes first.
    """
    scores = {name: update.score for name, update in updates.items()}
    if "exam/x" in server:
        data = Data(server["exam/x"], server["exam/y"])
        scores = {name: accuracy(update.params, nets[name], data) for name, update in updates.items()}
    elif all(MARKS in update.extra for update in updates.values()):
        scores = class_scores({name: update.extra[MARKS] for name, update in updates.items()})
    return sorted(updates, key=lambda name: (-math.inf if math.isnan(scores[name]) else scores[name], name))
