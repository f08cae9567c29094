"""A method and its settings, as a script states them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from fedcore.api.federation import architecture, partitioner
from fedcore.builders import CONTEXT, settings_of
from fedcore.config.help import method_help, stand_for
from fedcore.config.methods import MethodConfig, configure
from fedcore.core.training import Training
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.partition import PARTITIONS
from fedcore.types.method import Method

TRAINING_AND_LABEL = {
    "training": "how devices train, or a dict of what changes in it, see `fedcore.method`.",
    "label": "the method's name in tables; its own by default.",
}
"""Help of the two settings that all methods share."""


def method(
    which: str | Callable[..., Method],
    *,
    training: Training | Mapping[str, Any] | None = None,
    label: str | None = None,
    **settings: Any,
) -> MethodConfig:
    """Describe a method with its settings.

    Args:
        which: its name, "package.module:function", or your own builder (docs/adding-a-method.md).
        training: how devices train: a :class:`fedcore.core.training.Training`, or a dict of the settings that differ.
        label: its name in tables; the method's by default.
        settings: the method's own; the others have the defaults of its signature.

    Raises:
        InputError: naming the method and the setting, for a setting that is unknown or out of range.
    """
    build = builder(which) if isinstance(which, str) else which
    name = getattr(build, "__name__", "method")
    if training is not None and not isinstance(training, Training | Mapping):
        raise InputError(f"{name}.training = {training!r}: must be a Training, or a dict of its settings")
    defaults = getattr(build, "training_defaults", {})
    if isinstance(training, Training):  # all of it counts, but for a start that nobody asked for
        training = {key: value for key, value in asdict(training).items() if key != "shared_init" or value}
    return configure(
        which, settings, {**defaults, **(training or {})}, label=label or name, training_key=f"{name}.training"
    )


@cache
def config_of(name: str) -> Callable[..., MethodConfig]:
    """Return the function that takes the settings of the method of that name."""
    build = builder(name)

    def make(
        *, training: Training | Mapping[str, Any] | None = None, label: str | None = None, **settings: Any
    ) -> MethodConfig:
        return method(name, training=training, label=label, **settings)

    takes = {
        **settings_of(build, CONTEXT),
        "training": (Training | Mapping[str, Any] | None, None),
        "label": (str | None, None),
    }
    return stand_for(build, make, name, method_help(build, TRAINING_AND_LABEL), takes)


def settings_functions() -> dict[str, Callable[[str], Callable[..., Any]]]:
    """Return, for each method, partition and net, a function that returns the function of its settings."""
    return {
        **dict.fromkeys(NETS, architecture),
        **dict.fromkeys(PARTITIONS, partitioner),
        **dict.fromkeys(METHODS, config_of),
    }
