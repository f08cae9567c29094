"""What a run is: a method by its name and settings, so that no code travels. Each side builds it from its fedcore."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fedcore
from fedcore.builders import import_builder
from fedcore.config.methods import MethodConfig, configure, current_settings
from fedcore.core.losses import LOSSES
from fedcore.data.task import CLASSIFICATION, LABEL_KINDS
from fedcore.errors import InputError
from fedcore.field.modules import source_digest
from fedcore.field.recipe import Recipe
from fedcore.field.wire import write_file
from fedcore.methods import needs_sums_alone, require_real
from fedcore.nets import params_of
from fedcore.nets.builders_by_path import NETS, build_arguments, net_at, place_of
from fedcore.nets.copies import template
from fedcore.types.federation import Net, Params
from fedcore.types.method import Method

VERSIONS = {"fedcore": fedcore.__version__, "torch": torch.__version__.partition("+")[0]}
"""Both sides must have these: others give other bits."""

SEAL = b', "digest": "'
"""What a file has between a plan and the digest of its bytes."""


@dataclass(frozen=True)
class Plan:
    """All that a device needs to know of a run.

    run: its name. method, settings, training: as in params.yaml, complete. nets: device -> the number of its net in
    `kinds`, which says how each is built. shape, classes: of the examples. recipe: how devices prepare their rows, see
    :mod:`fedcore.field.recipe`; None: they bring examples as the net takes them. modules: the SHA-256 of each module of
    one's own that the run needs, which devices must have and allow. task: the name of what labels are.
    """

    run: str
    method: str
    settings: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    shape: tuple[int, ...]
    classes: int
    nets: Mapping[str, int]
    kinds: tuple[Any, ...]
    versions: Mapping[str, str]
    recipe: Mapping[str, Any] | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    task: str = CLASSIFICATION.name

    def read_recipe(self) -> Recipe | None:
        """Return how devices prepare their rows; None: they bring examples. Raises InputError for no recipe."""
        if self.recipe is None:
            return None
        recipe = Recipe.from_mapping(self.recipe)
        schema = recipe.schema
        if (schema.shape, len(schema.classes), schema.task) != (self.shape, self.classes, self.task):
            raise InputError("recipe: has another shape, other classes or other labels than the run")
        return recipe

    @property
    def masked(self) -> bool:
        """Whether the server gets sums over devices alone."""
        return needs_sums_alone(self.method, self.settings)

    def build(self) -> tuple[Method, dict[str, Net]]:
        """Return the method and every device's net. Raises InputError where the field or these nets do not allow it."""
        loss = self.training.get("loss")
        if not isinstance(loss, str) or not (loss in LOSSES or self._is_own(loss)):  # another would be imported
            raise InputError(f"training.loss = {loss!r}: must be one of {', '.join(LOSSES)} in the field")
        kinds = self.kinds_of_nets()
        nets = {name: kinds[number] for name, number in self.nets.items()}
        config = configure(self.method, self.settings, self.training)
        built = config.build(nets, task=self.task)
        require_real(self.method, built)
        return built, nets

    def kinds_of_nets(self) -> list[Net]:
        """Return the different nets. Raises InputError for a function that builds none."""
        return [self._net(*kind) for kind in self.kinds]

    def _net(self, path: str, positional: tuple[Any, ...], named: dict[str, Any], axes: Any) -> Net:
        if self._is_own(path):
            return Net(partial(import_builder(path, "net.name"), *positional, **named), axes)
        try:
            return replace(net_at(path, (positional, named)), axes=axes)
        except ValueError as error:
            raise InputError(f"net: {error}") from None

    def _is_own(self, path: str) -> bool:
        """Tell whether a function is of a module of one's own, which devices know by its digest."""
        module, colon, _ = path.partition(":")
        return bool(colon) and module in self.modules

    def to_json(self) -> str:
        """Return the plan as text. Raises InputError for settings that are no plain values."""
        try:
            return json.dumps(asdict(self))
        except TypeError as error:
            raise InputError(f"method {self.method}: its settings cannot travel ({error})") from None

    def write(self, path: Path) -> None:
        """Write the plan to a file that `read` checks."""
        text = self.to_json().encode()[:-1]
        write_file(path, text + SEAL + _digest(text) + b'"}')

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Undo `write`; raises InputError also for bytes that have changed. Earlier versions wrote no digest."""
        text, sealed, digest = path.read_bytes().rpartition(SEAL)
        if sealed and digest != _digest(text) + b'"}':
            raise InputError(f"{path}: damaged, its bytes have changed since they were written; begin another run")
        return cls.from_json(text + b"}" if sealed else digest)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Undo `to_json`. Raises InputError for anything else."""
        try:
            fields = _to_tuples(json.loads(text))
            fields["settings"] = current_settings(fields["method"], fields["settings"])
            plan = cls(**fields)
            valid = isinstance(plan.run, str) and plan.run.isalnum() and isinstance(plan.method, str)
            valid = valid and all(
                isinstance(part, dict) for part in (plan.settings, plan.training, plan.nets, plan.versions)
            )
            valid = valid and plan.task in LABEL_KINDS
            valid = valid and isinstance(plan.modules, dict) and all(isinstance(kind[0], str) for kind in plan.kinds)
            valid = valid and all(type(index) is int and 0 <= index < len(plan.kinds) for index in plan.nets.values())
            if not valid or not all(type(number) is int for number in (plan.seed, plan.classes, *plan.shape)):
                raise TypeError("a field of another type")
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise InputError(f"plan: no plan of a run ({error})") from None
        return plan


