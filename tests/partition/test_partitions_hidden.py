"""Hidden labels: some devices know none, others a part; never by what another device hides."""

import numpy as np
import pytest
import torch
from partitions import HALF, LABELS, LARGE, SETTINGS, dataset, refusal

from fedcore import InputError, Splits
from fedcore.partition import draws, partition, splits


def test_half_of_the_devices_know_no_label_and_the_others_a_random_part():
    data = dataset(LARGE)
    made, known = partition(data, **{**SETTINGS, **HALF}), partition(data, **{**SETTINGS, "name": "iid", "devices": 10})
    shares = []
    for who, own in made.devices.items():
        before = known.devices[who]
        assert own["test"].tolist() == before["test"].tolist()
        assert {*own["train"], *own["val"], *own["unlabelled"]} == {*before["train"], *before["val"]}
        assert {*own["train"]} <= {*before["train"]}
        assert {*own["val"]} <= {*before["val"]}
        if not len(own["train"]):
            assert not len(own["val"])
            continue
        share = 1 - len(own["train"]) / len(before["train"])
        assert len(own["val"]) / len(before["val"]) == pytest.approx(1 - share, abs=0.02)
        shares.append(share)
    assert len(shares) == 5
    assert max(shares) - min(shares) > 0.3


def test_random_parts_are_uniform():
    made = partition(dataset(LARGE), **{**SETTINGS, "name": "iid", "devices": 80, "hidden": "random", "val": 0.0})
    shares = [len(own["unlabelled"]) / (len(own["unlabelled"]) + len(own["train"])) for own in made.devices.values()]
    assert np.mean(shares) == pytest.approx(1 / 2, abs=0.1)
    assert np.var(shares) == pytest.approx(1 / 12, abs=0.02)


@pytest.mark.parametrize("hidden", [0.0, 0.25, 0.999])
def test_a_fixed_part_of_the_labels_is_hidden_and_one_is_kept(hidden):
    made = partition(dataset(np.zeros(4000, int)), **{**SETTINGS, "name": "iid", "devices": 10, "hidden": hidden})
    for own in made.devices.values():
        sizes = {part: len(index) for part, index in own.items()}
        assert sizes["train"] == max(round(224 * (1 - hidden)), 1)  # of 320: 64 test, 32 val
        assert sizes["val"] == round(32 * (1 - hidden))
        assert sum(sizes.values()) == 320


def test_devices_hide_in_turn_what_a_list_says():
    asked = {**SETTINGS, "name": "iid", "devices": 6, "val": 0.0}
    made, drawn = (partition(dataset(LARGE), **asked, hidden=shares) for shares in ([0.1, 1.0, "random"], "random"))
    plain = partition(dataset(LARGE), **asked, hidden=0.1)
    for device, (who, own) in enumerate(made.devices.items()):
        if device % 3 == 1:
            assert not len(own["train"])
        else:
            other = (plain if device % 3 == 0 else drawn).devices[who]
            assert own["train"].tolist() == other["train"].tolist()
    said = refusal(dataset(LARGE), name="iid", classes=[[0], [1]])
    assert said.startswith("federation.classes = [[0], [1]]: must be a number unless")


def test_what_one_device_hides_is_nobody_elses_matter():
    """A device that joins changes no other's draws; which examples are hidden does not depend on their labels."""
    owners = [f"site {'abcd'[i % 4]}" for i in range(4000)]
    few = [i for i in range(4000) if owners[i] != "site a"]
    asked = {**SETTINGS, "name": "by_device", "hidden": "random"}
    whole = partition(dataset(LARGE, owners), **asked)
    less = partition(dataset(LARGE[few], [owners[i] for i in few]), **asked)
    for who, own in less.devices.items():
        for part, index in own.items():
            assert [few[i] for i in index] == whole.devices[who][part].tolist()


@pytest.mark.slow
def test_unlabelled_devices_follow_the_seed_and_mostly_stay_if_one_joins():
    def without(devices: int, seed: int = 0) -> set[str]:
        made = partition(dataset(LARGE), **{**SETTINGS, **HALF, "devices": devices, "seed": seed})
        return {who for who, own in made.devices.items() if not len(own["train"])}

    assert len({frozenset(without(10, seed)) for seed in range(10)}) > 5
    assert len(without(11)) == round(0.5 * 11)
    assert len(without(10) ^ without(12)) <= 3


