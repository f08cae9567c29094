"""The control of DFL that smooths as much and tells nothing: FedAvg with PyTorch's own label smoothing."""

from functools import partial

import pytest
import torch
from federations import NET, NETS, SGD, bits, federation, last
from plain_loops import turn_by_hand
from torch.nn.functional import cross_entropy

from fedcore import InputError, nets
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import builder, method
from fedcore.types.method import generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 1.0}
SOFT = {"ratio": "threshold", "threshold": 0.6, "temperature": 1.0, "weighting": "counts"}
dfl, dfl_diagonal = (partial(method, name, **GIVEN, **SOFT) for name in ("dfl", "dfl_diagonal"))


@pytest.mark.slow
def test_at_temperature_1_it_is_pytorchs_smoothing_by_the_mean_diagonal():
    """(1 - rho) (1 - d) K / (K - 1), d of the table that the round before reported."""
    fed, sent, own = federation(), nets.init(NET, generator(1, "init")), 1.0
    rounds = list(run(dfl_diagonal(), fed, 1, Inline()))
    shares = []
    for number, rho in enumerate((1.0, 0.6, 0.6, 0.6)):
        shares.append((1 - rho) * (1 - own) * 3 / 2)

        def loss(module, x, y, share=shares[-1]):
            return cross_entropy(module(x), y, label_smoothing=share)

        sent = turn_by_hand(fed, sent, number, SGD, loss, seed=1)
        own = rounds[number].report.series["distillation"]["diagonal"]
        torch.testing.assert_close(rounds[number].state.messages["a"].params, sent, rtol=1e-4, atol=1e-5)
    assert shares[1] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_with_threshold_1_it_is_dfl_and_below_it_is_not(temperature):
    fed = federation("abcd")
    for threshold, same in ((1.0, True), (0.6, False)):
        one, two = (last(built(threshold=threshold, temperature=temperature), fed, 2) for built in (dfl, dfl_diagonal))
        assert (bits(one.state.messages) == bits(two.state.messages)) is same
        assert (one.up, one.down) == (two.up, two.down)


def test_it_is_a_control_and_is_refused_by_its_own_name():
    assert hasattr(builder("dfl_diagonal"), "control")
    assert not hasattr(builder("dfl"), "control")
    with pytest.raises(InputError, match=r"^training.shared_init = false: dfl_diagonal averages changes"):
        dfl_diagonal(shared_init=False)
