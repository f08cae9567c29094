"""The sections of params.yaml: the keys that each may have, and its complete settings.

A section's keys, types and defaults are those of the signature of the function that takes it.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Literal

from pydantic import BaseModel

from fedcore.builders import CONTEXT, NET_CONTEXT, PARTITION_CONTEXT, settings_of, unknown_value
from fedcore.config.methods import MethodConfig, configure, require_trains
from fedcore.config.signatures import check, model, settings_for, union
from fedcore.core.threats import split_threats
from fedcore.core.training import Training
from fedcore.data import DATASETS, loader_of
from fedcore.errors import InputError
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS, maker
from fedcore.partition import AUTO, PARTITIONS, partition
from fedcore.types.federation import Threats
from fedcore.types.ranges import Depth

REQUIRED = ("run", "data", "federation", "net", "training")
"""Sections that params.yaml must have."""

SHARED = "methods"
"""The section whose settings apply to every method that takes them."""


@dataclass(frozen=True)
class Scaling:
    """scale: standardise features by each device's own training examples (device), or by all devices' (common)."""

    scale: Literal["none", "device", "common"] = "none"


@dataclass(frozen=True)
class Start:
    """weights: a safetensors file that the net starts from; frozen, rank: see fedcore.nets.weights.with_weights."""

    weights: str | None = None
    frozen: bool = False
    rank: Depth = 0


START = tuple(signature(Start).parameters)
"""The settings of any net."""


def shared_settings() -> type[BaseModel]:
    """Return the model of all settings of all methods."""
    return union(tuple(map(builder, METHODS)), CONTEXT)


def federation_settings() -> type[BaseModel]:
    """Return the model of the settings of a federation, but for the partition's name."""
    return model(partition, PARTITION_CONTEXT, (Scaling, Threats))


def allowed_keys(section: tuple[str, ...], custom: Mapping[str, str]) -> Collection[str]:
    """Return the keys that a section may have, whether or not params.yaml has them.

    section: its name, and of a section within another both names. custom: the user's methods, name -> path.
    """
    match section:
        case ():
            return [*REQUIRED, SHARED, *METHODS, *custom]
        case ("data",):
            return union(tuple(map(loader_of, DATASETS))).model_fields
        case ("net",):
            return [*union(tuple(map(maker, NETS)), NET_CONTEXT).model_fields, *START, "variants"]
        case ("federation",):
            return [*federation_settings().model_fields, "partition"]
        case ("training",) | (_, "training"):
            return model(Training).model_fields
        case ("methods",):
            return shared_settings().model_fields
        case (name,) if name in METHODS or name in custom:
            return [*model(builder(custom.get(name, name)), CONTEXT).model_fields, "training"]
    return ()


def as_arguments(text: str) -> str:
    """Return a line that names settings as a script does: `missing`, an argument of `load`, not `data.missing`."""
    own = {of: {*allowed_keys((of,), {})} - {"name", "partition"} for of in ("data", "federation", "net")}
    own["run"] = {"metric", "positive", "costs", "min_effect", "least_test", "weigh", "new_device"}  # of compare

    def rename(found: re.Match[str]) -> str:
        return found[2] if found[2] in own[found[1]] else found[0]

    return re.sub(r"(?<![\w./-])(data|federation|net|run)\.(\w+)", rename, text)


@contextmanager
def in_script() -> Iterator[None]:
    """Let errors of what a script calls name its arguments."""
    try:
        yield
    except InputError as error:
        error.args = (as_arguments(str(error)),)
        raise


def data_settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dataset's name, and the loader's arguments: the settings of the section that it takes."""
    settings = {key: value for key, value in section.items() if value is not None}
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise unknown_value("data.name", name, (*DATASETS, "package.module:function"))
    loader = loader_of(name)
    takes = settings_of(loader)
    if "root" in takes:
        settings.setdefault("root", os.environ.get("FEDCORE_DATA", "datasets"))
    for key, (_, default) in takes.items():
        if default is Parameter.empty and key not in settings:
            raise InputError(f"data.{key}: must be set for data.name = {name!r}")
    return {"name": name, **settings_for(loader, "data", settings, map(loader_of, DATASETS))}


def complete_federation(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a federation; those of `Threats` only if devices misbehave, `hold_out` only if stable."""
    settings = {"partition": signature(partition).parameters["name"].default, **section}
    name = settings.pop("partition")
    if name not in (*PARTITIONS, AUTO):
        raise unknown_value("federation.partition", name, (*PARTITIONS, AUTO))
    behaviour, others = split_threats(check(federation_settings(), "federation", settings).model_dump())
    if others["hold_out"] == "random":  # what was computed before there was a choice keeps its digests
        del others["hold_out"]
    return {"partition": name, **others, **(behaviour if Threats(**behaviour) else {})}


