from functools import partial

import pytest
import torch
from federations import (
    ADAM,
    NET,
    NETS,
    SGD,
    bits,
    disputed,
    federation,
    fused,
    last,
    model,
    ranked,
    sending,
    shuffled,
    trained,
)

from fedcore import InputError, Net
from fedcore.methods import method

GIVEN = {
    "nets": NETS, "training": SGD, "shared_init": False, "rounds": 1, "rank_by": "validation",
    "solver": "newton", "reg": 0.01, "tol": 1e-7, "max_iterations": 10_000, "p": 1,
}  # fmt: skip
lmf = partial(method, "lmf", **GIVEN)
fedavg = partial(method, "fedavg", nets=NETS, training=SGD, shared_init=False, rounds=1, fraction=1.0, weights="even")


@pytest.mark.parametrize("settings", [{}, {"p": 2}, {"solver": "exact"}], ids=["newton", "squared", "exact"])
@pytest.mark.slow
def test_permuted_networks_fuse_back_to_the_best_ones_units(settings):
    models = [shuffled(model(), NET, k) for k in (1, 2, 3)]
    for best in range(3):
        order = [*models[:best], *models[best + 1 :], models[best]]
        found = fused(lmf(**settings), ranked(*order))
        torch.testing.assert_close(found, models[best], rtol=0, atol=1e-5)
    mean = fused(fedavg(), ranked(*models))
    assert all((mean["fc2.weight"] - params["fc2.weight"]).abs().max() > 0.05 for params in models)


@pytest.mark.parametrize("settings", [{}, {"p": 2}, {"solver": "exact"}], ids=["newton", "squared", "exact"])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.slow
def test_identical_devices_are_a_fixed_point(settings, count):
    torch.testing.assert_close(fused(lmf(**settings), ranked(*[model()] * count)), model(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("names", ["ab", "abcde"])
@pytest.mark.slow
def test_without_alignment_it_is_the_even_mean(names):
    fed = federation(names)
    found = last(lmf(training=ADAM, solver="identity"), fed, 2).state.messages["a"].params
    expected = last(fedavg(training=ADAM), fed, 2).state.messages["a"].params
    torch.testing.assert_close(found, expected)
    aligned = last(lmf(training=ADAM), fed, 2).state.messages["a"].params
    assert (aligned["fc2.weight"] - expected["fc2.weight"]).abs().max() > 0.01


def test_two_devices_are_code():
    """With two models both rules align one to the other and take the mean."""
    code_ot = method("code_ot", **GIVEN, order="ascending")
    fed = federation("ab")
    found, expected = (last(built, fed, 6).state.messages["a"].params for built in (lmf(), code_ot))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_one_device_is_that_device():
    alone = federation("b")
    found = last(lmf(), alone, 3).state.messages["b"].params
    assert bits(found) == bits(trained(alone, SGD, 3)["b"].params)


@pytest.mark.slow
def test_the_exam_decides_whose_units_are_kept():
    updates, examples = disputed()
    a, b, c = (updates[name].params for name in "abc")
    by_word, by_test = (fused(lmf(rank_by=rank_by), updates, examples) for rank_by in ("validation", "test"))
    torch.testing.assert_close(by_word, fused(lmf(), ranked(a, b, c)))
    torch.testing.assert_close(by_test, fused(lmf(), ranked(c, a, b)))
    assert (by_word["fc1.weight"] - by_test["fc1.weight"]).abs().max() > 0.01


def test_every_plan_but_the_bests_is_reported():
    one = last(sending(lmf(), ranked(model("x"), model("y"), model("z"))), federation())
    plans = {name: tensor for name, tensor in one.report.matrices.items() if name.startswith("plan/")}
    assert {name: tuple(tensor.shape) for name, tensor in plans.items()} == {
        f"plan/{name}/{label}": (n, n) for name in "ab" for label, n in (("h1", 5), ("h2", 4))
    }
    assert all(torch.allclose(tensor.sum(0), torch.full((len(tensor),), 1 / len(tensor))) for tensor in plans.values())
    assert one.report.matrices["solver/violation"].max() < 1e-7


def test_a_net_without_a_table_is_refused():
    with pytest.raises(InputError, match=r"^net\.name: .*no table of axes"):
        lmf(nets={"a": Net(NET.build)})
