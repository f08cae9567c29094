"""Metrics of the deployed models on every split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from fedcore.builders import name_of
from fedcore.core.prediction import predict
from fedcore.data.task import CLASSIFICATION, Task, binary_loss, labelled_steps, task_of
from fedcore.errors import InputError, naming
from fedcore.nets import shapes
from fedcore.nets.inputs import multiplications
from fedcore.types.federation import Data, Device, Net, OwnMetric, Params, Scoring, Splits, is_handle
from fedcore.types.method import Deploy, Message, Model, Scores, step_word

BATCH = 1024

BINS = 10
"""Bins of equal width for the confidence of predictions."""

MOST_CLASSES = 50
"""The most classes whose confusions are counted."""

NAMES = {
    "classification": ("accuracy", "balanced_accuracy", "macro_f1", "loss"),
    "regression": ("mae", "rmse", "r2", "loss"),
    "multilabel": ("subset_accuracy", "hamming_accuracy", "macro_f1", "mean_average_precision", "loss"),
}
"""The metrics that every model is measured by, by task."""


def outputs(model: Model, net: Net, x: Tensor, task: Task = CLASSIFICATION) -> Tensor:
    """Return a model's answers for examples (N, *shape).

    They are log-probabilities (N, K), of steps (N, T, K), predicted numbers (N, 1), or the logits of several labels
    (N, K).

    net: the device's, for a model that has none of its own. task: what the net was trained for.
    """
    members = [answers(member, model.net or net, x, task) for member in model.members]
    return task.combine(members, model.weights, model.power, model.head)


def answers(member: Params | Model, net: Net, x: Tensor, task: Task = CLASSIFICATION) -> Tensor:
    """Return a member's outputs (N, K), which are a model's answers."""
    return outputs(member, net, x, task) if isinstance(member, Model) else predict(member, net, x, BATCH)


def metrics(answers: Tensor, y: Tensor, scoring: Scoring = Scoring()) -> dict[str, float]:
    """Return the metrics of a task, and what `scoring` adds.

    See :func:`class_metrics`, :func:`number_metrics` and :func:`label_metrics`. Metrics of one's own see examples on
    the CPU, and are nan where there are none.

    answers: (N, K), of a model; y: (N,) or (N, K). Without examples all are nan. Where each step has a label, every
    labelled step counts as an example.
    """
    answers, y = labelled_steps(answers, y)
    task = task_of(y)
    if len(y) == 0:
        more = (() if scoring.metric is None else (scoring.metric,)) + tuple(name for name, _ in scoring.own)
        return dict.fromkeys((*NAMES[task.name], *more), math.nan)
    labels = y
    if task.has_classes:
        values, predictions = class_metrics(answers, y, scoring), task.probabilities(answers)
    elif task.standardised:
        values, (predictions, labels) = number_metrics(answers, y, scoring), in_unit(answers, y, scoring)
    else:
        values, predictions = label_metrics(answers, y), task.probabilities(answers)
    for name, function in scoring.own:
        values[name] = _own(name, function, predictions, labels)
    return values


def class_metrics(log_probabilities: Tensor, y: Tensor, scoring: Scoring) -> dict[str, float]:
    """Return accuracy, balanced accuracy, macro F1 (fractions), mean loss (nats), and the metric that `scoring` names.

    Definitions are scikit-learn's: balanced accuracy is the mean recall of the classes that occur in y, macro F1 the
    mean over classes that occur in y or in the predictions. One departure: what is not defined is nan, not 0. These are
    F1, recall and average precision of a label that does not occur in y, and the area under the ROC curve unless all
    classes occur (for more than two the mean over classes, one against the rest). Precision is 0 if nothing is
    predicted.
    """
    guess = log_probabilities.argmax(1)
    classes = log_probabilities.shape[1]
    hits = torch.bincount(y[guess == y], minlength=classes).double()
    truth, guessed = torch.bincount(y, minlength=classes), torch.bincount(guess, minlength=classes)
    occurs = truth + guessed
    f1 = (2 * hits / occurs)[occurs > 0]
    values = {
        "accuracy": (guess == y).double().mean().item(),
        "balanced_accuracy": (hits / truth)[truth > 0].mean().item(),
        "macro_f1": f1.mean().item(),
        "loss": nll_loss(log_probabilities.double(), y).item(),
    }
    k = scoring.positive
    match scoring.metric:
        case "cost":
            assert scoring.costs is not None
            values["cost"] = torch.tensor(scoring.costs, dtype=torch.float64)[y, guess].mean().item()
        case "recall":
            values["recall"] = (hits[k] / truth[k]).item() if truth[k] else math.nan
        case "precision":
            values["precision"] = (hits[k] / guessed[k].clamp(min=1)).item()
        case "f1":
            values["f1"] = (2 * hits[k] / occurs[k]).item() if truth[k] else math.nan
        case "roc_auc" | "average_precision":
            values[scoring.metric] = _ranked(log_probabilities, y, scoring)
    return values


def number_metrics(predicted: Tensor, y: Tensor, scoring: Scoring) -> dict[str, float]:
    """Return the mean absolute and the root mean squared error in the label's unit, R2, and the loss.

    Definitions are scikit-learn's, but R2 is nan, not 0 or 1, where all of y are equal. The loss is the mean squared
    error of the standardised label.

    predicted: (N, 1) and y: (N,), both standardised by `scoring.label_scale`.
    """
    error = predicted[:, 0].double() - y.double()
    squares, about_mean = error.square().mean().item(), y.double().var(correction=0).item()
    unit = scoring.label_scale[1]
    return {
        "mae": unit * error.abs().mean().item(),
        "rmse": unit * math.sqrt(squares),
        "r2": 1 - squares / about_mean if about_mean else math.nan,
        "loss": squares,
    }


def label_metrics(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Return subset and Hamming accuracy, macro F1 and mean average precision (fractions), and the mean loss (nats).

    Definitions are scikit-learn's; a label counts as predicted where its probability is above 1/2. Subset accuracy is
    the share of examples whose labels are all right, Hamming accuracy the share of labels that are. Means over labels
    leave out those of which a metric is not defined: F1 where a label neither occurs nor is predicted, average
    precision where it does not occur. The loss is the mean over examples and labels.

    logits: (N, K); y: (N, K), 0 or 1.
    """
    truth, guess = y > 0, logits > 0
    occurs = (truth.sum(0) + guess.sum(0)).double()
    f1 = (2 * (truth & guess).sum(0) / occurs)[occurs > 0]
    scores = logits.double().sigmoid()
    precision = [average_precision(scores[:, k], truth[:, k]) for k in range(y.shape[1]) if truth[:, k].any()]
    return {
        "subset_accuracy": (truth == guess).all(1).double().mean().item(),
        "hamming_accuracy": (truth == guess).double().mean().item(),
        "macro_f1": f1.mean().item(),
        "mean_average_precision": sum(precision) / len(precision) if precision else math.nan,
        "loss": binary_loss(logits.double(), y.double()).item(),
    }


