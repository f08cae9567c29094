"""params.yaml read, checked and turned into what a run needs; nothing is computed before all of it is right.

A section's model is the signature of what it is passed to, so that a setting is declared once, where it is used.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import yaml
from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedcore.data import DATASETS
from fedcore.local import Training
from fedcore.methods import METHODS
from fedcore.methods import method as build_method
from fedcore.nets import NETS
from fedcore.partition import PARTITIONS
from fedcore.types import Method, Net, Refused

M = TypeVar("M", bound=BaseModel)
Share = Annotated[float, Ge(0), Lt(1)]
Seeds = Annotated[list[Annotated[int, Ge(0)]], Field(min_length=1)]
SECTIONS = ("run", "data", "federation", "net", "training", "studies")
"""Sections that params.yaml must have; the others are the methods'."""

GIVEN = ("net", "training", "common")
"""What every method's builder gets beside its own section."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(Section):
    """Which dataset, and where it lies; a loader takes those settings that it knows."""

    name: str
    root: str | None = None
    download: bool = True
    path: str | None = None
    label: str | None = None
    device: str | None = None
    split: str | None = None
    features: list[str] | None = None


class FederationSection(Section):
    """Who holds what."""

    partition: str
    devices: Annotated[int, Ge(1)]
    alpha: Annotated[float, Gt(0)]
    min_size: Annotated[int, Ge(1)]
    val: Share
    test: Share
    shared_test: Share
    scale: Literal["none", "device"]


class Study(Section):
    """A question as data: which settings, methods and seeds answer it."""

    title: str
    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    sizes: dict[str, Size]


class Size(Section):
    """set: settings of the study in this size. grid: settings of which every combination is run."""

    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)


class Run(Section):
    """What a plain run does."""

    studies: Annotated[list[str], Field(min_length=1)]
    size: str
    seeds: Seeds
    every: Annotated[int, Ge(1)]
    workers: Annotated[int, Ge(1)] | None


Study.model_rebuild()


@dataclass(frozen=True)
class MethodSettings:
    """A row of the comparison: a method and all that is bound to it."""

    label: str
    name: str
    common: bool
    training: dict[str, Any]
    own: dict[str, Any]

    def build(self, net: Net) -> Method:
        return build_method(self.name, net=net, training=Training(**self.training), common=self.common, **self.own)

    def flat(self) -> dict[str, Any]:
        """Return every setting, for the record."""
        training = {f"training.{key}": value for key, value in self.training.items()}
        return {"method": self.name, "init": "common" if self.common else "per_device", **training, **self.own}


@dataclass(frozen=True)
class Setting:
    """One point of a study's grid, ready to run: its name, its data and federation, its net, its methods."""

    study: str
    name: str
    data: dict[str, Any]
    federation: FederationSection
    net: dict[str, Any]
    methods: tuple[MethodSettings, ...]

    @property
    def slug(self) -> str:
        """The name, fit for a path."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.name)

    @property
    def dataset(self) -> str:
        """A name for the dataset as these settings read it, fit for a path."""
        words = json.dumps({k: v for k, v in self.data.items() if k not in ("root", "download")}, sort_keys=True)
        return f"{self.data['name']}-{hashlib.blake2b(words.encode(), digest_size=4).hexdigest()}"


def read(path: Path = Path("params.yaml")) -> dict[str, Any]:
    """Read params.yaml; raises Refused where it is missing or not YAML."""
    try:
        params = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise Refused(f"{path}: no such file; run this in the project's folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(params, dict):
        raise Refused(f"{path}: must hold sections, has {type(params).__name__}")
    known = (*SECTIONS, *METHODS)
    for name, section in params.items():
        if name not in known:
            raise Refused(f"{name}: no such section{_near(str(name), known)}")
        if not isinstance(section, dict):
            raise Refused(f"{name} = {section!r}: must be a section; one without keys is {{}}")
    for name in SECTIONS:
        if name not in params:
            raise Refused(f"{name}: the section is missing in {path}")
    return params


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Read key=value words as typed in a shell; values are YAML."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise Refused(f"{word!r}: must be key=value, e.g. federation.devices=16")
        try:
            settings[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise Refused(f"{key}: {text!r} is not a YAML value") from None
    return settings


def changed(params: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return params with dotted keys set; an unknown key is refused."""
    result = dict(params)
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        if head not in result:
            raise Refused(f"{key}: no such key{_near(head, result)}")
        if rest:
            if not isinstance(result[head], Mapping):
                raise Refused(f"{key}: {head} has no keys below it")
            below = {**_optional(head), **result[head]}
            try:
                result[head] = changed(below, {rest: value})
            except Refused as refused:
                raise Refused(f"{head}.{refused}") from None
        elif isinstance(result[head], Mapping) and not isinstance(value, Mapping):
            raise Refused(f"{key} = {value!r}: is a section, set a key below it: {', '.join(result[head])}")
        else:
            result[head] = value
    return result


def _optional(section: str) -> dict[str, None]:
    """Return the keys of a section that may be left out of params.yaml."""
    fields = DataSection.model_fields if section == "data" else {}
    return {key: field.default for key, field in fields.items() if not field.is_required()}