def plan_of(
    config: MethodConfig, nets: Mapping[str, Net], seed: int, run: str, shape: tuple[int, ...], classes: int,
    recipe: Recipe | None = None, task: str = CLASSIFICATION.name,
) -> Plan:  # fmt: skip
    """Return the plan of a method on some devices. Raises InputError for one that cannot run in the field."""
    if not isinstance(config.name, str):
        raise InputError(
            f"method {config.label}: must be one of fedcore's own in the field, or a module's, module:function"
        )
    try:
        kinds = {id(net): _describe(net) for net in nets.values()}
    except TypeError as error:
        raise InputError(f"net: {error}") from None
    settings = config.training.settings()
    own = {path.partition(":")[0] for path in (config.name, settings["loss"]) if ":" in path}
    own |= {module for module in (kind[0].partition(":")[0] for kind in kinds.values()) if module not in NETS}
    index_of = {key: number for number, key in enumerate(kinds)}
    plan = Plan(
        run, config.name, dict(config.settings), settings, seed, shape, classes,
        {name: index_of[id(net)] for name, net in nets.items()}, tuple(kinds.values()), VERSIONS,
        None if recipe is None else recipe.to_mapping(),
        {module: source_digest(module) for module in sorted(own)}, task,
    )  # fmt: skip
    Plan.from_json(plan.to_json()).build()
    return plan


def check_tensors(params: Params, net: Net, who: str) -> None:
    """Refuse a tensor with a name of the net's, but another shape or type."""
    expected = params_of(template(net))
    for name, tensor in params.items():
        if name in expected and (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
            raise InputError(
                f"{who}: tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, its net has {expected[name].dtype} "
                f"{tuple(expected[name].shape)}"
            )


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def _describe(net: Net) -> tuple[Any, ...]:
    build: Any = net.build.func if isinstance(net.build, partial) else net.build
    own = build.__module__.partition(".")[0] != "fedcore"
    path = f"{build.__module__}:{build.__qualname__}" if own else place_of(net)
    return path, *build_arguments(net), net.axes


def _to_tuples(value: Any) -> Any:
    """Return JSON's lists as tuples, which nets and settings have in their place."""
    if isinstance(value, dict):
        return {key: _to_tuples(part) for key, part in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
