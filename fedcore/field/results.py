"""What a run in the field says: its tidy table, the models that need no device's memory, and what left each device."""

from dataclasses import replace
from typing import Any

import pandas as pd

from fedcore.core.rounds import deployments
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL
from fedcore.field.runs import Setup, StoredRun
from fedcore.field.server import federation_of
from fedcore.results import tidy
from fedcore.types.method import Model

STUDY, SETTING = "field", "field"


def table_of(record: StoredRun, setup: Setup, label: str) -> pd.DataFrame:
    """Return a run's turns as rows of the tidy table (docs/columns.md)."""
    method, _ = record.plan.build()
    same, recipe = setup.recipe is None or setup.recipe.split is not None, record.plan.read_recipe()
    kind, beside = LABEL_KINDS[setup.task], dict[str, float]()
    if kind is MULTILABEL:
        beside["labels"] = float(setup.classes)
    if recipe is not None and recipe.label_scale is not None:
        beside["label_std"] = recipe.label_scale[1]
    data = {
        name: {
            "examples": float(facts["examples"]), "test_examples": float(facts["test_examples"]),
            "test_classes": float(facts["test_classes"]), "shared_examples": 0.0,
            **({"same_test": 1.0} if same else {}), **beside,
        }
        for name, facts in record.devices.items()
    }  # fmt: skip
    study = setup.study
    row = tidy.Row(STUDY if study is None else study.name, _data(setup), SETTING, label, record.plan.seed)
    return tidy.of_run(row, method, record.turns, [], data, record.prepare)


def _data(setup: Setup) -> str:
    return "devices" if setup.study is None else setup.study.data


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


def left_devices(record: StoredRun, label: str) -> pd.DataFrame:
    """Return what left each device in a run: a row for each kind, with the values and bytes of it."""
    records: list[tuple[Any, ...]] = []
    for name in record.plan.nets:
        joined = record.devices.get(name)
        if joined is None:
            continue
        turns = [turn for turn in record.turns if turn.up.get(name)]
        scores = [turn.scores[name] for turn in record.turns if turn.scores and name in turn.scores]
        numbers = sum(len(split) for parts in scores for part, split in parts.items() if part != "shared")
        rows = [
            ("numbers of its examples (training, test, classes tested)", 3, 0),
            ("digest of its examples, with a key that stays there", 1, 0),
            ("updates: models, or what the method sends in their place", len(turns), sum(t.up[name] for t in turns)),
            ("scores", numbers, 0),
        ]
        if prepared := record.prepare.get(name):
            rows.append(("medians, means and variances of columns and label", 1, int(prepared["prepare_up"])))
        rows.append(("all of it on the wire", 1, record.wire[name][0]))
        records += [(label, record.plan.seed, name, *row) for row in rows]
    return pd.DataFrame(records, columns=["method", "seed", "device", "what", "values", "bytes"])
