"""Distillation on Gaussian draws: one exchange, one net, and no data at the server.

Each device sends its model and, for each class of which it has enough examples, a Gaussian of them: the mean, a few
principal directions and the variances (:mod:`fedcore.methods.one_shot.gaussians`). The server draws examples from the
Gaussians and trains a fresh net on them. A draw's target is half its label and half the answer of the ensemble of all
models, weighted by counts of labels (:mod:`fedcore.methods.one_shot.ensembles`). Nets may differ: each architecture
gets its own.

`personal_distillation` is the same with personal answers on devices that have validation examples: the row of a user
who asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import needs_classes
from fedcore.core.messages import initial_messages, to_weights
from fedcore.core.training import SCORING_BATCH, Training, predict, train
from fedcore.data.task import mix_probabilities
from fedcore.errors import InputError
from fedcore.methods.one_shot.ensembles import (
    COUNTS,
    Voting,
    deploy_personal,
    elect,
    gather_counts,
    personalise,
    send_model,
)
from fedcore.methods.one_shot.gaussians import ALL, Sketches, draw, learn, read_sketch, sketch, targets_of
from fedcore.nets import key
from fedcore.nets.inputs import require_quantities
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, Report, RoundInfo, Stage, StepId, Update, step_word

__all__ = ["gaussian_distillation", "personal_distillation"]

CHUNK = 8192
"""Draws that the ensemble answers at a time; bounds memory."""


@needs_classes("sends a Gaussian of each label")
def gaussian_distillation(
    *,
    nets: Mapping[str, Net],
    training: Training,
    sketches: Sketches,
    weights: Voting = "counts",
    personal: bool = False,
) -> Method:
    """Build the distillation on Gaussian draws.

    Args:
        sketches: the Gaussians, and the net that learns from them.
        weights: of the ensemble's votes, as for `ensemble`: "counts", "size", "even" or "entropy".
        personal: each device corrects the answer by its own labels' frequencies and mixes it with its own model's, as
            is best on its validation examples.
    """
    require_quantities("gaussian_distillation", nets)
    local = partial(send_sketch, personal=personal, rank=sketches.rank, minimum=sketches.minimum)
    server = partial(distil, nets=nets, sketches=sketches, weights=weights, personal=personal)
    stages = (Stage(partial(train, training=training), None), Stage(local, server))
    begin, check = (
        partial(initial_messages, shared_init=training.shared_init),
        partial(check_sizes, minimum=sketches.minimum),
    )
    if not personal:
        return Method(begin, stages, deploy_distilled, check=check)
    last = Stage(partial(personalise, common=deploy_distilled), None)
    deploy = partial(deploy_personal, common=deploy_distilled)
    return Method(begin, (*stages, last), deploy, check=check, held_out=("val",))


@needs_classes("sends a Gaussian of each label")
def personal_distillation(*, nets: Mapping[str, Net], training: Training, sketches: Sketches) -> Method:
    """Build gaussian_distillation with `personal: true`: a device without validation data runs the common net alone.

    Args:
        sketches: the Gaussians, and the net that learns from them.
    """
    return gaussian_distillation(nets=nets, training=training, sketches=sketches, personal=True)


def check_sizes(sizes: Mapping[str, int], *, minimum: int) -> None:
    """Refuse data of which no device may tell anything."""
    if max(sizes.values()) < minimum:
        raise InputError(f"minimum = {minimum}: no device has as many labelled examples; lower it")


@step_word("sketch")
def send_sketch(
    memory: Params, message: Message, device: Device, step_id: StepId, *, personal: bool, rank: int, minimum: int
) -> tuple[Params, Update]:
    """Send the model, the counts of labels and the Gaussians."""
    memory, update = send_model(memory, message, device, step_id, personal=personal)
    classes = len(update.extra[COUNTS])
    return memory, replace(update, extra=update.extra | sketch(device.data.train, classes, rank, minimum))


def distil(
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
    *,
    nets: Mapping[str, Net],
    sketches: Sketches,
    weights: Voting,
    personal: bool,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Draw examples, ask the ensemble and train a fresh net of each architecture; one Gaussian is needed."""
    gaussians, counts = {name: read_sketch(update.extra) for name, update in updates.items()}, gather_counts(updates)
    check_sizes(dict(zip(updates, counts.sum(1).tolist(), strict=True)), minimum=sketches.minimum)
    x, y = draw(gaussians, counts, sketches.draws, round_info.generator("draws"))
    voters, votes = elect(updates, weights)
    parts = [
        [predict(updates[name].params, nets[name], part, SCORING_BATCH) for name in voters]
        for part in torch.split(x, CHUNK)
    ]
    answers = torch.cat([mix_probabilities(part, to_weights(votes), 1.0, None) for part in parts])
    targets = targets_of(y, answers.exp(), sketches.hard)
    extra = {COUNTS: counts.sum(0)} if personal else {}
    kinds = {key(nets[name]): nets[name] for name in round_info.names}
    messages = {k: Message(learn(net, x, targets, sketches.training, round_info), extra) for k, net in kinds.items()}
    return (
        server,
        {name: messages[key(nets[name])] for name in round_info.names},
        report_classes(gaussians, counts, sketches.minimum),
    )


def report_classes(gaussians: Mapping[str, Mapping[int, object]], counts: Tensor, minimum: int) -> Report:
    """Warn of classes of which no device tells."""
    sketched = {label for parts in gaussians.values() for label in parts}
    missing = [f"{{{c}}}" for c in counts.sum(0).nonzero()[:, 0].tolist() if c not in sketched]
    if ALL in sketched or not missing:
        return Report()
    return Report(words={"warning": f"no device has {minimum} examples of class {', '.join(missing)}: not drawn"})


def deploy_distilled(memory: Params, message: Message) -> Model:
    """Run the net that the server trained; before that the device's own, or the initial one."""
    return Model((message.params if COUNTS in message.extra else memory or message.params,))
