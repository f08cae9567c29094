import pytest
import torch
from federations import bits, model
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.core.aggregation import add, by_size, evenly, mean, mean_of_users, mix, subtract


def models(count):
    return [model(i) for i in range(count)]


def rows(count, members, seed=0):
    return torch.rand(count, members, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(1)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50).filter(any))
def test_weights_by_size_are_proportional_and_on_the_simplex(sizes):
    weights = by_size(sizes)
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert weights.tolist() == pytest.approx([n / sum(sizes) for n in sizes], abs=1e-15)


def test_devices_without_examples_have_weight_zero_unless_all_have_none():
    assert by_size([0, 3, 0, 1]).tolist() == [0.0, 0.75, 0.0, 0.25]
    assert by_size([0, 0, 0, 0]).tolist() == [0.25] * 4


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 1000))
def test_equal_sizes_weigh_evenly(count):
    assert evenly(count).sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(by_size([7] * count), evenly(count))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(count=st.integers(1, 5), members=st.integers(1, 6), seed=st.integers(0, 99))
def test_mixing_is_the_matrix_product(count, members, seed):
    weights, given_models = rows(count, members, seed), models(members)
    mixed = mix(given_models, weights)
    assert len(mixed) == count
    for name in given_models[0]:
        stacked = torch.stack([params[name].double() for params in given_models])
        product = (weights @ stacked.flatten(1)).view(count, *stacked.shape[1:])
        torch.testing.assert_close(torch.stack([params[name] for params in mixed]), product.float())


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


def test_equal_models_are_a_fixed_point():
    mixed = mix([model()] * 5, rows(3, 5))
    for params in mixed:
        torch.testing.assert_close(params, model())


def test_equal_rows_share_one_result():
    a, b, c = mix(models(2), torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]))
    assert a is c
    assert b is not a


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
    with pytest.raises(ValueError, match="shorter"):
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
    before = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    after = {"w": torch.tensor([1.5, 0.0]), "n": torch.tensor(7)}
    change = subtract(after, before)
    assert {name: tensor.tolist() for name, tensor in change.items()} == {"w": [0.5, -2.0], "n": 4}
    assert {name: tensor.tolist() for name, tensor in add(before, change).items()} == {"w": [1.5, 0.0], "n": 7}
    assert change["n"].dtype == torch.int64
