"""The partition of a final fit: every labelled row of a device trains it, none twice, and none of another's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from partitions import LABELS, OWNERS, dataset

from fedcore import Data, InputError, Splits
from fedcore.partition import PARTITIONS, final_partition, final_splits, partition, shared_examples_of


def rows(*groups):
    return np.sort(np.concatenate([np.array([], np.int64), *groups])).tolist()


@pytest.mark.slow
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    labels=st.builds(lambda n, classes: np.arange(n) % classes, st.integers(120, 300), st.integers(2, 6)),
    devices=st.integers(1, 6), val=st.floats(0, 0.2), test=st.floats(0, 0.2), shared_test=st.floats(0.05, 0.4),
    unlabelled=st.floats(0, 0.3), hidden=st.floats(0, 0.2), seed=st.integers(0, 2**31),
    held_out=st.sampled_from([(), ("val",), ("shared",), ("val", "shared")]),
)  # fmt: skip
def test_no_row_is_lost_or_doubled_or_changes_its_device(name, labels, devices, held_out, **others):
    names = [f"d{i % devices}" for i in range(len(labels))]
    data = dataset(labels, names, None, names)
    try:
        made = partition(data, name=name, devices=devices, min_size=1, classes=len(np.unique(labels)), **others)
    except InputError as refused:
        if "no device has a training example of" not in str(refused):
            raise
        reject()
    final = final_partition(data, made, held_out)
    whole = rows(final.indices, final.shared)
    assert len(whole) == len(set(whole))
    assert whole == rows(made.indices, made.shared)
    assert final.names == made.names
    for who, own in final.devices.items():
        before = made.devices[who]
        assert not len(own["test"])
        assert rows(own["val"]) == (rows(before["val"]) if "val" in held_out else [])
        assert {*rows(*before.values())} <= {*rows(*own.values())}
        assert {*rows(before["unlabelled"])} <= {*rows(own["unlabelled"])}
        assert bool(len(own["train"])) == bool(len(before["train"]))
        assert all(np.array_equal(index, np.sort(index)) for index in own.values())
        if name == "by_device":
            assert {names[i] for i in rows(*own.values())} == {who}
    if "shared" in held_out:
        assert final.shared.tolist() == made.shared.tolist()
    elif name == "by_device":
        assert not len(final.shared)


def test_the_shared_test_set_of_a_drawn_division_is_nobodys():
    data = dataset(LABELS, None)
    made = partition(data, name="iid", devices=3, seed=0)
    assert shared_examples_of(data, made) == {}
    assert final_partition(data, made).shared.tolist() == made.shared.tolist()


def test_an_official_test_set_stays_out():
    data = dataset(LABELS, OWNERS)
    data = replace(data, test=Data(data.train.x[:20], data.train.y[:20]))
    made = partition(data, name="by_device", shared_examples=9, seed=0)
    final = final_partition(data, made)
    assert final.shared.tolist() == made.shared.tolist()
    assert rows(final.indices) == list(range(len(LABELS)))


def test_rows_marked_test_are_trained_on():
    marks = np.array(["train", "val", "test", "train"])[np.arange(len(LABELS)) // 4 % 4]
    data = dataset(LABELS, OWNERS, marks.tolist())
    final = final_partition(data, partition(data, name="by_device", seed=0, min_size=1))
    for who, own in final.devices.items():
        assert own["train"].tolist() == [i for i, name in enumerate(OWNERS) if name == who]


def test_a_device_without_labels_learns_none_from_its_test_rows():
    data = dataset(LABELS, OWNERS)
    made = partition(data, name="by_device", unlabelled=0.5, seed=0, min_size=1)
    blank = [who for who, own in made.devices.items() if not len(own["train"])]
    assert blank
    final = final_partition(data, made)
    for who, own in final.devices.items():
        mine = [i for i, name in enumerate(OWNERS) if name == who]
        assert own["unlabelled" if who in blank else "train"].tolist() == mine


def examples(*labels):
    return Data(torch.tensor(labels)[:, None].float(), torch.tensor(labels))


def test_a_scripts_own_devices_are_divided_alike():
    own = Splits(examples(1, 2), examples(3), examples(4, 5), examples(6))
    whole, kept = final_splits(own), final_splits(own, ("val",))
    assert [part.y.tolist() for part in (whole.train, whole.val, whole.test, whole.unlabelled)] == [
        [1, 2, 3, 4, 5], [], [], [6],
    ]  # fmt: skip
    assert [part.y.tolist() for part in (kept.train, kept.val, kept.test)] == [[1, 2, 4, 5], [3], []]
    blank = final_splits(Splits(Data(own.train.x[:0], own.train.y[:0]), own.val, own.test, own.train))
    assert len(blank.train) == 0
    assert blank.unlabelled.x[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert set(blank.unlabelled.y.tolist()) == {-1}
