"""Partitions: disjoint, complete, a function of their seed, and nobody's examples depend on anybody else's."""

import dataclasses

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data import Dataset, load
from fedcore.figures import who_holds_what
from fedcore.partition import (
    PARTITIONS,
    Partition,
    by_device,
    check_labels,
    counts,
    dirichlet,
    from_frame,
    iid,
    partition,
    splits,
    to_frame,
)
from fedcore.types import Data, Refused

SETTINGS = {
    "name": "dirichlet",
    "devices": 4,
    "alpha": 1.0,
    "min_size": 2,
    "val": 0.1,
    "test": 0.2,
    "shared_test": 0.2,
    "seed": 0,
}


def dataset(labels: np.ndarray, owners: list[str] | None = None, marks: list[str] | None = None) -> Dataset:
    """Examples (n, 1, n * n) that can be told apart, of as many classes as there are labels up to the largest."""
    n = torch.arange(len(labels), dtype=torch.float32)
    data = Data(torch.stack([n, torch.ones_like(n), n * n], dim=1), torch.from_numpy(labels.astype(np.int64)))
    classes = tuple(f"c{k}" for k in range(labels.max() + 1))
    return Dataset(data, None, classes, tuple(owners) if owners else None, tuple(marks) if marks else None)


def everything(made: Partition) -> np.ndarray:
    parts = [index for own in made.devices.values() for index in own.values()]
    return np.sort(np.concatenate([*parts, made.shared]))


def equal(one: Partition, other: Partition) -> bool:
    return to_frame(one).equals(to_frame(other))


def refusal(data: Dataset, **changes: object) -> str:
    """Return the one line with which a partition is refused."""
    with pytest.raises(Refused) as caught:
        partition(data, **{**SETTINGS, **changes})
    line = str(caught.value)
    assert "\n" not in line
    return line


LABELS = np.arange(200) % 5
OWNERS = [f"site {'abcd'[i % 4]}" for i in range(200)]


# every way, any settings


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    labels=st.builds(lambda n, classes: np.arange(n) % classes, st.integers(120, 300), st.integers(2, 6)),
    devices=st.integers(1, 6),
    alpha=st.sampled_from([0.3, 1.0, 10.0, 1e20]),
    min_size=st.integers(1, 3),
    val=st.floats(0, 0.2),
    test=st.floats(0, 0.2),
    shared_test=st.floats(0.05, 0.4),
    seed=st.integers(0, 2**31),
)
def test_disjoint_complete_deterministic_and_large_enough(name, labels, devices, min_size, shared_test, **others):
    data = dataset(labels, [f"d{i % devices}" for i in range(len(labels))])
    asked = {"name": name, "devices": devices, "min_size": min_size, "shared_test": shared_test, **others}
    made = partition(data, **asked)
    assert everything(made).tolist() == list(range(len(labels)))  # each example once
    assert equal(made, partition(data, **asked))
    assert list(made.devices) == sorted(made.devices)
    for own in made.devices.values():
        assert set(own) == {"train", "val", "test"}
        assert len(own["train"]) >= 1
        assert sum(map(len, own.values())) >= min_size
        for index in own.values():
            assert index.dtype == np.int64
            assert (np.diff(index) > 0).all()
    if name != "by_device":
        assert list(made.devices) == [f"device-{i:02d}" for i in range(devices)]
        assert abs(len(made.shared) - shared_test * len(labels)) <= 0.5


@pytest.mark.parametrize("name", PARTITIONS)
def test_depends_on_its_seed(name):
    data = dataset(LABELS, OWNERS)
    made = [partition(data, **{**SETTINGS, "name": name, "seed": seed}) for seed in (0, 1)]
    assert not equal(*made)


@pytest.mark.parametrize("name", PARTITIONS)
def test_an_official_test_set_is_the_shared_one(name):
    data = dataclasses.replace(dataset(LABELS, OWNERS), test=Data(torch.ones(5, 3), torch.arange(5)))
    made = partition(data, **{**SETTINGS, "name": name})
    assert len(made.shared) == 0
    assert everything(made).tolist() == list(range(200))
    assert splits(data, made)[1] is data.test


def test_the_shared_test_set_is_the_same_for_any_setting():
    data = dataset(LABELS)
    changes = [{}, {"devices": 7}, {"alpha": 0.5}, {"name": "iid"}, {"val": 0.3, "test": 0.0}]
    shared = [partition(data, **{**SETTINGS, **change}).shared for change in changes]
    for other in shared[1:]:
        assert other.tolist() == shared[0].tolist()


