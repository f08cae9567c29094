r"""pFedMe (Dinh, Tran and Nguyen 2020, Algorithm 1): personal models near a global one, by Moreau envelopes.

On each minibatch a device takes K steps towards theta = argmin f(theta) + lambda/2 ||theta - w||^2, and then one of its
copy of the global model, w <- w - eta lambda (w - theta). It sends w and runs theta.

Departures. theta begins a round at w and each minibatch where the last one ended; the paper leaves the solver open.
Models are averaged by examples, and the mean is the global model (the paper's beta is 1). Buffers are those of theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch
from fedcore.core.messages import initial_messages
from fedcore.core.training import (
    Training,
    at_round,
    balanced_grad,
    descend,
    flatten_net,
    minibatches,
    plain_step,
    proximal_grad_hook,
    refuse_kept_state,
    refuse_parts,
    refuse_patience,
    starting_params,
    to_params,
)
from fedcore.errors import InputError
from fedcore.nets import require_equal, use_generator
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, StepId, Update
from fedcore.types.ranges import Amount, Count, Positive


@training_defaults(shared_init=True)
def pfedme(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    strength: Amount = 1.0,
    inner_steps: Count = 5,
    outer_lr: Positive = 0.1,
) -> Method:
    """Build pFedMe. `training` is that of theta: it makes K times the steps of other methods.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        strength: lambda, which holds theta near w, from 0 (the paper: 15, with small rates); 0 leaves w as it is, and
            theta is trained from it alone. Times the learning rate of sgd it must be below 2, else theta diverges.
        inner_steps: K, steps of theta on a minibatch, from 1 (the paper: 5).
        outer_lr: eta, learning rate of w, above 0; eta lambda is the share of the way to theta that w goes.

    Raises:
        InputError: for an optimiser whose state is kept, and for a w that would leap beyond theta.
    """
    require_equal(nets)
    refuse_patience("pfedme", training)
    refuse_parts("pfedme", training)
    refuse_kept_state("pfedme", training)
    if outer_lr * strength > 1:
        raise InputError(f"pfedme.outer_lr = {outer_lr}: times pfedme.strength = {strength} must be at most 1")
    local = partial(
        train_envelope, training=training, strength=strength, inner_steps=inner_steps, share=outer_lr * strength
    )
    stage = averaging.stage(local)
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), personal)


def train_envelope(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    strength: float,
    inner_steps: int,
    share: float,
) -> tuple[Params, Update]:
    """Train theta, which the device keeps, and w, which it sends.

    share: eta lambda.
    """
    training = at_round(training, step_id.round)
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    w = flat.vector.clone()
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)
    with use_generator(step_id.generator("noise")):
        batches = minibatches(flat, len(device.data.train), training, step_id.generator("batches"))
        step = plain_step(
            flat, training, inner_steps * len(batches), grad_hook=proximal_grad_hook(flat, w, strength),
            logit_grad=balanced_grad(training, device.data.train), batch_of=batch_of,
        )  # fmt: skip

        def move(x: Tensor, y: Tensor) -> None:
            for _ in range(inner_steps):
                step(x, y)
            w.add_(flat.vector - w, alpha=share)

        descend(device.data.train, batches, move)
    theta = flat.params()
    return theta, Update(theta | to_params(flat, w), size=len(device.data.train))


def personal(memory: Params, message: Message) -> Model:
    """Run theta; before a device's first round, the global model."""
    return Model((memory or message.params,))
