"""From a study to devices: what a server's kit takes from it, and the same comparison where no rows may be pooled."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from fedcore.config.methods import MethodConfig
from fedcore.config.request import Job
from fedcore.config.settings import Setting
from fedcore.core.rounds import deployments
from fedcore.core.threats import split_threats
from fedcore.data import Dataset
from fedcore.data.encoding import WORDS
from fedcore.data.names import name_of
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL
from fedcore.errors import InputError
from fedcore.field.recipe import Recipe
from fedcore.field.runs import STATE, Setup, StoredRun, Study, read_about, read_rest, read_run, run_with_devices
from fedcore.field.server import Link, federation_of
from fedcore.report.phrases import AnswerInWords
from fedcore.results import tidy
from fedcore.results.answer import answer
from fedcore.results.criterion import LARGEST, Criterion, criterion, scoring
from fedcore.results.summary import SCORED
from fedcore.types.federation import Scoring, Threats
from fedcore.types.method import Model

STUDY, SETTING = "field", "field"


def table_of(record: StoredRun, setup: Setup, label: str) -> pd.DataFrame:
    """Return a run's turns as rows of the tidy table (docs/columns.md)."""
    method, _ = record.plan.build()
    same, recipe = setup.recipe is None or setup.recipe.split is not None, record.plan.read_recipe()
    counts = {
        name: (facts["examples"], facts["test_examples"], facts["test_classes"])
        for name, facts in record.devices.items()
    }
    labels = setup.classes if LABEL_KINDS[setup.task] is MULTILABEL else None
    std = None if recipe is None or recipe.label_scale is None else recipe.label_scale[1]
    data = tidy.numbers_of(counts, 0, same, labels, std)
    study = setup.study
    name, dataset = (STUDY, "devices") if study is None else (study.name, study.data)
    row = tidy.Row(name, dataset, SETTING, label, record.plan.seed)
    reports: Any = [turn.report for turn in record.turns]
    return tidy.of_run(row, method, record.turns, reports, data, record.prepare)


def models_of(record: StoredRun, setup: Setup) -> dict[str, tuple[Model, int]] | None:
    """Return each device's model and the number of its net; None where a device's memory or numbers are a part of it.

    Such a model stays on its device: it personalises, or the device prepares its rows by numbers that it keeps.
    """
    recipe = setup.recipe
    if recipe is not None and (recipe.scale == "device" or recipe.schema.missing == "median"):
        return None
    method, _ = record.plan.build()
    fed = federation_of(setup.public())
    models: dict[str, Model] = {}
    for names, (deploy, memory, message) in deployments(method, fed, record.state):
        if memory:
            return None
        model = deploy({}, message)
        models |= dict.fromkeys(names, model)
    return {name: (models[name], i % len(setup.nets)) for i, name in enumerate(fed.devices)}


def schema_of(setup: Setup, record: StoredRun) -> Schema:
    """Return how rows are prepared for the models of :func:`models_of`."""
    recipe = record.plan.read_recipe()
    if recipe is None:
        return Schema(setup.shape, "float32", tuple(map(str, range(setup.classes))), task=LABEL_KINDS[setup.task].name)
    fit = Fit(recipe.shared.fill, recipe.shared.mean, recipe.shared.std)
    return replace(recipe.fitted, devices=dict.fromkeys(record.plan.nets, fit), shared=fit)


WIRE, LEFT = "all of it on the wire", ["method", "seed", "device", "what", "values", "bytes"]


def left_devices(record: StoredRun, label: str) -> pd.DataFrame:
    """Return what left each device in a run: a row for each kind, with the values and bytes of it."""
    return _left(label, (of := record.plan).seed, of.nets, record.devices, record.prepare, record.wire, record.sent)


def _left(
    label: str, seed: int, names: Iterable[str], devices: Mapping[str, Any], prepare: Mapping[str, Any],
    wire: Mapping[str, tuple[int, int]], sent: Sequence[tuple[Mapping[str, int], Mapping[str, Any]]] = (),
) -> pd.DataFrame:  # fmt: skip
    records: list[tuple[Any, ...]] = []
    for name in names:
        updates = [up[name] for up, _ in sent if up.get(name)]
        scores = [of[name] for _, of in sent if name in of]
        numbers = sum(len(split) for parts in scores for part, split in parts.items() if part != "shared")
        rows: list[tuple[str, int, int]] = []
        if name in devices:
            rows += [
                ("numbers of its examples (training, test, classes tested)", 3, 0),
                ("digest of its examples, with a key that stays there", 1, 0),
                ("updates: models, or what the method sends in their place", len(updates), sum(updates)),
                ("scores", numbers, 0),
            ]
        if prepared := prepare.get(name):
            rows.append(("medians, means and variances of columns and label", 1, int(prepared["prepare_up"])))
        if rows or wire[name][0]:
            rows.append((WIRE, 1, wire[name][0]))
        records += [(label, seed, name, *row) for row in rows]
    return pd.DataFrame(records, columns=LEFT)


