"""Ways to divide examples: each holds all of them once, repeats itself, and has the skew that it states."""

import os
from inspect import signature

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore import InputError, load
from fedcore.partition.schemes import (
    PARTITIONS,
    Index,
    by_device,
    by_domain,
    by_writer,
    device_dirichlet,
    dirichlet,
    few_classes,
    iid,
    label_skew,
    quantity_skew,
    shards,
)

LABELS = np.arange(200) % 5


def divide(name: str, **given: object) -> dict[str, Index]:
    """Call a way with what it takes of the arguments."""
    way = PARTITIONS[name]
    return way(**{key: given[key] for key in signature(way).parameters})


def held(labels: Index, made: dict[str, Index]) -> np.ndarray:
    """Return how many examples of each class each device has: (C, K)."""
    return np.array([np.bincount(labels[index], minlength=labels.max() + 1) for index in made.values()])


# every way


@pytest.mark.slow
@settings(max_examples=80)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    labels=st.lists(st.integers(0, 3), min_size=20, max_size=60).map(np.array),
    devices=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_every_example_once_in_order_and_again_the_same(name, labels, devices, seed):
    owners = [f"w{i * i % 11}" for i in range(len(labels))]
    shares = len(np.unique(labels))
    asked = {"labels": labels, "devices": min(devices, len(set(owners))), "alpha": 3.0, "min_size": 1, "seed": seed}
    asked |= {"owners": owners, "domains": owners, "share": max(0.7, 1 / shares), "classes": shares, "followers": ()}
    asked["examples"] = None
    try:
        made = divide(name, **asked)
    except InputError:
        if name != "device_dirichlet":  # equal sizes, of nineteen examples of a label and one of another
            raise
        return
    found = np.concatenate([*made.values()])
    assert len(np.unique(found)) == len(found)
    assert len(found) == len(labels) or name == "device_dirichlet"  # which keeps sizes equal
    assert all((np.diff(index) > 0).all() for index in made.values())
    again = divide(name, **asked)
    assert {who: index.tolist() for who, index in again.items()} == {who: index.tolist() for who, index in made.items()}
    names = set(owners) if name in ("by_device", "by_domain") else {f"device-{i:02d}" for i in range(asked["devices"])}
    assert list(made) == sorted(names)


def test_device_names_are_as_wide_as_their_number_needs():
    assert list(iid(LABELS, 101, 0))[::50] == ["device-000", "device-050", "device-100"]


# iid and Dirichlet


