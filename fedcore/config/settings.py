"""The complete settings of one point of a study's grid, checked before anything is computed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal

from fedcore.builders import CONTEXT, NET_CONTEXT, PARTITION_CONTEXT, suggestion
from fedcore.config.methods import MethodConfig, configure
from fedcore.config.params import SHARED, loaders, makers, shared_settings
from fedcore.config.signatures import Section, check, model, settings_for
from fedcore.core.threats import split_threats
from fedcore.data import DATASETS
from fedcore.methods import builder
from fedcore.nets import NETS, maker
from fedcore.partition import AUTO, PARTITIONS, partition
from fedcore.types import InputError, Threats


@dataclass(frozen=True)
class Setting:
    """One point of a study's grid, ready to run: name, data, federation, net and methods.

    every: the number of rounds between evaluations.
    """

    study: str
    name: str
    point: dict[str, Any]
    data: dict[str, Any]
    federation: dict[str, Any]
    net: dict[str, Any]
    methods: tuple[MethodConfig, ...]
    every: int

    @property
    def slug(self) -> str:
        return slug(self.name)

    @property
    def nets(self) -> list[dict[str, Any]]:
        """The settings of the nets that devices have in turn."""
        return [{key: value for key, value in self.net.items() if key != "variants"}, *self.net.get("variants", ())]

    @property
    def threats(self) -> Threats | None:
        """How devices misbehave, if they do."""
        mine, _ = split_threats(self.federation)
        return Threats(**mine) if mine else None

    @property
    def task(self) -> str:
        """A name for what is predicted: the dataset, or the name of the user's own file or folder, and the label."""
        parts = [Path(self.data["path"]).stem if "path" in self.data else self.data["name"], self.data.get("label")]
        return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts)))

    @property
    def source(self) -> str:
        """The words of all settings that say where the data are and how they are read."""
        return json.dumps(self.data, sort_keys=True)

    @property
    def division(self) -> str:
        """The words of the settings that say how the data are divided."""
        return json.dumps(self.federation, sort_keys=True)

    @property
    def content(self) -> dict[str, Any]:
        """The settings that determine which data are read; their location aside."""
        return {key: value for key, value in self.data.items() if key not in ("root", "download")}

    @property
    def dataset(self) -> str:
        """A name for the dataset that these settings read, valid in a path."""
        words = json.dumps(self.content, sort_keys=True)
        return f"{self.data['name']}-{hashlib.blake2b(words.encode(), digest_size=4).hexdigest()}"


def slug(name: str) -> str:
    """Return a setting's name, valid in a path."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)


def resolve(
    params: Mapping[str, Any],
    *,
    study: str,
    name: str,
    point: dict[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    every: int,
) -> Setting:
    """Return the checked settings of one point, with a method for each row (label -> changes)."""
    check(shared_settings(), SHARED, params.get(SHARED, {}))
    methods = tuple(_method(params, label, row) for label, row in rows.items())
    labels = [row.label for row in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"methods: there are two rows {label!r}; give one another label in a study")
    data, federation, net = _data(params["data"]), _federation(params["federation"]), _net(params["net"])
    return Setting(study, name, point, data, federation, net, methods, every)


def _data(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loader's arguments: the settings of the section that it takes."""
    settings = {key: value for key, value in section.items() if value is not None}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in DATASETS:
        raise InputError(f"data.name = {name!r}: allowed: {', '.join(DATASETS)}{suggestion(str(name), DATASETS)}")
    loader = loaders()[name]
    parameters = signature(loader).parameters
    if "root" in parameters:
        settings.setdefault("root", os.environ.get("FEDCORE_DATA", "datasets"))
    for key, parameter in parameters.items():
        if parameter.default is Parameter.empty and key not in settings:
            raise InputError(f"data.{key}: must be set for data.name = {name!r}")
    return {"name": name, **settings_for(loader, "data", settings, loaders().values())}


def _federation(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `fedcore.partition.partition`, `scale`, and those of `Threats` if devices misbehave."""
    behaviour, others = split_threats(section)
    threats = Threats(**check(model(Threats), "federation", behaviour).model_dump())
    settings = {"partition": signature(partition).parameters["name"].default, **others}
    scale = check(Scale, "federation", {key: settings.pop(key) for key in ("scale",) if key in settings}).scale
    name = settings.pop("partition")
    allowed = (*PARTITIONS, AUTO)
    if name not in allowed:
        raise InputError(
            f"federation.partition = {name!r}: allowed: {', '.join(allowed)}{suggestion(str(name), allowed)}"
        )
    complete = check(model(partition, PARTITION_CONTEXT), "federation", settings).model_dump()
    return {"partition": name, **complete, "scale": scale, **(asdict(threats) if threats else {})}


class Scale(Section):
    scale: Literal["none", "device"] = "none"


def _net(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the net's settings: those of the section that it takes. `variants`: complete settings of further nets."""
    settings = dict(section)
    variants = settings.pop("variants", None) or []
    if not isinstance(variants, list) or not all(isinstance(one, Mapping) for one in variants):
        raise InputError(f"net.variants = {variants!r}: must be a list of sections, e.g. [{{widths: [48, 24]}}]")
    more = [_net({**settings, **one}) for one in variants]
    name = settings.pop("name", None)
    if not isinstance(name, str) or (name not in NETS and ":" not in name):
        raise InputError(
            f"net.name = {name!r}: allowed: {', '.join(NETS)}, package.module:Class{suggestion(str(name), NETS)}"
        )
    complete = settings_for(maker(name), "net", settings, makers().values(), NET_CONTEXT)
    return {"name": name, **complete, **({"variants": more} if more else {})}


def _method(params: Mapping[str, Any], label: str, row: Mapping[str, Any]) -> MethodConfig:
    """Return a row's method: section `methods`, then the method's section, then the row; training likewise."""
    row = dict(row)
    name = str(row.pop("method", label))
    build, section = builder(name), params.get(name.rpartition(":")[2], {})
    takes = model(build, CONTEXT).model_fields
    shared = {key: value for key, value in params.get(SHARED, {}).items() if key in takes}
    settings = {key: value for key, value in {**shared, **section, **row}.items() if key != "training"}
    defaults = getattr(build, "training_defaults", {})
    training = {**params["training"], **defaults, **section.get("training", {}), **row.get("training", {})}
    return configure(name, settings, training, label=label.rpartition(":")[2])
