"""A run's request: which studies, methods and seeds, with which settings; from the command line or a deployment."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from shlex import quote
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from fedcore.builders import parameters
from fedcore.config.files import read_mapping, template
from fedcore.config.params import change, read
from fedcore.config.params import parse as parse_arguments
from fedcore.config.sections import SHARED, START, allowed_keys, by_section
from fedcore.config.settings import Setting
from fedcore.config.signatures import check
from fedcore.config.studies import OF_STUDY, NewDeviceFrom, Seeds, find_study, grid_points, run_section
from fedcore.data import Dataset, is_users
from fedcore.errors import InputError, printable
from fedcore.methods import METHODS
from fedcore.partition import AUTO, PARTITIONS
from fedcore.results.criterion import Criterion

USER_STUDY = "my_data"
"""The study of a command that names none, on a user's own data."""

TYPED = 60
"""The most characters of changed settings in a run's name."""


def _choices(names: Callable[[Mapping[str, Any]], Iterable[str]]) -> Any:
    """Return what offers names in Prefect's form for a parameter: those that the project has when it is deployed."""

    def offer(schema: dict[str, Any]) -> None:
        with suppress(InputError):  # a run says what is wrong with the settings
            schema["enum"] = sorted({*names(read()["studies"])})

    return Field(json_schema_extra=offer)


StudyName = Annotated[str, _choices(lambda studies: studies)]
SizeName = Annotated[str, _choices(lambda studies: (size for study in studies.values() for size in study["sizes"]))]


class Job(BaseModel):
    """One study and seed, on all of the study's settings.

    Args:
        extra_figures: further figures, for the first seed only.
        optional: whether a row that the data do not allow is left out.
        criterion: what decides.
        new_device: where the answer for a new device is from.
        stop_rows: whether rows that cannot win are not run with all seeds.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    study: str
    title: str
    size: str
    seed: int
    settings: list[Setting]
    extra_figures: tuple[str, ...]
    optional: bool
    criterion: Criterion = Criterion()
    new_device: NewDeviceFrom = "shared"
    stop_rows: bool = False

    @property
    def name(self) -> str:
        return f"{self.study}-{self.seed}"


class Request(BaseModel):
    """The studies, seeds and methods to run, and changed settings; params.yaml has the defaults.

    Args:
        studies, size, seeds: those of section run.
        methods: labels of the study, or names of methods; all of the study's rows if empty.
        changes: dotted keys of params.yaml and their values.
        prepared: take data and partition from the pipeline's earlier stages, and write to its outputs, for `dvc repro`.
        promote: make the model that the run proposes the champion, if it is better than the present one or there is
            none (fedcore/pipeline/record/promotion.py).
        final_fit: before its promotion, train that model's method once more on all labelled rows of the devices.
    """

    model_config = ConfigDict(extra="forbid")

    studies: list[str] | None = None
    size: str | None = None
    seeds: Seeds | None = None
    methods: list[str] = []
    changes: dict[str, Any] = {}
    prepared: bool = False
    promote: bool = False
    final_fit: bool = True
    _loaded: dict[str, Dataset] = PrivateAttr(default_factory=dict)

    @classmethod
    def of_flow(cls, **parameters: Any) -> "Request":
        """Return the request of a flow's parameters, with what only the command that calls the flow knows."""
        return _COMMAND.get(cls()).model_copy(update=parameters)

    def to_flow(self) -> dict[str, Any]:
        """Return the parameters of a flow that this command calls next."""
        _COMMAND.set(self)
        return self.model_dump(exclude={"prepared"})

    def words(self, job: Job, seeds: Iterable[int], row: str) -> tuple[str, ...]:
        """Return the words of `fedcore run` that run a row of a job alone, with its seed and those that it needs."""
        typed = {"study": job.study, "size": job.size, "seeds": sorted(seeds), "methods": [row], **self.changes}
        return tuple(f"{key}={json.dumps(value)}" for key, value in typed.items())

    @property
    def typed(self) -> str:
        """The changed settings in words, not too long for the name of a run."""
        words = printable(", ".join(f"{key}={value}" for key, value in self.changes.items()))
        return words if len(words) <= TYPED else f"{words[: TYPED - 3]}..."

    @property
    def loaded(self) -> dict[str, Dataset]:
        """What this command has read, by `Setting.source`; a run takes it out. Empty in a deployment."""
        return self._loaded


