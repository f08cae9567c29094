"""Held-out examples: the shared test set, and what each device tests and validates on."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import LABELS, LEAVES_OUT, SETTINGS, dataset, equal, everything

from fedcore import InputError
from fedcore.partition import PARTITIONS, partition, splits
from fedcore.partition.held_out import draw
from fedcore.partition.tables import from_frame, to_frame
from fedcore.types.federation import Data


def test_the_shared_test_set_can_be_some_of_what_it_would_be():
    """Of the official one, or of what is held out: then the devices hold what they did."""
    data = dataset(LABELS)
    whole = partition(data, **SETTINGS)
    some = partition(data, **SETTINGS, shared_examples=15)
    assert len(some.shared) == 15
    assert set(some.shared) < set(whole.shared)
    assert (np.diff(some.shared) > 0).all()
    assert equal(dataclasses.replace(some, shared=whole.shared), whole)
    for enough in (40, 400):
        assert equal(partition(data, **SETTINGS, shared_examples=enough), whole)
    assert partition(data, **{**SETTINGS, "seed": 1}, shared_examples=15).shared.tolist() != some.shared.tolist()
    assert splits(data, some)[1].y.tolist() == LABELS[some.shared].tolist()

    official = dataclasses.replace(data, test=Data(torch.rand(30, 1, 3), torch.arange(30) % 5))
    some = partition(official, **SETTINGS, shared_examples=7)
    shared = splits(official, some)[1]
    assert len(shared) == len(set(some.shared)) == 7
    assert torch.equal(shared.x, official.test.x[some.shared])
    assert everything(dataclasses.replace(some, shared=some.shared[:0])).tolist() == list(range(200))
    assert equal(from_frame(to_frame(some)), some)
    scaled = splits(official, some, "device")[1]
    assert len(scaled) == 7


def test_the_shared_test_set_is_the_same_for_any_setting():
    data = dataset(LABELS)
    changes = [{}, {"devices": 7}, {"alpha": 0.5}, {"name": "iid"}, {"val": 0.3, "test": 0.0}, {"examples": 50}]
    shared = [partition(data, **{**SETTINGS, **change}).shared for change in changes]
    for other in shared[1:]:
        assert other.tolist() == shared[0].tolist()


def test_fractions_are_met():
    made = partition(dataset(LABELS), **{**SETTINGS, "name": "iid"})
    assert len(made.shared) == 40
    assert [{k: len(v) for k, v in own.items()} for own in made.devices.values()] == [
        {"train": 28, "val": 4, "test": 8, "unlabelled": 0}  # of 40 examples
    ] * 4


def test_a_split_column_is_kept():
    marks = ["train", "train", "test", "val", "train"] * 40
    owners = [f"d{i // 50}" for i in range(200)]
    data = dataset(np.arange(200) // 5 % 4, owners, marks, owners)
    for name in PARTITIONS:
        made = partition(data, **{**SETTINGS, "name": name})
        assert everything(made).tolist() == list(range(200)) or name in LEAVES_OUT
        assert {marks[i] for i in made.shared} == {"test"}
        assert len(made.shared) == 8  # a fifth of the 40 rows marked test
        for own in made.devices.values():
            for part, index in own.items():
                assert {marks[i] for i in index} <= {part}


def test_validation_is_drawn_where_a_split_column_has_none():
    marks = ["train", "train", "test", "train", "train"] * 40
    made = partition(dataset(LABELS // 2, None, marks), **{**SETTINGS, "name": "iid"})
    for own in made.devices.values():
        assert abs(len(own["val"]) - 0.1 * (len(own["train"]) + len(own["val"]))) < 1
        assert {marks[i] for i in own["val"]} == {"train"}


@pytest.mark.parametrize(("size", "positives"), [(10, 1), (20, 2), (50, 3), (3, 1)])
@pytest.mark.slow
def test_held_out_parts_have_the_labels_frequencies(size, positives):
    """30 devices of so many rows, of which so many have the rare label: over seeds each part has its frequency."""
    sites, seeds = 30, 60
    labels = np.tile(np.arange(size) < positives, sites).astype(np.int64)
    data = dataset(labels, [f"s{i // size:02d}" for i in range(len(labels))])
    asked = {**SETTINGS, "name": "by_device", "min_size": 1, "val": 0.2, "test": 0.2, "shared_test": 0.2}
    held = {"train": [], "val": [], "test": [], "shared": []}
    for seed in range(seeds):
        made = partition(data, **{**asked, "seed": seed})
        for part in ("train", "val", "test"):
            held[part].append(np.concatenate([own[part] for own in made.devices.values()]))
        held["shared"].append(made.shared)
    frequency = positives / size
    for index in held.values():
        found = np.concatenate([labels[rows] for rows in index])
        error = np.sqrt(frequency * (1 - frequency) / len(found))
        assert abs(found.mean() - frequency) < 4 * error
    expected = {"shared": 0.2, "val": 0.16, "test": 0.16, "train": 0.48}
    if size > 3:  # of three rows one at least is for training
        for part, share in expected.items():
            rows = np.bincount(np.concatenate(held[part]), minlength=len(labels)) / seeds
            assert abs(rows.mean() - share) < 0.02
            assert rows.max() < share + 5 * np.sqrt(share * (1 - share) / seeds)  # no row is always held out


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=10, max_size=120), st.floats(0.05, 0.3), st.integers(0, 999))
@pytest.mark.slow
def test_held_out_parts_are_stratified(labels, test, seed):
    """Each label's number in a device's test set is its share, rounded up or down."""
    labels = np.array(labels)
    data = dataset(np.concatenate([labels, np.arange(5)]), ["a"] * len(labels) + ["b"] * 5)
    asked = {"name": "by_device", "min_size": 1, "val": 0.0, "test": test, "shared_test": 0.0, "seed": seed}
    made = partition(data, **asked)
    counts = np.bincount(labels[made.devices["a"]["test"]], minlength=5)
    share = np.bincount(labels, minlength=5) * test
    assert (np.abs(counts - share) < 1 + 1e-9).all()
    assert abs(counts.sum() - share.sum()) < 1 + 1e-9


def test_a_rare_label_stays_in_training():
    labels = np.where(np.arange(200) == 7, 2, np.arange(200) % 2)
    for seed in range(20):
        made = partition(dataset(labels), **{**SETTINGS, "seed": seed})
        assert any(7 in own["train"] for own in made.devices.values())


def test_labels_are_drawn_in_an_order_of_the_draws_own():
    """Two of four rows of four labels: each of the six pairs is as likely as the others."""
    rng, pairs = np.random.default_rng(0), Counter()
    for _ in range(600):
        pairs[tuple(draw(np.arange(4), np.arange(4), 2.0, rng)[0].tolist())] += 1
    assert len(pairs) == 6
    assert all(abs(count - 100) < 4 * (600 * 1 / 6 * 5 / 6) ** 0.5 for count in pairs.values())


@pytest.mark.parametrize("hold_out", ["stable", "stable_each"])
def test_equal_rows_are_said_where_none_can_be_held_out(hold_out):
    """Two classes of equal rows differ by their labels alone."""
    data = dataset(LABELS % 2)
    data = dataclasses.replace(data, classes=("0", "1"), train=Data(torch.zeros_like(data.train.x), data.train.y))
    asked = {"name": "iid", "devices": 2, "seed": 0, "shared_test": 0.2, "hold_out": hold_out}
    if hold_out == "stable_each":
        assert len(partition(data, **asked).shared)
        return
    with pytest.raises(InputError, match=r"held out of 200; only 2 of them differ, and equal ones stay on one side$"):
        partition(data, **asked)