def net_settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the net's settings: those of the section that it takes. `variants`: complete settings of further nets."""
    settings = dict(section)
    variants = settings.pop("variants", None) or []
    if not isinstance(variants, list) or not all(isinstance(variant, Mapping) for variant in variants):
        raise InputError(f"net.variants = {variants!r}: must be a list of sections, e.g. [{{widths: [48, 24]}}]")
    others = [net_settings({**settings, **variant}) for variant in variants]
    name = settings.pop("name", None)
    if not isinstance(name, str) or (name not in NETS and ":" not in name):
        raise unknown_value("net.name", name, (*NETS, "package.module:Class"))
    start = start_settings("net", maker(name), settings)
    complete = settings_for(maker(name), "net", settings, map(maker, NETS), NET_CONTEXT)
    return {"name": name, **complete, **start, **({"variants": others} if others else {})}


def net_keys(name: Any) -> list[str]:
    """Return the keys that section net may have with one of fedcore's nets; none for another name."""
    return ["name", *model(maker(name), NET_CONTEXT).model_fields, *START, "variants"] if name in NETS else []


def start_settings(where: str, make: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Take from settings those of a net that starts from a file; returns none for one that does not.

    Refuses one that could also be a parameter of a user's net. make: of the net; where: its section or name.
    """
    given, takes = {key: settings.pop(key) for key in START if key in settings}, settings_of(make, NET_CONTEXT)
    for key in [key for key in given if key in takes and not isinstance(given[key], str)]:
        why = f"a parameter of the net's has the name of a setting of fedcore's ({', '.join(START)}); call it otherwise"
        raise InputError(f"{where}.{key} = {given[key]!r}: {why}")
    start = check(model(Start), where, given).model_dump()
    if start["weights"] is None:
        for key in ("frozen", "rank"):
            if start[key]:
                raise InputError(f"net.{key} = {start[key]}: is for a net with net.weights")
        return {}
    return {key: value for key, value in start.items() if value}


def method_config(
    params: Mapping[str, Any], label: str, row: Mapping[str, Any], training: Mapping[str, Any], typed: Mapping[str, Any]
) -> MethodConfig:
    """Return a row's method: section `methods`, then the method's section, then the row.

    Training: params.yaml, then the builder's defaults, then `training`, which a study sets for all rows, then the
    method's section and the row. What is typed, by sections, wins over all that; but a row with a label of its own,
    which is a variant of its method, keeps what it says itself.
    """
    row = dict(row)
    name = str(row.pop("method", label))
    build, own = builder(name), name.rpartition(":")[2]
    takes = model(build, CONTEXT).model_fields
    settings: dict[str, Any] = {}
    trained = {**params["training"], **getattr(build, "training_defaults", {}), **training}
    for sections in (params, {own: row}, typed, {own: row if label != name else {}}):
        shared = {key: value for key, value in sections.get(SHARED, {}).items() if key in takes}
        section = sections.get(own, {})
        settings |= shared | section
        require_trains(build, f"{own}.training", section.get("training", {}))
        trained |= (sections.get("training", {}) if sections is typed else {}) | section.get("training", {})
    settings.pop("training", None)
    return configure(name, settings, trained, label=label.rpartition(":")[2])


def by_section(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that are typed, one by one or a section as a whole, as sections within sections."""
    sections: dict[str, Any] = {}
    for key, value in typed.items():
        *above, name = key.split(".")
        section = sections
        for part in above:
            section[part] = section = {**section.get(part, {})}
        section[name] = {**section.get(name, {}), **value} if isinstance(value, Mapping) else value
    return sections
