r"""Divergence of two devices' data without sharing the data: Algorithm 1 of ST-LF.

Both devices of a pair train one binary classifier of an example's device (0: the first, 1: the second) by federated
averaging, and measure it on held-out examples:

    d = 2 |1 - 2 err|   in [0, 2],   err the mean of both devices' error rates on held-out examples

It is a stage over pairs: `estimate` is one pair's step; the server, which sees only the errors, makes the matrix
(`matrix`). The paper uses errors on the training examples, which inflate d: a classifier memorises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.training import Training, descend, flatten_net, plain_step, predict
from fedcore.types import (
    Chance,
    Count,
    Data,
    Device,
    InputError,
    Net,
    Pair,
    Params,
    Positive,
    StepId,
    Update,
    step_word,
)

SCORING_BATCH = 256


@dataclass(frozen=True)
class Divergence:
    """Settings of the training of a pair's classifier (Algorithm 1).

    Args:
        pair_rounds: tau, number of averages, from 1.
        pair_iterations: T, steps of SGD between two averages, from 1.
        pair_batch: examples in a minibatch, from 1.
        pair_lr: learning rate, above 0.
        held_out: share of each device's examples that measure the error, above 0 and below 1.
    """

    pair_rounds: Count = 50
    pair_iterations: Count = 5
    pair_batch: Count = 64
    pair_lr: Positive = 0.04
    held_out: Chance = 0.2


@step_word("compare")
def estimate(
    memory: object, messages: object, pair: tuple[Device, Device], step_id: StepId, *, net: Net, settings: Divergence
) -> tuple[Params, Update]:
    """Run one pair's step (Algorithm 1, lines 2-10); the update has both errors, (2,), and the number of sent models.

    net: a classifier of two classes for the devices' examples. Labels are not used: labelled and unlabelled examples
    count alike.
    """
    sides = [examples(device, step_id, settings) for device in pair]
    training = Training("sgd", settings.pair_lr, 0.0, 0.0, "constant", settings.pair_batch, 1)
    begin = nets.init(net, step_id.generator("init"))
    models = [flatten_net(net, begin) for _ in pair]
    steps = [plain_step(model, training, settings.pair_rounds * settings.pair_iterations) for model in models]
    draws = [step_id.generator(f"batches {side}") for side in range(2)]
    with nets.use_generator(step_id.generator("noise")):  # dropout
        for _ in range(settings.pair_rounds):
            for side, (trained_on, _) in enumerate(sides):
                size = (settings.pair_iterations, min(settings.pair_batch, len(trained_on)))
                index = torch.randint(len(trained_on), size, generator=draws[side])
                descend(Data(trained_on, torch.full((len(trained_on),), side)), list(index), steps[side])
            mean = (models[0].vector + models[1].vector) / 2
            for model in models:
                model.vector.copy_(mean)
    params = models[0].params()
    wrong = [
        (predict(params, net, Data(held, torch.zeros(len(held))).inputs(), SCORING_BATCH).argmax(1) != side)
        for side, (_, held) in enumerate(sides)
    ]
    errors = torch.stack([misses.double().mean() for misses in wrong])
    return {}, Update(extra={"errors": errors, "sent": torch.tensor(2 * settings.pair_rounds)})


def examples(device: Device, step_id: StepId, settings: Divergence) -> tuple[Tensor, Tensor]:
    """Split a device's labelled and unlabelled training examples at random into training and held-out ones."""
    x = torch.cat([part.x for part in (device.data.train, device.data.unlabelled) if len(part)] or [torch.empty(0)])
    held = max(1, round(settings.held_out * len(x)))
    if len(x) <= held:
        raise InputError(f"divergence.held_out: device {device.name} has {len(x)} examples, allowed are at least two")
    order = torch.randperm(len(x), generator=step_id.generator(f"held out {device.name}"))
    return x[order[held:]], x[order[:held]]


def matrix(updates: Mapping[Pair, Update], names: Sequence[str]) -> Tensor:
    """Return d_ij (N, N) float64 in the order of the names, 0 for pairs without an update."""
    place = {name: i for i, name in enumerate(names)}
    d = torch.zeros(len(place), len(place), dtype=torch.float64)
    for (one, other), update in updates.items():
        d[place[one], place[other]] = d[place[other], place[one]] = divergence(update.extra["errors"])
    return d


def divergence(errors: Tensor) -> Tensor:
    """Return d = 2 |1 - 2 err| from the two devices' errors, (2,)."""
    return 2 * (1 - 2 * errors.mean()).abs()
