"""Partitions: disjoint, complete, a function of their seed, and nobody's examples depend on anybody else's."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from partitions import DOMAINS, FROM_DATA, LABELS, LEAVES_OUT, OWNERS, SETTINGS, dataset, equal, everything, refusal

from fedcore import Data, Dataset, InputError, load
from fedcore.partition import PARTITIONS, Partition, check_labels, partition, server_examples, splits
from fedcore.partition.tables import dropped_devices

# every way, any settings


@pytest.mark.slow
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    labels=st.builds(lambda n, classes: np.arange(n) % classes, st.integers(120, 300), st.integers(2, 6)),
    devices=st.integers(1, 6), alpha=st.sampled_from([0.3, 1.0, 10.0, 1e20]), min_size=st.integers(1, 3),
    val=st.floats(0, 0.2), test=st.floats(0, 0.2), shared_test=st.floats(0.05, 0.4), unlabelled=st.floats(0, 0.3),
    hidden=st.floats(0, 0.2) | st.just("random"), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_disjoint_complete_deterministic_and_large_enough(name, labels, devices, min_size, shared_test, **others):
    names = [f"d{i % devices}" for i in range(len(labels))]
    data = dataset(labels, names, None, names)
    asked = {"name": name, "devices": devices, "min_size": min_size, "shared_test": shared_test, **others}
    asked["classes"] = len(np.unique(labels))
    try:
        made = partition(data, **asked)
    except InputError as refused:
        if "no device has a training example of" not in str(refused):
            raise
        reject()  # all labels of a class are hidden, by chance
    assert len(set(found := everything(made).tolist())) == len(found)
    assert len(found) == len(labels) or name in LEAVES_OUT
    assert equal(made, partition(data, **asked))
    assert list(made.devices) == sorted(made.devices)
    for own in made.devices.values():
        assert set(own) == {"train", "val", "test", "unlabelled"}
        assert len(own["train"]) + len(own["unlabelled"]) >= 1
        assert sum(map(len, own.values())) >= min_size
        for index in own.values():
            assert index.dtype == np.int64
            assert (np.diff(index) > 0).all()
    if name not in FROM_DATA:
        assert list(made.devices) == [f"device-{i:02d}" for i in range(devices)]
        assert abs(len(made.shared) - shared_test * len(labels)) < 1 + 1e-9


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.slow
def test_depends_on_its_seed(name):
    data = dataset(LABELS, OWNERS, None, DOMAINS)
    made = [partition(data, **{**SETTINGS, "name": name, "seed": seed}) for seed in (0, 1)]
    assert not equal(*made)


@pytest.mark.parametrize("name", PARTITIONS)
def test_an_official_test_set_is_the_shared_one(name):
    data = dataclasses.replace(dataset(LABELS, OWNERS, None, DOMAINS), test=Data(torch.ones(5, 3), torch.arange(5)))
    made = partition(data, **{**SETTINGS, "name": name})
    assert len(made.shared) == 0
    assert everything(made).tolist() == list(range(200)) or name in LEAVES_OUT
    assert splits(data, made)[1] is data.test


# devices from the data


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
@pytest.mark.slow
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


def test_another_device_in_an_iid_federation_keeps_the_shared_test_set():
    small, large = (partition(dataset(LABELS), **{**SETTINGS, "name": "iid", "devices": d}) for d in (4, 5))
    assert set(large.devices) - set(small.devices) == {"device-04"}
    assert small.shared.tolist() == large.shared.tolist()


# small devices


def test_small_devices_are_dropped_if_asked():
    owners = ["lonely"] * 3 + ["b"] * 97 + ["few"] * 12 + ["c"] * 88
    data = dataset(LABELS, owners)
    asked = {**SETTINGS, "name": "by_device", "min_size": 13}
    assert "'few' has 12 examples (2 of 4 devices have fewer)" in refusal(data, **asked)
    named = dataset(LABELS, [f"row {i}" for i in range(200)])
    said = refusal(named, **asked, hold_out="stable")
    assert said.endswith("of 200; each has a device of its own (data.device); name a column whose values repeat")
    made = partition(data, **asked, drop_small=True)
    assert made.names == ("b", "c")
    assert {owners[i] for i in made.shared} == {"b", "c"}
    assert dropped_devices(data, made, "by_device", 4) == dropped_devices(data, made, "auto", 4) == ["few", "lonely"]
    assert equal(made, partition(dataset(LABELS, owners), **{**asked, "min_size": 20}, drop_small=True))
    splits(data, made, "device")
    whole = partition(data, **{**asked, "min_size": 1})
    assert equal(whole, partition(data, **{**asked, "min_size": 1}, drop_small=True))
    for who in made.names:
        for part, index in made.devices[who].items():
            assert np.array_equal(index, whole.devices[who][part])
    assert "no device has so many examples, at most 97" in refusal(data, **{**asked, "min_size": 99}, drop_small=True)


def test_drawn_devices_are_dropped_from_the_names():
    data = dataset(LABELS, [f"w{i // 40}" if i < 120 else "w3" for i in range(200)])
    asked = {**SETTINGS, "name": "by_writer", "devices": 3, "min_size": 40}
    assert "federation.drop_small=true" in refusal(data, **asked)
    made = partition(data, **asked, drop_small=True)
    assert len(made.names) == 2
    assert len(dropped_devices(data, made, "by_writer", 3)) == 1


# a part of the data


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.slow
def test_so_many_examples_are_shared_out(name):
    data = dataset(LABELS, OWNERS, None, DOMAINS)
    whole, part, other = (
        partition(data, **{**SETTINGS, "name": name, "examples": n, "devices": d})
        for n, d in ((None, 4), (100, 4), (100, 3))
    )
    drawn = everything(part)
    left = 4 * 5 if name in LEAVES_OUT else 0  # fewer than an example of each of five classes on each of four devices
    assert 100 - left <= len(drawn) - len(part.shared) <= 100
    assert part.shared.tolist() == whole.shared.tolist()
    assert drawn.tolist() == everything(other).tolist() or left  # the same for any number of devices
    assert len(np.unique(LABELS[drawn])) == 5
    assert equal(whole, partition(data, **{**SETTINGS, "name": name, "examples": 10**6}))


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
    names = ["device-00"] * len(LABELS)  # those of the data's own devices happen to begin like the drawn ones
    for who, own in made.devices.items():
        names[own["train"][0]] = who
    _, same = splits(dataclasses.replace(data, device=tuple(names)), made, scale="device")
    torch.testing.assert_close(same.x, shared.x, rtol=0, atol=0)
    official = dataclasses.replace(dataset(LABELS, OWNERS), test=Data(data.train.x[:7], torch.zeros(7)))
    made = partition(official, **{**SETTINGS, "name": "by_device"})
    _, shared = splits(official, made, scale="device")
    assert len(shared) == 7
    with pytest.raises(
        InputError, match=r"federation.scale = 'devices': did you mean device\? allowed: none, device, common"
    ):
        splits(data, made, scale="devices")


def test_a_common_scale_prepares_all_examples_alike():
    """Those of devices, of a shared test set from them or an official one, and the server's."""
    data = dataset(LABELS, OWNERS)
    server = Data(data.train.x[:9] + 1, data.train.y[:9])
    for source in (data, dataclasses.replace(data, test=Data(data.train.x[:7], torch.zeros(7))), dataset(LABELS)):
        made = partition(source, **{**SETTINGS, "name": "by_device" if source.device else "iid"})
        train = source.train.x[np.concatenate([own["train"] for own in made.devices.values()])].double()
        mean, std = train.mean(0), train.std(0, correction=0)
        std[1] = 1  # a feature that does not vary becomes 0, not nan

        def expected(x, mean=mean, std=std):
            return ((x.double() - mean) / std).float()

        held, shared = splits(source, made, scale="common")
        for who, own in made.devices.items():
            for part, index in own.items():
                found = getattr(held[who], part).x
                torch.testing.assert_close(found, expected(source.train.x[torch.from_numpy(index)]))
        raw = source.train.x[torch.from_numpy(made.shared)] if source.test is None else source.test.x
        torch.testing.assert_close(shared.x, expected(raw))
        own = server_examples(dataclasses.replace(source, server=server), made, "common")
        torch.testing.assert_close(own.x, expected(server.x))
        assert not len(server_examples(source, made, "common"))


