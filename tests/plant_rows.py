"""A plant's rows, which a study has in one table and the field in one for each site."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from in_process import InProcess

from fedcore.api.federation import DividedDataset, federate, partitioner
from fedcore.data import Dataset, load
from fedcore.field.recipe import Recipe
from fedcore.field.rows import DeviceRows
from fedcore.field.runs import Setup

SITES = {"north": 40, "south": 31, "west": 58}


LABELS: dict[str, str | list[str]] = {
    "classification": "fault", "regression": "hours", "multilabel": ["leak", "worn"],
}  # fmt: skip
"""The label of the plant's rows, by what it is."""


def plant(task: str = "classification") -> pd.DataFrame:
    """Rows of three sites in turn, with codes, a boolean, a constant on one site, and gaps: west knows no flow.

    task: what their label is.
    """
    rng, site = np.random.default_rng(3), np.repeat([*SITES], [*SITES.values()])
    rng.shuffle(site)
    rows = pd.DataFrame({"site": site, "heat": rng.normal(1000, 3, len(site)), "flow": rng.normal(size=len(site))})
    rows["kind"] = rng.choice(["01", "02", "A1"], len(site))
    rows["old"] = rng.random(len(site)) < 0.5
    rows["fault"] = rng.choice(["none", "leak", "crack"], len(site), p=[0.5, 0.3, 0.2])
    rows.loc[rows["site"] == "west", "flow"] = math.nan
    rows.loc[rng.random(len(site)) < 0.1, "heat"] = math.nan
    rows["part"] = rng.choice(["train", "test"], len(site))
    if task == "classification":
        return rows
    hours = {"hours": 50 * rows["old"] + rng.normal(900, 20, len(site)).round(3)}
    labels = hours if task == "regression" else {name: rng.integers(0, 2, len(site)) for name in LABELS[task]}
    return rows.drop(columns="fault").assign(**labels)


def load_plant(folder: Path, missing: str = "median", task: str = "classification") -> Dataset:
    plant(task).to_csv(folder / "all.csv", index=False)
    settings = {"label": LABELS[task], "device": "site", "ignore": ["part"], "categorical": ["kind"]}
    return load("table", path=folder / "all.csv", missing=missing, **settings)


def on_devices(
    folder: Path, missing: str = "median", task: str = "classification"
) -> tuple[DividedDataset, Setup, InProcess]:
    """A study of a table, and a link to devices that have the same rows, each in a table of its own."""
    study = load_plant(folder, missing, task)
    fed = federate(study, partitioner("by_device")(), min_size=5, shared_test=0.1, scale="common")
    rows = {}
    for site, part in plant(task).groupby("site"):
        part.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
        rows[str(site)] = DeviceRows(folder / f"{site}.csv", str(site))
    recipe = Recipe(study.schema, "common", shared_test=0.1, min_size=5)
    shape, classes = tuple(study.train.x.shape[1:]), len(study.classes)
    setup = Setup(tuple(rows), shape, classes, ({"name": "mlp"},), recipe, task=task)
    return fed, setup, InProcess(fed.federation(4), folder / "devices", rows=rows)
