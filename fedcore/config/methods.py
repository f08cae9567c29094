"""A method with all its settings, for a script and for the pipeline alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.builders import CONTEXT, can_take, describe, name_of, parameters, suggesting
from fedcore.config.signatures import check, model
from fedcore.core.losses import find_loss, parts_of
from fedcore.core.training import Training
from fedcore.data.task import LABEL_KINDS, SEQUENCES, require_classes
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.methods import method as build_method
from fedcore.types.federation import Net
from fedcore.types.method import Method

ROUNDS = 1_000_000
"""The most rounds of a stage: even a forecast holds something of each."""

STORED: Mapping[str, tuple[str, Mapping[Any, Any]]] = {
    "sums": ("secure_aggregation", {"plain": False, "masked": True}),
    "sends": ("upload", {"model": "model", "change": "delta"}),
}
"""Settings of fedcore's methods in files that earlier versions wrote -> their names and values today."""

PARTS = {
    "begin": "public, seed", "local": "memory, message, device, step_id", "attach": "update, device, step_id",
    "combine": "server, updates, round_info", "deploy": "memory, message",
}  # fmt: skip
"""The functions of a method and of its stages -> what each is called with."""


@dataclass(frozen=True)
class MethodConfig:
    """A method with all its settings: a row of a comparison.

    Args:
        label: its name in tables.
        name: the method's name, "package.module:function", or a script's own builder.
        training: how devices train.
        settings: the builder's keyword arguments, complete.
    """

    label: str
    name: str | Callable[..., Method]
    training: Training
    settings: Mapping[str, Any]

    @property
    def builder(self) -> Callable[..., Method]:
        return builder(self.name) if isinstance(self.name, str) else self.name

    @property
    def control(self) -> bool:
        """Whether the method is a control, see :func:`fedcore.builders.control`."""
        return getattr(self.builder, "control", False)

    def build(self, nets: Mapping[str, Net], sizes: Mapping[str, int] | None = None, task: str | None = None) -> Method:
        """Build the method; raises InputError, naming its label, if these nets do not allow it.

        sizes: device -> labelled training examples; task: the name of what labels are. With them also if these data do
        not.
        """
        if task is not None:
            self.require_task(task)
        try:
            method = build_method(self.name, nets=nets, training=self.training, sizes=sizes, **self.settings)
        except InputError as refused:
            raise InputError(f"{refused} (method {self.label})") from None
        for part, arguments in PARTS.items():
            for fn in (getattr(of, part, None) for of in (method, *method.stages)):
                if fn is not None and not can_take(fn, arguments, "sent", "device"):
                    raise InputError(f"{part} = {name_of(fn)}: must take ({arguments}) (method {self.label})")
        if (rounds := max((stage.rounds for stage in method.stages), default=0)) > ROUNDS:
            raise InputError(f"{rounds:,} rounds: at most {ROUNDS:,} are allowed (method {self.label})")
        return method

    def require_task(self, name: str) -> None:
        """Refuse a method, or a setting of it, that the labels do not allow. name: of their kind."""
        kind = LABEL_KINDS[name]
        loss, weights = self.training.loss, self.training.class_weights
        takes = parameters(self.builder)
        trains = "training" in takes
        if trains and isinstance(loss, str) and loss not in kind.losses:
            allowed = f"{', '.join(kind.losses)} or package.module:function"
            raise InputError(
                f"training.loss = {loss!r}: is not for these data, whose label is {kind.words}; allowed: {allowed} "
                f"(method {self.label})"
            )
        if (trains or "class_weights" in takes) and weights != "none":
            require_classes(name, f"{self.label}: training.class_weights = {weights!r}")
        reason, settings = getattr(self.builder, "needs_classes", ("", {}))
        for key, value in settings.items():
            if self.settings[key] == value:
                require_classes(name, f"{self.label}.{key} = {value!r}: it {reason}, which")
        if reason and not settings:
            require_classes(name, f"{self.label}: it {reason}, which")
        key, reason = getattr(self.builder, "needs_bounded_labels", ("", ""))
        if kind.standardised and reason and self.settings[key] is not None:
            raise InputError(
                f"{self.label}.{key} = {self.settings[key]}: it {reason}; the label of these data is {kind.words} "
                f"(data.task = {name})"
            )
        if kind is SEQUENCES and (reason := getattr(self.builder, "needs_one_label", "")):
            raise InputError(
                f"{self.label}: it {reason}, which needs one label for it; the label of these data is {kind.words} "
                f"(data.task = {name})"
            )

    def flat(self) -> dict[str, Any]:
        """Return every setting under one name each, for the record."""
        training = {f"training.{key}": value for key, value in self.training.settings().items()}
        name = self.name if isinstance(self.name, str) else describe(self.name)
        return {"method": name, **training, **self.settings}


def current_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a file of this or an earlier version has of a method, by today's names."""
    current = dict(settings)
    for old in STORED.keys() & settings.keys() if name in METHODS else ():
        new, values = STORED[old]
        current[new] = values.get(current.pop(old))
    return current


def require_trains(build: Callable[..., Method], key: str, training: Mapping[str, Any]) -> None:
    """Refuse settings of training that a method which takes none would not see. key: where they stand."""
    takes, usual = parameters(build), vars(Training())
    for name, value in training.items() if "training" not in takes else ():
        if (name != "class_weights" or name not in takes) and value != usual.get(name, value):
            raise InputError(f"{key}.{name} = {value!r}: {describe(build)} takes no training")


def configure(
    name: str | Callable[..., Method], settings: Mapping[str, Any], training: Mapping[str, Any], *,
    label: str | None = None, training_key: str = "training",
) -> MethodConfig:  # fmt: skip
    """Check a method's settings and complete them with the defaults of the signatures.

    training_key: where the settings of the training stand, for messages.

    Raises InputError for a setting that is unknown or out of range.
    """
    build = builder(name) if isinstance(name, str) else name
    section = name.rpartition(":")[2] if isinstance(name, str) else describe(name)
    for key in sorted({"sizes", "shared_init"} & parameters(build).keys()):
        raise InputError(f"{section}.{key}: is a name of fedcore's own; call this setting of the builder otherwise")
    complete = dict(check(model(build, CONTEXT), section, settings))
    checked = dict(check(model(Training), training_key, training))
    with suggesting(checked["loss"]):
        trained = Training(**checked | {"loss": find_loss(checked["loss"], f"{training_key}.loss")})
    if (make := parts_of(trained.loss)) is not None and not can_take(make, "net"):
        raise InputError(f"{training_key}.loss: with_parts({describe(make)}): must take one argument, the device's net")
    return MethodConfig(label or section, name, trained, complete)
