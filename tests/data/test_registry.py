"""The registry of datasets, and the digits that need no file."""

from importlib import import_module
from typing import get_type_hints

import torch
from sets import refusal

from fedcore.data import DATASETS, Dataset, load


def test_unknown_dataset_is_refused_with_the_nearest_name():
    line = refusal("minst")
    assert "data.name = 'minst'" in line
    assert "did you mean mnist?" in line
    assert f"allowed: {', '.join(DATASETS)}" in line


def test_a_setting_that_a_loader_does_not_take_is_refused():
    line = refusal("table", path="a.csv", label="y", sep=";")
    assert "'sep'" in line
    assert "path, label, device, split, features" in line


def test_digits():
    digits = load("digits")
    assert digits.train.x.shape == (1797, 1, 8, 8)
    assert digits.train.x.dtype == torch.float32
    assert digits.train.y.dtype == torch.int64
    assert digits.test is None
    assert digits.classes == tuple("0123456789")
    sixteenths = digits.train.inputs() * 16
    assert sixteenths.unique().tolist() == list(range(17))  # 0..16 dark pixels, nothing lost
    assert digits.train.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_every_loader_is_there_and_says_what_it_returns():
    for place in DATASETS.values():
        module, _, name = place.partition(":")
        loader = getattr(import_module(module), name)
        assert get_type_hints(loader)["return"] is Dataset
        assert loader.__doc__
