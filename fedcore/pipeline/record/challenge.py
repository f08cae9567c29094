"""The challenge of a champion on data that have grown: its study's model and the candidate's on today's test rows.

With federation.hold_out: stable, yesterday's test rows are test rows today, so that none of them has trained either
study's model. The rows that did train a version are beside it, as hashes, and do not count, whatever they are today.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from torch import Tensor

from fedcore.api.serving import ServedModels
from fedcore.config.studies import Recent
from fedcore.core.metrics import METRICS
from fedcore.data import Dataset
from fedcore.data.dataset import schema_of
from fedcore.data.names import COMMA_WHOLE, name_of
from fedcore.data.prepare import fit_for, prepare, standardise_channels, undo_channels
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import MULTILABEL
from fedcore.errors import InputError, plural
from fedcore.partition import Index, Partition
from fedcore.partition.examples import label_scale, owners_of
from fedcore.partition.stable import Keys, row_keys, uniform
from fedcore.pipeline.cache.store import DamagedBlob, Ref
from fedcore.pipeline.files import HELD, TRAINED
from fedcore.pipeline.record import models, seals
from fedcore.pipeline.record.registry import SIMULATED
from fedcore.pipeline.record.result import Rule
from fedcore.results.challenge import PARTS, Paired, challenge, verdict, weights_of
from fedcore.results.criterion import Criterion
from fedcore.results.criterion import scoring as measures
from fedcore.results.gains import Gain
from fedcore.types.federation import Data, Scoring

DATA, PARTITION = "fedcore.data", "fedcore.partition"
"""The tags of a version that name the data of its run, and how they were divided."""
HOLD_OUT = "fedcore.hold_out"
"""The tag of a version whose test rows are chosen by a hash: how."""
INCOMPARABLE = "not comparable"

FEW = 0.01
"""The share of the champion's training rows below which today's data are said to be others."""


def split_keys(dataset: Dataset, partition: Partition, each: bool = False) -> tuple[Keys, Keys]:
    """Return the keys of all rows that a run may learn from: train, val and unlabelled; and of the others; sorted."""
    keys, learnt = both_keys(dataset, each), trains(partition)
    return np.unique(keys[:, learnt]), np.unique(np.delete(keys, learnt, axis=1))


def both_keys(dataset: Dataset, each: bool = False) -> Keys:
    """Return two keys of each row, (2, N): that by which it is held out, and one by names that are joined.

    The former may be another tomorrow: the names of earlier versions depend on the other cells of their column. Of
    standardised pictures the latter is that of earlier versions, by what their pixels are standardised to.
    """
    joined = lru_cache(1 << 16)(partial(name_of, spelling="joined"))
    schema = dataset.schema and replace(dataset.schema, channels=Fit())
    return np.array([row_keys(dataset, each=each), row_keys(replace(dataset, schema=schema), joined, each)])


def trains(partition: Partition) -> Index:
    """Return the rows that a run may learn from."""
    return np.concatenate([own[part] for own in partition.devices.values() for part in ("train", "val", "unlabelled")])


def read_keys(run: str, *names: str) -> Keys | None:
    """Return the keys of rows that a run's files have; None if it has none."""
    try:
        folder = seals.own_folder(MlflowClient().get_run(run).info.artifact_uri, f"run {run}")
        files = [io.BytesIO((folder / name).read_bytes()) for name in names]
    except (MlflowException, OSError):
        return None
    return np.concatenate([np.load(file, allow_pickle=False) for file in files])


@dataclass(frozen=True)
class Before:
    """The rows that are not recent, by their keys. since: their end, in words. least: recent rows that may decide."""

    keys: Keys
    since: str
    least: int = 1


def read_before(champion: ModelVersion, drifted: str | None, recent: Recent) -> Before | None:
    """Return which rows are not recent: `recent` of section `run`; None where all rows decide.

    champion: of its study. drifted: the last run before drift was seen, if it was.
    """
    if recent == "none" or (recent == "auto" and drifted is None):
        return None
    if recent == "auto" and (keys := read_keys(str(drifted), TRAINED, HELD)) is not None:
        return Before(keys, "since drift was seen")
    keys = read_keys(champion.run_id, TRAINED, HELD)
    return None if keys is None else Before(keys, "since the champion's", 1 if recent == "auto" else recent)


