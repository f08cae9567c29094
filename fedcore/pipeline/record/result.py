"""The result of a method and its steps, as the flow passes it to the record.

Imports neither Prefect nor MLflow.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from inspect import signature
from typing import Any, Literal, NamedTuple, Self

import pandas as pd

from fedcore.builders import parameters
from fedcore.config.methods import MethodConfig, configure, current_settings
from fedcore.config.nightly import Event
from fedcore.config.sections import complete_federation, data_settings, net_settings
from fedcore.config.settings import Setting
from fedcore.config.studies import Recent, run_section
from fedcore.core.metrics import METRICS, Metric
from fedcore.core.rounds import State
from fedcore.data import Dataset
from fedcore.data.prepare import LEAST_OWN, fit_schema
from fedcore.data.schema import Schema
from fedcore.errors import plural
from fedcore.partition import PARTITIONS, Partition, training
from fedcore.partition.partitions import resolve_name
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.shared import open_store
from fedcore.pipeline.cache.store import Ref, Store, digest_of
from fedcore.results.criterion import Criterion, free_mistakes, measured
from fedcore.results.outcomes import Outcomes
from fedcore.results.stopping import validation_value
from fedcore.results.summary import Criteria, last_round, runs_on, with_criteria
from fedcore.results.threshold import few_of_class
from fedcore.types.federation import Federation
from fedcore.types.method import HeldOut, Report, Threshold

OF_SCHEMES = frozenset({"alpha", "share", "classes", "examples"})
"""Settings of a federation that only some partitions use."""
OFF = {
    "data.scaling": "none", "training.round_decay": "1.0", "training.schedule": "constant",
    "training.optimiser_state": "fresh", "training.precision": "float32", "fraction": "1.0", "aggregation": "mean",
}  # fmt: skip
"""Parameters, or names of a method's settings, and the value at which they do nothing."""
NEUTRAL = ("false", "none", "0.0")
"""Values at which any but those of data and net does nothing."""
NOT_SHOWN = frozenset({"root", "download", "missing_values"})
"""Settings of data that say where they are, or are a long list."""


@dataclass(frozen=True)
class PreparedData:
    """A dataset and its partition, as references."""

    dataset: Ref
    partition: Ref

    def load(self, store: Store) -> tuple[Dataset, Partition]:
        """Return what they refer to."""
        dataset, partition = store.get((self.dataset, self.partition))
        return dataset, partition


def name_study(study: str, size: str) -> str:
    """Return a study's name, with its size unless that is the usual one."""
    return study if size == "small" else f"{study} ({size})"


@dataclass(frozen=True)
class StudyOnData:
    """What a study's run in the record is about: the study, its size, and the name and digest of its data."""

    study: str
    size: str
    dataset: str
    data: str

    @property
    def name(self) -> str:
        return name_study(self.study, self.size)

    @property
    def config(self) -> str:
        """The words by which its run is found."""
        return f"study {self.study} {self.size} {self.data}"

    @property
    def tags(self) -> dict[str, str]:
        return {"fedcore.kind": "study", **{f"fedcore.{name}": value for name, value in vars(self).items()}}


@dataclass(frozen=True)
class ComparedMethod:
    """A row: its numbers by their names in the record, the configurations of its seeds' runs, and its worst device.

    shown: the tag of its :class:`Evidence`.
    """

    setting: str
    label: str
    numbers: Mapping[str, float]
    configs: tuple[str, ...]
    worst: str | None = None
    shown: str = "no"

    @property
    def name(self) -> str:
        """The name of its run."""
        return self.label if self.setting == "base" else f"{self.label} {self.setting}"


