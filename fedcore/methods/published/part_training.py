"""Training of one part of a net while the rest stays as it is (FedRep, FedBABU)."""

from __future__ import annotations

import torch

from fedcore.core.training import FlatNet, Training, fit
from fedcore.errors import InputError
from fedcore.nets.parts import layers
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, StepId


def head(net: Net) -> tuple[str, ...]:
    """Return the tensors of the net's last layer, which classifies."""
    return [*layers(net).values()][-1]


def require_base(name: str, net: Net) -> None:
    """Refuse a net of one layer, which has nothing before its head."""
    if len(layers(net)) < 2:
        raise InputError(f"net: {name} shares all but the last layer, this net has no other")


def parts(flat: FlatNet) -> tuple[slice, slice]:
    """Return where the vector holds the layers before the head, and the head."""
    cut = min(flat.parameters[name].storage_offset() for name in head(flat.net) if name in flat.parameters)
    return slice(cut), slice(cut, None)


def fit_part(
    flat: FlatNet,
    device: Device,
    step_id: StepId,
    training: Training,
    memory: Params,
    message: Message,
    part: slice,
    prefix: str,
) -> Params:
    """Train a part of the vector; the rest stays as it is."""
    others = torch.ones_like(flat.vector, dtype=torch.bool)
    others[part] = False

    def hold_others() -> None:
        flat.gradient.masked_fill_(others, 0)

    return fit(
        flat,
        device,
        step_id,
        training,
        memory,
        message=message,
        prefix=prefix,
        grad_hook=hold_others,
        pieces=((part, 1.0),),
    )
