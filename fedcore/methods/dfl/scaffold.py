"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): every step is corrected by what others' data would add.

The server's variate c travels down beside the model, the change of a device's c_i up: twice FedAvg's traffic both ways
(buffers, which have no gradient, travel with the model alone). A device keeps c_i to itself between its rounds.

Departures. The server's step size is 1, as in the paper's experiments. K eta_l is the sum of the learning rates of the
steps that were really taken, which is the same where the rate is constant.
"""

from collections.abc import Mapping
from functools import partial

import torch

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Course, evenly, mean
from fedcore.core.messages import initial_messages, received_model, to_everyone
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
)
from fedcore.errors import InputError
from fedcore.nets import parameters, require_equal, shapes
from fedcore.types.federation import Device, Net, Params, Public
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update


@training_defaults(optimiser="sgd", momentum=0.0, shared_init=True)
def scaffold(*, nets: Mapping[str, Net], training: Training, course: Course) -> Method:
    """SCAFFOLD (Karimireddy et al. 2020): control variates correct each step. Models are averaged evenly.

    Raises:
        InputError: for an optimiser other than plain SGD: option II takes the mean gradient from how far the model
            moved, which a momentum, Adam or clipping changes.
    """
    require_equal(nets)
    refuse("scaffold", training, "patience", "parts")
    if training.optimiser != "sgd" or training.momentum:
        optimiser = training.optimiser if training.optimiser != "sgd" else f"sgd with momentum {training.momentum}"
        raise InputError(f"training.optimiser = {optimiser}: scaffold needs plain sgd; use sgd and momentum 0")
    if training.clip is not None:
        raise InputError(f"training.clip = {training.clip}: scaffold needs plain sgd; leave it out")
    stage = Stage(partial(train_corrected, training=training), average_variates, course.rounds, course.fraction)
    return Method(partial(begin_with_variate, shared_init=training.shared_init), (stage,), received_model)


def begin_with_variate(public: Public, seed: int, *, shared_init: bool) -> tuple[Params, Mapping[str, Message]]:
    """Begin with c = 0, which is sent with the initial model, if any."""
    _, messages = initial_messages(public, seed, shared_init=shared_init)
    net = next(iter(public.nets.values()))
    variate = {name: torch.zeros(shapes(net)[name]) for name in parameters(net)}
    message = Message(next(iter(messages.values())).params, variate if shared_init else {})
    return variate, to_everyone(public.names, message)


def train_corrected(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    r"""Step along g(y) - c_i + c; then compute the new variate from the total change (lines 10 and 12, option II).

    c_i+ = c_i - c + (x - y) / (K eta_l)

    memory: c_i by parameter, empty before the first round, where it is zero. Sends y and c_i+ - c_i.
    """
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    x, own_variate, server_variate = flat.vector.clone(), to_vector(flat, memory), to_vector(flat, message.extra)
    correction = server_variate - own_variate

    def correct() -> None:
        flat.gradient.add_(correction)

    count = count_steps(flat, len(device.data.train), training)
    fit(flat, device, step_id, training, memory, message=message, grad_hook=correct if correction.any() else None)
    step_sizes = sum(learning_rates(at_round(training, step_id.round), count))
    change = (x - flat.vector) / step_sizes - server_variate if step_sizes else torch.zeros_like(x)
    return to_params(flat, own_variate + change), Update(flat.params(), to_params(flat, change), len(device.data.train))


def average_variates(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Average the models of those who took part (line 16); c <- c + sum dc_i / N, N counting all devices (line 17)."""
    share = evenly(len(updates))
    change = mean([update.extra for update in updates.values()], share)
    part = len(updates) / len(round_info.names)
    variate = {name: tensor + part * change[name] for name, tensor in server.items()}
    model = mean([update.params for update in updates.values()], share)
    return variate, to_everyone(round_info.names, Message(model, variate))
