"""Robust aggregation against numpy, scipy and a brute force, and what no minority of devices can do."""

from itertools import combinations

import numpy as np
import pytest
import torch
from federations import NETS, SGD, bits, constant, federation, fused, last, model
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fedcore.builders import CONTEXT
from fedcore.config.signatures import model as settings_model
from fedcore.core.aggregation import Aggregator, by_size, evenly, krum_scores, mean, most_hostile
from fedcore.methods import builder, method
from fedcore.types.method import Update

RULES = ("median", "trimmed", "clipped", "krum", "multi_krum")
TAKERS = ("fedavg", "fedprox", "ditto", "fedper", "fixed_depth", "fedasa")


def models(count):
    return [model(i) for i in range(count)]


def stacked(members):
    """The models' numbers as rows, (C, P) float64."""
    return np.stack([torch.cat([x.flatten() for x in one.values()]).double().numpy() for one in members])


def flat(params):
    return stacked([params])[0]


# Oracles


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(count):
    members = models(count)
    found = Aggregator("median")(members, evenly(count))
    np.testing.assert_allclose(flat(found), np.median(stacked(members), axis=0), atol=1e-6)
    for outliers in (0.0, 0.2, 0.3, 0.49):
        found = Aggregator("trimmed", outliers)(members, evenly(count))
        np.testing.assert_allclose(flat(found), trim_mean(stacked(members), outliers, axis=0), atol=1e-6)


@pytest.mark.parametrize(("count", "outliers"), [(1, 0.2), (2, 0.2), (3, 0.4), (7, 0.2), (9, 0.3), (8, 0.49)])
def test_krum_is_the_brute_force(count, outliers):
    """A model's score is the least sum of squared distances to any set of so many others."""
    members, points = models(count), stacked(models(count))
    near = min(max(1, count - int(outliers * count) - 2), max(count - 1, 1))

    def score(i):
        others = [((points[i] - points[j]) ** 2).sum() for j in range(count) if j != i]
        return min((sum(chosen) for chosen in combinations(others, near)), default=0.0)

    scores = [score(i) for i in range(count)]
    np.testing.assert_allclose(krum_scores(torch.from_numpy(points), near), scores)
    best = np.argsort(scores, kind="stable")
    assert bits(Aggregator("krum", outliers)(members, evenly(count))) == bits(members[best[0]])
    several = Aggregator("multi_krum", outliers)(members, evenly(count))
    np.testing.assert_allclose(flat(several), points[best[:near]].mean(0), atol=1e-6)


def test_clipping_computed_by_hand():
    """Points 0, 1, 2, 3, 103: the median is 2, the distances 2, 1, 0, 1, 101, their median 1; 0 -> 1, 103 -> 3."""
    members = [{"w": torch.tensor([x])} for x in (0.0, 1.0, 2.0, 3.0, 103.0)]
    found = Aggregator("clipped")(members, evenly(5))
    assert found["w"].item() == pytest.approx((1 + 1 + 2 + 3 + 3) / 5)
    weighted = Aggregator("clipped")(members, torch.tensor([0, 0, 0, 0, 1.0], dtype=torch.float64))
    assert weighted["w"].item() == pytest.approx(3)


def test_a_share_that_is_not_exact_in_binary_counts_whole_devices():
    assert [most_hostile(10, share) for share in (0.1, 0.3, 0.29)] == [1, 3, 2]
    assert most_hostile(16, 3 / 16) == 3


# Reductions


def test_without_outliers_the_trimmed_mean_is_the_even_mean():
    members = models(6)
    torch.testing.assert_close(Aggregator("trimmed", 0.0)(members, evenly(6)), mean(members, evenly(6)))


@pytest.mark.parametrize("rule", ["mean", *RULES])
def test_equal_models_stay_as_they_are_and_one_alone_keeps_its_bits(rule):
    assert bits(Aggregator(rule)([model()], evenly(1))) == bits(model())
    torch.testing.assert_close(Aggregator(rule)([model()] * 7, evenly(7)), model())


@pytest.mark.parametrize("name", TAKERS)
def test_the_mean_is_the_default(name):
    fields = settings_model(builder(name), CONTEXT).model_fields
    assert fields["aggregation"].default == "mean"


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKERS)
def test_a_method_mixes_by_the_rule_that_it_is_given(name):
    """The median of five devices' models is not their mean."""
    fed = federation("abcde")
    found = {}
    for rule in ("mean", "median"):
        built = method(name, nets=NETS, training=SGD, shared_init=True, rounds=2, aggregation=rule)
        found[rule] = last(built, fed).state.messages["a"].params
    assert bits(found["mean"]) != bits(found["median"])


@pytest.mark.parametrize("upload", ["model", "delta"])
def test_fedavg_takes_the_median_of_models_or_of_changes(upload):
    built = method("fedavg", nets=NETS, training=SGD, shared_init=True, aggregation="median", upload=upload)
    values = {"a": 1.0, "b": 5.0, "c": 1e6}
    found = fused(built, {name: Update(constant(x), size=10) for name, x in values.items()})
    start = fused(built, {"a": Update(constant(0.0))}) if upload == "delta" else constant(0.0)
    torch.testing.assert_close(found, {key: x + 5 for key, x in start.items()})


# Properties


@settings(max_examples=25, deadline=None, derandomize=True)
@given(count=st.integers(2, 9), seed=st.integers(0, 99), rule=st.sampled_from(RULES))
def test_the_order_of_the_devices_does_not_matter(count, seed, rule):
    assume("krum" not in rule or count > 4)  # with fewer, scores are equal and the first one counts
    members, weights = models(count), by_size(range(1, count + 1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    moved = Aggregator(rule)([members[i] for i in order], weights[order])
    torch.testing.assert_close(moved, Aggregator(rule)(members, weights))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(honest=st.integers(3, 8), seed=st.integers(0, 99), size=st.floats(1, 1e6))
def test_a_minority_cannot_move_the_median_beyond_the_honest_range(honest, seed, size):
    draws = torch.Generator().manual_seed(seed)
    members = models(honest)
    lies = [
        {name: size * torch.randn(x.shape, generator=draws) for name, x in model().items()} for _ in range(honest - 1)
    ]
    low, high = stacked(members).min(0), stacked(members).max(0)
    for rule in (Aggregator("median"), Aggregator("trimmed", 0.499)):
        found = flat(rule([*lies, *members], evenly(2 * honest - 1)))
        assert (found >= low - 1e-5).all()
        assert (found <= high + 1e-5).all()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_moves_with_its_points(rule):
    """So that models and changes of one model give the same: theta + t for all j moves the result by t."""
    members, shift = models(7), model("shift")
    moved = [{name: x + shift[name] for name, x in one.items()} for one in members]
    found = Aggregator(rule)(members, evenly(7))
    torch.testing.assert_close(
        Aggregator(rule)(moved, evenly(7)), {name: x + shift[name] for name, x in found.items()}, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("rule", RULES)
def test_integer_tensors_are_the_first_members(rule):
    members = [{"w": torch.tensor([float(i)]), "seen": torch.tensor(i)} for i in range(5)]
    found = Aggregator(rule)(members, evenly(5))
    assert found["seen"].dtype == torch.int64
    if rule not in ("krum", "multi_krum"):
        assert found["seen"].item() == 0
