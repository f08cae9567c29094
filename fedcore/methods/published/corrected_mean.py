r"""Methods whose server corrects the mean: FedDyn and FedNova for devices that pull it, FedOpt by an optimiser.

FedDyn (Acar et al. 2021, Algorithm 1): a penalty on each device that makes the optima of all devices one.

    theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta^(t-1)||^2     on each device that takes part
    g_k <- g_k - alpha (theta_k - theta^(t-1))                                         kept by the device, 0 at first
    h <- h - alpha/m sum_(k in P) (theta_k - theta^(t-1))                              m devices in all, 0 at first
    theta^t = 1/|P| sum_(k in P) theta_k - h / alpha

A device sends its model and receives one: FedAvg's traffic. Its g_k never travels; h stays with the server. Departures:
a device trains as `training` says, from theta^(t-1), in place of an exact minimum. Buffers, which have no gradient, are
averaged. alpha = 0 leaves both corrections out: FedAvg with even weights, bit by bit.

FedNova (Wang et al. 2020, Section 4): devices that took more steps do not pull the mean their way.

    d_k = (y_k - x) / a_k                    a device's change, divided by the length of its path
    x <- x + (sum_k p_k a_k) sum_k p_k d_k   p_k by examples, among those who took part

a_k = sum_s c_s is the weight of all of a device's gradients in its change: c_s = sum_(t >= s) lr_t rho^(t - s) with
momentum rho, which for plain SGD at a constant rate is lr times the number of steps, and for momentum the paper's
||a_k||_1 times lr. A device sends its change and the number a_k. Departures: the effective number of steps is the
paper's default, tau_eff = sum_k p_k a_k. Buffers, which have no gradient, are moved by their mean change, not divided.
Momentum at the server is left out.

FedOpt (Reddi et al. 2021, Algorithms 1 and 2): the server takes the mean change for a gradient of an optimiser.

    Delta = sum_k p_k x_k - x                                        the mean change, p_k by examples
    momentum    m <- beta1 m + Delta;              x <- x + lr m      FedAvgM (Hsu et al. 2019)
    adagrad     v <- v + Delta^2                                      FedAdagrad (Algorithm 2)
    yogi        v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)        FedYogi
    adam        v <- beta2 v + (1 - beta2) Delta^2                    FedAdam
                m <- beta1 m + (1 - beta1) Delta;  x <- x + lr m / (sqrt(v) + tau)   of the last three

At first m = 0 and v = tau^2, as in the paper, which corrects no bias.

Departures. Changes are weighted by examples, as in the paper's experiments; its algorithms weigh them evenly. Devices
send their models, from which the server takes x: as many bytes. Buffers, which have no gradient, become their mean.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Literal, TypeAlias

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Aggregator, Averaging, Course, add, by_size, evenly, hyper_model, mean, subtract
from fedcore.core.messages import (
    begin_with_memory,
    from_memory,
    received_model,
    require_shared_init,
    to_everyone,
    to_memory,
)
from fedcore.core.training import (
    Training,
    at_round,
    count_steps,
    fit,
    flatten_net,
    learning_rates,
    refuse,
    starting_params,
    to_params,
    to_vector,
    train,
)
from fedcore.errors import InputError
from fedcore.nets import parameters, require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Positive

__all__ = ["feddyn", "fednova", "fedopt"]

Rule: TypeAlias = Literal["momentum", "adam", "yogi", "adagrad"]
Decay: TypeAlias = Annotated[float, Ge(0), Lt(1)]

SERVER = "h/"
"""Prefix of the tensors of h in the server's memory of FedDyn."""

PATH = "path"
"""The entry of an update of FedNova that holds a_k, ()."""

FIRST, SECOND = "first/", "second/"
"""Prefixes of m and v in the server's memory of FedOpt."""

SECOND_MOMENTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * (v - square).sign(),
    "adagrad": lambda v, square, beta2: v + square,
}
"""v, Delta^2 and beta2 -> the new v."""


@training_defaults(shared_init=True)
def feddyn(*, nets: Mapping[str, Net], training: Training, course: Course, alpha: Amount = 0.1) -> Method:
    """FedDyn (Acar et al. 2021): a penalty on devices, a correction at the server. Models are averaged evenly.

    Args:
        alpha: weight of the penalty, from 0 (the paper: .1, .01 or .001); 0 is FedAvg with even weights.
    """
    learnt = parameters(require_equal(nets))
    require_shared_init("feddyn", training.shared_init)
    local = partial(train_penalised, training=training, alpha=alpha)
    combine = partial(correct_mean, learnt=learnt, alpha=alpha)
    stage = Stage(local, combine, course.rounds, course.fraction)
    return Method(begin_with_memory, (stage,), received_model)


