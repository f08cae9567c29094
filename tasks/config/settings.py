"""params.yaml read, checked and turned into what a run needs; nothing is computed before all of it is right.

A section's model is the signature of what it is passed to, so that a setting is declared once, where it is used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge
from pydantic import Field

from fedcore.builders import GIVEN, near
from fedcore.data import DATASETS
from fedcore.local import Training
from fedcore.methods import METHODS, builder
from fedcore.methods import method as build_method
from fedcore.nets import NETS, maker
from fedcore.partition import PARTITIONS, partition
from fedcore.results.claims import DOMAIN, Claim
from fedcore.settings import Section, checked, model, taken, union
from fedcore.types import InputError, Method, Net

Seeds = Annotated[list[Annotated[int, Ge(0)]], Field(min_length=1)]
SECTIONS = ("run", "data", "federation", "net", "training", "studies")
"""Sections that params.yaml must have; the others are the methods'."""

EVERY = "run.every"
"""The only setting of section run that a study may set for itself."""

EXAMPLES = ("shape", "classes")
"""What every net gets: it comes from the data."""

PARTITION = ("dataset", "name", "seed")
"""What a partition gets beside its section."""


class Study(Section):
    """A question as data: which settings, methods and seeds answer it.

    methods: rows of the comparison: label -> changes to the method's section (`method` where the label is no method).
    claims: what a paper says, as rules. along: the grid key along which the page draws accuracy. show: what else the
    page draws of every setting, with the first seed (docs/pipeline.md).
    """

    title: str
    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    sizes: dict[str, Size]
    claims: list[Claim] = Field(default_factory=list)
    along: str | None = None
    show: list[Literal["transport", "similarity", "alignment", "features", "soft_targets", "links"]] = Field(
        default_factory=list
    )


class Size(Section):
    """set: settings of the study in this size. grid: settings of which every combination is run.

    A grid's values are settings of its key, or, by name or number, several settings that go together.
    """

    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any] | dict[str | float, dict[str, Any]]] = Field(default_factory=dict)


class Run(Section):
    """What a plain run does."""

    studies: Annotated[list[str], Field(min_length=1)]
    size: str
    seeds: Seeds
    every: Annotated[int, Ge(1)]
    workers: Annotated[int, Ge(1)] | None
    accelerator: Literal["auto", "none"]


Study.model_rebuild()


@dataclass(frozen=True)
class MethodSettings:
    """A row of the comparison: a method and all that is bound to it."""

    label: str
    name: str
    common: bool
    training: dict[str, Any]
    own: dict[str, Any]

    def build(self, nets: Mapping[str, Net]) -> Method:
        """Build the method; raises InputError, naming the row, where it cannot be had with these nets."""
        try:
            return build_method(
                self.name, nets=nets, training=Training(**self.training), common=self.common, **self.own
            )
        except InputError as refused:
            raise InputError(f"{refused} (row {self.label})") from None

    def flat(self) -> dict[str, Any]:
        """Return every setting, for the record."""
        training = {f"training.{key}": value for key, value in self.training.items()}
        return {"method": self.name, "init": "common" if self.common else "per_device", **training, **self.own}


@dataclass(frozen=True)
class Setting:
    """One point of a study's grid, ready to run: its name, its data and federation, its net, its methods.

    every: evaluate after each so many rounds.
    """

    study: str
    name: str
    point: dict[str, Any]
    data: dict[str, Any]
    federation: dict[str, Any]
    net: dict[str, Any]
    methods: tuple[MethodSettings, ...]
    every: int

    @property
    def slug(self) -> str:
        return slug(self.name)

    @property
    def dataset(self) -> str:
        """A name for the dataset as these settings read it, fit for a path."""
        words = json.dumps({k: v for k, v in self.data.items() if k not in ("root", "download")}, sort_keys=True)
        return f"{self.data['name']}-{hashlib.blake2b(words.encode(), digest_size=4).hexdigest()}"


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times faster where PyYAML was built with libyaml."""


def slug(name: str) -> str:
    """Return a setting's name, fit for a path."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)


