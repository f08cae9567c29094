"""Tables of a partition: itself, what each device holds, how alike they are; and the picture of it."""

import dataclasses

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch
from partitions import DOMAINS, FROM_DATA, HALF, LABELS, LARGE, OWNERS, SETTINGS, dataset, equal

from fedcore import Data, Dataset
from fedcore.partition import PARTITIONS, Partition, partition
from fedcore.partition.tables import counts, from_frame, groups, similarity, to_frame, training_numbers
from fedcore.report.figures import class_counts

NOTHING = np.array([], dtype=np.int64)


def owned(**devices: tuple[list[int], list[int]]) -> Partition:
    """A partition of which each device's train and unlabelled examples are given."""
    parts = {
        name: {"train": np.array(train, np.int64), "unlabelled": np.array(more, np.int64), "val": NOTHING,
               "test": NOTHING}
        for name, (train, more) in devices.items()
    }  # fmt: skip
    return Partition.of(parts, NOTHING)


def test_a_device_that_trains_on_one_domain_alone_is_in_its_group():
    data = dataset(np.array([0, 0, 1, 1, 0, 1]), domains=["x", "x", "x", "y", "y", "y"])
    made = owned(a=([0], []), b=([1, 2], [3, 4]), c=([], [5]))
    assert groups(data, made) == {"a": "x", "c": "y"}
    assert groups(dataclasses.replace(data, domain=None), made) == {}
    found = training_numbers(data, made)
    assert {name: (own["in_x"], own["in_y"]) for name, own in found.items()} == {
        "a": (1.0, 0.0), "b": (0.5, 0.5), "c": (0.0, 1.0),
    }  # fmt: skip


def test_similarity_within_and_across_groups_is_least_and_greatest_cosine():
    half, third = np.sqrt(0.5), np.sqrt(3) / 2
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [2.0, 2.0], [-7.0, 0.0], [third, 0.5]])
    data = Dataset(Data(x, torch.zeros(6, dtype=torch.int64)), None, ("k",), domain=("u", "u", "u", "u", "v", "w"))
    made = owned(a=([0, 1], []), b=([], [2]), c=([3], []), d=([4], []), e=([0, 5], []))
    table = similarity(data, made)
    np.testing.assert_allclose(table.loc[list("abcd"), list("abcd")], [
        [1, 0, half, -1], [0, 1, half, 0], [half, half, 1, -half], [-1, 0, -half, 1],
    ], atol=1e-7)  # fmt: skip
    found = {
        name: (own.get("similarity_same"), own.get("similarity_other"))
        for name, own in training_numbers(data, made).items()
    }
    # d is alone in its group, e is in none and nobody's other.
    assert found["d"] == (None, pytest.approx(0))
    assert found["e"] == (None, None)
    for name, numbers in {"a": (0, -1), "b": (0, 0), "c": (half, -half)}.items():
        assert found[name] == pytest.approx(numbers, abs=1e-7)


def test_without_domains_nothing_is_said_of_them():
    made = owned(a=([0, 1], []), b=([2], [3]))
    assert {*training_numbers(dataset(np.array([0, 1, 0, 1])), made)["b"]} == {
        "examples", "classes", "largest_share", "test_examples", "test_classes", "shared_examples", "largest_class",
    }  # fmt: skip


def test_marked_test_rows_are_the_same_with_every_seed():
    data = dataclasses.replace(dataset(np.array([0, 1, 0, 1])), split=("train", "train", "test", "train"))
    assert training_numbers(data, owned(a=([0, 1], []), b=([3], [])))["b"]["same_test"] == 1.0