def in_unit(predicted: Tensor, y: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """Return predicted numbers and labels in the label's unit."""
    mean, std = scoring.label_scale
    return predicted * std + mean, y * std + mean


def _own(name: str, function: OwnMetric, answers: Tensor, y: Tensor) -> float:
    """Return the value of a metric of one's own; raises InputError if it is no number."""
    with naming(f"in metric {name}"):
        value = function(answers.cpu(), y.cpu())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"metrics.{name}: must return a number, returned {type(value).__name__}") from None


def _ranked(log_probabilities: Tensor, y: Tensor, scoring: Scoring) -> float:
    """Return a metric of the order of the probabilities; nan where it is not defined."""
    probabilities = log_probabilities.double().exp()
    if scoring.metric == "average_precision":
        return average_precision(probabilities[:, scoring.positive], y == scoring.positive)
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    areas = [roc_auc(probabilities[:, k], y == k) for k in classes]
    return math.nan if any(map(math.isnan, areas)) else sum(areas) / len(areas)


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs, a positive and a negative example, in the right order; ties count half."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    _, index, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0) - (ties - 1).double() / 2)[index]  # of equal scores the mean
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Return sum_n (R_n - R_{n-1}) P_n over the thresholds n, from the highest score down."""
    if not positive.any():
        return math.nan
    values, index = torch.unique(scores, return_inverse=True)
    hits = torch.zeros(len(values)).double().index_add(0, index, positive.double()).flip(0)
    taken = torch.bincount(index, minlength=len(values)).flip(0).cumsum(0)
    return float((hits / positive.sum() * hits.cumsum(0) / taken).sum())


def evaluate(model: Model, net: Net, data: Data, scoring: Scoring = Scoring()) -> dict[str, float]:
    """Return the metrics of a model on some examples."""
    if len(data) == 0:
        return metrics(torch.empty(0, 1), data.y, scoring)
    return metrics(outputs(model, net, data.inputs(), task_of(data.y)), data.y, scoring)


def confusion(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Return how many examples of each class (down) are taken for each class (across), (K, K) int64.

    log_probabilities: (N, K); y: (N,).
    """
    classes = log_probabilities.shape[1]
    return torch.bincount(y * classes + log_probabilities.argmax(1), minlength=classes**2).view(classes, classes)


