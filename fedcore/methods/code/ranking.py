"""Ranking the devices' models by accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import SCORING_BATCH, Training, accuracy, predict, train
from fedcore.data.task import label_kind_of
from fedcore.types.federation import Data, Device, Net, Params, Public
from fedcore.types.method import Combine, HeldOut, Message, Method, Stage, StepId, Update, step_word

RankBy: TypeAlias = Literal["classes", "validation", "test"]
"""How models are ranked: by the accuracy that devices report of their own model on each class (:func:`class_scores`),
by their accuracy on their own validation split, or by the accuracy on the server's test set.

Where labels are no classes, the first is the second, by `LabelKind.score`. The last is the CODE paper's setting; it
selects a model on the same examples that evaluate it. The second prefers a device with a single class, whose model is
hardly ever wrong about it.
"""

CLASS_HITS = "class_hits"
"""Entry of an update: for each class the device's validation examples, and how many its model gets right, (2, K)."""


def begin_ranking(
    public: Public, seed: int, *, shared_init: bool, rank_by: RankBy
) -> tuple[Params, Mapping[str, Message]]:
    """Begin as `messages.initial_messages` does; with rank_by "test" the server also remembers its test set."""
    server, messages = initial_messages(public, seed, shared_init=shared_init)
    return (server | {"test/x": public.test.x, "test/y": public.test.y} if rank_by == "test" else server), messages


def ranked_method(
    training: Training,
    combine: Combine,
    rank_by: RankBy,
    rounds: int = 1,
    figures: Sequence[str] = (),
    fraction: float = 1.0,
) -> Method:
    """Return the method whose devices train and whose server ranks the models and combines them, in each round.

    The first round is a stage of its own: its training is the one that every one-shot method shares.
    """
    first = replace(train_to_rank(training, combine, rank_by), fraction=fraction)
    stages = (first, replace(first, rounds=rounds - 1))[: 1 + (rounds > 1)]
    begin = partial(begin_ranking, shared_init=training.shared_init, rank_by=rank_by)
    held_out: HeldOut = "shared" if rank_by == "test" else "val"
    return Method(begin, stages, received_model, figures=tuple(figures), held_out=(held_out,))


def train_to_rank(training: Training, combine: Combine, rank_by: RankBy) -> Stage:
    """Return the stage of one round in which devices train and send what ranking needs beside their model."""
    return Stage(partial(train, training=training), combine, attach=count_hits if rank_by == "classes" else None)


@step_word("rank")
def count_hits(update: Update, device: Device, step_id: StepId) -> Update:
    """Add the hits of the device's model on its validation examples; where labels are no classes nothing is added."""
    val = device.data.val
    if not label_kind_of(val.y).has_classes:
        return update
    logits = predict(update.params, device.net, val.x, SCORING_BATCH)
    right = val.y[logits.argmax(1) == val.y]
    hits = torch.stack([torch.bincount(y, minlength=logits.shape[1]) for y in (val.y, right)])
    return replace(update, extra={**update.extra, CLASS_HITS: hits})


def class_scores(hits: Mapping[str, Tensor]) -> dict[str, float]:
    r"""Return the accuracy to expect of each device's model on the examples of all devices.

    sum_c p_c right_ic / (seen_ic + 1),   p_c: the share of class c of all devices' validation examples

    hits: device -> seen and right (2, K). A model gets a wrong answer in each class beside its own: of a class that
    its device does not hold it has most likely learnt nothing, and a single right answer tells little. All are nan
    where nobody has an example.
    """
    counts = torch.stack([of[0] for of in hits.values()]).sum(0).double()
    shares = counts / counts.sum()
    return {name: float((shares * right / (examples + 1)).sum()) for name, (examples, right) in hits.items()}


def rank_ascending(server: Params, updates: Mapping[str, Update], nets: Mapping[str, Net]) -> list[str]:
    """Return the devices' names, the least accurate model first; equal ones in the order of their names.

    A device without validation examples (score nan) comes first.
    """
    scores = {name: update.score for name, update in updates.items()}
    if "test/x" in server:
        data = Data(server["test/x"], server["test/y"])
        scores = {name: accuracy(update.params, nets[name], data) for name, update in updates.items()}
    elif all(CLASS_HITS in update.extra for update in updates.values()):
        scores = class_scores({name: update.extra[CLASS_HITS] for name, update in updates.items()})
    return sorted(updates, key=lambda name: (-math.inf if math.isnan(scores[name]) else scores[name], name))