# the digits


@pytest.mark.parametrize("alpha", [1e20, 1.0, 0.1])
@pytest.mark.slow
def test_digits_on_sixteen_devices(alpha):
    data = load("digits")
    made = partition(data, **{**SETTINGS, "devices": 16, "alpha": alpha, "min_size": 10})
    held, shared = splits(data, made)
    assert len(shared) in (359, 360)
    assert sum(len(own.train) + len(own.val) + len(own.test) for own in held.values()) == 1797 - len(shared)
    assert min(len(own.train) for own in held.values()) >= 7


def test_auto_takes_the_devices_of_the_data_or_draws_them():
    plain = load("digits")
    owned = dataclasses.replace(plain, device=tuple(f"site {i % 3}" for i in range(len(plain.train))))
    for data, named in ((plain, "dirichlet"), (owned, "by_device")):
        found, wanted = (partition(data, name=name, devices=5, seed=1) for name in ("auto", named))
        assert list(found.devices) == list(wanted.devices)
        for who, own in found.devices.items():
            assert all(np.array_equal(own[part], wanted.devices[who][part]) for part in own)
        assert np.array_equal(found.shared, wanted.shared)


@pytest.mark.parametrize("name", ["by_device", "iid"])
def test_pixels_that_nothing_prepares_stay_bytes(name: str):
    """A quarter of the memory, on devices and in the shared test set."""
    pixels = torch.arange(60 * 4, dtype=torch.uint8).reshape(60, 1, 2, 2)
    data = Dataset(Data(pixels, torch.arange(60) % 2), None, ("a", "b"), tuple(f"d{i % 3}" for i in range(60)))
    made = partition(data, name=name, devices=3, seed=0)
    held, shared = splits(data, made)
    assert {own.train.x.dtype for own in held.values()} == {shared.x.dtype} == {torch.uint8}
    assert torch.equal(shared.x, pixels[made.shared])