def test_counts():
    data = dataset(np.array([0, 0, 1, 1, 0, 1]))
    made = Partition.of(
        {
            "a": {"train": np.array([0, 1]), "val": np.array([2]), "test": NOTHING, "unlabelled": NOTHING},
            "b": {"train": np.array([3, 4, 5]), "val": NOTHING, "test": NOTHING, "unlabelled": NOTHING},
        },
        NOTHING,
    )
    frame = counts(data, made)
    assert frame.index.tolist() == ["a", "b"]
    assert frame.columns.tolist() == ["c0", "c1", "n_train", "n_val", "n_test"]
    assert frame.to_numpy().tolist() == [[2, 0, 2, 1, 0], [1, 2, 3, 0, 0]]
    hidden = {"train": np.array([4]), "unlabelled": np.array([3, 5])}
    frame = counts(data, Partition.of({"a": made.devices["a"], "b": {**made.devices["b"], **hidden}}, NOTHING))
    assert frame.columns.tolist() == ["c0", "c1", "n_train", "n_val", "n_test", "n_unlabelled"]
    assert frame.to_numpy().tolist() == [[2, 0, 2, 1, 0, 0], [1, 0, 1, 0, 0, 2]]


def test_a_class_named_device_has_another_column_than_the_devices():
    data = dataclasses.replace(dataset(np.array([0, 0, 1, 1, 0, 1])), classes=("device", "index"))
    frame = counts(data, owned(a=([0, 1, 2], []), b=([3, 5], [])))
    assert frame.reset_index().columns.tolist() == ["device", "class device", "index", "n_train", "n_val", "n_test"]
    assert frame.to_numpy().tolist() == [[2, 1, 3, 0, 0], [0, 2, 2, 0, 0]]


def test_a_class_with_the_name_of_a_size_is_counted():
    data = dataclasses.replace(dataset(np.array([0, 0, 1, 1, 0, 1])), classes=("n_train", "n_unlabelled"))
    made = owned(a=([0, 1, 2], []), b=([3, 5], []))
    frame = counts(data, made)
    assert frame.columns.tolist() == ["class n_train", "class n_unlabelled", "n_train", "n_val", "n_test"]
    assert frame.to_numpy().tolist() == [[2, 1, 3, 0, 0], [0, 2, 2, 0, 0]]
    held = training_numbers(data, made)["a"]
    assert (held["examples"], held["classes"], held["largest_share"]) == (3, 2, 2 / 3)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.slow
def test_a_partition_survives_its_table(tmp_path, name):
    data = dataset(LABELS, OWNERS, None, DOMAINS)
    made = partition(data, **{**SETTINGS, "name": name, "val": 0.0, "unlabelled": 0.3, "share": 0.2})
    frame = to_frame(made)
    assert frame.columns.tolist() == ["device", "split", "index"]
    assert frame["index"].tolist() != sorted(frame["index"])
    frame.to_parquet(tmp_path / "p.parquet")
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "p.csv", index=False)
    for read in (pd.read_parquet(tmp_path / "p.parquet"), pd.read_csv(tmp_path / "p.csv")):
        back = from_frame(read)
        assert equal(made, back)
        assert list(back.devices) == FROM_DATA.get(name, [f"device-{i:02d}" for i in range(4)])
        assert all(list(own) == ["train", "val", "test", "unlabelled"] for own in back.devices.values())
        assert back.shared.dtype == np.int64


# the picture


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "classes"), [(4, 2), (32, 20)])
def test_who_holds_what(tmp_path, devices, classes):
    labels = np.arange(1600) % classes
    data = dataset(labels)
    figure = class_counts(counts(data, partition(data, **{**SETTINGS, "devices": devices, "alpha": 0.3})))
    assert isinstance(figure, matplotlib.figure.Figure)
    sizes, discs = figure.axes
    assert len(sizes.patches) == devices
    assert [tick.get_text() for tick in discs.get_yticklabels()] == list(data.classes)
    figure.savefig(tmp_path / "f.png", dpi=50)
    assert (tmp_path / "f.png").stat().st_size > 1000


@pytest.mark.slow
def test_who_holds_what_shows_what_has_no_label():
    data = dataset(LARGE)
    table = counts(data, partition(data, **{**SETTINGS, **HALF}))
    sizes, discs = class_counts(table).axes
    assert [tick.get_text() for tick in discs.get_yticklabels()] == list(data.classes)
    known, hidden = ([bar.get_height() for bar in bars] for bars in sizes.containers)
    assert known == table["n_train"].tolist()
    assert hidden == table["n_unlabelled"].tolist()
    assert [text.get_text() for text in sizes.get_legend().get_texts()] == ["without\nlabel"]
