"""Accuracy, macro F1 and loss of the deployed models on every split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from fedcore.local import predict
from fedcore.nets.inputs import multiplications
from fedcore.types import Data, Deploy, Device, Handle, Message, Model, Net, Params, Scores, Splits, step_word

BATCH = 1024


def outputs(model: Model, net: Net, x: Tensor) -> Tensor:
    """Return log-probabilities (N, K): log sum_j w_j softmax(net(theta_j, x)).

    net: the device's, for a model that has none of its own.

    A single member's are exact log-softmax, so that its loss does not saturate.
    """
    members = [predict(member, model.net or net, x, BATCH).log_softmax(1) for member in model.members]
    if len(members) == 1:
        return members[0]
    weights = torch.tensor(model.weights, dtype=members[0].dtype).log()
    return torch.logsumexp(torch.stack(members) + weights[:, None, None], dim=0)


def metrics(log_probabilities: Tensor, y: Tensor) -> dict[str, float]:
    """Return accuracy and macro F1 (fractions; classes that occur in truth or prediction) and mean loss (nats).

    log_probabilities: (N, K); y: (N,). Without examples all are nan.
    """
    if len(y) == 0:
        return {"accuracy": math.nan, "macro_f1": math.nan, "loss": math.nan}
    guess = log_probabilities.argmax(1)
    classes = log_probabilities.shape[1]
    hits = torch.bincount(y[guess == y], minlength=classes).double()
    occurs = torch.bincount(y, minlength=classes) + torch.bincount(guess, minlength=classes)
    f1 = (2 * hits / occurs)[occurs > 0]
    return {
        "accuracy": (guess == y).double().mean().item(),
        "macro_f1": f1.mean().item(),
        "loss": nll_loss(log_probabilities.double(), y).item(),
    }


def evaluate(model: Model, net: Net, data: Data) -> dict[str, float]:
    """Return the metrics of a model on some examples."""
    if len(data) == 0:
        return metrics(torch.empty(0, 1), data.y)
    return metrics(outputs(model, net, data.inputs()), data.y)


def cost(model: Model, net: Net, shape: tuple[int, ...] | None) -> dict[str, float]:
    """Return how many nets the model runs for an example of `shape`, and the multiplications in all of them.

    Without a shape the multiplications are nan.
    """
    each = math.nan if shape is None else multiplications(model.net or net, shape)
    return {"nets_run": float(len(model.members)), "macs": float(len(model.members) * each)}


def drop_training_data(device: Device) -> Device:
    """Return the device without its training examples, which scoring does not need and should not transfer.

    A handle of examples is returned as it is.
    """
    if isinstance(device.data, Handle):
        return device
    train = device.data.train
    return replace(device, data=Splits(Data(train.x[:0], train.y[:0]), device.data.val, device.data.test))


@step_word("evaluate")
def score(deploy: Deploy, memory: Params, message: Message, devices: Mapping[str, Device], shared: Data) -> Scores:
    """Score one deployed model on the shared test set and on the val and test splits of the devices that run it.

    The devices must have equal nets, as they run the same model. "inference" is its cost, see :func:`cost`.
    """
    model = deploy(memory, message)
    net = next(iter(devices.values())).net
    on_shared = evaluate(model, net, shared)
    examples = (shared, *(part for device in devices.values() for part in (device.data.val, device.data.test)))
    shapes = [tuple(part.x.shape[1:]) for part in examples if len(part)]
    return {
        name: {
            "val": evaluate(model, net, device.data.val),
            "test": evaluate(model, net, device.data.test),
            "shared": on_shared,
            "inference": cost(model, net, shapes[0] if shapes else None),
        }
        for name, device in devices.items()
    }
