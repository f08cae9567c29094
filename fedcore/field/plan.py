"""What a run is: a method by its name and settings, so that no code travels. Each side builds it from its fedcore."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

import fedcore
from fedcore.config.methods import MethodConfig, configure
from fedcore.core.losses import LOSSES
from fedcore.field.recipe import Recipe
from fedcore.methods import METHODS, needs_sums_alone, require_real
from fedcore.nets import leaves
from fedcore.nets.builders_by_path import build_arguments, net_at, place_of
from fedcore.nets.copies import template
from fedcore.types import InputError, Method, Net, Params

VERSIONS = {"fedcore": fedcore.__version__, "torch": torch.__version__.partition("+")[0]}
"""Both sides must have these: others give other bits."""


@dataclass(frozen=True)
class Plan:
    """All that a device needs to know of a run.

    run: its name. method, settings, training: as in params.yaml, complete. nets: device -> the number of its net in
    `kinds`, which says how each is built. shape, classes: of the examples. recipe: how devices prepare their rows, see
    :mod:`fedcore.field.recipe`; None: they bring examples as the net takes them.
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

    def read_recipe(self) -> Recipe | None:
        """Return how devices prepare their rows; None: they bring examples. Raises InputError for no recipe."""
        if self.recipe is None:
            return None
        made = Recipe.from_words(self.recipe)
        if (made.schema.shape, len(made.schema.classes)) != (self.shape, self.classes):
            raise InputError("recipe: has another shape, or other classes, than the run")
        return made

    @property
    def masked(self) -> bool:
        """Whether the server gets sums over devices alone."""
        return needs_sums_alone(self.method, self.settings)

    def build(self) -> tuple[Method, dict[str, Net]]:
        """Return the method and every device's net. Raises InputError where the field or these nets do not allow it."""
        loss = self.training.get("loss")
        if not isinstance(loss, str) or loss not in LOSSES:  # another would be imported
            raise InputError(f"training.loss = {loss!r}: must be one of {', '.join(LOSSES)} in the field")
        kinds = [_net_of(kind) for kind in self.kinds]
        nets = {name: kinds[number] for name, number in self.nets.items()}
        config = configure(self.method, self.settings, self.training)
        built = config.build(nets)
        require_real(self.method, built)
        return built, nets

    def to_json(self) -> str:
        """Return the plan as text. Raises InputError for settings that are no plain values."""
        try:
            return json.dumps(asdict(self))
        except TypeError as error:
            raise InputError(f"method {self.method}: its settings cannot travel ({error})") from None

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Undo `to_json`. Raises InputError for anything else."""
        try:
            words = _to_tuples(json.loads(text))
            plan = cls(**words)
            known = isinstance(plan.run, str) and plan.run.isalnum() and isinstance(plan.method, str)
            known = known and all(isinstance(part, dict) for part in (plan.settings, plan.training, plan.nets))
            if not known or not all(type(number) is int for number in (plan.seed, plan.classes, *plan.shape)):
                raise TypeError("a field of another type")
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"plan: no plan of a run ({error})") from None
        return plan


def plan_of(
    config: MethodConfig,
    nets: Mapping[str, Net],
    seed: int,
    run: str,
    shape: tuple[int, ...],
    classes: int,
    recipe: Recipe | None = None,
) -> Plan:
    """Return the plan of a method on some devices. Raises InputError for one that cannot run in the field."""
    if not isinstance(config.name, str) or config.name not in METHODS:
        raise InputError(
            f"method {config.label}: must be one of fedcore's own in the field, which devices have installed"
        )
    try:
        kinds = {id(net): _describe(net) for net in nets.values()}
    except TypeError as error:
        raise InputError(f"net: {error}") from None
    places = {key: number for number, key in enumerate(kinds)}
    plan = Plan(
        run, config.name, dict(config.settings), config.training.settings(), seed, shape, classes,
        {name: places[id(net)] for name, net in nets.items()}, tuple(kinds.values()), VERSIONS,
        None if recipe is None else recipe.to_words(),
    )  # fmt: skip
    Plan.from_json(plan.to_json()).build()
    return plan


def check_plan(plan: Plan, name: str, allowed: Collection[str]) -> None:
    """Refuse, on a device, a method that its owner did not allow, another version, or a run without this device."""
    if plan.method not in allowed or plan.method not in METHODS:
        raise InputError(f"method {plan.method}: not allowed on {name}; allowed: {', '.join(sorted(allowed))}")
    if dict(plan.versions) != VERSIONS:
        raise InputError(f"versions: the server has {_said(plan.versions)}, {name} has {_said(VERSIONS)}")
    if name not in plan.nets:
        raise InputError(f"run {plan.run}: {name} is not one of its devices")


def check_leaves(params: Params, net: Net, who: str) -> None:
    """Refuse a leaf with a name of the net's, but another shape or type."""
    known = leaves(template(net))
    for name, leaf in params.items():
        if name in known and (leaf.shape, leaf.dtype) != (known[name].shape, known[name].dtype):
            raise InputError(
                f"{who}: leaf {name} is {leaf.dtype} {tuple(leaf.shape)}, its net has {known[name].dtype} "
                f"{tuple(known[name].shape)}"
            )


def _said(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{part} {number}" for part, number in versions.items())


def _describe(net: Net) -> tuple[Any, ...]:
    return place_of(net), *build_arguments(net), net.axes


def _net_of(kind: Any) -> Net:
    place, positional, named, axes = kind
    try:
        return replace(net_at(place, (positional, named)), axes=axes)
    except ValueError as error:
        raise InputError(f"net: {error}") from None


def _to_tuples(value: Any) -> Any:
    """Return JSON's lists as tuples, which nets and settings have in their place."""
    if isinstance(value, dict):
        return {key: _to_tuples(part) for key, part in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