def left_by_refused(folder: Path, label: str, seed: int) -> list[pd.DataFrame]:
    """Return what left each device in a run that some refuse. Others may have answered before."""
    if (folder / STATE).is_file():
        return [left_devices(read_run(folder), label)]
    about, wire = read_about(folder), read_rest(folder)
    return [_left(label, seed, sorted(wire), about.get("devices", {}), about.get("prepare", {}), wire)] if wire else []


ONLY_SIMULATED = {"unlabelled": 0.0, "hidden": 0.0, "examples": None, "domains": "mixed"}
"""Settings of a federation that a simulation alone can have, and the values that ask for nothing."""


def setup_of(
    job: Job, setting: Setting, dataset: Dataset, devices: Collection[str], answer: MethodConfig | None,
    rates: Mapping[str, float] = MappingProxyType({}),
) -> Setup:  # fmt: skip
    """Return the setup for a study's devices. devices: their names; those of the data if there are none.

    answer: the row that the study recommends, as it ran. rates: label -> the learning rate that the study has chosen,
    for the rows of which it tries several. Raises InputError for what no real device can be made to do.
    """
    threats, section = split_threats(setting.federation)
    for key, value in ONLY_SIMULATED.items():
        if section.get(key, value) != value:
            raise InputError(f"federation.{key} = {section[key]}: only a simulation can have it; set it to {value}")
    wanted = setting.threats
    if wanted is not None and wanted != Threats(bound=wanted.bound, beyond=wanted.beyond):
        raise InputError(f"federation.{next(iter(threats))}: only a simulation can have it")
    names = tuple(sorted(devices or {*(dataset.device or ())}))
    if not names:
        raise InputError("--device: the study's data name no devices; name each")
    tuned = {row.label: rates.get(row.label, row.training.lr) for row in setting.methods if row.label in setting.rates}
    configs = {
        row.label: replace(row, training=replace(row.training, lr=tuned[row.label])) if row.label in tuned else row
        for row in setting.methods
    } | ({} if answer is None else {answer.label: answer})
    rows = tuple(
        {"label": row.label, "name": row.name, "settings": dict(row.settings), "training": row.training.settings()}
        for row in configs.values()
        if isinstance(row.name, str)
    )
    if dataset.task.standardised and dataset.schema is None:
        raise InputError(
            "fedcore field: a number as label needs a table (data.name=table), whose schema says how devices prepare it"
        )
    if dataset.schema is not None and dataset.schema.several:
        raise InputError("fedcore field: an example of these data has several inputs; in the field it has one")
    decides = job.criterion
    metric = _metric(decides, dataset)
    study = Study(
        job.study, job.title.format(devices=len(names)), job.size, setting.data_name, setting.model_name, rows,
        job.seed,
        None if answer is None else answer.label, metric, decides.positive, setting.scoring.get("costs"),
        decides.min_effect, decides.least_test, decides.weigh,
    )  # fmt: skip
    more = scoring(**setting.scoring, classes=dataset.classes) if setting.scoring else Scoring()
    recipe = None if dataset.schema is None else recipe_of(setting, dataset.schema, dataset)
    return Setup(
        names, tuple(dataset.train.x.shape[1:]), len(dataset.classes), tuple(setting.nets), recipe, study, more,
        dataset.task.name, wanted,
    )  # fmt: skip


def _metric(decides: Criterion, dataset: Dataset) -> str:
    """Return the name of the metric that decides."""
    if dataset.task.standardised:
        return decides.of_numbers(1.0).metric.name
    if dataset.task is MULTILABEL:
        return decides.of_labels().metric.name
    counts = np.bincount(dataset.strata)
    balanced = decides.auto and dataset.task.has_classes and counts.max() > LARGEST * counts.sum()
    return "balanced_accuracy" if balanced else decides.metric.name


def recipe_of(setting: Setting, schema: Schema, dataset: Dataset) -> Recipe:
    """Return how devices prepare their rows in a study's setting; an official test set is no device's."""
    settings = setting.federation
    # Why a column is left out may quote a value.
    return Recipe(
        replace(schema, left_out={}, dropped=0), settings["scale"], settings["val"], settings["test"],
        settings["shared_test"] if dataset.test is None else 0.0, settings.get("hold_out", "random"),
        settings["min_size"], setting.data.get("split"), setting.data.get("id"), earlier_of(dataset),
        texts_of(dataset, setting.data.get("id")),
    )  # fmt: skip


def earlier_of(dataset: Dataset) -> dict[str, dict[str, str]]:
    """Return the columns of a dataset's earlier names; for that of the devices name -> earlier name."""
    column = None if dataset.schema is None else dataset.schema.device
    of_devices = dataset.device or ()
    return {
        name: dict(zip(of_devices, texts, strict=True)) if name == column else {} for name, texts in dataset.earlier
    }


def texts_of(dataset: Dataset, id: str | None) -> tuple[str, ...]:
    """Return the columns by whose texts the rows of one file are divided, of which some is no number's name."""
    if dataset.schema is None or dataset.schema.device is None:  # each device's file speaks for itself
        return ()
    columns = {**dict(dataset.earlier), **({} if id is None else {id: dataset.ids or ()})}
    return tuple(name for name, texts in columns.items() if any(_is_text(text) for text in {*texts}))