def run_section(params: Mapping[str, Any]) -> Run:
    return checked(Run, "run", params.get("run", {}))


def study(params: Mapping[str, Any], name: str) -> Study:
    studies = params.get("studies", {})
    if name not in studies:
        raise Refused(f"run.studies: {name!r} is not known (allowed: {', '.join(studies)}){_near(name, studies)}")
    return checked(Study, f"studies.{name}", studies[name])


def settings(
    params: Mapping[str, Any], study_name: str, size_name: str, changes: Mapping[str, Any], methods: Sequence[str] = ()
) -> list[Setting]:
    """Return the points of a study's grid.

    params < the study's `set` < a grid point < changes (typed by the user, so that they win; one that names a grid key
    leaves a single point). methods: labels of the study, or names of methods with their own section; all if empty.
    """
    chosen = study(params, study_name)
    if size_name not in chosen.sizes:
        raise Refused(f"run.size = {size_name!r}: study {study_name} has sizes {', '.join(chosen.sizes)}")
    size = chosen.sizes[size_name]
    grid = {key: values for key, values in size.grid.items() if key not in changes}
    points = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        here = changed(changed(params, {**size.set, **point}), changes)
        name = " ".join(f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, int | float) else f"{value}"
                        for key, value in point.items()) or "base"  # fmt: skip
        points.append(_setting(here, study_name, name, chosen, methods))
    return points


def _setting(params: Mapping[str, Any], study_name: str, name: str, chosen: Study, methods: Sequence[str]) -> Setting:
    data = checked(DataSection, "data", params["data"])
    if data.name not in DATASETS:
        raise Refused(f"data.name = {data.name!r}: allowed: {', '.join(DATASETS)}{_near(data.name, DATASETS)}")
    federation = checked(FederationSection, "federation", params["federation"])
    if federation.partition not in PARTITIONS:
        raise Refused(
            f"federation.partition = {federation.partition!r}: allowed: {', '.join(PARTITIONS)}"
            f"{_near(federation.partition, PARTITIONS)}"
        )
    labels = methods or list(chosen.methods)
    rows = tuple(_method(params, label, chosen.methods.get(label)) for label in labels)
    return Setting(study_name, name, _loader_settings(data), federation, _net(params["net"]), rows)


def _loader_settings(data: DataSection) -> dict[str, Any]:
    module, _, function = DATASETS[data.name].partition(":")
    takes = signature(getattr(import_module(module), function)).parameters
    given = {key: value for key, value in data.model_dump().items() if key in takes}
    if "root" in takes and given["root"] is None:
        given["root"] = os.environ.get("FEDCORE_DATA", "datasets")
    for key, parameter in takes.items():
        if parameter.default is Parameter.empty and given.get(key) is None:
            raise Refused(f"data.{key}: must be set for data.name = {data.name!r}")
    return {"name": data.name, **given}


def _net(section: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(section)
    name = own.pop("name", None)
    if name not in NETS:
        raise Refused(f"net.name = {name!r}: allowed: {', '.join(NETS)}{_near(str(name), NETS)}")
    module, _, function = NETS[name].partition(":")
    given = checked(_model(getattr(import_module(module), function), ("shape", "classes")), "net", own)
    return {"name": name, **given.model_dump()}


def _method(params: Mapping[str, Any], label: str, row: Mapping[str, Any] | None) -> MethodSettings:
    row = dict(row or {})
    name = row.pop("method", label)
    if name not in METHODS:
        raise Refused(f"method = {name!r}: allowed: {', '.join(METHODS)}{_near(name, METHODS)}")
    own = {**params.get(name, {}), **row}
    training = {**params["training"], **own.pop("training", {})}
    init = training.pop("init", None)
    if init not in ("common", "per_device"):
        raise Refused(f"training.init = {init!r}: allowed: common, per_device")
    settled = checked(_model(Training, ()), "training", training).model_dump()
    Training(**settled)  # refuses what its annotations cannot
    builder = getattr(import_module(METHODS[name]), name)
    return MethodSettings(
        label,
        name,
        init == "common",
        settled,
        checked(_model(builder, GIVEN), name, own).model_dump(),
    )


@cache
def _model(fn: Callable[..., Any], given: tuple[str, ...]) -> type[BaseModel]:
    """Return the model of a callable's keyword arguments, except those that are given to it anyway."""
    hints = get_type_hints(fn, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is Parameter.empty else parameter.default)
        for name, parameter in signature(fn).parameters.items()
        if name not in given
    }
    return create_model(getattr(fn, "__name__", "Settings"), __base__=Section, **fields)


def checked(model: type[M], where: str, values: Any) -> M:
    """Return the values as a model; raises Refused: one line with the key, the value and what is allowed."""
    if not isinstance(values, Mapping):
        raise Refused(f"{where} = {values!r}: must be a section with keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(dict(values), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([where, *(str(part) for part in first["loc"])])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        match first["type"]:
            case "missing":
                raise Refused(f"{key}: is missing{more}") from None
            case "extra_forbidden":
                allowed = ", ".join(model.model_fields) or "none"
                near = _near(str(first["loc"][-1]), model.model_fields)
                raise Refused(f"{key}: no such key (allowed: {allowed}){near}{more}") from None
        raise Refused(f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}{more}") from None


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