def calibration(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Return sums over the examples in each bin of confidence, the probability of the predicted class, (BINS, 3).

    The columns are the examples, their confidence and those that are right, float64. Bin b has confidences above
    b / BINS up to (b + 1) / BINS. log_probabilities: (N, K); y: (N,).
    """
    confidence, guess = log_probabilities.double().exp().max(1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    membership = one_hot(torch.bucketize(confidence, edges), BINS).double()
    return membership.T @ torch.stack([torch.ones_like(confidence), confidence, (guess == y).double()], 1)


def count_outcomes(model: Model, devices: Iterable[Device], classes: int) -> Params:
    """Return "confusion" and "calibration" of a model on the test examples of devices, summed over these.

    Beyond MOST_CLASSES classes "confusion" is empty, (0, 0); without classes nothing is counted. Where each step has a
    label, steps are counted.
    """
    counted = classes if classes <= MOST_CLASSES else 0
    total = {
        "confusion": torch.zeros(counted, counted, dtype=torch.int64),
        "calibration": torch.zeros(BINS, 3, dtype=torch.float64),
    }
    for device in devices:
        task = task_of(y := device.data.test.y)
        if len(y) and task.predicts_classes:
            answers = outputs(model, device.net, device.data.test.inputs(), task)
            log_probabilities, y = labelled_steps(answers, y)
            total["calibration"] += calibration(log_probabilities, y)
            if counted:
                total["confusion"] += confusion(log_probabilities, y)
    return total


def cost(model: Model, net: Net, shape: tuple[int, ...] | None) -> dict[str, float]:
    """Return how many nets the model runs for an example of `shape`, and the multiplications in all of them.

    Without a shape the multiplications are nan.
    """
    net = model.net or net
    single = {"nets_run": 1.0, "macs": math.nan if shape is None else float(multiplications(net, shape))}
    parts = [cost(member, net, shape) if isinstance(member, Model) else single for member in model.members]
    head = {"macs": 0.0 if model.head is None else float(model.head["weight"].numel())}
    return {metric: sum(part[metric] for part in parts) + head.get(metric, 0.0) for metric in single}


def drop_training_data(device: Device) -> Device:
    """Return the device without its training examples, which scoring does not need and should not transfer.

    A handle of examples is returned as it is.
    """
    if is_handle(device.data):
        return device
    train = device.data.train
    return replace(device, data=Splits(Data(train.x[:0], train.y[:0]), device.data.val, device.data.test))


def require_model(deploy: Deploy, deployed: Any) -> Model:
    """Return what `deploy` returned, if it is a model."""
    if not isinstance(deployed, Model):
        raise InputError(
            f"{name_of(deploy)}: must return a Model, fc.Model((params,)), returned {type(deployed).__name__}"
        )
    return deployed


def require_whole(model: Model, net: Net, names: Sequence[str]) -> None:
    """Refuse a model without some tensor of its net, such as a personal layer of a device that never took part."""
    expected = shapes(model.net or net)
    for params in model.params if all(isinstance(member, dict) for member in model.members) else ():
        if missing := [name for name in expected if name not in params]:
            raise InputError(
                f"the model of {names[0]} has no tensor {missing[0]}: a device that has not taken part yet needs "
                "initial ones, in its message or in what deploy returns"
            )


@step_word("evaluate")
def score(
    deploy: Deploy,
    memory: Params,
    message: Message,
    devices: Mapping[str, Device],
    shared: Data,
    scoring: Scoring = Scoring(),
) -> Scores:
    """Score one deployed model on the shared test set and on the val and test splits of the devices that run it.

    Their training examples are scored, too, if `scoring` asks for it.

    The devices must have equal nets, as they run the same model. "inference" is its cost, see :func:`cost`.
    """
    model = require_model(deploy, deploy(memory, message))
    net = next(iter(devices.values())).net
    require_whole(model, net, [*devices])
    on_shared = evaluate(model, net, shared, scoring)
    examples = (shared, *(part for device in devices.values() for part in (device.data.val, device.data.test)))
    shape = next((tuple(part.x.shape[1:]) for part in examples if len(part)), None)
    inference = cost(model, net, shape)
    return {
        name: {
            **({"train": evaluate(model, net, device.data.train, scoring)} if scoring.train else {}),
            "val": evaluate(model, net, device.data.val, scoring),
            "test": evaluate(model, net, device.data.test, scoring),
            "shared": on_shared,
            "inference": inference,
        }
        for name, device in devices.items()
    }
