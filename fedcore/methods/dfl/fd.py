"""FD, federated distillation (Jeong et al. 2018, Algorithm 1): devices exchange soft targets and nothing else.

There is no global model: each device's own model is deployed and scored, and a device that was never sampled runs the
initial one. Soft targets are the plain mean of the devices' label-wise mean logits; each device gets the mean of the
others. It needs no equal nets.

Departures. Logits are those of the trained model in one pass, as DFL computes them; Jeong et al. add them up during
training. The mean is taken over the sampled devices that have the label; without another such device the row keeps its
last value, one-hot at first.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import needs_classes, training_defaults
from fedcore.core.aggregation import Course
from fedcore.core.messages import begin_sampled, merge_models, to_sampled
from fedcore.core.training import Training, fit, flatten_net, require_cross_entropy, starting_params
from fedcore.methods.dfl.soft_targets import (
    COUNTS,
    FIGURES,
    SOFT,
    SUMS,
    begin_with_table,
    distillation_grad,
    likelihoods,
    report_targets,
    summarise_logits,
)
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Report, RoundInfo, Stage, StepId, Update
from fedcore.types.ranges import Amount


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


def exchange_targets(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo
) -> tuple[Params, Mapping[str, Message], Report]:
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
