import re
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from federations import NETS, SGD, bits, constant, federation, fused, last, model
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fedcore import InputError
from fedcore.builders import CONTEXT
from fedcore.config.signatures import model as settings_model
from fedcore.core.aggregation import (
    Aggregator,
    add,
    apply_changes,
    by_size,
    evenly,
    krum_scores,
    mean,
    mean_of_users,
    most_hostile,
    subtract,
)
from fedcore.errors import Diverged
from fedcore.methods import builder, method
from fedcore.types.method import Update


def models(count):
    return [model(i) for i in range(count)]


def mix(members, weights):
    """A mean for each row of weights."""
    return [mean(members, row) for row in weights]


def rows(count, members, seed=0):
    return torch.rand(count, members, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(1)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50).filter(any))
@pytest.mark.slow
def test_weights_by_size_are_proportional_and_on_the_simplex(sizes):
    weights = by_size(sizes)
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert weights.tolist() == pytest.approx([n / sum(sizes) for n in sizes], abs=1e-15)


def test_devices_without_examples_have_weight_zero_unless_all_have_none():
    assert by_size([0, 3, 0, 1]).tolist() == [0.0, 0.75, 0.0, 0.25]
    assert by_size([0, 0, 0, 0]).tolist() == [0.25] * 4


@settings(max_examples=50)
@given(st.integers(1, 1000))
@pytest.mark.slow
def test_equal_sizes_weigh_evenly(count):
    assert evenly(count).sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(by_size([7] * count), evenly(count))


@settings(max_examples=30)
@given(count=st.integers(1, 5), members=st.integers(1, 6), seed=st.integers(0, 99))
@pytest.mark.slow
def test_mixing_is_the_matrix_product(count, members, seed):
    weights, given_models = rows(count, members, seed), models(members)
    mixed = mix(given_models, weights)
    assert len(mixed) == count
    for name in given_models[0]:
        stacked = torch.stack([params[name].double() for params in given_models])
        product = (weights @ stacked.flatten(1)).view(count, *stacked.shape[1:])
        torch.testing.assert_close(torch.stack([params[name] for params in mixed]), product.float())


@pytest.mark.parametrize(("given_weights", "says"), [
    ([10.0, 30.0], "2 weights from 10 with the sum 40"), ([-0.5, 1.5], "2 weights from -0.5 with the sum 1;"),
    ([1.0], "2 models and 1 weight from 1"), ([0.333, 0.666], "the sum 0.999;"), ([float("nan")] * 2, "the sum nan"),
])  # fmt: skip
def test_weights_off_the_simplex_are_refused_with_what_to_give(given_weights, says):
    members, weights = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}], torch.tensor(given_weights)
    for attempt in (partial(mean, members), partial(apply_changes, members[0], members)):
        with pytest.raises(InputError, match=rf"^mean: .*{re.escape(says)}.*fc\.by_size\(sizes\)$") as caught:
            attempt(weights)
        assert isinstance(caught.value, Diverged) == bool(weights.isnan().any())  # so that other rows go on


def test_weights_of_thousands_of_devices_in_float32_sum_to_1():
    sizes = torch.arange(1, 20_001, dtype=torch.float32)
    assert mean([{"w": torch.ones(1)}] * 20_000, sizes / sum(sizes))["w"].item() == pytest.approx(1, abs=1e-3)


def test_the_mean_computed_by_hand():
    members = [
        {"w": torch.tensor([1.0, 4.0]), "b": torch.tensor(8.0)},
        {"w": torch.tensor([5.0, 0.0]), "b": torch.tensor(0.0)},
    ]
    found = mean(members, torch.tensor([0.25, 0.75]))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w": [4.0, 1.0], "b": 2.0}


def test_one_member_with_weight_one_returns_its_own_bits():
    (one,) = models(1)
    one["fc1.bias"][:2] = torch.tensor([-0.0, 1e-42])
    found = mean([one], evenly(1))
    assert bits(found) == bits(one)
    assert found["fc1.bias"] is not one["fc1.bias"]


def test_the_identity_leaves_everyone_its_own_bits():
    given_models = models(4)
    assert bits(mix(given_models, torch.eye(4))) == bits(given_models)


@pytest.mark.slow
def test_equal_models_are_a_fixed_point():
    mixed = mix([model()] * 5, rows(3, 5))
    for params in mixed:
        torch.testing.assert_close(params, model())


def test_counters_are_not_averaged():
    members = [{"n": torch.tensor(3), "w": torch.tensor(2.0)}, {"n": torch.tensor(6), "w": torch.tensor(4.0)}]
    found = mean(members, evenly(2))
    assert (found["n"].item(), found["n"].dtype, found["w"].item()) == (3, torch.int64, 3.0)
    found["n"].add_(1)
    assert members[0]["n"].item() == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tensors_keep_their_precision(dtype):
    members = [{"w": torch.ones(2, dtype=dtype)}, {"w": torch.zeros(2, dtype=dtype)}]
    assert mean(members, evenly(2))["w"].dtype == dtype


