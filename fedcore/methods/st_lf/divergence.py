r"""Divergence of two devices' data without sharing the data: Algorithm 1 of ST-LF.

Both devices of a pair train one binary classifier of an example's device (0: the first, 1: the second) by federated
averaging, and measure it on held-out examples:

    d = 2 |1 - 2 err|   in [0, 2],   err the mean of both devices' error rates on held-out examples

It is a stage over pairs: `estimate` is one pair's step, `estimate_side` one device's side of it; the server, which
combines only the errors, makes the matrix (`matrix`). The paper uses errors on the training examples, which inflate d:
a classifier memorises them.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.training import FlatNet, Training, descend, flatten_net, plain_step, predict
from fedcore.errors import InputError
from fedcore.types.federation import Data, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Pair, StepId, Update, step_word
from fedcore.types.ranges import Chance, Count, Positive


def converse(first: Generator[Params, Params, Params], second: Generator[Params, Params, Params]) -> list[Params]:
    """Run both sides in this process, in turns; return their results."""
    sides, results, inbox = [first, second], dict[int, Params](), [Params(), Params()]
    for side in sides:
        next(side)
    while len(results) < len(sides):
        for position, side in enumerate(sides):
            if position not in results:
                try:
                    inbox[position], inbox[1 - position] = {}, side.send(inbox[position])
                except StopIteration as end:
                    results[position] = end.value
    return [results[position] for position in range(len(sides))]


SCORING_BATCH = 256

CLASSIFIER, NOISE, BUFFER, ERROR = "classifier", "noise", "buffer/", "error"
"""Entries of what the two devices of a pair send to one another, and of what each tells the server."""


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
    memories: tuple[Params, Params], messages: tuple[Message, Message], pair: tuple[Device, Device], step_id: StepId, *,
    net: Net, settings: Divergence,
) -> tuple[Params, Update]:  # fmt: skip
    """Run one pair's step (Algorithm 1, lines 2-10) in one place, from its two sides."""
    sides = [
        estimate_side({}, Message(), device, step_id, position, net=net, settings=settings)
        for position, device in enumerate(pair)
    ]
    return {}, both_errors(*converse(*sides), settings=settings)


def estimate_side(
    memory: Params, message: Message, device: Device, step_id: StepId, position: int, *, net: Net, settings: Divergence
) -> Generator[Params, Params, Params]:
    """Train the pair's classifier on one device's examples; return its error on those that were held out.

    position: the device's in the pair, and its class. net: a classifier of two classes for the devices' examples.
    Labels are not used: labelled and unlabelled examples count alike. What is sent: the classifier; the state of the
    random numbers if the net draws any (dropout), since both sides draw from one sequence; and at the end the first
    device's buffers.
    """
    trained_on, held_out = examples(device, step_id, settings)
    training = Training("sgd", settings.pair_lr, 0.0, 0.0, "constant", settings.pair_batch, 1)
    model = flatten_net(net, nets.init(net, step_id.generator("init")))
    step = plain_step(model, training, settings.pair_rounds * settings.pair_iterations)
    draws, noise = step_id.generator(f"batches {position}"), step_id.generator("noise")
    size = (settings.pair_iterations, min(settings.pair_batch, len(trained_on)))
    data = Data(trained_on, torch.full((len(trained_on),), position))
    received = yield {}
    for _ in range(settings.pair_rounds):
        before = noise.set_state(received.get(NOISE, noise.get_state())).get_state()
        with nets.use_generator(noise):
            descend(data, list(torch.randint(len(trained_on), size, generator=draws)), step)
        own = {CLASSIFIER: model.vector.clone()}
        if not torch.equal(before, noise.get_state()):
            own[NOISE] = noise.get_state()
        if position == 0:
            untrained = {name: tensor for name, tensor in model.params().items() if name not in model.parameters}
            received = yield own | add_prefix(BUFFER, untrained)
        model.vector.copy_((own[CLASSIFIER] + classifier(received, model)) / 2)
        if position == 1:
            buffers = strip_prefix(BUFFER, received)
            received = yield own
    params = model.params() if position == 0 else model.params() | buffers
    guesses = predict(params, net, Data(held_out, torch.zeros(len(held_out))).inputs(), SCORING_BATCH).argmax(1)
    return {ERROR: (guesses != position).double().mean()}


def both_errors(first: Params, second: Params, *, settings: Divergence) -> Update:
    """Return the update of a pair: both errors, (2,), and the number of classifiers that they sent."""
    errors = [side.get(ERROR, torch.empty(0)) for side in (first, second)]
    if not all(error.shape == () and error.dtype == torch.float64 and 0 <= error <= 1 for error in errors):
        raise InputError("divergence: an error must be 0 to 1")
    return Update(extra={"errors": torch.stack(errors), "sent": torch.tensor(2 * settings.pair_rounds)})


def classifier(received: Params, model: FlatNet) -> Tensor:
    """Return the classifier that the other side sent. Raises InputError for one of another net."""
    vector = received.get(CLASSIFIER, torch.empty(0))
    if vector.shape != model.vector.shape or vector.dtype != model.vector.dtype:
        raise InputError(f"divergence: the other device sent {vector.dtype} {tuple(vector.shape)}, no classifier")
    return vector


def examples(device: Device, step_id: StepId, settings: Divergence) -> tuple[Tensor, Tensor]:
    """Split a device's labelled and unlabelled training examples at random into training and held-out ones."""
    x = torch.cat([part.x for part in (device.data.train, device.data.unlabelled) if len(part)] or [torch.empty(0)])
    count = max(1, round(settings.held_out * len(x)))
    if len(x) <= count:
        raise InputError(f"divergence.held_out: device {device.name} has {len(x)} examples; must have at least two")
    order = torch.randperm(len(x), generator=step_id.generator(f"held out {device.name}"))
    return x[order[count:]], x[order[:count]]


def matrix(updates: Mapping[Pair, Update], names: Sequence[str]) -> Tensor:
    """Return d_ij (N, N) float64 in the order of the names, 0 for pairs without an update."""
    index = {name: i for i, name in enumerate(names)}
    d = torch.zeros(len(index), len(index), dtype=torch.float64)
    for (first, second), update in updates.items():
        d[index[first], index[second]] = d[index[second], index[first]] = divergence(update.extra["errors"])
    return d


def divergence(errors: Tensor) -> Tensor:
    """Return d = 2 |1 - 2 err| from the two devices' errors, (2,)."""
    return 2 * (1 - 2 * errors.mean()).abs()