def test_fractions_are_met():
    made = partition(dataset(LABELS), **{**SETTINGS, "name": "iid"})
    assert len(made.shared) == 40
    assert [{k: len(v) for k, v in own.items()} for own in made.devices.values()] == [
        {"train": 28, "val": 4, "test": 8}  # of 40 examples
    ] * 4


def test_device_names_are_as_wide_as_their_number_needs():
    assert list(iid(LABELS, 101, 0))[::50] == ["device-000", "device-050", "device-100"]


# iid and Dirichlet


@settings(max_examples=30, deadline=None, derandomize=True)
@given(devices=st.integers(1, 20), seed=st.integers(0, 99))
def test_iid_sizes_differ_by_one_at_most(devices, seed):
    sizes = [len(index) for index in iid(LABELS, devices, seed).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(devices=st.integers(1, 40), seed=st.integers(0, 99))
def test_dirichlet_is_uniform_for_alpha_1e20(devices, seed):
    for index in dirichlet(LABELS, devices, 1e20, 1, seed).values():
        held = np.bincount(LABELS[index], minlength=5)
        assert (np.abs(held - 40 / devices) < 1).all()  # each class has 40 examples


def test_dirichlet_is_more_skewed_for_smaller_alpha():
    def largest_share(alpha: float) -> float:
        """Mean over seeds and classes of the share of a class that its largest holder has."""
        made = [dirichlet(np.arange(2000) % 5, 8, alpha, 1, seed) for seed in range(20)]
        held = np.array([[np.bincount(index % 5, minlength=5) for index in m.values()] for m in made])
        return float((held.max(axis=1) / 400).mean())

    shares = [largest_share(alpha) for alpha in (1e20, 100.0, 1.0, 0.1)]
    assert shares[0] == pytest.approx(1 / 8)
    assert shares == sorted(shares)
    # the largest of n parts of a uniformly cut stick (alpha = 1) is (1 + 1/2 + ... + 1/n) / n long: .340 for n = 8
    assert shares[2] == pytest.approx(0.340, abs=0.03)
    assert shares[3] > 0.6


def test_dirichlet_redraws_until_every_device_has_enough():
    sizes = [min(map(len, dirichlet(LABELS, 8, 0.3, 12, seed).values())) for seed in range(5)]
    assert min(sizes) >= 12
    assert min(min(map(len, dirichlet(LABELS, 8, 0.3, 1, seed).values())) for seed in range(5)) < 12


# devices from the data


def test_by_device_keeps_owners_and_their_names():
    made = by_device(["b", "10", "b", "9"])
    assert {who: index.tolist() for who, index in made.items()} == {"10": [1], "9": [3], "b": [0, 2]}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_another_or_a_changed_device_leaves_the_others_as_they_were(before, after, seed):
    def held(odd: int) -> dict[str, list]:
        """Two devices of 60 examples, and one in front of them that has `odd`."""
        labels = np.concatenate([np.arange(odd) % 3, np.arange(120) % 4])
        data = dataset(labels, ["a"] * odd + ["m"] * 60 + ["z"] * 60)
        made = partition(data, **{**SETTINGS, "name": "by_device", "min_size": 1, "seed": seed})
        parts = {who: [index - odd for index in own.values()] for who, own in made.devices.items() if who != "a"}
        parts["shared"] = [made.shared[made.shared >= odd] - odd]
        return {who: [index.tolist() for index in parts[who]] for who in parts}

    assert held(before) == held(after) == held(0)


def test_a_device_that_joins_an_iid_federation_is_a_new_partition_with_the_old_shared_test():
    small, large = (partition(dataset(LABELS), **{**SETTINGS, "name": "iid", "devices": d}) for d in (4, 5))
    assert set(large.devices) - set(small.devices) == {"device-04"}
    assert small.shared.tolist() == large.shared.tolist()


# a split column


def test_a_split_column_is_kept():
    marks = ["train", "train", "test", "val", "train"] * 40
    owners = [f"d{i // 50}" for i in range(200)]
    data = dataset(np.arange(200) // 5 % 4, owners, marks)
    for name in PARTITIONS:
        made = partition(data, **{**SETTINGS, "name": name})
        assert everything(made).tolist() == list(range(200))
        assert {marks[i] for i in made.shared} == {"test"}
        assert len(made.shared) == 8  # a fifth of the 40 rows marked test
        for own in made.devices.values():
            for part, index in own.items():
                assert {marks[i] for i in index} <= {part}


def test_validation_is_drawn_where_a_split_column_has_none():
    marks = ["train", "train", "test", "train", "train"] * 40
    made = partition(dataset(LABELS // 2, None, marks), **{**SETTINGS, "name": "iid"})
    for own in made.devices.values():
        assert len(own["val"]) == round(0.1 * (len(own["train"]) + len(own["val"])))
        assert {marks[i] for i in own["val"]} == {"train"}


# labels


def test_a_rare_label_stays_in_training():
    labels = np.where(np.arange(200) == 7, 2, np.arange(200) % 2)
    for seed in range(20):
        made = partition(dataset(labels), **{**SETTINGS, "seed": seed})
        assert any(7 in own["train"] for own in made.devices.values())


def test_a_label_that_no_device_has_is_refused():
    data = dataset(LABELS)
    line = refusal(dataclasses.replace(data, classes=(*data.classes, "ghost")))
    assert "label 'ghost'" in line
    assert "nothing" in line
    official = Data(torch.ones(1, 3), torch.tensor([5]))
    line = refusal(dataclasses.replace(data, classes=(*data.classes, "ghost"), test=official))
    assert "'ghost' (found in: shared test)" in line
    marks = ["train" if label < 4 else "test" for label in LABELS]
    assert "'c4' (found in: test, shared test)" in refusal(dataset(LABELS, None, marks))
    made = partition(data, **SETTINGS)
    check_labels(data, made)
    gone = {who: {**own, "train": own["train"][LABELS[own["train"]] != 3]} for who, own in made.devices.items()}
    with pytest.raises(Refused, match=r"label 'c3' .found in: val, test, shared test"):
        check_labels(data, Partition(gone, made.shared))


# bad settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alpha": 0.0}, ["federation.alpha = 0.0", "above 0"]),
        ({"alpha": -1}, ["federation.alpha = -1"]),
        ({"alpha": float("nan")}, ["federation.alpha = nan"]),
        ({"alpha": float("inf")}, ["federation.alpha = inf"]),
        ({"devices": 0}, ["federation.devices = 0", "1 to 160"]),
        ({"devices": 161}, ["federation.devices = 161", "1 to 160"]),
        ({"name": "iid", "devices": 161}, ["federation.devices = 161"]),
        ({"min_size": 0}, ["federation.min_size = 0"]),
        ({"min_size": 41}, ["federation.min_size = 41", "at most 40"]),
        ({"name": "iid", "min_size": 41}, ["federation.min_size = 41", "40 examples"]),
        ({"alpha": 1e-3, "devices": 30}, ["federation.min_size = 2", "federation.alpha = 0.001", "raise alpha"]),
        ({"val": -0.1}, ["federation.val = -0.1"]),
        ({"test": 1.0}, ["federation.test = 1.0"]),
        ({"shared_test": float("nan")}, ["federation.shared_test = nan"]),
        ({"shared_test": 0.001}, ["federation.shared_test = 0.001", "raise it"]),
        ({"val": 0.5, "test": 0.5}, ["federation.val + federation.test", "below 1"]),
        ({"name": "by_device"}, ["federation.partition = 'by_device'", "data.device"]),
        ({"name": "dirichelt"}, ["federation.partition = 'dirichelt'", "did you mean 'dirichlet'"]),
    ],
)
def test_refused(changes, said):
    line = refusal(dataset(LABELS), **changes)
    for words in said:
        assert words in line


def test_devices_of_the_data_are_refused_by_name():
    owners = ["lonely"] + ["b"] * 199
    assert "'lonely' has 1 examples" in refusal(dataset(LABELS, owners), name="by_device")
    marks = ["test"] + ["train"] * 199
    line = refusal(dataset(LABELS, owners, marks), name="by_device", min_size=1, shared_test=0.0)
    assert "device 'lonely' has no row marked train" in line


# what devices hold


def test_splits_are_the_chosen_examples_in_tensors_of_their_own():
    data = dataset(LABELS)
    made = partition(data, **SETTINGS)
    held, shared = splits(data, made)
    assert list(held) == list(made.devices)
    for who, own in made.devices.items():
        for part, index in own.items():
            got = getattr(held[who], part)
            torch.testing.assert_close(got.x, data.train.x[torch.from_numpy(index)], rtol=0, atol=0)
            assert got.y.tolist() == LABELS[index].tolist()
            assert got.x.is_contiguous()
            assert got.x.untyped_storage().nbytes() == got.x.nbytes
    assert shared.x[:, 0].tolist() == made.shared.tolist()


def test_scaling_by_device_uses_its_own_training_examples():
    data = dataset(LABELS, OWNERS)
    made = partition(data, **{**SETTINGS, "name": "by_device"})
    held, shared = splits(data, made, scale="device")
    for who, own in made.devices.items():
        train = data.train.x[torch.from_numpy(own["train"])].double()
        mean, std = train.mean(0), train.std(0, correction=0)
        std[1] = 1  # a feature that does not vary becomes 0, not nan
        for part, index in own.items():
            expected = (data.train.x[torch.from_numpy(index)].double() - mean) / std
            torch.testing.assert_close(getattr(held[who], part).x, expected.float())
        given = torch.tensor([OWNERS[i] == who for i in made.shared])
        expected = (data.train.x[torch.from_numpy(made.shared)][given].double() - mean) / std
        torch.testing.assert_close(shared.x[given], expected.float())
    moved = dataclasses.replace(
        data.train, x=data.train.x + 100 * torch.tensor([o == "site a" for o in OWNERS])[:, None]
    )
    other, _ = splits(dataclasses.replace(data, train=moved), made, scale="device")
    torch.testing.assert_close(other["site b"].train.x, held["site b"].train.x, rtol=0, atol=0)
    torch.testing.assert_close(other["site a"].train.x, held["site a"].train.x)  # an offset of one device is undone


def test_scaling_by_device_scales_a_common_test_set_by_everyone():
    data = dataset(LABELS)
    made = partition(data, **{**SETTINGS, "name": "iid"})
    _, shared = splits(data, made, scale="device")
    train = data.train.x[np.concatenate([own["train"] for own in made.devices.values()])].double()
    expected = (made.shared - train[:, 0].mean().item()) / train[:, 0].std(correction=0).item()
    torch.testing.assert_close(shared.x[:, 0].double().numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(Refused, match=r"data.scale = 'devices': did you mean 'device'"):
        splits(data, made, scale="devices")


def test_counts():
    data = dataset(np.array([0, 0, 1, 1, 0, 1]))
    empty = np.array([], dtype=np.int64)
    made = Partition(
        {
            "a": {"train": np.array([0, 1]), "val": np.array([2]), "test": empty},
            "b": {"train": np.array([3, 4, 5]), "val": empty, "test": empty},
        },
        empty,
    )
    frame = counts(data, made)
    assert frame.index.tolist() == ["a", "b"]
    assert frame.columns.tolist() == ["c0", "c1", "n_train", "n_val", "n_test"]
    assert frame.to_numpy().tolist() == [[2, 0, 2, 1, 0], [1, 2, 3, 0, 0]]


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_survives_its_table(tmp_path, name):
    made = partition(dataset(LABELS, OWNERS), **{**SETTINGS, "name": name, "val": 0.0})
    frame = to_frame(made)
    assert frame.columns.tolist() == ["device", "split", "index"]
    assert frame["index"].tolist() != sorted(frame["index"])
    frame.to_parquet(tmp_path / "p.parquet")
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "p.csv", index=False)
    for read in (pd.read_parquet(tmp_path / "p.parquet"), pd.read_csv(tmp_path / "p.csv")):
        back = from_frame(read)
        assert equal(made, back)
        assert list(back.devices["device-00" if name != "by_device" else "site a"]) == ["train", "val", "test"]
        assert back.shared.dtype == np.int64


# the digits, and the picture


@pytest.mark.parametrize("alpha", [1e20, 1.0, 0.1])
def test_digits_on_sixteen_devices(alpha):
    data = load("digits")
    made = partition(data, **{**SETTINGS, "devices": 16, "alpha": alpha, "min_size": 10})
    held, shared = splits(data, made)
    assert len(shared) == 359
    assert sum(len(own.train) + len(own.val) + len(own.test) for own in held.values()) == 1797 - 359
    assert min(len(own.train) for own in held.values()) >= 7


@pytest.mark.parametrize(("devices", "classes"), [(4, 2), (32, 20)])
def test_who_holds_what(tmp_path, devices, classes):
    labels = np.arange(1600) % classes
    data = dataset(labels)
    figure = who_holds_what(counts(data, partition(data, **{**SETTINGS, "devices": devices, "alpha": 0.3})))
    assert isinstance(figure, matplotlib.figure.Figure)
    sizes, discs = figure.axes
    assert len(sizes.patches) == devices
    assert [tick.get_text() for tick in discs.get_yticklabels()] == list(data.classes)
    figure.savefig(tmp_path / "f.png", dpi=50)
    assert (tmp_path / "f.png").stat().st_size > 1000
