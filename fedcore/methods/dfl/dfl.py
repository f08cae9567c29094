"""DFL (Liu et al., Algorithms 1 and 2): FedAvg whose devices also learn from everyone's label-wise mean logits.

Departures. Soft targets are weighted by the examples of a label that a device has, not by |D_k| (`weighting`); a label
that no sampled device has keeps its soft target, one that no device ever had is one-hot. In round 1 there are none yet
and rho is 1. A step (4) is one minibatch's; Algorithm 2 prints one per epoch.

Its controls. `dfl_diagonal` is the same with soft targets that keep their mean diagonal and tell nothing about classes.
`label_smoothing` is FedAvg whose hard labels are smoothed by 1 - rho: at temperature 1 DFL's loss is cross-entropy
against rho onehot(y) + (1 - rho) soft target; here the soft target is the even one (Szegedy et al. 2016), which nobody
has to learn or to send.

FD, federated distillation (Jeong et al. 2018, Algorithm 1): devices exchange soft targets and nothing else.

There is no global model: each device's own model is deployed and scored, and a device that was never sampled runs the
initial one. Soft targets are the plain mean of the devices' label-wise mean logits; each device gets the mean of the
others. It needs no equal nets.

Departures. Logits are those of the trained model in one pass, as DFL computes them; Jeong et al. add them up during
training. The mean is taken over the sampled devices that have the label; without another such device the row keeps its
last value, one-hot at first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import control, needs_classes, training_defaults
from fedcore.core.aggregation import Course, apply_changes, average_models, by_size, subtract
from fedcore.core.messages import (
    begin_sampled,
    begin_with_memory,
    initial_messages,
    merge_models,
    received_model,
    require_shared_init,
    to_everyone,
    to_memory,
    to_sampled,
)
from fedcore.core.training import Training, fit, flatten_net, require_cross_entropy, starting_params
from fedcore.methods.dfl import soft_targets as distillation
from fedcore.methods.dfl.soft_targets import (
    COUNTS,
    FIGURES,
    SOFT,
    SUMS,
    Kind,
    Outputs,
    Ratio,
    Reduction,
    Weighting,
    begin_with_table,
    distillation_grad,
    level_targets,
    likelihoods,
    report_series,
    report_targets,
    smoothing_grad,
    summarise_logits,
    update_targets,
)
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update
from fedcore.types.ranges import Amount, Positive, Share

__all__ = ["dfl", "dfl_diagonal", "fd", "label_smoothing"]


@dataclass(frozen=True)
class SoftTargets:
    """How soft targets are used and averaged.

    Args:
        ratio: the hard labels' share rho of the loss (3) in round r: "threshold", max(1 - r/R, T) (6); "dynamic",
            1 - r/R; "fixed", T in all rounds but the first.
        threshold: T, from 0 to 1; with 1 this is FedAvg that sends changes.
        temperature: tau of the soft targets and of the KL part, which is weighted by tau^2, above 0; the paper's loss
            has none, which is 1.
        weighting: of the mean of soft targets, by "counts" of each label, or by "examples", |D_k|, as printed (2).
        outputs: what is averaged by label, "logits" or "probabilities", their softmax at temperature 1.
        reduction: of the KL part over a minibatch, "batchmean" or "mean", which also divides it by the number of
            labels and is the default of PyTorch's KLDivLoss.
    """

    ratio: Kind = "threshold"
    threshold: Share = 0.6
    temperature: Positive = 1.0
    weighting: Weighting = "counts"
    outputs: Outputs = "logits"
    reduction: Reduction = "batchmean"


@needs_classes("averages outputs by label")
@training_defaults(shared_init=True)
def dfl(*, nets: Mapping[str, Net], training: Training, course: Course, soft: SoftTargets) -> Method:
    """DFL (Liu et al.): federated averaging with averaged soft targets.

    Args:
        soft: how soft targets are used and averaged.
    """
    return _build("dfl", nets, training, course, soft, likelihoods)


@needs_classes("averages outputs by label")
@control
@training_defaults(shared_init=True)
def dfl_diagonal(*, nets: Mapping[str, Net], training: Training, course: Course, soft: SoftTargets) -> Method:
    """DFL's control: every soft target is the table's mean diagonal, evenly spread over the other labels.

    It smooths labels as much as DFL does, by the same exchange. At temperature 1 it is FedAvg with labels smoothed by
    (1 - rho) (1 - d) K / (K - 1), d the mean diagonal.

    Args:
        soft: how soft targets are used and averaged.
    """
    return _build("dfl_diagonal", nets, training, course, soft, level_targets)


def _build(
    name: str, nets: Mapping[str, Net], training: Training, course: Course, soft: SoftTargets,
    targets: Callable[[Tensor, float], Tensor],
) -> Method:  # fmt: skip
    require_equal(nets)
    require_shared_init(name, training.shared_init)
    require_cross_entropy(name, training)
    rho = distillation.ratio(soft.ratio, soft.threshold, course.rounds)
    local = partial(train_and_show, training=training, rho=rho, soft=soft, targets=targets)
    combine = partial(average_with_targets, rho=rho, soft=soft)
    stage = Stage(local, combine, course.rounds, course.fraction, sends="change")
    begin = partial(begin_with_table, begin=begin_with_memory)
    return Method(begin, (stage,), received_model, figures=FIGURES)


def train_and_show(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, rho: Ratio,
    soft: SoftTargets, targets: Callable[[Tensor, float], Tensor],
) -> tuple[Params, Update]:  # fmt: skip
    """Train on hard labels and soft targets (3); send how the model changed (5) and its label-wise logits.

    targets: makes probabilities (K, K) of the table at the temperature. Without soft targets, or with rho 1, this is
    FedAvg's training, bit by bit.
    """
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    table, share = message.extra.get(SOFT), rho.at(step_id.round)
    logit_grad = None
    if table is not None and share < 1:
        weight = (1 - share) / (len(table) if soft.reduction == "mean" else 1)
        logit_grad = distillation_grad(targets(table, soft.temperature), share, weight, soft.temperature)
    moments = fit(flat, device, step_id, training, memory, logit_grad=logit_grad)
    params = flat.params()
    change, shown = subtract(params, message.params), summarise_logits(params, device, soft.outputs)
    return moments, Update(change, shown, len(device.data.train))


def average_with_targets(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, rho: Ratio, soft: SoftTargets,
) -> Sent:  # fmt: skip
    """Move the model (1), refresh the soft targets (2), and send both to all devices, sampled or not.

    Report rho and the soft targets.
    """
    sent = list(updates.values())
    model = apply_changes(server, [update.params for update in sent], by_size([update.size for update in sent]))
    table = update_targets(server[SOFT], sent, soft.weighting, soft.outputs)
    report = report_targets(table, soft.temperature, rho=rho.at(round_info.round))
    return to_memory(model) | {SOFT: table}, to_everyone(round_info.names, Message(model, {SOFT: table})), report


@needs_classes("smooths labels")
@control
@training_defaults(shared_init=True)
def label_smoothing(
    *, nets: Mapping[str, Net], training: Training, course: Course, ratio: Kind = "threshold", threshold: Share = 0.6
) -> Method:
    """DFL's control: FedAvg with smoothed labels.

    Args:
        ratio: how rho changes from round to round, as for `dfl`: "threshold", "dynamic" or "fixed".
        threshold: T, from 0 to 1; with 1 this is fedavg.
    """
    require_equal(nets)
    require_cross_entropy("label_smoothing", training)
    rho = distillation.ratio(ratio, threshold, course.rounds)
    local = partial(train_smoothed, training=training, rho=rho)
    stage = Stage(local, partial(average_and_report, rho=rho), course.rounds, course.fraction)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), received_model)


def train_smoothed(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, rho: Ratio
) -> tuple[Params, Update]:
    """Train on labels smoothed by 1 - rho; with rho 1 this is FedAvg's training, bit by bit."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    share = 1 - rho.at(step_id.round)
    moments = fit(flat, device, step_id, training, memory, logit_grad=smoothing_grad(share) if share else None)
    return moments, Update(flat.params(), size=len(device.data.train))