def train_penalised(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, alpha: float
) -> tuple[Params, Update]:
    """Minimise the penalised loss; keep g_k, the gradient of the device's loss at its new model, and send the model."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    sent, gradient = flat.vector.clone(), to_vector(flat, memory)

    def penalise() -> None:
        flat.gradient.add_(flat.vector - sent, alpha=alpha).sub_(gradient)

    moments = fit(flat, device, step_id, training, memory, message=message, grad_hook=penalise if alpha else None)
    own = to_params(flat, gradient - alpha * (flat.vector - sent)) if alpha else {}
    return own | moments, Update(flat.params(), size=len(device.data.train))


@step_word("average")
def correct_mean(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, learnt: tuple[str, ...], alpha: float
) -> tuple[Params, Mapping[str, Message]]:
    """Average the models evenly and correct the mean by h."""
    sent = from_memory(server)
    model = mean([update.params for update in updates.values()], evenly(len(updates)))
    part = len(updates) / len(round_info.names)
    corrections: Params = {}
    for name in learnt if alpha else ():
        change = model[name] - sent[name]
        h = server.get(f"{SERVER}{name}", change.new_zeros(change.shape)) - alpha * part * change
        corrections[f"{SERVER}{name}"] = h
        model[name] = model[name] - h / alpha
    return to_memory(model) | corrections, to_everyone(round_info.names, Message(model))


@training_defaults(optimiser="sgd", shared_init=True)
def fednova(*, nets: Mapping[str, Net], training: Training, course: Course) -> Method:
    """FedNova (Wang et al. 2020): a change is divided by its path's length. With equal steps it is FedAvg.

    Raises:
        InputError: for an optimiser other than SGD, or one whose momentum is kept from round to round: the change is
            not a sum of this round's gradients with known weights then.
    """
    learnt = parameters(require_equal(nets))
    refuse("fednova", training, "patience")
    require_shared_init("fednova", training.shared_init)
    if training.optimiser != "sgd":
        raise InputError(f"training.optimiser = {training.optimiser}: fednova needs sgd, with or without momentum")
    if training.momentum and training.optimiser_state == "keep":
        raise InputError("training.optimiser_state = keep: fednova needs a fresh momentum in each round; use fresh")
    local, combine = partial(train_normalised, training=training), partial(follow_mean_path, learnt=learnt)
    stage = Stage(local, combine, course.rounds, course.fraction, sends="change")
    return Method(begin_with_memory, (stage,), received_model)


def train_normalised(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train; send the change, and the length of its path."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    parts = fit(flat, device, step_id, training, memory, message=message)
    count = count_steps(flat, len(device.data.train), training)
    path = path_length(at_round(training, step_id.round), count)
    change = subtract(flat.params(), message.params)
    return {**memory, **parts}, Update(change, {PATH: torch.tensor(path)}, len(device.data.train))


def path_length(training: Training, steps: int) -> float:
    """Return a_k, the sum of the weights of all gradients in the change that so many steps of SGD make."""
    rho, ahead = training.momentum, int(training.nesterov)
    rates = learning_rates(training, steps)
    return sum(rate * (1 - rho ** (step + 1 + ahead)) / (1 - rho) for step, rate in enumerate(rates))


@step_word("average")
def follow_mean_path(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, learnt: tuple[str, ...]
) -> tuple[Params, Mapping[str, Message]]:
    """Move the model along the mean direction, as far as the devices went on average."""
    weights = by_size([update.size for update in updates.values()])
    paths = torch.stack([update.extra[PATH] for update in updates.values()])
    per_length = [
        {name: x / path if path and name in learnt else x for name, x in update.params.items()}
        for update, path in zip(updates.values(), paths.tolist(), strict=True)
    ]
    change = mean(per_length, weights)
    distance = (weights * paths).sum().item()
    for name in learnt:
        change[name] *= distance
    model = add(from_memory(server), change)
    return to_memory(model), to_everyone(round_info.names, Message(model))


@training_defaults(shared_init=True)
def fedopt(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    rule: Rule = "adam",
    server_lr: Positive = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Positive = 1e-3,
) -> Method:
    """FedAvgM, FedAdam, FedYogi or FedAdagrad: the server steps along the mean change (Reddi et al. 2021).

    Args:
        rule: the server's optimiser: "momentum" (FedAvgM), "adam", "yogi" or "adagrad".
        server_lr: the server's learning rate, above 0. Of momentum, with 1 and beta1 0, FedAvg but for rounding; of the
            others about the farthest that a parameter moves in a round, which the paper tunes per dataset.
        beta1: share of the movement that stays from round to round, from 0, below 1.
        beta2: share of the second moment that stays, from 0, below 1; of adam and yogi.
        tau: adaptivity: changes well below it are hardly scaled up, above 0; not of momentum.
    """
    learnt = parameters(require_equal(nets))
    require_shared_init("fedopt", training.shared_init)
    move = partial(move_model, learnt=learnt, rule=rule, server_lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    stage = averaging.stage(partial(train, training=training), move)
    return Method(begin_with_memory, (stage,), received_model)


@step_word("average")
def move_model(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, learnt: tuple[str, ...], rule: Rule,
    server_lr: float, beta1: float, beta2: float, tau: float, aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Take a step of the server's optimiser along the mean change.

    learnt: the names of the parameters; other tensors are buffers.
    """
    before = from_memory(server)
    model = hyper_model(updates, aggregator)
    moments: Params = {}
    for name in learnt:
        change = model[name] - before[name]
        m = server.get(f"{FIRST}{name}", change.new_zeros(change.shape))
        if rule == "momentum":
            m = beta1 * m + change
            step = m
        else:
            m = beta1 * m + (1 - beta1) * change
            v = server.get(f"{SECOND}{name}", change.new_full(change.shape, tau**2))
            v = SECOND_MOMENTS[rule](v, change.square(), beta2)
            step = m / (v.sqrt() + tau)
            moments[f"{SECOND}{name}"] = v
        moments[f"{FIRST}{name}"] = m
        model[name] = before[name] + server_lr * step
    return to_memory(model) | moments, to_everyone(round_info.names, Message(model))