def read(path: Path = Path("params.yaml")) -> dict[str, Any]:
    """Read params.yaml; raises InputError where it is missing or not YAML."""
    try:
        params = LOADER(path.read_text()).get_single_data()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run this in the project's folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(params, dict):
        raise InputError(f"{path}: must hold sections, has {type(params).__name__}")
    known = (*SECTIONS, *METHODS)
    for name, section in params.items():
        if name not in known:
            raise InputError(f"{name}: no such section{near(str(name), known)}")
        if not isinstance(section, dict):
            raise InputError(f"{name} = {section!r}: must be a section; one without keys is {{}}")
    for name in SECTIONS:
        if name not in params:
            raise InputError(f"{name}: the section is missing in {path}")
    return params


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Read key=value words as typed in a shell; values are YAML."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InputError(f"{word!r}: must be key=value, e.g. federation.devices=16")
        try:
            settings[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"{key}: {text!r} is not a YAML value") from None
    return settings


def changed(params: Mapping[str, Any], changes: Mapping[str, Any], more: Collection[str] = ()) -> dict[str, Any]:
    """Return params with dotted keys set; a key that is neither there nor one of `more` is refused."""
    result = dict(params)
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        if head not in result and head not in more:
            raise InputError(f"{key}: no such key{near(head, [*result, *more])}")
        if rest:
            if not isinstance(result.get(head), Mapping):
                raise InputError(f"{key}: {head} has no keys below it")
            try:
                own = head == "net" and ":" in str(changes.get("net.name", result[head].get("name")))
                result[head] = changed(result[head], {rest: value}, (rest,) if own else _optional(head))
            except InputError as refused:
                raise InputError(f"{head}.{refused}") from None
        elif isinstance(result.get(head), Mapping) and not isinstance(value, Mapping):
            raise InputError(f"{key} = {value!r}: is a section, set a key below it: {', '.join(result[head])}")
        else:
            result[head] = value
    return result


def _optional(section: str) -> Collection[str]:
    """Return the keys of a section that may be left out of params.yaml."""
    match section:
        case "data":
            return union(tuple(_loaders().values())).model_fields
        case "net":
            return [*union(tuple(_nets().values()), EXAMPLES).model_fields, "variants"]
        case "federation":
            return model(partition, PARTITION).model_fields
    return ()


def run_section(params: Mapping[str, Any]) -> Run:
    return checked(Run, "run", params.get("run", {}))


def study(params: Mapping[str, Any], name: str) -> Study:
    studies = params.get("studies", {})
    if name not in studies:
        raise InputError(f"run.studies: {name!r} is not known (allowed: {', '.join(studies)}){near(name, studies)}")
    chosen = checked(Study, f"studies.{name}", studies[name])
    for size, one in chosen.sizes.items():
        if DOMAIN in one.grid:
            raise InputError(
                f"studies.{name}.sizes.{size}.grid.{DOMAIN}: no key of a grid, claims mean the devices' domain by it; "
                "use another name"
            )
    for claim in chosen.claims:
        for label in claim.labels - set(chosen.methods):
            raise InputError(
                f"studies.{name}.claims: {claim.rule!r} names {label!r}, the study has no such row in methods"
            )
    return chosen


def settings(
    params: Mapping[str, Any], study_name: str, size_name: str, changes: Mapping[str, Any], methods: Sequence[str] = ()
) -> list[Setting]:
    """Return the points of a study's grid.

    params < the study's `set` < a grid point < changes (typed by the user, so that they win; one that names a grid key
    leaves a single point). methods: labels of the study, or names of methods with their own section; all if empty.
    """
    chosen = study(params, study_name)
    if size_name not in chosen.sizes:
        raise InputError(f"run.size = {size_name!r}: study {study_name} has sizes {', '.join(chosen.sizes)}")
    points = []
    for values in itertools.product(
        *(_axis(key, values, changes) for key, values in chosen.sizes[size_name].grid.items())
    ):
        point = {key: word for key, word, _ in values}
        sets = {key: value for _, _, settings in values for key, value in settings.items()}
        for key in [*chosen.sizes[size_name].set, *sets]:
            if key.startswith("run.") and key != EVERY:
                raise InputError(
                    f"studies.{study_name}: {key} is of all studies; of section run a study sets every alone"
                )
        mine = {key: value for key, value in changes.items() if key not in point}
        here = changed(changed(params, {**chosen.sizes[size_name].set, **sets}), mine)
        points.append(_setting(here, study_name, _named(point), point, chosen, methods))
    return points