_COMMAND: ContextVar[Request] = ContextVar("_COMMAND")


def plan_jobs(request: Request) -> tuple[dict[str, Any], list[Job]]:
    """Return the parameters and the jobs; raises InputError before anything is computed, with the key as it stands."""
    params = read()
    try:
        return _plan_jobs(request, params)
    except InputError as refused:
        line = str(refused).removeprefix("run." if request.size and str(refused).startswith("run.size") else "")
        file = {k: v for k, v in _entries(params) if k not in request.changes}.items()
        if len(request.methods) > 1 and line.startswith("method = "):
            line = line.replace("method", "methods", 1)
        own = any(line.startswith((f"{key} = {value!r}: ", f"{key}: no such key")) for key, value in file)
        raise InputError(f"params.yaml: {line}" if own else line) from None


def _entries(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of params.yaml with their values, those of `training` one by one, without the studies."""
    for name, key, value in ((n, k, v) for n in params if n != "studies" for k, v in params[n].items()):
        below = key == "training" and isinstance(value, Mapping)
        yield from _entries({f"{name}.{key}": value}) if below else [(f"{name}.{key}", value)]


def unused_settings(request: Request, jobs: Iterable[Job]) -> Iterator[str]:
    """Yield a line for each typed setting that nothing takes, and for each edit that USER_STUDY overrides."""
    settings = [setting for job in jobs for setting in job.settings]
    rows = [row for setting in settings for row in setting.methods]
    shared, own = {key for row in rows for key in row.settings}, {row.name for row in rows}
    for key, value in request.changes.items():
        section, _, name = key.partition(".")
        if (section == SHARED and name not in shared) or (section in METHODS and section not in own):
            trained = f"; training.{name} is for all of them" if name in allowed_keys(("training",), {}) else ""
            yield f"{key} = {value!r}: not used, since no method of this run takes it{trained}"
        elif whose := _takers(section, name.partition(".")[0], settings):
            yield f"{key} = {value!r}: not used, since it is no setting of {whose}"
        elif value and (needed := _lacks(section, name, settings)):
            yield f"{key} = {value!r}: not used, since it needs {needed}"
    yield from overridden(request)


def overridden(request: Request, saved: Collection[str] | None = None) -> Iterator[str]:
    """Yield a line for each edit that USER_STUDY overrides, and each key of its grid that rows have fixed.

    An edit is a value of params.yaml that is not the shipped one. Other studies are of papers, or of the user's own
    hand: their settings are meant to stand. saved: edits that the present run has used as typed; only of these it is
    said that a later run, `request`, does not use them.
    """
    params = read()
    run = run_section(params)
    if USER_STUDY not in (request.studies or run.studies):
        return
    study = find_study(params, USER_STUDY)
    lines = {label: study.methods.get(label, {}) for label in request.methods or study.methods}
    methods = {label: str(line.get("method", label)) for label, line in lines.items()}
    size, grid = study.sizes[request.size or run.size], dict[str, list[Any]]()
    for axis, values in size.grid.items():
        points = values.values() if isinstance(values, Mapping) else [{axis: value} for value in values]
        for key, value in (pair for point in points for pair in point.items()):
            grid.setdefault(key, []).append(value)
    layers = (by_section(request.changes), by_section({**size.set, **grid}), lines)
    typed, of_size, of_lines = (dict(_entries(layer)) for layer in layers)
    for key in grid.keys() - typed.keys() if saved is None else ():
        section, _, name = key.partition(".")
        of_row = key if section == "training" else name
        takers = [label for label, method in methods.items() if section in ("training", SHARED, method)]
        if fixed := [label for label in takers if f"{label}.{of_row}" in of_lines]:
            more = f" and {len(fixed) - 1} more" if fixed[1:] else ""
            yield f"studies.{USER_STUDY}: grid.{key}: not used for {fixed[0]}{more}: set in the methods' lines"
    shipped = dict(_entries(read_mapping(template() / "params.yaml", "sections")))
    later, again = ("", "") if saved is None else (" in later runs", " again")
    for key, value in _entries(params):
        section, _, name = key.partition(".")
        of_all = {name, f"{SHARED}.{name}"} if section in METHODS else set()
        if value == shipped.get(key) or typed.keys() & {key, *of_all} or (saved is not None and key not in saved):
            continue
        if sets := _sets_instead(key, value, methods, of_size, of_lines):
            why = f"since study {USER_STUDY} sets {sets[0]}{f' and {len(sets) - 1} more' if sets[1:] else ''}"
            mend = f"type it{again} after the command, or change studies/"
            yield f"params.yaml: {key} = {value!r}: not used{later}, {why}; {mend}"


def _sets_instead(
    key: str, value: Any, methods: Mapping[str, str], of_size: Mapping[str, Any], of_lines: Mapping[str, Any]
) -> list[str]:
    """Return the values, in words, that a study's size or the lines of its methods set in the place of a key's."""
    section, _, name = key.partition(".")
    of_all = {name, f"{SHARED}.{name}"} if section in METHODS else set()
    owners = [*METHODS] if section == SHARED else [section]
    others = {k: of_size[k] for one in owners if (k := f"{one}.{name}") in of_size}
    others = others or {k: of_size[k] for k in sorted(of_all) if k in of_size}
    of_rows = dict[str, Any]()
    for label, method in methods.items():  # a variant says what it is; its method's own line stands for the section
        takes = method in owners and (label == method or method not in methods)
        k = f"{label}.{key if section == 'training' else name}"
        of_rows |= {k: of_lines[k]} if (takes or section == "training") and k in of_lines else {}
    others = of_rows or others if section in METHODS else others | of_rows
    return [
        f"{v!r}" if k in {key, *of_all} else f"{v!r} for {k.split('.')[0]}" for k, v in others.items() if v != value
    ]


def _lacks(section: str, name: str, settings: Sequence[Setting]) -> str:
    """Return what a setting needs that a run has nowhere, in words; else an empty text."""
    rows = [row for of in settings for row in of.methods if section in ("training", row.name)]
    hostile = "federation.hostile above 0", any(of.federation.get("hostile") for of in settings)
    of_label = any(of.scoring.get("positive") or of.threshold for of in settings)
    needs = {
        "training.momentum": ("training.optimiser=sgd", any(row.training.optimiser == "sgd" for row in rows)),
        "run.positive": ("a run.metric of one label", of_label),
        "federation.attack": hostile, "federation.strength": hostile,
        "federation.beyond": ("federation.bound", any(of.federation.get("bound") for of in settings)),
    }  # fmt: skip
    what, there = needs.get(name if name in needs else f"{section}.{name}", ("", True))
    return "" if there else what


def _takers(section: str, name: str, settings: Sequence[Setting]) -> str:
    """Return a run's nets, data or partitions, if none of them takes a setting of theirs; else an empty text."""
    takers: list[tuple[str, Iterable[str]]] = []
    if section == "net" and name not in ("", "variants", *START):
        takers = [(f"net {net['name']}", net) for setting in settings for net in setting.nets]
    elif section == "data" and name:
        takers = [(f"data {setting.data['name']}", setting.data) for setting in settings]
    elif section == "federation" and name in ("devices", "alpha", "classes", "share"):  # all partitions have the others
        known = ((setting.federation["partition"], setting.data.get("device")) for setting in settings)
        names = ["by_device" if own == AUTO and device else own for own, device in known]
        takers = [(f"partition {own}", parameters(PARTITIONS[own]) if own in PARTITIONS else [name]) for own in names]
    return "" if any(name in taken for _, taken in takers) else " or ".join(dict.fromkeys(who for who, _ in takers))


def _plan_jobs(request: Request, params: dict[str, Any]) -> tuple[dict[str, Any], list[Job]]:
    # Sections run and studies come first; the other changes apply to each point of a study's grid.
    of_all = {key: value for key, value in request.changes.items() if key.partition(".")[0] in ("run", "studies")}
    changes = {key: value for key, value in request.changes.items() if key not in of_all or key in OF_STUDY}
    params = change(params, of_all)
    run = run_section(params)
    size, jobs = request.size or run.size, []
    for name in dict.fromkeys(request.studies or run.studies):
        study = find_study(params, name, "study" if request.studies else "run.studies")
        own = run.of(study)
        points = grid_points(params, name, size, changes, request.methods)
        seeds = request.seeds or run.seeds
        first = min(run.seeds if request.prepared else seeds)
        for seed in dict.fromkeys(seeds):
            figures = tuple(study.figures) if seed == first else ()
            jobs.append(
                Job(
                    study=name, title=study.title, size=size, seed=seed, settings=points,
                    extra_figures=figures, optional=study.optional, criterion=own.criterion,
                    new_device=own.new_device or "shared", stop_rows=own.stop_rows == "auto",
                )
            )  # fmt: skip
    return params, jobs


def first_own(jobs: Iterable[Job]) -> tuple[Setting, int] | None:
    """Return the first setting whose data are a user's own, and its seed."""
    own = ((setting, job.seed) for job in jobs for setting in job.settings if is_users(setting.data["name"]))
    return next(own, None)


def parse(arguments: list[str]) -> Request:
    """Parse the arguments of the command line."""
    changes = parse_arguments(arguments)
    for key, value in ((key, one) for key, of in changes.items() for one in (of if isinstance(of, list) else [of])):
        if isinstance(value, str) and (file := re.fullmatch(r"([\w/]+)\.py:(\w+)", value)):
            raise InputError(f"{key} = {value!r}: write {file[1].replace('/', '.')}:{file[2]}, without .py")
    if changes.get("methods") == []:
        raise InputError("methods = []: must name at least one; without the key, all rows of the study run")
    fields = {key: changes.pop(key) for key in list(changes) if key in Request.model_fields and key != "changes"}
    names = {"studies": "study", "seeds": "seed", "methods": "method"}
    typed = {plural: one for plural, one in names.items() if one in changes}
    for plural, one in typed.items():
        if plural in fields:
            both = {one: changes[one], plural: fields[plural]}
            which = " or ".join(quote(f"{key}={value}".replace("'", "")) for key, value in both.items())
            raise InputError(f"{one} = {both[one]!r} and {plural} = {both[plural]!r} exclude each other; type {which}")
        if isinstance(changes[one], list):
            raise InputError(f"{one} = {changes[one]!r}: must be one; several are {plural}=[...]")
    fields |= {plural: [changes.pop(one)] for plural, one in typed.items()}
    try:
        return check(Request, "", {**fields, "changes": changes})
    except InputError as refused:
        key, _, rest = str(refused).partition(" = ")
        raise InputError(f"{typed.get(key, key)} = {rest}" if rest else key) from None


def ask(arguments: list[str]) -> Request:
    """Parse a command's arguments; without a study, USER_STUDY on a user's own data, else the first of run.studies."""
    request = parse(arguments)
    if request.studies is None and "run.studies" not in request.changes:
        params = read()
        users = is_users(request.changes.get("data.name", params["data"].get("name")))
        request.studies = [USER_STUDY] if users and USER_STUDY in params["studies"] else run_section(params).studies[:1]
    return request