@settings(max_examples=30)
@given(devices=st.integers(1, 20), seed=st.integers(0, 99))
@pytest.mark.slow
def test_iid_sizes_differ_by_one_at_most(devices, seed):
    sizes = [len(index) for index in iid(LABELS, devices, seed).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(devices=st.integers(1, 40), seed=st.integers(0, 99))
@pytest.mark.slow
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


@settings(max_examples=60)
@given(
    devices=st.integers(3, 12),
    kinds=st.integers(1, 6),
    alpha=st.sampled_from([0.3, 1.0, 1e20]),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_few_classes_has_equal_numbers_of_classes_and_of_holders(devices, kinds, alpha, seed):
    classes = max(kinds, -(-7 // devices))
    labels = np.random.default_rng(seed).permutation(np.arange(840) % 7)
    made = few_classes(labels, devices, classes, alpha, 1, seed)
    has = held(labels, made) > 0
    assert (has.sum(axis=1) <= classes).all()
    assert (has.any(axis=0)).all()
    if alpha == 1e20:  # no share is too small to be seen
        assert (has.sum(axis=1) == classes).all()
        holders = has.sum(axis=0)
        assert holders.max() - holders.min() <= 1
        table = held(labels, made)
        assert np.abs(table - has * 120 / holders).max() < 1


def test_few_classes_with_all_classes_is_dirichlet():
    """Not by its draws, but by their law: the largest of eight shares is .340 of a class (see above)."""
    made = [few_classes(np.arange(2000) % 5, 8, 5, 1.0, 1, seed) for seed in range(20)]
    largest = np.array([held(np.arange(2000) % 5, m).max(axis=0) for m in made]) / 400
    assert largest.mean() == pytest.approx(0.340, abs=0.03)


@pytest.mark.slow
def test_few_classes_draws_who_holds_what():
    """Over seeds each device holds each class equally often: 2 of 5."""
    has = np.mean([held(LABELS, few_classes(LABELS, 5, 2, 1e20, 1, seed)) > 0 for seed in range(200)], axis=0)
    np.testing.assert_allclose(has, 0.4, atol=0.12)


@settings(max_examples=60)
@given(devices=st.integers(2, 10), alpha=st.sampled_from([0.3, 5.0, 1e20]), seed=st.integers(0, 99))
@pytest.mark.slow
def test_devices_with_mixes_of_their_own_are_equal_in_size(devices, alpha, seed):
    """No class is asked for more often than it is there, so that sizes are exact but for the fractions of examples."""
    labels, classes = np.arange(7000) % 7, max(2, -(-7 // devices))
    made = device_dirichlet(labels, devices, alpha, classes, 1, seed, examples=500)
    table = held(labels, made)
    assert (table.sum(1) > 500 / devices - classes).all()
    assert (table.sum(1) <= 500 / devices).all()
    assert ((table > 0).sum(1) <= classes).all()
    assert (table > 0).any(0).all() or alpha == 0.3
    assert len(np.unique(np.concatenate([*made.values()]))) == table.sum()
    if alpha == 1e20:
        assert ((table == 0) | (np.abs(table - 500 / devices / classes) <= 1)).all()


@pytest.mark.slow
def test_own_mixes_have_the_dirichlet_law():
    """The largest of four shares from Dir(5) is .371 on average, by 200,000 draws; classes are drawn alike."""
    labels = np.arange(40000) % 10
    tables = [held(labels, device_dirichlet(labels, 10, 5.0, 4, 1, seed, examples=10000)) for seed in range(40)]
    largest = np.array([table.max(1) / table.sum(1) for table in tables])
    drawn = np.random.default_rng(0).dirichlet(np.full(4, 5.0), 200_000).max(1).mean()
    assert largest.mean() == pytest.approx(drawn, abs=0.01)
    np.testing.assert_allclose(np.mean([table > 0 for table in tables], axis=(0, 1)), 0.4, atol=0.06)


def test_a_rare_class_limits_every_device():
    """Two devices that want both classes alike get the 60 examples of the first, and as many of the other."""
    labels = np.repeat([0, 1], [60, 300])
    for examples, each in ((None, 30), (100, 25)):
        table = held(labels, device_dirichlet(labels, 2, 1e20, 2, 1, 0, examples=examples))
        assert (np.abs(table - each) <= 1).all()
    assert [len(index) for index in device_dirichlet(labels, 2, 1e20, 1, 1, 0).values()] == [60, 60]


def test_devices_of_a_kind_have_its_classes():
    kinds, labels = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]], np.arange(6000) % 10
    for seed in range(3):
        table = held(labels, device_dirichlet(labels, 12, 1e20, kinds, 1, seed, examples=600))
        for device, row in enumerate(table):
            assert np.flatnonzero(row).tolist() == kinds[device // 4]
            assert (np.abs(row[row > 0] - 50 / 4) < 1).all()
    for wrong in ([[0, 1, 2]], [[*range(10)], []], [[*range(10)]] * 13, [[*range(11)]]):
        with pytest.raises(InputError, match=r"^federation.classes = \[\[0, 1.*: must be lists that together"):
            device_dirichlet(labels, 12, 1.0, wrong, 1, 0)


def test_followers_have_the_classes_of_others():
    labels = np.arange(6000) % 10
    for seed in range(5):
        has = held(labels, device_dirichlet(labels, 10, 1e20, 4, 1, seed, followers=range(5, 10))) > 0
        leaders = {tuple(row) for row in has[:5]}
        assert {tuple(row) for row in has[5:]} <= leaders
        assert has[:5].any(0).all()


# label skew


@settings(max_examples=60)
@given(
    classes=st.integers(3, 8), rounds=st.integers(1, 6), share=st.floats(0.5, 1.0), each=st.integers(20, 60),
    seed=st.integers(0, 99),
)  # fmt: skip
@pytest.mark.slow
def test_label_skew_of_equally_frequent_labels_is_exact_up_to_one(classes, rounds, share, each, seed):
    labels = np.random.default_rng(seed).permutation(np.arange(classes * rounds * each) % classes)
    table = held(labels, label_skew(labels, classes * rounds, share, seed))
    assert (table.sum(axis=1) == each).all()
    main = table.argmax(axis=1)
    assert main.tolist() == [*main[:classes]] * rounds  # the labels in turn
    assert sorted(main[:classes]) == list(range(classes))
    expected = np.full(table.shape, (1 - share) * each / (classes - 1))
    expected[np.arange(len(main)), main] = share * each
    assert np.abs(table - expected).max() < 2


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 4), min_size=10, max_size=300).map(np.array),
    devices=st.integers(1, 10),
    share=st.floats(0.5, 1.0),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_label_skew_keeps_sizes_equal_whatever_the_labels(labels, devices, share, seed):
    if len(np.unique(labels)) == 1:
        share = 1.0
    sizes = [len(index) for index in label_skew(labels, devices, share, seed).values()]
    assert max(sizes) - min(sizes) <= 1


def test_label_skew_of_unequal_labels_keeps_its_share():
    labels = np.repeat(np.arange(4), [900, 1000, 1000, 1100])
    table = held(labels, label_skew(labels, 40, 0.8, 0))
    assert (table.sum(axis=1) == 100).all()
    assert np.abs(table.max(axis=1) - 80).max() <= 1
    main = table.argmax(axis=1)
    assert np.bincount(main).tolist() == [10, 10, 10, 10]
    assert (table[main != 0, 0] <= 5).all()  # label 0: 900 - 800 are left for 30 devices, not 200
    assert (table[main != 3, 3] >= 8).all()


def test_a_used_up_main_label_is_shared_evenly():
    labels = np.repeat(np.arange(3), [20, 100, 180])
    made = label_skew(labels, 3, 1.0, 0)
    table = held(labels, made)
    assert sorted(table.max(axis=1)) == [80, 100, 100]  # 20 of label 0, and 80 that are left of label 2
    assert (table.sum(axis=1) == 100).all()


def test_the_order_of_main_labels_is_drawn():
    firsts = {int(held(LABELS, label_skew(LABELS, 5, 1.0, seed))[0].argmax()) for seed in range(20)}
    assert firsts == set(range(5))


def test_shards_are_dealt_as_mcmahan_et_al_deal_them():
    """600 examples of ten labels alike, 50 devices with two shards of six each: every shard has one label."""
    labels = np.arange(600) % 10
    table = held(labels, shards(labels, 50, 2, 1))
    assert (table.sum(1) == 12).all()
    assert ((table > 0).sum(1) <= 2).all()
    assert {*table.ravel().tolist()} == {0, 6, 12}
    with pytest.raises(InputError, match=r"^federation.classes = 2: makes 20 shards of 10 examples; lower it$"):
        shards(labels[:10], 10, 2, 1)


def test_label_skew_at_an_even_share_is_iid():
    table = held(LABELS, label_skew(LABELS, 8, 0.2, 0))
    assert (table == 5).all()


@pytest.mark.parametrize("share", [0.1, 1.5, float("nan")])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(InputError, match=rf"federation.share = {share}: must be 1 / 5 .* to 1"):
        label_skew(LABELS, 4, share, 0)


@pytest.mark.skipif("FEDCORE_DATA" not in os.environ, reason="FEDCORE_DATA names no data folder: MNIST not divided")
@pytest.mark.slow
def test_label_skew_of_mnist():
    """The non-IID setting of DFL: 100 devices of 600 examples, 80 % of one label."""
    labels = load("mnist", root=os.environ["FEDCORE_DATA"], download=False).train.y.numpy()
    made = label_skew(labels, 100, 0.8, 0)
    table = held(labels, made)
    assert np.sort(np.concatenate([*made.values()])).tolist() == list(range(60_000))
    assert (table.sum(axis=1) == 600).all()
    assert np.bincount(table.argmax(axis=1)).tolist() == [10] * 10
    assert np.abs(table.max(axis=1) / 600 - 0.8).max() <= 0.002  # one example of 600
    others = np.sort(table, axis=1)[:, :-1]
    assert others.min() >= 5  # even: 13.3; there are only 5,421 examples of label 5, and 4,800 are main ones
    assert others.max() <= 23  # and 6,742 of label 1


# quantity skew


def test_quantity_skew_has_equal_labels_and_unequal_sizes():
    labels = np.arange(100_000) % 10
    made = quantity_skew(labels, 8, 1.0, 10, 0)
    table = held(labels, made)
    sizes = table.sum(axis=1)
    assert sizes.max() > 5 * sizes.min() >= 50
    # a device's count of a label is hypergeometric, variance below n / K
    assert (np.abs(table - sizes[:, None] / 10) < 5 * np.sqrt(sizes[:, None] / 10)).all()


@pytest.mark.slow
def test_quantity_skew_has_the_moments_of_a_dirichlet():
    """Var p_i = (1 / C) (1 - 1 / C) / (C alpha + 1)."""
    n, devices, alpha = 1000, 5, 2.0
    made = [quantity_skew(np.zeros(n, dtype=np.int64), devices, alpha, 1, seed) for seed in range(400)]
    shares = np.array([[len(index) / n for index in m.values()] for m in made])
    expected = (1 / devices) * (1 - 1 / devices) / (devices * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_quantity_skew_is_even_for_large_alpha_and_keeps_min_size():
    sizes = [len(index) for index in quantity_skew(LABELS, 8, 1e20, 1, 0).values()]
    assert max(sizes) - min(sizes) <= 1
    assert min(map(len, quantity_skew(LABELS, 8, 1.0, 9, 3).values())) >= 9


# from the data


def test_by_device_keeps_owners_and_their_names():
    made = by_device(["b", "10", "b", "9"])
    assert {who: index.tolist() for who, index in made.items()} == {"10": [1], "9": [3], "b": [0, 2]}


def test_by_domain_names_a_device_for_each_domain():
    assert {who: index.tolist() for who, index in by_domain(["usps", "mnist", "usps"]).items()} == {
        "mnist": [1],
        "usps": [0, 2],
    }


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=25), devices=st.integers(1, 25), seed=st.integers(0, 99))
@pytest.mark.slow
def test_writers_are_dealt_whole_and_evenly(sizes, devices, seed):
    devices = min(devices, len(sizes))
    owners = np.random.default_rng(seed).permutation(np.repeat([f"w{i}" for i in range(len(sizes))], sizes))
    made = by_writer(tuple(owners), devices, seed)
    written = [set(owners[index]) for index in made.values()]
    assert all(written)
    assert sum(map(len, written)) == len(set.union(*written)) == len(sizes)  # nobody's examples in two places
    loads = [len(index) for index in made.values()]
    # The largest device was the smallest one when it got its last writer, its smallest.
    largest = int(np.argmax(loads))
    assert loads[largest] - min(sizes[int(name[1:])] for name in written[largest]) <= min(loads)


def test_equal_writers_are_dealt_by_the_seed():
    owners = [f"w{i % 6}" for i in range(60)]
    dealt = {tuple(sorted(set(np.array(owners)[by_writer(owners, 3, seed)["device-00"]]))) for seed in range(30)}
    assert len(dealt) > 5


def test_writers_are_refused():
    with pytest.raises(InputError, match=r"federation.devices = 4: must be 1 to 3, the number of writers"):
        by_writer(["a", "b", "c", "a"], 4, 0)
    with pytest.raises(InputError, match=r"federation.partition = 'by_writer': .* data.device"):
        by_writer(None, 4, 0)
    with pytest.raises(InputError, match=r"federation.partition = 'by_domain': the data name no domains"):
        by_domain(None)