def _is_text(text: str) -> bool:
    try:
        return name_of(float(text), "inferred") != text
    except ValueError:
        return text not in WORDS


@dataclass(frozen=True)
class FieldStudy:
    """A comparison in the field. refused: label -> why the row is left out. left: what left each device."""

    table: pd.DataFrame
    answer: AnswerInWords
    refused: dict[str, str]
    left: pd.DataFrame


def run_study(
    link: Link, setup: Setup, rows: Iterable[MethodConfig], seeds: Iterable[int], folder: Path, *, seconds: float,
    least: int, notify: Callable[[str], None] = lambda line: None, away: set[str] | None = None,
) -> FieldStudy:  # fmt: skip
    """Run rows with each seed on devices, and answer as the study would; a row that is refused is left out.

    So are, in a seed, the scores of a device whose last ones another row lacks, or whose rows have changed since.

    folder: of the runs, each of which goes on from its last turn. Numbers that devices share are exchanged once a seed.

    Raises InputError if every row is refused, and TooFew if less than `least` devices answer.
    """
    tables, left, refused = [], [], dict[str, str]()
    for seed in seeds:
        recipe = setup.recipe
        prepare: Mapping[str, Mapping[str, float]] = {}
        first = dict[str, Any]()  # device -> digest of its rows
        for number, row in enumerate(rows):
            if row.label in refused:
                continue
            run_folder = folder / f"{''.join(filter(str.isalnum, row.label))}{number}seed{seed}"
            notify(f"{row.label}, seed {seed}")
            try:
                for _ in run_with_devices(
                    link, replace(setup, recipe=recipe), row, seed, run_folder,
                    seconds=seconds, least=least, notify=notify, away=away,
                ):  # fmt: skip
                    pass
            except InputError as why:
                refused[row.label] = str(why)
                notify(f"{row.label} is left out: {why}")
                left += left_by_refused(run_folder, row.label, seed)
                continue
            record = read_run(run_folder)
            recipe, prepare = record.plan.read_recipe(), prepare or record.prepare
            digests = {name: facts["data"] for name, facts in record.devices.items()}
            changed = [name for name in digests if first.setdefault(name, digests[name]) != digests[name]]
            for name in changed:
                notify(f"{name}: its rows or its memory have changed since an earlier method of seed {seed}")
            table = table_of(replace(record, prepare=prepare), setup, row.label)
            tables.append(table[~(table["device"].isin(changed) & table["split"].isin(SCORED))])
            left.append(left_devices(record, row.label))
    if not tables:
        raise InputError("no method runs on these devices: " + "; ".join(refused.values()))
    table = pd.concat(tables, ignore_index=True)
    table = with_common_scores(table[~table["method"].isin(refused)], notify)
    controls = frozenset(row.label for row in rows if row.control)
    weighted = frozenset(row.label for row in rows if row.training.class_weights != "none")
    in_words = AnswerInWords.of(replace(answer(table, controls, criterion_of(setup)), weighted=weighted))
    return FieldStudy(table, in_words, refused, pd.concat(left, ignore_index=True))


def with_common_scores(table: pd.DataFrame, notify: Callable[[str], None]) -> pd.DataFrame:
    """Return a table with the scores of the devices whose last ones every row has in a seed: means are over the same.

    notify: called with a line for each row and device that lacks them.
    """
    last, scores = tidy.final(table), table["split"].isin(SCORED)
    scored = {
        str(label): {*rows.loc[scores, ["device", "seed"]].itertuples(index=False, name=None)}
        for label, rows in last.groupby("method", sort=False)
    }
    common, every = set.intersection(*scored.values()), set.union(*scored.values())
    for label, there in scored.items():
        for device in sorted({name for name, _ in every - there}):
            seeds = ", ".join(str(seed) for name, seed in sorted(every - there) if name == device)
            notify(f"{device}: no last scores of {label}, seed {seeds}; the comparison there is without {device}")
    if not common:
        notify("no device has last scores of every row: nothing can be compared")
    of_common = pd.MultiIndex.from_frame(table[["device", "seed"]]).isin(common)
    return table[of_common | ~scores]


def criterion_of(setup: Setup) -> Criterion:
    """Return what decides."""
    if (of := setup.study) is None:
        return Criterion()
    return criterion(of.metric, of.positive, of.costs, of.min_effect, of.least_test, of.weigh)  # type: ignore[arg-type]


def rows_of(setup: Setup, labels: Collection[str] = ()) -> list[MethodConfig]:
    """Return the study's rows, or those of some labels. Raises InputError for a label that is no row."""
    configs = {} if setup.study is None else setup.study.configs
    for label in labels:
        if label not in configs:
            raise InputError(f"--method {label}: not a row of the study; it has: {', '.join(configs) or 'none'}")
    return [row for label, row in configs.items() if not labels or label in labels]
