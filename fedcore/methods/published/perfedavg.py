r"""Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, Algorithm 1): a start from which a step on own data is best.

w~ = w - alpha grad f(w; D)          on one minibatch
w <- w - beta grad f(w~; D')         on another one

This is the first-order version, Per-FedAvg (FO): the paper's factor (I - alpha Hessian) is left out. When the rounds
are over, every device trains the model on its own examples with rate alpha, and keeps it.

Departures. A step takes two of a round's minibatches, so that an epoch makes half the steps of other methods; where a
device has one minibatch it is both. beta is the rate of `training`, whose optimiser takes the second step. Evaluations
between the rounds are of the common model. Averages are weighted by examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch
from fedcore.core.messages import initial_messages
from fedcore.core.training import (
    Training,
    at_round,
    balanced_grad,
    flatten_net,
    gradient_step,
    minibatches,
    plain_step,
    refuse_kept_state,
    refuse_parts,
    refuse_patience,
    starting_params,
    train,
)
from fedcore.nets import require_equal, use_generator
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, Stage, StepId, Update
from fedcore.types.ranges import Depth, Positive


@training_defaults(shared_init=True)
def perfedavg(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    inner_lr: Positive = 0.01,
    tune_epochs: Depth = 1,
) -> Method:
    """Build Per-FedAvg (FO).

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        inner_lr: alpha, learning rate of the step that is looked ahead, and of the tuning by plain SGD, above 0.
        tune_epochs: passes over a device's examples that tune its model after the last round, from 0 (the paper: one
            step); where `training.steps` counts minibatches, as many.

    Raises:
        InputError: for an optimiser whose state is kept.
    """
    require_equal(nets)
    refuse_patience("perfedavg", training)
    refuse_parts("perfedavg", training)
    refuse_kept_state("perfedavg", training)
    local = partial(train_ahead, training=training, inner_lr=inner_lr)
    stages = [averaging.stage(local)]
    if tune_epochs:
        tuning = replace(
            training, optimiser="sgd", momentum=0.0, nesterov=False, lr=inner_lr, epochs=tune_epochs, round_decay=1.0
        )
        stages.append(Stage(partial(train, training=tuning), None))
    return Method(partial(initial_messages, shared_init=training.shared_init), tuple(stages), tuned)


def train_ahead(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, inner_lr: float
) -> tuple[Params, Update]:
    """Take steps along the gradients that the model would have after a step of its own; send the model."""
    training = at_round(training, step_id.round)
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    before = flat.vector.clone()
    x, y = device.data.train.inputs(), device.data.train.y
    batch_of = partial(Batch, message=message, memory=memory, round=step_id.round)

    def go_back() -> None:
        flat.vector.copy_(before)

    with use_generator(step_id.generator("noise")):
        batches = minibatches(flat, len(y), training, step_id.generator("batches"))
        pairs = [*zip(batches[::2], batches[1::2] or batches, strict=False)]
        weighted = balanced_grad(training, device.data.train)
        gradient = gradient_step(flat, training.loss, weighted, batch_of)
        step = plain_step(flat, training, len(pairs), grad_hook=go_back, logit_grad=weighted, batch_of=batch_of)
        for first, second in pairs:
            before.copy_(flat.vector)
            gradient(x[first], y[first])
            flat.vector.sub_(flat.gradient, alpha=inner_lr)
            step(x[second], y[second])
    return {}, Update(flat.params(), size=len(y))


def tuned(memory: Params, message: Message) -> Model:
    """Run the device's own model; before it is tuned, the common one."""
    return Model((memory or message.params,))
