"""The registry of datasets, and the digits that need no file."""

from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from dataset_files import refusal

from fedcore.data import DATASETS, Dataset, load


def test_unknown_dataset_is_refused_with_the_nearest_name():
    line = refusal("minst")
    assert "data.name = 'minst'" in line
    assert "did you mean mnist?" in line
    assert f"allowed: {', '.join(DATASETS)}" in line
    assert f"is a file, which is read by load('table', path={__file__!r}, label=...), or data.n" in refusal(__file__)


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


OWN = """
import numpy as np
import fedcore as fc

def read(rows: int = 6, label: str = "high"):
    x = np.arange(2.0 * rows).reshape(rows, 2)
    return fc.from_arrays(x, [label if i % 2 else "low" for i in range(rows)])

def pair(): return [1], [2]
def fails(): return np.load("absent.npy")
def empty(): return read(0)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_of_registry.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_of_registry"


def test_a_function_of_ones_own_is_a_dataset(own: str):
    dataset = load(f"{own}:read", rows=8)
    assert (len(dataset.train), dataset.classes) == (8, ("high", "low"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pair", "must return a dataset, such as fedcore.from_arrays(x, y), returned tuple"),
        ("fails", "fails: FileNotFoundError: [Errno 2] No such file or directory: 'absent.npy'"),
        ("empty", "returned no example"),
        ("number", "is neither a class nor a function"),
        ("absent", "has no 'absent'"),
        ("empy", "has no 'empy'; did you mean empty?"),
    ],
)
def test_a_function_that_gives_no_dataset_is_refused_in_a_line(own: str, name: str, says: str):
    assert says in refusal(f"{own}:{name}")


def test_a_function_says_what_settings_it_takes(own: str):
    assert "its settings are: rows, label" in refusal(f"{own}:read", row=3)
