"""A device alone makes the examples that the study made of its rows, to the bit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import bits
from plant_rows import load_plant, plant

from fedcore import InputError, load
from fedcore.data.prepare import preparation_bytes
from fedcore.data.schema import Column, Fit, Schema
from fedcore.field.recipe import Recipe
from fedcore.field.rows import DeviceRows
from fedcore.field.study import earlier_of, texts_of
from fedcore.partition import partition, splits
from fedcore.types.federation import nbytes

TABLE = Schema((2,), "float32", ("a", "b"), (Column("x", "number"), Column("y", "boolean")), "label")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "scale", "hold_out", "split"),
    [
        ("median", "common", "random", None), ("common_median", "device", "stable", None),
        ("drop", "none", "random", None),
        ("median", "none", "random", "part"), ("common_median", "common", "stable", "part"),
    ],
)  # fmt: skip
def test_a_device_makes_the_examples_of_the_study_to_the_bit(missing, scale, hold_out, split, tmp_path):
    rows = plant()
    if missing == "drop":
        rows["flow"] = rows["flow"].fillna(0.5)
    if hold_out == "stable":  # a key of a row is of its names: north's codes alone look like numbers
        codes = {"01": "01", "02": "02", "A1": "01" if split else "A1"}
        rows["kind"] = rows["kind"].map(codes)
        rows.loc[(rows["site"] == "north") & (rows["kind"] == "A1"), "kind"] = "02"
        rows["site"] = rows["site"].map({"north": "001", "south": "002", "west": "3"})
        rows["no"] = [f"{i // 2:03}" + ".0" * (i % 4 == 0) + "A" * (site == "3") for i, site in enumerate(rows["site"])]
    rows.to_csv(tmp_path / "all.csv", index=False)
    settings = {"label": "fault", "device": "site", "split": split, "ignore": [] if split else ["part"]}
    settings["join_names"] = scale == "common"
    settings |= {"categorical": ["kind"]} | ({"id": "no"} if hold_out == "stable" else {})
    study = load("table", path=tmp_path / "all.csv", missing=missing, **settings)
    shares = {"val": 0.15, "test": 0.25, "shared_test": 0.1, "hold_out": hold_out}
    there, _ = splits(study, partition(study, name="by_device", min_size=5, seed=7, **shares), scale)

    names = {"id": settings.get("id"), "earlier": earlier_of(study), "texts": texts_of(study, settings.get("id"))}
    recipe = Recipe(study.schema, scale, split=split, **names, **shares)
    own = {}
    for name, part in rows.groupby("site"):
        site = name.lstrip("0") if settings["join_names"] else name
        part.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
        own[site] = DeviceRows(tmp_path / f"{site}.csv", site)
    raw = {site: one.splits(recipe, 7) for site, one in own.items()}
    sent, sizes = 8, {site: len(one.train) for site, one in raw.items()}
    while recipe.lacks:
        numbers = {site: recipe.numbers(one) for site, one in raw.items()}
        sent += nbytes(numbers[min(numbers)])
        recipe = recipe.with_numbers(numbers, sizes)
    assert bits({site: one.prepared(recipe, 7)[0] for site, one in own.items()}) == bits({n: there[n] for n in own})
    counted = preparation_bytes(study.schema, scale)
    assert sent == counted.get("prepare_up", 8)


@pytest.mark.parametrize(("task", "hold_out"), [("regression", "random"), ("multilabel", "stable")])
def test_a_device_makes_labels_of_other_tasks_to_the_bit(task, hold_out, tmp_path):
    study = load_plant(tmp_path, task=task)
    shares = {"val": 0.15, "test": 0.25, "shared_test": 0.1, "hold_out": hold_out}
    there, _ = splits(study, partition(study, name="by_device", min_size=5, seed=7, **shares), "none")
    recipe, raw = Recipe(study.schema, **shares), {}
    for site, part in plant(task).groupby("site"):
        part.to_csv(tmp_path / f"{site}.csv", index=False)
        raw[site] = DeviceRows(tmp_path / f"{site}.csv", site).splits(recipe, 7)
    sizes = {site: len(one.train) for site, one in raw.items()}
    while recipe.lacks:
        recipe = recipe.with_numbers({site: recipe.numbers(one) for site, one in raw.items()}, sizes)
    assert bits({site: recipe.prepare(one)[0] for site, one in raw.items()}) == bits(
        {name: there[name] for name in raw}
    )
    assert (recipe.label_scale is not None) == (task == "regression")
    assert Recipe.from_mapping(recipe.to_mapping()) == recipe


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_pictures_of_a_device_are_those_of_the_study(scaling, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for site in "ab":
        for label in ("cat", "dog"):
            folder = tmp_path / "all" / site / label
            folder.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.integers(0, 255, (9, 7, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    study = load("image_folder", path=tmp_path / "all", size=8, scaling=scaling, sites=True)
    there, _ = splits(study, partition(study, name="by_device", min_size=2, shared_test=0.1, seed=0), "device")
    recipe = Recipe(study.schema, "device", shared_test=0.1)
    assert bits(DeviceRows(tmp_path / "all" / "a", "a").prepared(recipe, 0)[0]) == bits(there["a"])
    (tmp_path / "all" / "a" / "fox").mkdir()
    with pytest.raises(InputError, match=r"^--data .*: label 'fox' is unknown to the study; it has: cat, dog$"):
        DeviceRows(tmp_path / "all" / "a", "a").read(recipe)


def test_a_recipe_travels_as_json():
    made = Recipe(replace(TABLE, missing="median"), "common", shared=Fit((0.1, 0.2), (1 / 3, 0.0), (2.0, 1.0)))
    assert Recipe.from_mapping(made.to_mapping()) == made


def test_a_recipe_is_that_of_earlier_versions():
    """Devices keep the digest of one by which they have told numbers, and refuse a plan with another key."""
    assert Recipe(TABLE).form() == "881d820eb6c04667c83cd0feccaf8364"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"val": 0.6, "test": 0.6}, "recipe: its shares cannot be"),
        ({"scale": "odd"}, r"recipe\.scale = 'odd': must be 'none', 'device' or 'common'$"),
        ({"val": "much"}, r"recipe\.val = 'much': must be a number$"),
        ({"more": 1}, r"recipe\.more: no such key"),
        ({"schema": {"shape": [2]}}, r"recipe\.schema\.dtype: is missing"),
        ({"shared": {"fill": [1.0], "mean": [], "std": []}}, "recipe: its fill cannot be"),
        ({"label_scale": [0.0, 2.0]}, "recipe: its scale of labels cannot be"),
        ({"shared": {"fill": [], "mean": [0.0, 0.0], "std": [1.0, 0.0]}}, "recipe: its scale cannot be"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(change, said):
    with pytest.raises(InputError, match=f"^{said}") as refused:
        Recipe.from_mapping({**Recipe(TABLE).to_mapping(), **change})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("tensor", [None, torch.zeros(3), torch.zeros(2), torch.full((2,), math.inf).double()])
def test_numbers_that_are_none_name_their_device(tensor):
    with pytest.raises(InputError, match=r"^answer of b: its numbers are no median of each input$"):
        Recipe(replace(TABLE, missing="median")).with_numbers(
            {"b": {} if tensor is None else {"median": tensor}}, {"b": 3}
        )
