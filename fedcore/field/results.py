"""What a run in the field says: its tidy table, the models that need no device's memory, and what left each device."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedcore.core.rounds import deployments
from fedcore.data.schema import Fit, Schema
from fedcore.field.runs import Kept, Setup
from fedcore.field.server import federation_of
from fedcore.results import reports, tidy
from fedcore.types import Model, Report

STUDY, SETTING = "field", "field"


def table_of(kept: Kept, setup: Setup, label: str) -> pd.DataFrame:
    """Return a run's turns as rows of the tidy table (docs/concepts.md)."""
    method, _ = kept.plan.build()
    same = setup.recipe is None or setup.recipe.split is not None
    data = {
        name: {
            "examples": float(told["examples"]), "test_examples": float(told["test_examples"]),
            "test_classes": float(told["test_classes"]), "shared_examples": 0.0, **({"same_test": 1.0} if same else {}),
        }
        for name, told in kept.devices.items()
    }  # fmt: skip
    numbers = {"data": data, **reports.final_numbers(method, [], kept.turns[-1].scores)}
    study = setup.study
    place = tidy.Row(STUDY if study is None else study.name, _data(setup), SETTING, label, kept.plan.seed)
    return tidy.rows(place, kept.turns, [Report()] * len(kept.turns), numbers, kept.prepare)


def _data(setup: Setup) -> str:
    return "devices" if setup.study is None else setup.study.data


def models_of(kept: Kept, setup: Setup) -> dict[str, tuple[Model, int]] | None:
    """Return each device's model and the number of its net; None where a device's memory or numbers are a part of it.

    Such a model stays on its device: it personalises, or the device prepares its rows by numbers that it keeps.
    """
    recipe = setup.recipe
    if recipe is not None and (recipe.scale == "device" or recipe.schema.missing == "median"):
        return None
    method, _ = kept.plan.build()
    fed = federation_of(setup.public())
    found: dict[str, Model] = {}
    for names, (deploy, memory, message) in deployments(method, fed, kept.state):
        if memory:
            return None
        model = deploy({}, message)
        found |= dict.fromkeys(names, model)
    return {name: (found[name], i % len(setup.nets)) for i, name in enumerate(fed.devices)}


def schema_of(setup: Setup, kept: Kept) -> Schema:
    """Return how rows are prepared for the models of :func:`models_of`."""
    recipe = kept.plan.read_recipe()
    if recipe is None:
        return Schema(setup.shape, "float32", tuple(map(str, range(setup.classes))))
    fit = Fit(recipe.shared.fill, recipe.shared.mean, recipe.shared.std)
    schema = recipe.schema
    return Schema(**{**vars(schema), "devices": dict.fromkeys(kept.plan.nets, fit), "shared": fit})


def left_devices(kept: Kept, label: str) -> pd.DataFrame:
    """Return what left each device in a run: a row for each kind, with the values and bytes of it."""
    found: list[tuple[Any, ...]] = []
    for name in kept.plan.nets:
        told = kept.devices.get(name)
        if told is None:
            continue
        turns = [turn for turn in kept.turns if turn.up.get(name)]
        scores = [turn.scores[name] for turn in kept.turns if turn.scores and name in turn.scores]
        numbers = sum(len(split) for one in scores for part, split in one.items() if part != "shared")
        rows = [
            ("numbers of its examples (training, test, classes tested)", 3, 0),
            ("digest of its examples, with a key that stays there", 1, 0),
            ("updates: models, or what the method sends in their place", len(turns), sum(t.up[name] for t in turns)),
            ("scores", numbers, 0),
        ]
        if prepared := kept.prepare.get(name):
            rows.append(("medians, means and variances of columns", 1, int(prepared["prepare_up"])))
        rows.append(("all of it on the wire", 1, kept.wire[name][0]))
        found += [(label, kept.plan.seed, name, *row) for row in rows]
    return pd.DataFrame(found, columns=["method", "seed", "device", "what", "values", "bytes"])
