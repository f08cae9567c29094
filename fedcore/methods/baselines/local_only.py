"""Local training only: the baseline that any combination must beat on the device's own data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.core.messages import initial_messages
from fedcore.core.training import Training, train
from fedcore.types.federation import Net, Params
from fedcore.types.method import Message, Method, Model, Stage


def local_only(*, nets: Mapping[str, Net], training: Training) -> Method:
    """Train once on each device and send nothing."""
    return Method(
        partial(initial_messages, shared_init=training.shared_init),
        (Stage(partial(train, training=training), None),),
        keep,
    )


def keep(memory: Params, message: Message) -> Model:
    """Run the device's own model; before training, the initial one."""
    return Model((memory or message.params,))