@dataclass(frozen=True)
class ComparedRequest:
    """What a comparison says of a study on its data.

    request: a digest of the configurations that are compared, and of what decides. title, note: the question and the
    answer. numbers: of the answer. pair: the rows that it compares. files: path in the run -> content. left_out: the
    scores of runs without a device on that device, a row for each. part: whether not all methods and seeds of the study
    were asked. changed: a line about the last run that differs. typed: the changed settings in words. rule: of means,
    if not the usual one. beside: the study's other data in the same request.
    """

    request: str
    title: str
    note: str
    numbers: Mapping[str, float]
    methods: tuple[ComparedMethod, ...]
    pair: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Sequence[Mapping[Any, Any]] = ()
    part: bool = False
    changed: str = ""
    typed: str = ""
    rule: str = ""
    beside: tuple[StudyOnData, ...] = ()

    @property
    def size(self) -> str:
        """Its numbers of methods and seeds."""
        seeds = max((len(of.configs) for of in self.methods), default=0)
        return f"{plural(len({of.label for of in self.methods}), 'method')}, {plural(seeds, 'seed')}"

    @property
    def differs(self) -> str:
        """What its run's name has beside the study's: typed settings, and how much of a part; "" if neither."""
        part = f"part: {self.size}" * self.part
        return ", ".join(filter(None, [self.typed, part]))


@dataclass(frozen=True)
class PromotionCandidate:
    """A version to be promoted by its final fit, and its run. config: the configuration of the run."""

    config: str
    version: str
    run: str


class Evidence(NamedTuple):
    """Why a model is proposed: its seeds, whether the answer recommends it, and whether as a first champion only.

    whole: whether the whole study was asked. guesses: whether its row is no better than always guessing. new: whether
    the answer for new devices recommends it, too or only; what is only for these is named, and not proposed.
    """

    seeds: int = 0
    shown: bool = True
    first: bool = False
    whole: bool = True
    guesses: bool = False
    new: Literal["", "also", "only"] = ""

    @property
    def tag(self) -> str:
        """The value of the tag :data:`fedcore.pipeline.record.registry.SHOWN`."""
        return "guess" if self.guesses else "yes" if self.shown else "new" if self.new == "only" else "no"


CERTAIN = Evidence()
"""Why a model is proposed that no study compares: nothing else is."""


class Notice(NamedTuple):
    """A line about a model, and the event that it reports, if any (fedcore/config/nightly.py)."""

    line: str
    event: Event | None = None


@dataclass(frozen=True)
class Rule:
    """By what a challenge of a champion is decided (fedcore/pipeline/record/challenge.py).

    store: has the data of the candidate's run. criterion: the least difference that matters, and the devices that
    count; its metric is replaced by that of the candidate's study. recent: as in section `run`.
    """

    store: Store
    criterion: Criterion
    recent: Recent = "none"


def rule_of(params: Mapping[str, Any]) -> Rule:
    """Return the rule of section `run`."""
    run = run_section(params)
    return Rule(open_store(run.store), run.criterion, run.recent)