def test_a_dataset_that_may_lack_classes_is_divided_without_them():
    y = torch.arange(40) % 2
    dataset = Dataset(Data(torch.zeros(40, 1), y), None, ("a", "b", "c"))
    with pytest.raises(InputError, match="no device has a training example of label 'c'"):
        partition(dataset, name="iid", devices=2, seed=0)
    assert partition(dataclasses.replace(dataset, may_lack=True), name="iid", devices=2, seed=0).names


def test_more_devices_than_examples_are_refused_before_they_have_names():
    """A billion of them would take gigabytes."""
    with pytest.raises(InputError, match=r"^federation.devices = 1000000000: must be 1 to \d+, the number of examples"):
        partition(dataset(np.arange(60) % 3, None, None, None), seed=0, name="dirichlet", devices=10**9)


# pools: each domain is divided by itself


def test_split_domains_are_limited_alike_for_each_device():
    """A small domain gives what it has; the examples of a domain do not depend on alpha."""
    marks = ["west" if i < 40 else "east" for i in range(200)]
    asked = {**SETTINGS, "domains": "split", "shared_test": 0.0, "min_size": 1}
    kept = {}
    for alpha in (1.0, 100.0):
        made = partition(dataset(LABELS, domains=marks), **{**asked, "alpha": alpha}, examples=120)
        sizes = {who: sum(map(len, parts.values())) for who, parts in made.devices.items()}
        assert sizes["east-00"] + sizes["east-01"] == 60
        assert sizes["west-00"] + sizes["west-01"] == 40
        kept[alpha] = sorted(int(i) for parts in made.devices.values() for index in parts.values() for i in index)
    assert kept[1.0] == kept[100.0]


def test_split_domains_keep_every_device_in_one():
    data = dataset(LABELS, OWNERS, None, DOMAINS)
    for name in sorted(set(PARTITIONS) - set(FROM_DATA)):
        made = partition(data, **{**SETTINGS, "name": name, "devices": 5, "domains": "split"})
        assert everything(made).tolist() == list(range(200)) or name in LEAVES_OUT
        assert list(made.devices) == ["east-00", "east-01", "east-02", "west-00", "west-01"]
        for who, own in made.devices.items():
            assert {DOMAINS[i] for index in own.values() for i in index} == {who[:4]}
        assert [DOMAINS[i] for i in made.shared].count("east") == 25  # a fifth of each domain's 125 and 75
        assert len(made.shared) == 40


def test_mixed_domains_are_not_looked_at():
    names = [dataset(LABELS), dataset(LABELS, None, None, DOMAINS)]
    assert equal(*(partition(data, **SETTINGS) for data in names))


