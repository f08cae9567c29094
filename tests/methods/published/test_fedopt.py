"""FedOpt: each rule by a loop in NumPy, and without memory FedAvg."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import SGD, federation, last
from plain_loops import CHAIN, NORMED, close, descend_by_hand, mean_by_size, module_of, params_of

from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3}
fedopt = partial(method, "fedopt", **GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["momentum", "adam", "yogi", "adagrad"])
def test_a_rule_is_that_of_the_paper(rule):
    built = fedopt(rule=rule, server_lr=0.05, beta1=0.7, beta2=0.9, tau=0.01, fraction=0.75)
    turns = list(run(built, FED, 0, Inline()))
    x = built.begin(FED.public, 0)[1]["a"].params
    m = {name: np.zeros(tensor.shape) for name, tensor in x.items()}
    v = {name: np.full(tensor.shape, 0.01**2) for name, tensor in x.items()}
    for number, one in enumerate(turns):
        names = one.round_info.units
        assert len(names) == 3
        models = {n: params_of(descend_by_hand(module_of(x), FED.devices[n], number, SGD)) for n in names}
        average = mean_by_size(FED, models)
        for name in x:
            delta = (average[name] - x[name]).double().numpy()
            m[name] = 0.7 * m[name] + (1 if rule == "momentum" else 0.3) * delta
            if rule == "momentum":
                step = m[name]
            else:
                if rule == "adagrad":
                    v[name] = v[name] + delta**2
                elif rule == "adam":
                    v[name] = 0.9 * v[name] + 0.1 * delta**2
                else:
                    v[name] = v[name] - 0.1 * delta**2 * np.sign(v[name] - delta**2)
                step = m[name] / (np.sqrt(v[name]) + 0.01)
            x = x | {name: x[name] + torch.tensor(0.05 * step).float()}
        close(one.state.messages["a"].params, x)


def test_with_rate_one_and_no_memory_it_is_fedavg_but_for_rounding():
    one = last(fedopt(rule="momentum", server_lr=1.0, beta1=0.0), FED).state.messages["a"].params
    two = last(method("fedavg", **GIVEN), FED).state.messages["a"].params
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_its_traffic_is_fedavgs():
    one, two = last(fedopt(), FED), last(method("fedavg", **GIVEN), FED)
    assert (one.up, one.down) == (two.up, two.down)


def test_buffers_become_their_mean():
    """With a rate that moves no parameter, as devices train from the same model in each round."""
    fed = federation("abc", NORMED)
    built = fedopt(nets=fed.public.nets, rounds=1, server_lr=1e-12)
    start, end = built.begin(fed.public, 0)[1]["a"].params, last(built, fed).state.messages["a"].params
    plain = last(method("fedavg", **GIVEN | {"nets": fed.public.nets, "rounds": 1}), fed).state.messages["a"].params
    for name in end:
        close({name: end[name]}, {name: (plain if name.startswith("1.run") or "num" in name else start)[name]})


def test_devices_must_begin_alike():
    with pytest.raises(InputError, match=r"^training.shared_init = false: fedopt averages changes"):
        fedopt(training=replace(SGD, shared_init=False), shared_init=False)