def _axis(key: str, values: Sequence[Any] | Mapping[Any, Any], changes: Mapping[str, Any]) -> list[Any]:
    """Return the places along one axis of a grid: (key, what it is called there, settings)."""
    if isinstance(values, Mapping):
        named = [(key, name, settings) for name, settings in values.items() if changes.get(key, name) == name]
        if not named:
            names = list(map(str, values))
            raise InputError(f"{key} = {changes[key]!r}: allowed: {', '.join(names)}{near(str(changes[key]), names)}")
        return named
    return [(key, value, {key: value}) for value in ([changes[key]] if key in changes else values)]


def _named(point: Mapping[str, Any]) -> str:
    """Return a name for a point of a grid."""
    return " ".join(f"{key.rpartition('.')[2]}={_word(value)}" for key, value in point.items()) or "base"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_word, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _setting(
    params: Mapping[str, Any], study_name: str, name: str, point: dict[str, Any], chosen: Study, methods: Sequence[str]
) -> Setting:
    rows = tuple(_method(params, label, chosen.methods.get(label)) for label in methods or list(chosen.methods))
    data, federation = _data(params["data"]), _federation(params["federation"])
    every = run_section(params).every
    return Setting(study_name, name, point, data, federation, _net(params["net"]), rows, every)


def _data(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the loader is given: of the section those settings that it knows."""
    own = {key: value for key, value in section.items() if value is not None}
    name = own.pop("name", None)
    if name not in DATASETS:
        raise InputError(f"data.name = {name!r}: allowed: {', '.join(DATASETS)}{near(str(name), DATASETS)}")
    loader = _loaders()[str(name)]
    takes = signature(loader).parameters
    if "root" in takes:
        own.setdefault("root", os.environ.get("FEDCORE_DATA", "datasets"))
    for key, parameter in takes.items():
        if parameter.default is Parameter.empty and key not in own:
            raise InputError(f"data.{key}: must be set for data.name = {name!r}")
    return {"name": name, **taken(loader, "data", own, _loaders().values())}


def _federation(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `fedcore.partition.partition`, and how features are scaled."""
    own = dict(section)
    scale = checked(Scale, "federation", {key: own.pop(key) for key in ("scale",) if key in own}).scale
    if own.get("partition") not in PARTITIONS:
        hint = near(str(own.get("partition")), PARTITIONS)
        raise InputError(f"federation.partition = {own.get('partition')!r}: allowed: {', '.join(PARTITIONS)}{hint}")
    name = own.pop("partition")
    given = checked(model(partition, PARTITION), "federation", own).model_dump()
    return {"partition": name, **given, "scale": scale}


class Scale(Section):
    scale: Literal["none", "device"]


def _net(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the net's settings: of the section those that it knows; `variants`: as many more nets, in full."""
    own = dict(section)
    variants = own.pop("variants", None) or []
    if not isinstance(variants, list) or not all(isinstance(one, Mapping) for one in variants):
        raise InputError(f"net.variants = {variants!r}: must be a list of sections, e.g. [{{widths: [48, 24]}}]")
    more = [_net({**own, **one}) for one in variants]
    name = own.pop("name", None)
    if name not in NETS and ":" not in str(name):
        raise InputError(
            f"net.name = {name!r}: allowed: {', '.join(NETS)}, package.module:Class{near(str(name), NETS)}"
        )
    given = taken(maker(str(name)), "net", own, _nets().values(), EXAMPLES)
    return {"name": name, **given, **({"variants": more} if more else {})}


@cache
def _loaders() -> dict[str, Callable[..., Any]]:
    places = {name: place.partition(":") for name, place in DATASETS.items()}
    return {name: getattr(import_module(module), function) for name, (module, _, function) in places.items()}


@cache
def _nets() -> dict[str, Callable[..., Any]]:
    return {name: maker(name) for name in NETS}


def _method(params: Mapping[str, Any], label: str, row: Mapping[str, Any] | None) -> MethodSettings:
    row = dict(row or {})
    name = row.pop("method", label)
    if name not in METHODS:
        raise InputError(f"method = {name!r}: allowed: {', '.join(METHODS)}{near(name, METHODS)}")
    own = {**params.get(name, {}), **row}
    build = builder(name)
    training = {**params["training"], **getattr(build, "trains", {}), **own.pop("training", {})}
    init = training.pop("init", None)
    if init not in ("common", "per_device"):
        raise InputError(f"training.init = {init!r}: allowed: common, per_device")
    settled = checked(model(Training), "training", training).model_dump()
    return MethodSettings(
        label,
        name,
        init == "common",
        settled,
        checked(model(build, GIVEN), name, own).model_dump(),
    )
