"""Trainable parts of a loss of one's own, see :func:`fedcore.core.losses.with_parts`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from fedcore import nets
from fedcore.core.flat_nets import FlatNet, flatten_net
from fedcore.core.gradients import Step, clip_norm
from fedcore.core.losses import PARTS, loss_name, parts_of
from fedcore.core.optimisers import MOMENTS, learning_rates, optimiser_step
from fedcore.core.training_settings import Training
from fedcore.errors import InputError
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, StepId


def own_parts(
    flat: FlatNet, device: Device, step_id: StepId, training: Training, memory: Params, message: Message, prefix: str
) -> FlatNet | None:
    """Return the trainable parts of a loss of one's own, see :func:`fedcore.core.losses.with_parts`; None without."""
    if (make := parts_of(training.loss)) is None:
        return None
    net = Net(partial(make, flat.net))
    fresh = nets.init(net, replace(step_id, stage=0, round=0).generator("parts"))
    tensors = {**memory, **message.extra}
    return flatten_net(net, {name: tensors.get(parts_prefix(prefix) + name, tensor) for name, tensor in fresh.items()})


def parts_prefix(prefix: str) -> str:
    """Return the prefix of a loss's parts in memory, where that of the moments is `prefix`."""
    return PARTS + prefix.removeprefix(MOMENTS)


def both(step: Step, parts: FlatNet, training: Training, steps: int, moments: Params) -> Step:
    """Return a step that trains a loss's parts as well, at the same rates; a gradient's norm is clipped apart."""
    own = {name.removeprefix(PARTS): tensor for name, tensor in moments.items() if name.startswith(PARTS)}
    update, rates = optimiser_step(parts, training, own), iter(learning_rates(training, steps))
    moments |= {f"{PARTS}{name}": tensor for name, tensor in own.items()}

    def step_both(x: Tensor, y: Tensor) -> None:
        note_idle = parts.zero_gradient()
        step(x, y)
        note_idle()
        if training.clip is not None:
            clip_norm(parts.gradient, training.clip)
        update(next(rates))

    return step_both


def refuse_parts(name: str, training: Training) -> None:
    """Refuse a loss with trainable parts of its own where a method does not train them."""
    if parts_of(training.loss) is not None:
        raise InputError(
            f"training.loss = {loss_name(training.loss)}: {name} does not train a loss's own parts; "
            "use a loss without them"
        )
