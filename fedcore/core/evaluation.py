"""Metrics of the deployed models on every split."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from fedcore.builders import name_of
from fedcore.core.metrics import Answers, measured_by
from fedcore.core.prediction import SCORING_BATCH, predict_all
from fedcore.data.prepare import in_unit, labels_in_unit
from fedcore.data.task import CLASSIFICATION, LabelKind, binary_loss, label_kind_of, labelled_steps
from fedcore.errors import Diverged, InputError, naming
from fedcore.nets import shapes
from fedcore.nets.copies import template
from fedcore.nets.inputs import largest_integer, multiplications, takes_integers
from fedcore.types.federation import Costs, Data, Device, Net, OwnMetric, Params, Scoring, Splits, is_handle
from fedcore.types.method import Deploy, Message, Model, Scores, step_word

BINS = 10
"""Bins of equal width for the confidence of predictions."""

CUT = 1e-6
"""The least probability that the outputs of least squares are taken for."""

MOST_CLASSES = 50
"""The most classes whose confusions are counted."""


def outputs(model: Model, net: Net, x: Tensor, kind: LabelKind = CLASSIFICATION) -> Tensor:
    """Return a model's answers for examples (N, *shape).

    They are log-probabilities (N, K), of steps (N, T, K), predicted numbers (N, 1), or the logits of several labels
    (N, K).

    net: the device's, for a model that has none of its own. kind: what the net was trained for.
    """
    return outputs_of_all(model, net, [x], kind)[0]


def outputs_of_new(model: Model, net: Net, x: Tensor, kind: LabelKind) -> Tensor:
    """Return the same for new examples; refuses numbers that an embedding cannot look up."""
    if takes_integers(template(model.net or net)) and largest_integer(x) is None:
        raise InputError(why := "predict: x has other numbers than whole ones from 0, as an embedding needs", why)
    try:
        return outputs(model, net, x, kind)
    except IndexError as error:
        raise InputError(why := "predict: x has a number for which an embedding has no entry", why) from error


def outputs_of_all(model: Model, net: Net, parts: Sequence[Tensor], kind: LabelKind = CLASSIFICATION) -> list[Tensor]:
    """Return the same for each part of some examples; they may share batches."""
    members = [answers(member, model.net or net, parts, kind) for member in model.members]
    combined = [kind.combine(of, model.weights, model.power, model.head) for of in zip(*members, strict=True)]
    for found in combined:
        if found.isnan().any():
            count = int(found.isnan().flatten(1).any(1).sum())
            raise Diverged(f"the model's answers to {count:,} of {len(found):,} examples are no numbers (nan)")
    return combined


def answers(
    member: Params | Model, net: Net, parts: Sequence[Tensor], kind: LabelKind = CLASSIFICATION
) -> list[Tensor]:
    """Return a member's outputs (N, K) for each part, which are a model's answers."""
    if isinstance(member, Model):
        return outputs_of_all(member, net, parts, kind)
    return predict_all(member, net, parts, SCORING_BATCH)


def metrics(
    answers: Tensor, y: Tensor, scoring: Scoring = Scoring(), decides: Scoring | None = None
) -> dict[str, float]:
    """Return the metrics of a kind of label, and what `scoring` adds, see :mod:`fedcore.core.metrics`.

    Metrics of one's own see examples on the CPU, and are nan where there are none.

    answers: (N, K), of a model; y: (N,) or (N, K). Without examples all are nan. Where each step has a label, every
    labelled step counts as an example. decides: whose costs choose the predicted class; None: those of `scoring`.
    """
    answers, y = labelled_steps(answers, y)
    kind = label_kind_of(y)
    asked = measured_by(kind.name, scoring.metric)
    if len(y) == 0:
        return dict.fromkeys([metric.column for metric in asked] + [name for name, _ in scoring.own], math.nan)
    outcome = read_answers(answers, y, scoring, scoring if decides is None else decides)
    values = {metric.column: metric.compute(outcome) for metric in asked}
    if scoring.own:
        if kind.standardised:
            predictions = in_unit(answers[:, 0], scoring.label_scale).double()
            labels = labels_in_unit(y, scoring.label_scale)
        else:
            predictions, labels = kind.probabilities(answers), y
        values |= {name: _own(name, function, predictions, labels) for name, function in scoring.own}
    return values


def read_answers(answers: Tensor, y: Tensor, scoring: Scoring, decides: Scoring) -> Answers:
    """Return what a model says of examples beside what is right; several labels are predicted from 1/2 on."""
    kind = label_kind_of(y)
    if kind.standardised:
        guess, y = answers[:, 0].double(), y.double()
        none = guess.new_empty(0)
        return Answers(y, guess, (guess - y).square().mean().item(), scoring, lambda: none, none, none, none)
    exact = answers.double()
    scores = partial(kind.probabilities, exact)
    if kind.has_classes:
        guess, classes = predicted_classes(answers, decides.costs), answers.shape[1]
        loss = nll_loss(exact, y).item()
        hits, truth, guessed = (torch.bincount(part, minlength=classes) for part in (y[guess == y], y, guess))
        return Answers(y, guess, loss, scoring, scores, hits.double(), truth, guessed)
    truth, guess = y > 0, answers > 0
    loss = binary_loss(exact, y.double()).item()
    return Answers(truth, guess, loss, scoring, scores, (truth & guess).sum(0).double(), truth.sum(0), guess.sum(0))


def _own(name: str, function: OwnMetric, answers: Tensor, y: Tensor) -> float:
    """Return the value of a metric of one's own; raises InputError if it is no number."""
    from fedcore.core.function_trial import try_metric  # here: a model that leaves carries this file

    with naming(f"in metric {name}"):
        answers, y = answers.cpu(), y.cpu()
        try_metric(name, function, answers, y)
        value = function(*(tensor.to("cpu", copy=True) for tensor in (answers, y)))
    try:
        if "complex" not in str(getattr(value, "dtype", "")):
            return float(value)
        why = ""
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        why = ", too large for float64" * isinstance(error, OverflowError)
    shape = tuple(getattr(value, "shape", ()))
    why = f" of shape {shape}; take its mean" if shape else why
    raise InputError(f"metrics.{name}: must return a number, returned {type(value).__name__}{why}")