def compare(
    candidate: ModelVersion, champion: ModelVersion, rule: Rule, criterion: Criterion, scoring: Mapping[str, Any],
    drifted: str | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Return whether a study's version is better than an earlier study's: yes, no or not comparable; and why.

    scoring: the settings of what the candidate's study is measured by. drifted: see :func:`read_before`.
    """
    refs = [Ref(candidate.tags[tag], 0) for tag in (DATA, PARTITION)]
    try:
        if (name := criterion.metric.name) not in METRICS:
            raise InputError(f"run.metric = {name!r}: this fedcore has no such metric")
        dataset, partition = rule.store.get(tuple(refs))
        measured, way = Scoring(), candidate.tags.get(HOLD_OUT)
        if (trained := read_keys(champion.run_id, TRAINED)) is None:
            why = "does not say which rows trained it; was federation.hold_out random?"
            on_devices = champion.tags.get(SIMULATED) == "false"
            raise InputError(f"version {champion.version} {'trained on rows of real devices' if on_devices else why}")
        if champion.tags.get(HOLD_OUT) != way:
            raise InputError(f"federation.hold_out = {way}: the champion's rows were held out otherwise")
        if scoring:
            measured = measures(**scoring, classes=dataset.classes)
        served, rival = (models.load(files_of(version)) for version in (candidate, champion))
        before = read_before(champion, drifted, rule.recent)
        return judge(dataset, partition, trained, served, rival, criterion, measured, before, way == "stable_each")
    except DamagedBlob:
        return INCOMPARABLE, "its data are no longer in the cache; run its study again"
    except InputError as reason:
        return INCOMPARABLE, str(reason)


def judge(
    dataset: Dataset, partition: Partition, trained: Keys, candidate: ServedModels, champion: ServedModels,
    criterion: Criterion, scoring: Scoring = Scoring(), before: Before | None = None, each: bool = False,
) -> tuple[str, str]:  # fmt: skip
    """Return whether a candidate is better than the champion, yes or no, and why. Raises InputError if nothing can say.

    dataset, partition: today's, on which the candidate was trained. trained: the keys of the champion's training rows.
    before: the rows that do not decide, where enough others are there. each: of :func:`row_keys`.
    """
    schema = champion.schema
    require_same(dataset, schema)
    if dataset.task == MULTILABEL:
        criterion = criterion.of_labels()
    elif dataset.task.standardised:
        criterion = criterion.of_numbers(label_scale(dataset, partition)[1])
    x = lay_out(dataset, schema)
    keys = both_keys(dataset, each)
    for decimals in (",0", ",00") if dataset.ids is not None else ():
        if np.isin(row_keys(dataset, f"{{}}{decimals}".format), trained).any():
            raise InputError(f"data.id: an id such as 7{decimals} is 7 today, which gives rows other keys")
    part = (uniform(keys[0], "part") * PARTS).astype(np.int64)
    rows = unseen(dataset, partition, keys, trained)
    both = champion, candidate
    comparable = {
        who: index for who, index in rows.items() if all(who in of.devices or len(of.models) == 1 for of in both)
    }
    left = ", ".join(who or "rows of no device" for who in sorted({*rows} - {*comparable}))
    others = f"left out, as one of the two has no model for it: {left}"
    if rows and not comparable:
        raise InputError(others)
    its_own = None if champion.costs == scoring.costs else Scoring(costs=champion.costs)
    pairs, late = {}, {}
    for who, index in comparable.items():
        i = torch.from_numpy(index)
        y = dataset.train.y[i]
        predicted, rival = predict(candidate, who, Data(dataset.train.x[i], y)), predict(champion, who, Data(x[i], y))
        pairs[who] = Paired(predicted, rival, y, part[index], its_own)
        if before is not None and (since := ~np.isin(keys[:, index], before.keys).max(axis=0)).any():
            late[who] = Paired(predicted[since], rival[since], y[since], part[index][since], its_own)
    gain = challenge(pairs, criterion, scoring)
    new = f"new to both models (one seed each) by {'values, label and device' if dataset.ids is None else 'data.id'}"
    count = describe(gain, pairs, criterion, new)
    if before is not None:
        enough = sum(len(pair.y) for pair in late.values()) >= before.least
        recent = challenge(late, criterion, scoring) if enough else None
        decides = "these" if recent is not None else "too few, all rows"
        count = f"{describe(recent, late, criterion, new)}, {before.since} ({decides} decide); on all: {count}"
        gain = recent or gain
    better, reason = verdict(gain, criterion)
    gone = len(trained) > 0 and float(np.isin(trained, keys).mean()) < FEW  # as where words are numbered anew
    others = others if len(comparable) < len(rows) else ""
    by = f"the candidate predicts by {'these' if scoring.costs else 'no'} costs"
    by += f", the champion {'by others' if champion.costs else 'without'}"
    costs = by * (its_own is not None)
    sentences = (count, reason, costs, others, "hardly a row that trained the champion is in these data" * gone)
    return "yes" if better else "no", "; ".join(filter(None, sentences))


def describe(gain: Gain | None, pairs: Mapping[str, Paired], criterion: Criterion, new: str) -> str:
    """Return a gain with its interval, if there is one, and the rows that it is of. new: by what they are new."""
    metric, counted = criterion.metric, pairs if gain is None else weights_of(pairs, criterion)
    rows = sum(len(pairs[name].y) for name in counted)
    count = f"{plural(rows, 'row')} of {plural(len(counted), 'device')}, {new}"
    if gain is None:
        return count
    text = f"{metric.difference(gain.mean)} ({metric.interval(gain.low, gain.high)}) {metric.unit}"
    return f"{text.strip()}{f' of {criterion.words}' * (metric.name != 'accuracy')} on {count}"


def unseen(dataset: Dataset, partition: Partition, keys: Keys, trained: Keys) -> dict[str, Index]:
    """Return device -> the test rows whose keys trained neither model; without any those of the shared test set.

    Devices without such rows are left out. keys: both of all rows. trained: those of the champion's training rows.
    """
    fresh = ~np.isin(keys, np.concatenate([trained, keys[:, trains(partition)].ravel()])).max(axis=0)
    own = {who: parts["test"] for who, parts in partition.devices.items()}
    if not any(map(len, own.values())) and dataset.test is None:
        owners = np.asarray(owners_of(dataset, partition) or [""] * len(fresh))[partition.shared]
        own = {str(who): partition.shared[owners == who] for who in np.unique(owners)}
    return {who: index[fresh[index]] for who, index in own.items() if fresh[index].any()}


def require_same(dataset: Dataset, schema: Schema) -> None:
    """Raise InputError, which names the column, if a model cannot read today's rows or knows other classes."""
    now = schema_of(dataset)
    kinds, present = ({column.name: column.kind for column in described.columns} for described in (schema, now))
    if schema.spelling == "inferred" and dataset.earlier:
        name, texts = dataset.earlier[0]
        raise InputError(
            f"column {name!r}: its names are texts, for the champion {texts[0]!r} and others were numbers; "
            "data.join_names=true reads them as the champion does"
        )
    if {schema.spelling, now.spelling} == {"written", "joined"}:
        raise InputError(f"data.join_names = {now.spelling == 'joined'}: the champion's names were read otherwise")
    if {schema.decimal, now.decimal} == {"comma", "point"}:
        raise InputError(f"data.decimal = {now.decimal}: the champion's numbers were read otherwise")
    in_use = {*now.known, *(dataset.device or ())}
    for name in filter(COMMA_WHOLE.fullmatch, sorted(schema.known - in_use)):
        if (whole := name_of(name.replace(",", "."), "written")) in in_use:
            raise InputError(f"name {name!r}, which the champion knows, is read as {whole!r} today")
    for key in ("id", "missing_values"):  # by these it is told which rows a model was trained on
        today, then = getattr(now, key), getattr(schema, key)
        if None not in (today, then) and {today, then} != {today}:
            raise InputError(f"data.{key} = {today!r}: for the champion it was {then!r}, which gives rows other keys")
    for name in kinds:
        if name not in present:
            raise InputError(f"column {name!r}, which the champion needs: {now.left_out.get(name, 'not there today')}")
        if kinds[name] != present[name]:
            raise InputError(f"column {name!r} holds a {present[name]} today, for the champion it is a {kinds[name]}")
    if (new := sorted({of.name for of in now.keyed} ^ {of.name for of in schema.keyed})) and dataset.ids is None:
        what = "has one text no longer, or again" if new[0] in kinds else "is new"
        raise InputError(f"column {new[0]!r} {what}, which divides all rows anew (set data.id)")
    pixels = [of.dtype == "uint8" for of in (now, schema)]
    if not kinds and (now.shape != schema.shape or len({*pixels}) > 1):
        raise InputError(f"examples have shape {now.shape}, {now.dtype}; the champion's {schema.shape}, {schema.dtype}")
    for today, then in zip_longest(now.several, schema.several):
        known = then is not None and then.pixels is not None
        if (today and replace(today, pixels=today.pixels if known else None)) != then:
            names = ", ".join(of.name for of in schema.several) or "one array"
            why = "its place, shape or type is not that for the champion, whose inputs are"
            raise InputError(f"input {(today or then).name!r}: {why} {names}")
    label = f"column {now.label or 'label'!r}"
    if dataset.task.name != schema.task:
        raise InputError(f"{label}: its task is {dataset.task.name} today, for the champion {schema.task}")
    if changed := {*dataset.classes} ^ {*schema.classes}:
        what = "new" if min(changed) in dataset.classes else "no longer there"
        raise InputError(f"{label}: class {min(changed)!r} is {what}")
    if dataset.classes != schema.classes:
        today, then = ", ".join(dataset.classes), ", ".join(schema.classes)
        raise InputError(f"the labels are {today} today, for the champion {then}")


def lay_out(dataset: Dataset, schema: Schema) -> Tensor:
    """Return a dataset's examples with the inputs of an earlier schema: a category of today alone has none.

    Standardised pictures get that schema's means and deviations; fractions stay where the schema had whole numbers.
    """
    if not schema.columns:
        x, channels = dataset.train.x, schema_of(dataset).channels
        if schema.channels != channels:
            raw = undo_channels(x, channels) if channels != Fit() else dataset.train.inputs()
            x = standardise_channels(raw, schema.channels) if schema.channels != Fit() else raw
        stays = schema.channels != Fit() or (x.is_floating_point() and "int" in schema.dtype)
        return x if stays else x.to(getattr(torch, schema.dtype))
    today, then = (
        [(column.name, name) for column in each.columns for name in column.inputs]
        for each in (schema_of(dataset), schema)
    )
    index_of = {name: i for i, name in enumerate(today)}
    x = torch.nn.functional.pad(dataset.train.x, (0, 1))  # a last column of zeros
    return x[:, [index_of.get(name, -1) for name in then]].to(getattr(torch, schema.dtype))


def predict(served: ServedModels, device: str, data: Data) -> Tensor:
    """Return the answers of a device's model, or of all devices', for rows as they are in the data.

    They are log-probabilities, numbers in the label's unit, or logits of several labels.
    """
    known = device if device in served.schema.devices else None
    x = prepare(data, fit_for(served.schema, data.inputs(), known, bool(device))).inputs()
    if x.isnan().any():
        name = served.schema.inputs[int(x.isnan().any(0).nonzero()[0])]
        raise InputError(f"column {name!r}: a cell is missing, which the champion cannot fill")
    return served.answers(served.devices.get(device, 0), x)


def files_of(version: ModelVersion) -> Path:
    """Return the folder of a version's models. Raises InputError for models that this project did not register."""
    uri = MlflowClient().get_model_version_download_uri(version.name, version.version)
    return models.folder_of(version.name, version.version, uri)