@dataclass(frozen=True)
class Origin:
    """What a run computed, enough to compute it again: setting, without methods, method and seed.

    It is a request, not a result: whoever reads it computes the digest of the configuration and compares it with the
    run's, so that nothing that has changed since passes for the same.

    config: the digest of the configuration; data: that of the dataset. threshold: the one that its validation rows
    chose.
    """

    setting: Setting
    row: MethodConfig
    seed: int
    size: str
    config: str
    data: str
    threshold: Threshold | None = None

    def to_json(self, command: Sequence[str] = ()) -> bytes:
        """Return it as JSON, with the words of the command that computes it."""
        setting, row = self.setting, self.row
        card = {
            "study": setting.study, "setting": setting.name, "point": setting.point, "size": self.size, "seed":
            self.seed, "every": setting.every, "data": setting.data, "federation": setting.federation, "net":
            setting.net, "scoring": setting.scoring, "metric": setting.metric, "config": self.config, "dataset":
            self.data, "method":
            {"label": row.label, "name": row.name, "training": row.training.settings(), "settings": dict(row.settings)},
        }  # fmt: skip
        if command:
            card["command"] = list(command)
        if setting.threshold is not None:
            card["threshold"] = {"of": setting.threshold, "chosen": self.threshold and asdict(self.threshold)}
        return (json.dumps(card, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Undo :meth:`to_json`; raises InputError for settings that are no longer known."""
        card = json.loads(content)
        of, decided = card["method"], card.get("threshold", {})
        setting = Setting(
            card["study"], card["setting"], card["point"], data_settings(card["data"]),
            complete_federation(card["federation"]), net_settings(card["net"]), (), card["every"],
            card["scoring"], card["metric"], decided.get("of"),
        )  # fmt: skip
        row = configure(of["name"], current_settings(of["name"], of["settings"]), of["training"], label=of["label"])
        threshold = Threshold(**decided["chosen"]) if decided.get("chosen") else None
        return cls(setting, row, card["seed"], card["size"], card["config"], card["dataset"], threshold)


@dataclass(frozen=True)
class FinalFit:
    """Of which study's result a final fit repeats the method, on which rows.

    version, run: the version of the registered model whose study's run tells the accuracy to expect, and that run.
    study: its dataset and partition. before, rows: the labelled rows of each device that train, then and now. held_out:
    what the method needs, so that it does not train. left: rows of the shared test set that do not train either.
    """

    version: str
    run: str
    study: PreparedData
    before: dict[str, int]
    rows: dict[str, int]
    held_out: tuple[HeldOut, ...]
    left: int


@dataclass(frozen=True)
class Result:
    """The result of a method. config: the digest of all its inputs. models: the deployed model of each device.

    state: after the last round. reports: the server's report of each turn. figures: functions that draw them, see
    :class:`fedcore.types.method.Method`.
    extra_figures: drawn besides its scores. embedding: its devices' examples in the plane, if they are drawn.
    final: of a final fit, which has no scores. outcomes: what the models do with the devices' own test examples.
    threshold: from which probability on its models predict a label, where the most probable class is not predicted.
    tried: if several learning rates were tried, the table of each; None for one that diverged.
    criterion: which devices count in means of its scores. tasks: the edited ones of the project.
    thread: tags of its run that name Prefect's flow run and the data as DVC has them. command: the words of
    `fedcore run` that compute it.
    """

    setting: Setting
    row: MethodConfig
    seed: int
    size: str
    config: str
    prepared: PreparedData
    fed: Federation
    table: pd.DataFrame
    seconds: pd.DataFrame
    steps: tuple[Step, ...]
    models: dict[str, Ref]
    state: State
    reports: tuple[Report, ...]
    figures: tuple[str, ...] = ()
    extra_figures: tuple[str, ...] = ()
    embedding: Ref | None = None
    final: FinalFit | None = None
    outcomes: Outcomes | None = None
    threshold: Threshold | None = None
    tried: Mapping[float, pd.DataFrame | None] = field(default_factory=dict)
    criterion: Criterion = Criterion()
    tasks: tuple[str, ...] = ()
    thread: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: one thread may use what is cached while another sends the result to the record."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def digest(self) -> str:
        """The digest of the table, the models and the names of the pictures; seconds are no part of it."""
        models = json.dumps({name: ref.digest for name, ref in self.models.items()})
        return digest_of(models + self.table.to_csv(index=False) + "".join(self.extra_figures))

    @property
    def origin(self) -> Origin:
        """What made it."""
        data = self.prepared.dataset.digest
        return Origin(self.setting, self.row, self.seed, self.size, self.config, data, self.threshold)

    @property
    def computed(self) -> bool:
        """Whether any of its steps was computed; otherwise the cache had them all."""
        return any(not step.cached for step in self.steps)

    @property
    def study(self) -> StudyOnData:
        """Its study, and the data that it has read."""
        return StudyOnData(self.setting.study, self.size, self.setting.data_name, self.prepared.dataset.digest)

    @cached_property
    def metric(self) -> Metric:
        """The metric that decides."""
        auto = (name := self.setting.metric) == "auto"
        return Criterion(METRICS["accuracy" if auto else name], auto=auto).of_table(self.table).metric

    @cached_property
    def validation(self) -> float | None:
        """The metric's mean on validation data over the devices that count, the greater the better; None without."""
        return validation_value(self.table, replace(self.criterion, metric=self.metric, auto=False))

    @property
    def entry(self) -> dict[str, Any]:
        """What its folder's list of runs says of it.

        candidate: whether all devices run one model. tasks: the edited ones, where there are any. weighted: whether it
        is trained with class weights. free: a line on the mistakes without a cost, if there are such costs. few: a
        class with too few test rows for the metric, and their number. own_scale: from how many rows on a new device
        scales its own, if devices do.
        """
        of = self.setting
        few = self.outcomes and few_of_class(
            self.outcomes.classes, self.outcomes.confusion.sum(1).tolist(), self.metric.name
        )
        free = free_mistakes(of.scoring.get("costs"), self.outcomes.classes if self.outcomes else ())
        return {
            "study": of.study, "setting": of.name, "point": of.point, "method": self.row.label, "seed": self.seed,
            "config": self.config, "candidate": len({*self.models.values()}) == 1 and not self.row.control,
            "control": self.row.control,
            "validation": self.validation, **({"tasks": self.tasks} if self.tasks else {}),
            **({"weighted": True} if self.row.training.class_weights != "none" else {}),
            **({"free": free} if free else {}), **({"few": few} if few else {}),
            **({"own_scale": LEAST_OWN} if of.federation["scale"] == "device" else {}),
        }  # fmt: skip

    def schema(self, dataset: Dataset, partition: Partition) -> Schema:
        """Return how each device prepared its examples. dataset, partition: those of `prepared`."""
        schema = fit_schema(dataset, training(partition), self.setting.federation["scale"])
        standardised = dataset.schema is None and self.setting.data.get("scaling") == "standard"
        return replace(schema, standardised=True) if standardised else schema

    @property
    def name(self) -> str:
        point = "" if self.setting.name == "base" else f" {self.setting.name}"
        final = "" if self.final is None else ", final fit"
        return f"{self.row.label}{point} seed {self.seed}{final}"


def params_of(result: Result, dataset: Dataset) -> dict[str, Any]:
    """Return the settings that a run used, by their keys in params.yaml, as they were resolved; SETTING has all.

    Those of the chosen partition, net and method are there, without what is off or not set. dataset: that of the run.
    """
    setting, federation = result.setting, dict(result.setting.federation)
    federation["partition"] = name = resolve_name(dataset, federation["partition"])
    federation["devices"] = len(result.fed.devices)
    unused = OF_SCHEMES - signature(PARTITIONS[name]).parameters.keys()
    unused |= {"unlabelled_classes"} if not federation["unlabelled"] else set()
    unused |= {"domains"} if dataset.domain is None else set()
    of_data = {"task": dataset.task.name} if "task" in setting.data else {}
    net = dict(setting.net)
    if net["name"] == "auto":
        (build, *_) = (net.build for net in result.fed.public.nets.values())
        net["name"] = build.func.__module__.rpartition(".")[2]  # type: ignore[attr-defined]
    row = result.row
    takes, method = parameters(row.builder), row.flat()["method"]
    prefix = str(method).rpartition(":")[2]
    averaged = {"outliers"} if row.settings.get("aggregation") == "mean" else set()
    sections: dict[str, Mapping[str, Any]] = {
        "data.": {key: value for key, value in setting.data.items() if key not in NOT_SHOWN} | of_data,
        "federation.": {key: value for key, value in federation.items() if key not in unused}, "net.": net,
        "training.": {key: of for key, of in row.training.settings().items() if {"training", key} & {*takes}},
        f"{prefix}.": {key: value for key, value in row.settings.items() if key not in averaged},
    }  # fmt: skip
    used = {f"{section}{key}": value for section, values in sections.items() for key, value in values.items()}
    used |= {"threshold": result.threshold.value} if result.threshold else {}
    used = {key: value for key, value in used.items() if value not in (None, "", [], {}, ())}
    for key, value in [*used.items()]:
        (section, _, name), text = key.rpartition("."), cut_value(value)
        if text == OFF.get(key, OFF.get(name)) or (section not in ("", "data", "net") and text in NEUTRAL):
            del used[key]
    return {"method": method, "seed": result.seed, **used}


def cut_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 500 else text[:497] + "..."


def worst_devices(table: pd.DataFrame, criteria: Criteria) -> dict[tuple[str, str], dict[str, str]]:
    """Return (study, setting) -> row -> of the devices that count the worst on own test data, mean over seeds."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for (study, _, setting), rows, criterion in with_criteria(table, criteria):
        counted = [*measured(rows, criterion).weights]
        for row, values in runs_on(last_round(rows), "test", criterion.metric).items():
            if len(means := values.reindex(columns=counted).mean().dropna()) > 1:
                found[study, setting][row] = str(means.idxmin())
    return found