def evaluate(model: Model, net: Net, data: Data, scoring: Scoring = Scoring()) -> dict[str, float]:
    """Return the metrics of a model on some examples."""
    return evaluate_all(model, net, [data], scoring)[0]


def evaluate_all(model: Model, net: Net, parts: Sequence[Data], scoring: Scoring = Scoring()) -> list[dict[str, float]]:
    """Return the same of each part."""
    some = [data for data in parts if len(data)]
    every = outputs_of_all(model, net, [data.x for data in some], label_kind_of(some[0].y)) if some else []
    found = iter([decided_by(model, answers, scoring.costs) for answers in every])
    return [metrics(next(found) if len(data) else torch.empty(0, 1), data.y, scoring) for data in parts]


def predicted_classes(log_probabilities: Tensor, costs: Costs | None = None) -> Tensor:
    """Return the class that is predicted for each example: the most probable one, or that of least expected cost.

    log_probabilities: (..., K). costs: of a row of class i that is taken for class j, (K, K).
    """
    if costs is None:
        return log_probabilities.argmax(-1)
    return (log_probabilities.double().exp() @ torch.tensor(costs, dtype=torch.float64)).argmin(-1)


def decided_by(model: Model, log_probabilities: Tensor, costs: Costs | None) -> Tensor:
    """Return the log-probabilities that costs weigh: of least squares the outputs themselves, cut at 0, else the same.

    Those estimate 0 and 1 and sum to 1, so that their log-softmax, which takes a number off each row, still has them.
    """
    build = getattr(model.net.build, "func", model.net.build) if costs is not None and model.net else None
    if not getattr(build, "__module__", "").endswith("nets.features"):
        return log_probabilities
    z = log_probabilities + (1 - log_probabilities.sum(-1, keepdim=True)) / log_probabilities.shape[-1]
    estimates = z.clamp(min=CUT)
    return (estimates / estimates.sum(-1, keepdim=True)).log()


