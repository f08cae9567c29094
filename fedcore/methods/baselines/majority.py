"""Controls: always guess the commonest label, or the mean of a number. A model not above them has learnt nothing.

`majority` guesses that of all labelled training examples together, as usual for a majority-class baseline, and
`majority_per_device` each device's own, which is right more often where devices differ.

The guess is a model of the device's own net, so that it is sent, scored and recorded like any other: every parameter is
zero but the bias of the output, which holds the logarithms of the labels' frequencies, or the mean of numbers, whatever
the input. Where mistakes have costs, that is the cheapest class (:func:`fedcore.core.evaluation.predicted_classes`).
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import control
from fedcore.core.messages import initial_messages, local_model, received_model
from fedcore.core.prediction import predict
from fedcore.data.task import label_kind_of
from fedcore.errors import InputError
from fedcore.nets import init, key, shapes
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update, step_word

__all__ = ["majority", "majority_per_device"]

COUNTS = "counts"
"""The entry of an update: how many labelled training examples a device has of each class, (K,) int64; of numbers their
sum and how many they are, (2,) float64 (`LabelKind.tally`)."""

UNUSABLE = (
    "majority: this net does not end in the bias of its output, which the control sets; a net must return logits, "
    "without a softmax"
)


@control
def majority(*, nets: Mapping[str, Net]) -> Method:
    """Control: always the commonest label of all. Raises InputError for a net whose last parameter is not a bias."""
    for net in nets.values():
        output_bias(net)
    begin = partial(initial_messages, shared_init=False)
    return Method(begin, (Stage(count_labels, partial(guess, nets=nets), sends="counts"),), received_model)


@control
def majority_per_device(*, nets: Mapping[str, Net]) -> Method:
    """Control: always each device's own commonest label; nothing is sent.

    On devices with different shares of labels it is the stronger guess. Raises InputError as `majority` does.
    """
    for net in nets.values():
        output_bias(net)
    begin = partial(initial_messages, shared_init=False)
    return Method(begin, (Stage(guess_own, None),), local_model)


@step_word("count", trains=False)
def guess_own(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Keep the model whose outputs are the frequencies of the device's own labels, (n_k + 1) / (N + K)."""
    _, update = count_labels(memory, message, device, step_id)
    return {}, Update(constant_model(device.net, guess_of(update.extra[COUNTS])))


@step_word("count", trains=False)
def count_labels(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the counts of the device's labels, after a trial of the control on an example of its own."""
    _, classes = output_bias(device.net)
    trial = torch.arange(classes, dtype=torch.float32)
    examples = device.data.train if len(device.data.train) else device.data.unlabelled
    if len(examples):
        logits = predict(constant_model(device.net, trial), device.net, examples.inputs(slice(0, 1)), 1)
        if logits.shape[-1] != classes or not (logits == trial).all():
            raise InputError(UNUSABLE)
    y = device.data.train.y
    return {}, Update(extra={COUNTS: label_kind_of(y).tally(y, classes)}, size=len(y))


def guess(server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]) -> Sent:
    """Send every device the model whose outputs are the frequencies of the labels, (n_k + 1) / (N + K)."""
    logits = guess_of(torch.stack([update.extra[COUNTS] for update in updates.values()]).sum(0))
    distinct = {key(net): net for net in nets.values()}
    messages = {k: Message(constant_model(net, logits)) for k, net in distinct.items()}
    return server, {name: messages[key(nets[name])] for name in round_info.names}


def guess_of(tally: Tensor) -> Tensor:
    """Return the outputs of the guess, (K,): counts are of classes, other sums of numbers."""
    return label_kind_of(tally).guess(tally)


def constant_model(net: Net, logits: Tensor) -> Params:
    """Return parameters with which the net's outputs are `logits` (K,) for every input."""
    bias, _ = output_bias(net)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in init(net, torch.Generator()).items()}
    return zeros | {bias: logits.clone()}


def output_bias(net: Net) -> tuple[str, int]:
    """Return the name of the net's last parameter, which must be a bias, and its length."""
    name, shape = list(shapes(net).items())[-1]
    if len(shape) != 1:
        raise InputError(UNUSABLE)
    return name, shape[0]
