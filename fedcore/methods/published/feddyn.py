r"""FedDyn (Acar et al. 2021, Algorithm 1): a penalty on each device that makes the optima of all devices one.

theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta^(t-1)||^2     on each device that takes part
g_k <- g_k - alpha (theta_k - theta^(t-1))                                         kept by the device, 0 at first
h <- h - alpha/m sum_(k in P) (theta_k - theta^(t-1))                              m devices in all, 0 at first
theta^t = 1/|P| sum_(k in P) theta_k - h / alpha

A device sends its model and receives one: FedAvg's traffic. Its g_k never travels; h stays with the server.

Departures. A device trains as `training` says, from theta^(t-1), in place of an exact minimum. Buffers, which have no
gradient, are averaged. alpha = 0 leaves both corrections out: FedAvg with even weights, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import evenly, mean
from fedcore.core.messages import (
    begin_with_memory,
    from_memory,
    received_model,
    require_shared_init,
    to_everyone,
    to_memory,
)
from fedcore.core.training import FlatNet, Training, fit, flatten_net, starting_params, to_params, to_vector
from fedcore.nets import parameters, require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Count, Fraction

SERVER = "h/"
"""Prefix of the tensors of h in the server's memory."""


@training_defaults(shared_init=True)
def feddyn(
    *, nets: Mapping[str, Net], training: Training, rounds: Count = 10, fraction: Fraction = 1.0, alpha: Amount = 0.1
) -> Method:
    """Build FedDyn. Models are averaged evenly, as in the paper.

    Args:
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        alpha: weight of the penalty, from 0 (the paper: .1, .01 or .001); 0 is FedAvg with even weights.
    """
    require_equal(nets)
    require_shared_init("feddyn", training.shared_init)
    learnt = parameters(next(iter(nets.values())))
    stage = Stage(
        partial(train_penalised, training=training, alpha=alpha),
        partial(correct_mean, learnt=learnt, alpha=alpha),
        rounds,
        fraction,
    )
    return Method(begin_with_memory, (stage,), received_model)


def train_penalised(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, alpha: float
) -> tuple[Params, Update]:
    """Minimise the penalised loss; keep g_k, the gradient of the device's loss at its new model, and send the model."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    sent, gradient = flat.vector.clone(), to_vector(flat, memory)
    hook = penalty_grad_hook(flat, sent, gradient, alpha) if alpha else None
    moments = fit(flat, device, step_id, training, memory, message=message, grad_hook=hook)
    own = to_params(flat, gradient - alpha * (flat.vector - sent)) if alpha else {}
    return own | moments, Update(flat.params(), size=len(device.data.train))


def penalty_grad_hook(flat: FlatNet, sent: Tensor, gradient: Tensor, alpha: float) -> Callable[[], None]:
    """Return a function that adds alpha (theta - theta^(t-1)) - g_k to `flat.gradient`; sent, gradient: (P,)."""

    def grad_hook() -> None:
        flat.gradient.add_(flat.vector - sent, alpha=alpha).sub_(gradient)
        flat.idle.clear()

    return grad_hook


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
