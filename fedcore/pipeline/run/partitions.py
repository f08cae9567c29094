"""From a dataset to a federation: read, store, divide among devices."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from fedcore import spreadsheet
from fedcore.builders import unknown_value
from fedcore.config.settings import Setting, partition_arguments
from fedcore.data import Dataset, load, schema_of
from fedcore.data.inputs import Input
from fedcore.data.task import CLASSIFICATION, LABEL_KINDS, SEQUENCES, require_classes
from fedcore.errors import InputError
from fedcore.nets import net
from fedcore.nets.copies import template
from fedcore.nets.inputs import require_integers, takes_integers
from fedcore.partition import Partition
from fedcore.partition.examples import label_scale
from fedcore.partition.tables import counts, dropped_devices, dropped_note, from_frame, to_frame
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.step_functions import describe, distribute, divide, take_none
from fedcore.pipeline.work import around
from fedcore.report import figures
from fedcore.report.preview import coarse
from fedcore.results.criterion import scoring
from fedcore.types.federation import Device, Federation, Net, Scoring
from fedcore.types.method import HeldOut

DATASET, CARD = "dataset.safetensors", "card.json"
PARTITION = "index.parquet"


def read_dataset(store: Store, settings: dict[str, Any], dataset: Dataset | None = None) -> Ref:
    """Read a dataset from its source into the store. It is not cached, since its files may have changed.

    dataset: if this command has just read it. What is for its preview is not stored: results do not depend on it.
    """
    if dataset is None:
        dataset = load(settings["name"], **{key: value for key, value in settings.items() if key != "name"})
    ref: Ref = store.put(replace(dataset, notes=(), unknown=()))
    return ref


def import_dataset(store: Store, folder: Path) -> Ref:
    """Copy a dataset that an earlier stage wrote into the store."""
    try:
        return store.import_blob(folder / DATASET)
    except (OSError, DamagedBlob) as error:
        raise InputError(f"{folder / DATASET}: cannot be read ({error}); make it again with: dvc repro") from None


def digest_of_stage(folder: Path) -> str:
    """Return the digest of a dataset that an earlier stage wrote."""
    try:
        return str(json.loads((folder / CARD).read_text())["digest"])
    except (OSError, ValueError, LookupError) as error:
        raise InputError(f"{folder / CARD}: cannot be read ({error}); make it again with: dvc repro") from None


def save_dataset(store: Store, dataset: Ref, folder: Path) -> None:
    """Write a dataset to a folder that DVC versions: the stored bytes, and a readable summary."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(store.path(dataset), folder / DATASET)
    data: Dataset = store.get(dataset)
    card = {
        "digest": dataset.digest, "shape": list(data.train.x.shape[1:]), "classes": list(data.classes),
        "examples": len(data.train), "test": len(data.test) if data.test is not None else None,
        "devices": len(set(data.device)) if data.device is not None else None,
    }  # fmt: skip
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")


@lru_cache(maxsize=1)
def read_prepared(store: Store, prepared: PreparedData) -> tuple[Dataset, Partition]:
    """Return a dataset and its partition; the last ones are kept, since all that describes them is written in turn."""
    return prepared.load(store)


def notes(store: Store, prepared: PreparedData, section: Mapping[str, Any], first: bool = True) -> list[str]:
    """Return lines of the preview: devices that `drop_small` left out; with the first seed, rounded numbers."""
    read = read_prepared(store, prepared)
    dropped = dropped_devices(*read, section["partition"], section["devices"]) if section.get("drop_small") else []
    lines = coarse(*read, section["scale"])[0] if first and schema_of(read[0]).columns else []
    return [*filter(None, [dropped_note(dropped, section)]), *lines]


def save_partition(store: Store, prepared: PreparedData, folder: Path) -> None:
    """Write a partition to a folder that DVC versions: index lists, a table and a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    data, parts = read_prepared(store, prepared)
    to_frame(parts).to_parquet(folder / PARTITION, index=False)
    table = counts(data, parts)
    spreadsheet.write(table, folder / "who.csv")
    (folder / "who.png").write_bytes(figures.png(figures.class_counts(table)))


def import_partition(store: Store, folder: Path) -> Ref:
    """Copy a partition that an earlier stage wrote into the store."""
    try:
        frame = pd.read_parquet(folder / PARTITION)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / PARTITION}: cannot be read ({error}); make it again with: dvc repro") from None
    parts: Ref = store.put(from_frame(frame))
    return parts


def divide_dataset(steps: Graph, dataset: Ref, federation: Mapping[str, Any], seed: int) -> Ref:
    """Partition a dataset as a cached step."""
    divide_so = partial(divide, federation=partition_arguments(federation), seed=seed)
    parts: Ref = steps.run_inline(around("partition", divide_so), dataset)
    return parts


def require_two(classes: Sequence[str], label: str) -> None:
    """Refuse a threshold on the probability of a label unless it is one of two classes."""
    if len(classes) != 2:
        raise InputError(f"run.threshold = 'validation': is for data of two classes; these have {len(classes)}")
    if label not in classes:
        raise unknown_value("run.positive", label, classes)


def learners(setting: Setting, card: Mapping[str, Any]) -> tuple[list[Net], Scoring]:
    """Return nets and what models are measured by; refuses what data cannot have. card: see :func:`describe`."""
    task = card.get("task", CLASSIFICATION.name)
    if setting.scoring and not LABEL_KINDS[task].predicts_classes:
        require_classes(task, f"run.metric = {setting.scoring['metric']!r}:")
    if setting.threshold is not None:
        require_classes(task, "run.threshold = 'validation':")
        require_two(card["classes"], setting.threshold)
    context = {"shape": card["shape"], "classes": len(card["classes"]), "per_step": task == SEQUENCES.name}
    context |= {"several": tuple(Input(name, tuple(shape), *kind) for name, shape, *kind in card.get("several", ()))}
    nets = [net(**context, **section) for section in setting.nets]
    for module in map(template, nets):
        if takes_integers(module):
            require_integers(module, card["largest"], setting.federation["scale"])
    return nets, scoring(**setting.scoring, classes=card["classes"]) if setting.scoring else Scoring()


def build_federation(
    steps: Graph, setting: Setting, prepared: PreparedData, final_fit: tuple[HeldOut, ...] | None = None
) -> Federation:
    """Return the federation; its devices hold references, which the loop never reads.

    final_fit: what a final fit holds out; it has no shared test set unless that is among it.
    """
    scaled = partial(distribute, scale=setting.federation["scale"])
    devices_data, shared, servers_data = steps.run_inline(scaled, prepared.dataset, prepared.partition, start=True)
    if final_fit is not None and "shared" not in final_fit:
        shared = steps.run_inline(take_none, shared)
    card = steps.run_inline(describe, prepared.dataset)
    nets, scored = learners(setting, card)
    devices = {name: Device(name, nets[i % len(nets)], devices_data[name]) for i, name in enumerate(devices_data)}
    if (task := card.get("task", CLASSIFICATION.name)) != CLASSIFICATION.name:
        scored = replace(scored, label_scale=label_scale(*prepared.load(steps.store)))
    return Federation(devices, shared, len(card["classes"]), servers_data, setting.threats, scored, task)