def test_a_domain_is_divided_apart_from_the_others():
    """What one domain holds and how it is divided does not depend on another one, but each has draws of its own."""
    whole = dataset(LABELS, None, None, DOMAINS)
    more = dataset(np.arange(240) % 5, None, None, [*DOMAINS, *["west"] * 40])
    one, other = (partition(data, **{**SETTINGS, "domains": "split"}).devices for data in (whole, more))
    for who in ("east-00", "east-01"):
        assert {k: v.tolist() for k, v in one[who].items()} == {k: v.tolist() for k, v in other[who].items()}
    twins = dataset(np.arange(400) // 2 % 5, None, None, ["east", "west"] * 200)
    made = partition(twins, **{**SETTINGS, "domains": "split", "shared_test": 0.0}).devices
    assert len(made["east-00"]["train"]) != len(made["west-00"]["train"])


def test_devices_go_to_domains_in_turn_as_long_as_there_is_room():
    domains = ["a"] * 100 + ["b"] * 24 + ["c"] * 76
    asked = {"name": "iid", "shared_test": 0.0, "domains": "split", "min_size": 10}
    for devices, expected in {3: (1, 1, 1), 4: (2, 1, 1), 8: (3, 2, 3), 9: (4, 2, 3), 16: (7, 2, 7)}.items():
        made = partition(dataset(LABELS, None, None, domains), **{**SETTINGS, **asked, "devices": devices})
        firsts = [who[0] for who in made.devices]
        assert tuple(map(firsts.count, "abc")) == expected
    data = dataset(LABELS, None, None, domains)
    assert "federation.devices = 2: must be at least 3, one for each domain" in refusal(data, **asked, devices=2)
    assert "federation.devices = 30: must be at most 19" in refusal(data, **asked, devices=30)
    line = refusal(data, **{**asked, "min_size": 25}, devices=4)
    assert "federation.min_size = 25: domain 'b' has 24 examples" in line


def test_a_refusal_names_the_domain():
    owners = [f"w{i % 2}" if i < 100 else f"v{i % 9}" for i in range(200)]
    data = dataset(LABELS, owners, None, ["few"] * 100 + ["many"] * 100)
    line = refusal(data, name="by_writer", devices=6, domains="split")
    assert line.startswith("federation.devices = 3: must be 1 to 2, the number of writers")
    assert line.endswith("(in domain 'few')")
    for name in FROM_DATA:
        assert f"must be mixed with federation.partition = '{name}'" in refusal(data, name=name, domains="split")


# refusals


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
    with pytest.raises(InputError, match=r"label 'c3' .found in: val, test, shared test"):
        check_labels(data, Partition.of(gone, made.shared))


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
        ({"min_size": 41}, ["federation.min_size = 41", "at most 40"]),
        ({"name": "iid", "min_size": 41}, ["federation.min_size = 41", "40 examples"]),
        (
            {"alpha": 1e-3, "devices": 30},
            [
                "federation.min_size = 2: ",
                " examples give each of 30 devices at most ",
                " draws with federation.alpha = 0.001 at most 0",
            ],
        ),
        ({"shared_test": 0.001}, ["federation.shared_test = 0.001", "raise it"]),
        ({"val": 0.5, "test": 0.5}, ["federation.val + federation.test", "below 1"]),
        ({"name": "by_device"}, ["federation.partition = 'by_device'", "data.device"]),
        ({"name": "by_writer"}, ["federation.partition = 'by_writer'", "data.device"]),
        ({"name": "by_domain"}, ["federation.partition = 'by_domain'", "name no domains"]),
        ({"name": "label_skew", "share": 0.1}, ["federation.share = 0.1", "1 / 5"]),
        ({"name": "quantity_skew", "alpha": 0}, ["federation.alpha = 0", "above 0"]),
        ({"name": "quantity_skew", "min_size": 41}, ["federation.min_size = 41", "at most 40"]),
        ({"name": "few_classes", "classes": 6}, ["federation.classes = 6", "1 to 5"]),
        ({"name": "few_classes", "classes": 1}, ["federation.classes = 1", "at least 2", "4 devices", "5 classes"]),
        ({"domains": "split"}, ["federation.domains = 'split'", "name no domains"]),
        ({"unlabelled": 0.9}, ["federation.unlabelled = 0.9", "4 devices"]),
        ({"examples": 3}, ["federation.devices = 4", "1 to 3"]),
        ({"examples": 7}, ["federation.min_size = 2", "at most 1"]),
        ({"name": "dirichelt"}, ["federation.partition = 'dirichelt'", "did you mean dirichlet?"]),
    ],
)
@pytest.mark.slow
def test_refused(changes, said):
    line = refusal(dataset(LABELS), **changes)
    for words in said:
        assert words in line


def test_devices_of_the_data_are_refused_by_name():
    owners = ["lonely"] + ["b"] * 199
    assert "'lonely' has 1 example;" in refusal(dataset(LABELS, owners), name="by_device")
    marks = ["val"] + ["train"] * 199
    line = refusal(dataset(LABELS, owners, marks), name="by_device", min_size=1, shared_test=0.0)
    assert "device 'lonely' has no row marked train" in line