def test_nothing_is_changed_in_place():
    given_models, weights = models(3), rows(2, 3)
    before = bits(given_models), bits(weights)
    mix(given_models, weights)
    mean(given_models, weights[0])
    assert (bits(given_models), bits(weights)) == before


def test_as_many_weights_as_members():
    with pytest.raises(ValueError, match="3 models and 2 weights"):
        mean(models(3), evenly(2))


def deep(depth, number):
    """A model that has a stem and so many cells, one number everywhere."""
    return {name: torch.full((2,), float(number)) for name in ["stem", "cell1", "cell2"][: depth + 1]}


def test_each_cell_is_averaged_over_those_who_use_it():
    """Eq. (9) by hand: three devices of 1, 2 and 3 examples with depths 0, 1 and 2."""
    members = {"a": deep(0, 6), "b": deep(1, 12), "c": deep(2, 18)}
    found = mean_of_users(members, {"a": 1, "b": 2, "c": 3})
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "stem": pytest.approx(2 * [(1 * 6 + 2 * 12 + 3 * 18) / 6], rel=1e-6),
        "cell1": pytest.approx(2 * [(2 * 12 + 3 * 18) / 5], rel=1e-6),
        "cell2": [18.0, 18.0],
    }


def test_cells_of_everyone_are_fedavg_and_order_does_not_matter():
    members, sizes = dict(zip("abc", models(3), strict=True)), {"a": 6, "b": 9, "c": 12}
    found = mean_of_users(members, sizes)
    assert bits(found) == bits(mean(list(members.values()), by_size([6, 9, 12])))
    torch.testing.assert_close(mean_of_users(dict(reversed(members.items())), sizes), found)


def test_aggregating_and_sampling_is_one_row_stochastic_matrix_per_cell():
    """Row i of a cell's matrix: the weights of all who use the cell if i does, else itself alone."""
    sizes, depths = {"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 1, "c": 2}
    every = {name: {key: torch.randn(4, generator=torch.Generator().manual_seed(k)) for key in deep(2, 0)}
             for k, name in enumerate("abc")}  # fmt: skip
    sent = {name: {key: every[name][key] for key in deep(m, 0)} for name, m in depths.items()}
    hyper = mean_of_users(sent, sizes)
    for m, key in enumerate(deep(2, 0)):
        uses = torch.tensor([depths[name] >= m for name in "abc"])
        share = torch.tensor([sizes[name] for name in "abc"]).double() * uses
        matrix = torch.where(uses[:, None], share / share.sum(), torch.eye(3).double())
        torch.testing.assert_close(matrix.sum(1), torch.ones(3).double())
        mixed = mix([{key: every[name][key]} for name in "abc"], matrix)
        for name, row in zip("abc", mixed, strict=True):
            torch.testing.assert_close(row[key], (every[name] | {k: hyper[k] for k in sent[name]})[key])


def test_a_change_is_what_was_added_and_counters_count_on():
    before = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "mask": torch.tensor([True, False])}
    after = {"w": torch.tensor([1.5, 0.0]), "n": torch.tensor(7), "mask": torch.tensor([True, True])}
    change = subtract(after, before)
    assert {name: change[name].tolist() for name in ("w", "n")} == {"w": [0.5, -2.0], "n": 4}
    assert {name: tensor.tolist() for name, tensor in add(before, change).items()} == {
        "w": [1.5, 0.0], "n": 7, "mask": [True, True]
    }  # fmt: skip
    assert change["n"].dtype == torch.int64


# Robust aggregation against numpy, scipy and a brute force, and what no minority of devices can do.
RULES = ("median", "trimmed", "clipped", "krum", "multi_krum")


TAKERS = ("fedavg", "fedprox", "ditto", "fedper", "fixed_depth", "fedasa")


def stacked(members):
    """The models' numbers as rows, (C, P) float64."""
    return np.stack([torch.cat([x.flatten() for x in one.values()]).double().numpy() for one in members])


def flat(params):
    return stacked([params])[0]


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


@settings(max_examples=25)
@given(count=st.integers(2, 9), seed=st.integers(0, 99), rule=st.sampled_from(RULES))
@pytest.mark.slow
def test_the_order_of_the_devices_does_not_matter(count, seed, rule):
    assume("krum" not in rule or count > 4)  # with fewer, scores are equal and the first one counts
    members, weights = models(count), by_size(range(1, count + 1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    moved = Aggregator(rule)([members[i] for i in order], weights[order])
    torch.testing.assert_close(moved, Aggregator(rule)(members, weights))


@settings(max_examples=25)
@given(honest=st.integers(3, 8), seed=st.integers(0, 99), size=st.floats(1, 1e6))
@pytest.mark.slow
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