def average_and_report(server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, rho: Ratio) -> Sent:
    """Average the models by examples; report rho."""
    return *average_models(server, updates, round_info), report_series(rho=rho.at(round_info.round))


@needs_classes("averages outputs by label")
@training_defaults(shared_init=True)
def fd(*, nets: Mapping[str, Net], training: Training, course: Course, gamma: Amount = 1.0) -> Method:
    """FD (Jeong et al. 2018): devices exchange the mean logits of each label, and no model.

    If `fraction` is below 1, all devices start from one model, which is sent until a device has taken part.

    Args:
        gamma: weight of the soft targets in CE(y) + gamma CE(soft target), from 0; 0 is local training.
    """
    begin = begin_sampled("fd", nets, training.shared_init, course.fraction)
    require_cross_entropy("fd", training)
    local = partial(train_apart, training=training, gamma=gamma)
    stage = Stage(local, exchange_targets, course.rounds, course.fraction)
    return Method(partial(begin_with_table, begin=begin), (stage,), merge_models, figures=FIGURES)


def train_apart(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, gamma: float
) -> tuple[Params, Update]:
    """Train the device's own model on hard labels and the others' soft targets; send its logits only."""
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    table = message.extra.get(SOFT)
    logit_grad = None if table is None or gamma == 0 else distillation_grad(likelihoods(table, 1.0), 1.0, gamma)
    moments = fit(flat, device, step_id, training, memory, logit_grad=logit_grad)
    params = flat.params()
    return params | moments, Update(extra=summarise_logits(params, device), size=len(device.data.train))


def exchange_targets(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Send sampled devices the others' mean logits, all other devices the mean of all, and report the latter."""
    has = {name: update.extra[COUNTS] > 0 for name, update in updates.items()}
    means = {name: update.extra[SUMS] / update.extra[COUNTS].clamp(min=1)[:, None] for name, update in updates.items()}
    sum_of_means, holders = torch.stack([*means.values()]).sum(0), torch.stack([*has.values()]).sum(0)
    everyones = divide_rows(sum_of_means, holders, server[SOFT])
    others = {
        name: divide_rows(sum_of_means - means[name], holders - has[name].long(), server[SOFT]) for name in updates
    }
    server, messages = to_sampled(server, updates, round_info.names, Message(extra={SOFT: everyones}))
    messages |= {name: Message(extra={SOFT: table}) for name, table in others.items()}
    return server | {SOFT: everyones}, messages, report_targets(everyones, 1.0)


def divide_rows(total: Tensor, count: Tensor, table: Tensor) -> Tensor:
    """Return total / count row by row, (K, K), and the old table's row where the count is 0."""
    return torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], table)
