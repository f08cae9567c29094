r"""APFL (Deng, Kamani and Mahdavi 2020, Algorithm 1): each device runs a mixture of its own model and the global one.

On each minibatch, w the device's copy of the global model and v its own, from the values before the step:

w <- w - eta grad f(w)
v <- v - eta alpha grad f(vbar),    vbar = alpha v + (1 - alpha) w
alpha <- alpha - eta_alpha <v - w, grad f(vbar)>    on the first minibatch of a round, within [0, 1]    (10)

It sends w and runs vbar, of the global model that it was last sent.

Departures. v begins as the first model that the device is sent. Models are averaged by examples. Buffers are mixed as
parameters are. The optimiser is that of `training`, one for w and one for v; the paper has SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch
from fedcore.core.messages import initial_messages
from fedcore.core.training import (
    Training,
    at_round,
    balanced_grad,
    clip_norm,
    descend,
    flatten_net,
    gradient_step,
    learning_rates,
    minibatches,
    optimiser_step,
    plain_step,
    refuse_kept_state,
    starting_params,
)
from fedcore.nets import require_equal, use_generator
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, StepId, Update
from fedcore.types.ranges import Amount, Share

OWN, ALPHA = "own/", "alpha"
"""Names in a device's memory: the tensors of its own model, v; and the share of it in the mixture."""


@training_defaults(shared_init=True)
def apfl(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, alpha: Share = 0.5, alpha_lr: Amount = 0.0
) -> Method:
    """Build APFL, twice FedAvg's work.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        alpha: share of the device's own model in the mixture, from 0 to 1, at first; 0 is FedAvg.
        alpha_lr: eta_alpha, learning rate of that share, from 0; 0: it stays.

    Raises:
        InputError: for an optimiser whose state is kept.
    """
    require_equal(nets)
    refuse_kept_state("apfl", training)
    local = partial(train_mixture, training=training, alpha=alpha, alpha_lr=alpha_lr)
    stage = averaging.stage(local)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), mixture)


def train_mixture(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    alpha: float,
    alpha_lr: float,
) -> tuple[Params, Update]:
    """Train w, which the device sends, and v with its share, which it keeps."""
    training = at_round(training, step_id.round)
    sent = starting_params({}, message, device, step_id)
    own_before = {name.removeprefix(OWN): tensor for name, tensor in memory.items() if name.startswith(OWN)}
    w, v, mixed = (flatten_net(device.net, params) for params in (sent, own_before or sent, own_before or sent))
    share = memory.get(ALPHA, torch.tensor(alpha, dtype=torch.float64)).item()
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)
    weighted = balanced_grad(training, device.data.train)
    with use_generator(step_id.generator("noise")):
        batches = minibatches(w, len(device.data.train), training, step_id.generator("batches"))
        step = plain_step(w, training, len(batches), logit_grad=weighted, batch_of=batch_of)
        gradient = gradient_step(mixed, training.loss, weighted, batch_of)
        update, rates = optimiser_step(v, training), iter(learning_rates(training, len(batches)))

        first = True

        def move(x: Tensor, y: Tensor) -> None:
            nonlocal share, first
            torch.add(share * v.vector, w.vector, alpha=1 - share, out=mixed.vector)
            gradient(x, y)
            torch.mul(mixed.gradient, share, out=v.gradient)
            if first and alpha_lr:
                share_grad = (v.vector - w.vector).dot(mixed.gradient).item()
                share = min(max(share - alpha_lr * share_grad, 0.0), 1.0)
            first = False
            step(x, y)
            if training.clip is not None:
                clip_norm(v.gradient, training.clip)
            update(next(rates))

        descend(device.data.train, batches, move)
    own = {
        **mixed.params(),
        **{name: tensor.clone() for name, tensor in v.parameters.items()},
    }  # buffers are those of vbar
    own_part = {f"{OWN}{name}": tensor.contiguous() for name, tensor in own.items()}
    return own_part | {ALPHA: torch.tensor(share, dtype=torch.float64)}, Update(w.params(), size=len(device.data.train))


def mixture(memory: Params, message: Message) -> Model:
    """Run vbar; before a device's first round, the global model."""
    share = memory[ALPHA].item() if memory else 0.0
    if share == 0:
        return Model((message.params,))
    return Model(
        (
            {
                name: share * memory[f"{OWN}{name}"] + (1 - share) * tensor if tensor.is_floating_point() else tensor
                for name, tensor in message.params.items()
            },
        )
    )
