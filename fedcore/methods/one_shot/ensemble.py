r"""All models go to every device: an ensemble, which votes, and stacking, which learns a head above them.

**Ensemble.** One exchange; the price is paid downwards and at every prediction: M models are sent to each device, which
runs all of them. Each vote is weighted by what its device has seen of the class, for which FedOV (ICLR 2023) lets
devices learn an "unknown" answer; here they send the counts of their labels. See
:mod:`fedcore.methods.one_shot.ensembles` and docs/methods/one_shot.md.

**Stacking.** A ridge regression on the logits of all models (Wolpert 1992), from sums that devices send.

    z(x) = (z_1(x), ..., z_M(x))                      the logits of the M models side by side, M K numbers
    G = sum (z, 1)'(z, 1), B = sum (z, 1)' onehot(y)  over all devices' examples, (M K + 1, M K + 1) and (M K + 1, K)
    (A, b) = (G + lambda I)^-1 B                      lambda: `reg` times the mean diagonal; none for the intercept b

The first exchange is the ensemble's. In a second, tiny one each device sends its sums, half of G as it is symmetric,
and gets A and b. Sums are of training examples. Of the M models one has seen them and is surer of them than of others,
but they are many, and validation examples stay free to select methods. A class has the score z A + b, of which the
softmax is the answer: good for choosing a class, poor as a probability.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.builders import needs_classes, needs_one_label
from fedcore.core.evaluation import answers
from fedcore.core.messages import WEIGHTS, initial_messages, to_everyone
from fedcore.core.training import Training, train
from fedcore.data.task import label_kind_of
from fedcore.errors import InputError
from fedcore.methods.one_shot import closed_form as closed
from fedcore.methods.one_shot.ensembles import (
    COUNTS,
    Voting,
    deploy_ensemble,
    gather_counts,
    kinds_of,
    pack_ensemble,
    send_model,
    with_personal_answers,
)
from fedcore.types.federation import Device, Net, Params, strip_prefix
from fedcore.types.method import Message, Method, Model, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Positive

__all__ = ["ensemble", "stack"]

Examples: TypeAlias = Literal["validation", "training"]

GRAM, CROSS, HEAD = "stack/gram", "stack/cross", "stack/head/"
"""Entries of an update: the upper triangle of G, row by row, and B, float64. Prefix of a linear head's parameters."""

VOTERS = "stack/voters"
"""The entry of the server's memory that holds the numbers of models and classes, M and K."""


@needs_classes("weighs by the entropy of labels", weights="entropy")
def ensemble(
    *, nets: Mapping[str, Net], training: Training, weights: Voting = "counts", personal: bool = False
) -> Method:
    """All devices' models vote, after one round. Their nets may differ.

    Args:
        weights: of the votes: "counts" (for each class, by the devices' examples of it), "size" (by all their
            examples), "even", or "entropy" (of their labels).
        personal: each device corrects the answer by its own labels' frequencies, but of a number, and mixes it with its
            own model's, as is best on its validation examples.
    """
    stages = (
        Stage(partial(train, training=training), None),
        Stage(partial(send_model, personal=personal), partial(send_all, nets=nets, weights=weights, personal=personal)),
    )
    begin = partial(initial_messages, shared_init=training.shared_init)
    built = Method(begin, stages, partial(deploy_ensemble, kinds=kinds_of(nets)))
    return with_personal_answers(built) if personal else built


def send_all(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net], weights: Voting,
    personal: bool,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Send everyone all models and their weights."""
    extra = pack_ensemble(updates, weights, nets)
    if personal:
        extra[COUNTS] = gather_counts(updates).sum(0)
    return server, to_everyone(round_info.names, Message(extra=extra))


@needs_one_label("regresses on the outputs for an example")
def stack(
    *, nets: Mapping[str, Net], training: Training, examples: Examples = "training", reg: Positive = 1e-3
) -> Method:
    """A linear head above all devices' models. Nets may differ; the head then sees log-probabilities.

    Args:
        examples: whose sums devices send, "training" or "validation".
        reg: lambda as a factor of the mean diagonal of G, above 0.
    """
    kinds = kinds_of(nets)
    stages = (
        Stage(partial(train, training=training), None),
        Stage(partial(send_model, personal=False), partial(send_voters, nets=nets)),
        Stage(partial(send_sums, kinds=kinds, examples=examples), partial(solve_head, examples=examples, reg=reg)),
    )
    begin, deploy = partial(initial_messages, shared_init=training.shared_init), partial(deploy_stack, kinds=kinds)
    return Method(begin, stages, deploy, held_out=("val",) if examples == "validation" else ())


def send_voters(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone all models; until the head comes they vote as an ensemble."""
    extra = pack_ensemble(updates, "counts", nets)
    return {**server, VOTERS: torch.tensor(extra[WEIGHTS].shape)}, to_everyone(round_info.names, Message(extra=extra))


@step_word("sum")
def send_sums(
    memory: Params, message: Message, device: Device, step_id: StepId, *, kinds: Sequence[Net], examples: Examples
) -> tuple[Params, Update]:
    """Send G and B of the device's examples; store the models received."""
    data = device.data.val if examples == "validation" else device.data.train
    members = deploy_ensemble({}, message, kinds=kinds).members
    x = data.inputs() if len(data) else device.data.test.inputs(slice(0, 0))
    logits = [answers(member, device.net, [x], label_kind_of(data.y))[0].double() for member in members]
    z = torch.cat([*logits, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    sums = {GRAM: closed.triangle(z.T @ z), CROSS: closed.class_sums(z, data.y, logits[0].shape[1])}
    return message.extra, Update(extra=sums, size=len(data))


def solve_head(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, examples: Examples, reg: float
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the head that the sums of all devices give; raises InputError if no device has an example."""
    if not any(update.size for update in updates.values()):
        raise InputError(f"stack.examples = {examples}: no device has any")
    models, classes = server[VOTERS].tolist()
    size = models * classes + 1
    gram = closed.sum_over(updates, GRAM, (size * (size + 1) // 2,))
    weight, bias = ridge(closed.from_triangle(gram, size), closed.sum_over(updates, CROSS, (size, classes)), reg)
    head = {f"{HEAD}weight": weight.T.float(), f"{HEAD}bias": bias.float()}
    return server, to_everyone(round_info.names, Message(extra=head))


def ridge(gram: Tensor, cross: Tensor, reg: float) -> tuple[Tensor, Tensor]:
    """Return the coefficients (P, K) and the intercept (K,) from G (P + 1, P + 1) and B (P + 1, K), the ones last."""
    penalty = torch.full((len(gram),), reg * float(gram.diagonal()[:-1].mean()), dtype=gram.dtype)
    penalty[-1] = 0
    solution = torch.linalg.solve(gram + penalty.diag(), cross)
    return solution[:-1], solution[-1]


def deploy_stack(memory: Params, message: Message, *, kinds: Sequence[Net]) -> Model:
    """Run all models below the head; before it came the ensemble, or the device's own model."""
    head = strip_prefix(HEAD, message.extra)
    if not head:
        return deploy_ensemble(memory, message, kinds=kinds)
    return replace(deploy_ensemble({}, Message(extra=memory), kinds=kinds), head=head)
