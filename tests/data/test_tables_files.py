"""A table means the same as CSV and as Parquet, and a row the same alone; the cases that people have sent."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dataset_files import CASES, cases
from federations import bits
from own_modules import OwnTrain
from torch import nn

import fedcore as fc
from benchmarks.table_files import differences
from fedcore import Dataset, InputError, load


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_a_made_table_means_the_same_in_both_files(tmp_path: Path, number: int):
    assert differences(number, tmp_path) == []


class OwnModes(OwnTrain):
    """A hook, a `train()` of its own and a batch norm, for the rows of a table."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(*shape, 8)
        self.second.register_forward_pre_hook(lambda _, inputs: (inputs[0] * self.scale,))


@pytest.mark.slow
def test_an_own_net_learns_the_same_numbers_from_both_files(tmp_path: Path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(90, 2)), columns=["u", "v"]).assign(
        on=rng.random(90) < 0.5, kind=np.resize(["01", "1", "A"], 90), site=np.repeat(["1", "01", "x"], 30)
    )
    frame["y"] = (frame["u"] > frame["v"]) + frame["on"] * 1
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    runs = []
    for file in ("t.csv", "t.parquet"):
        data = load("table", path=tmp_path / file, label="y", device="site", categorical=["kind"])
        fed = fc.federate(data, fc.by_device(), net=fc.net(OwnModes), scale="common")
        runs.append(fc.run(fc.fedavg(rounds=2, training={"epochs": 1}), fed, progress=False))
    first, second = runs
    assert bits(first.models) == bits(second.models)
    assert bits(first.state) == bits(second.state)
    pd.testing.assert_frame_equal(first.table, second.table)


def read(case: str, file: str, label: str, **settings: str) -> Dataset:
    return load("table", path=CASES / case / file, label=label, **settings)


@cases
@pytest.mark.parametrize(
    ("case", "file", "settings", "line"),
    [
        ("label_case", "d.csv", {"label": "label", "device": "site"}, "label: 'Yes', 'Yes ', 'yes' look alike, "),
        ("zero_sites", "sites.csv", {"label": "label", "device": "site"}, "site: '001', '01', '1' look alike, "),
        ("numeric_label", "t.csv", {"label": "miles", "device": "airport"}, "task: classification, miles has 12 "),
        ("missing_markers", "rows.csv", {"label": "state", "device": "site", "missing": "median"}, "cells that count "),
        ("train_test_files", "sites", {"label": "state"}, "files: train, test for each of 2 devices; "),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_a_case_needs_is_said(case: str, file: str, settings: dict[str, str], line: str):
    assert any(note.startswith(line) for note in read(case, file, **settings).notes)


@cases
def test_names_of_cases_stay_apart():
    assert read("names_by_file", "sites", "label").classes == ("01", "02", "n1")
    assert {*(read("zero_sites", "sites.csv", "label", device="site").device or ())} == {"1", "01", "001"}


@cases
@pytest.mark.parametrize(("case", "file", "column"), [("list_column", "d.parquet", "vec"), ("big_ids", "d.csv", "k")])
def test_a_column_of_a_case_that_cannot_be_learnt_from_is_named(case: str, file: str, column: str):
    schema = read(case, file, "label", device="site").schema
    assert schema is not None
    assert [*schema.left_out] == [column]


@cases
def test_a_name_that_stands_twice_in_a_case_is_refused():
    with pytest.raises(InputError, match="two of them named 'state'"):
        read("dup_header", "rows.csv", "state", device="site")


@cases
def test_spaces_after_commas_and_a_site_of_test_rows_are_read():
    assert read("spaces_after_comma", "rows.csv", "state", device="site").classes == ("a", "b")
    assert {*(read("unseen_site", "rows.csv", "state", device="site", split="part").device or ())} == {"s0", "s1", "s2"}