def confusion(log_probabilities: Tensor, y: Tensor, costs: Costs | None = None) -> Tensor:
    """Return how many examples of each class (down) are taken for each class (across), (K, K) int64.

    log_probabilities: (N, K); y: (N,). costs: see `predicted_classes`.
    """
    classes = log_probabilities.shape[1]
    found = y * classes + predicted_classes(log_probabilities, costs)
    return torch.bincount(found, minlength=classes**2).view(classes, classes)


def calibration(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Return sums over the examples in each bin of confidence, the probability of the likeliest class, (BINS, 3).

    The columns are the examples, their confidence and those that are right, float64. Bin b has confidences above
    b / BINS up to (b + 1) / BINS. log_probabilities: (N, K); y: (N,).
    """
    confidence, guess = log_probabilities.double().exp().max(1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    membership = one_hot(torch.bucketize(confidence, edges), BINS).double()
    return membership.T @ torch.stack([torch.ones_like(confidence), confidence, (guess == y).double()], 1)


def count_outcomes(model: Model, devices: Iterable[Device], classes: int, costs: Costs | None = None) -> Params:
    """Return "confusion" and "calibration" of a model on the test examples of devices, summed over these.

    costs: see `predicted_classes`. Beyond MOST_CLASSES classes "confusion" is empty, (0, 0); without classes nothing is
    counted. Where each step has a label, steps are counted.
    """
    counted = classes if classes <= MOST_CLASSES else 0
    total = {
        "confusion": torch.zeros(counted, counted, dtype=torch.int64),
        "calibration": torch.zeros(BINS, 3, dtype=torch.float64),
    }
    for device in devices:
        kind = label_kind_of(y := device.data.test.y)
        if len(y) and kind.predicts_classes:
            answers = decided_by(model, outputs(model, device.net, device.data.test.inputs(), kind), costs)
            log_probabilities, y = labelled_steps(answers, y)
            total["calibration"] += calibration(log_probabilities, y)
            if counted:
                total["confusion"] += confusion(log_probabilities, y, costs)
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
    if missing := missing_tensor(model, net):
        raise InputError(
            f"the model of {names[0]} has no tensor {missing}: a device that has not taken part yet needs initial "
            "ones. Put them into its message, or into what deploy returns"
        )


def missing_tensor(model: Model, net: Net) -> str | None:
    """Return the name of a tensor of its net that a member of a model lacks. net: the device's."""
    net = model.net or net
    missing = (
        missing_tensor(member, net)
        if isinstance(member, Model)
        else next((name for name in shapes(net) if name not in member), None)
        for member in model.members
    )
    return next(filter(None, missing), None)


@step_word("evaluate")
def score(
    deploy: Deploy, memory: Params, message: Message, devices: Mapping[str, Device], shared: Data,
    scoring: Scoring = Scoring(),
) -> Scores:  # fmt: skip
    """Score one deployed model on the shared test set and on the val and test splits of the devices that run it.

    Their training examples are scored, too, if `scoring` asks for it.

    The devices must have equal nets, as they run the same model. "inference" is its cost, see :func:`cost`.
    """
    model = require_model(deploy, deploy(memory, message))
    net = next(iter(devices.values())).net
    require_whole(model, net, [*devices])
    splits = [*(["train"] if scoring.train else []), "val", "test"]
    examples = [shared, *(getattr(device.data, split) for device in devices.values() for split in splits)]
    on_shared, *rest = evaluate_all(model, net, examples, scoring)
    shape = next((tuple(part.x.shape[1:]) for part in examples if len(part)), None)
    inference = cost(model, net, shape)
    found = iter(rest)
    return {
        name: {split: next(found) for split in splits} | {"shared": on_shared, "inference": inference}
        for name in devices
    }