@pytest.mark.parametrize("way", ["few_classes", "device_dirichlet"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_devices_without_labels_share_the_classes_of_one_with_labels(way, seed):
    """With classes of their own, most of them hold one that no single labelled device knows all of."""
    labels = np.arange(6000) % 10

    def known(shared: str) -> list[bool]:
        asked = {"name": way, "devices": 10, "classes": 4, "alpha": 5.0, "seed": seed, "unlabelled": 0.5}
        made = partition(dataset(labels), **asked, unlabelled_classes=shared, hidden="random")
        held = {who: {*labels[np.concatenate([*own.values()])]} for who, own in made.devices.items()}
        with_labels = [who for who, own in made.devices.items() if len(own["train"])]
        assert len(with_labels) == 5
        assert all(len(classes) == 4 for classes in held.values())
        if way == "few_classes" or shared == "shared":
            assert set.union(*(held[who] for who in with_labels)) == {*range(10)}
        return [any(held[who] == held[other] for other in with_labels) for who in held if who not in with_labels]

    assert all(known("shared"))
    assert not all(known("own"))


@pytest.mark.parametrize("change", [{"name": "dirichlet"}, {"domains": "split"}])
def test_shared_classes_need_few_classes_on_a_device(change):
    with pytest.raises(InputError, match=r"federation\.unlabelled_classes = 'shared': must be own unless"):
        partition(dataset(LARGE), **{**SETTINGS, "name": "few_classes", **change}, unlabelled_classes="shared")


@pytest.mark.slow
def test_a_class_whose_labels_nobody_knows_is_refused():
    owners = ["a" if label < 4 else "b" for label in LABELS]
    asked = {"name": "by_device", "unlabelled": 0.5}
    lines = [refusal(dataset(LABELS, owners), **asked, seed=seed) for seed in range(4)]
    for line in lines:
        assert "no device has a training example of label" in line
        assert line.endswith(
            "unlabelled, shared test); lower federation.unlabelled or federation.hidden, or change the seed"
        )


@pytest.mark.slow
def test_what_is_hidden_is_drawn_again_where_a_class_would_have_no_label():
    """Each of five classes lies on two devices of ten, half of them unlabelled: 220 of 252 draws lose a class."""
    owners = [f"{label}{i // 5 % 2}" for i, label in enumerate(LABELS)]
    asked = {"name": "by_device", "unlabelled": 0.5, "shared_test": 0.0}
    firsts = 0
    for seed in range(20):
        made = partition(dataset(LABELS, owners), **{**SETTINGS, **asked, "seed": seed})
        without = {who for who, own in made.devices.items() if not len(own["train"])}
        assert len(without) == 5
        assert {who[0] for who in set(made.devices) - without} == set("01234")
        first = sorted(made.devices, key=lambda who: draws(seed, "unlabelled", who).random())[:5]
        firsts += without == set(first)
    assert 0 < firsts < 20  # the first draw stays where it will do


def test_hidden_labels_are_not_handed_out():
    data = dataset(LARGE)
    made = partition(data, **{**SETTINGS, **HALF})
    held, _ = splits(data, made)
    for who, own in made.devices.items():
        got = held[who].unlabelled
        assert got.x[:, 0].tolist() == own["unlabelled"].tolist()
        assert (got.y == -1).all()
        assert len(got) == len(own["unlabelled"])
        assert held[who].train.x.shape[1:] == held[who].val.x.shape[1:] == got.x.shape[1:] == (3,)
    nothing = Splits(data.train, data.train, data.train).unlabelled
    assert len(nothing) == 0
    assert torch.cat([data.train.inputs(), nothing.inputs()]).shape == data.train.x.shape


def test_scaling_by_device_needs_no_labels():
    data = dataset(LARGE, [f"site {'abcd'[i % 4]}" for i in range(4000)])
    asked = {**SETTINGS, "name": "by_device", "val": 0.0}
    plain, hidden = (partition(data, **{**asked, **more}) for more in ({}, {"unlabelled": 0.5, "hidden": 0.5}))
    (known, shared), (held, same) = (splits(data, made, scale="device") for made in (plain, hidden))
    torch.testing.assert_close(same.x, shared.x)
    for who, own in held.items():
        both = torch.cat([own.train.x, own.unlabelled.x])
        torch.testing.assert_close(both.sort(dim=0)[0], known[who].train.x.sort(dim=0)[0])
