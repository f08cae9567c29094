"""MOON: the printed loss in a plain loop, and without its contrast FedAvg."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, bits, federation, last
from plain_loops import CHAIN, close, descend_by_hand, mean_by_size, module_of, params_of
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 0.5}
moon = partial(method, "moon", **GIVEN)


def test_a_plain_loop_on_the_printed_loss():
    """Li et al. 2021, Algorithm 1; a device that rested is told from its model of an earlier round."""
    turns = list(run(moon(mu=2.0, tau=0.4), FED, 0, Inline()))
    sent, before = moon().begin(FED.public, 0)[1]["a"].params, {}
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            near, far = module_of(sent)[:-1], module_of(before.get(name, sent))[:-1]

            def loss(module, x, y, near=near, far=far):
                z = module[:-1](x)
                with torch.no_grad():
                    good, bad = near(x), far(x)
                same, other = (cosine_similarity(z, of).div(0.4).exp() for of in (good, bad))
                return cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()

            models[name] = params_of(descend_by_hand(module_of(sent), FED.devices[name], number, SGD, loss))
        before, sent = before | models, mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    assert sum(len(one.round_info.units) for one in turns) > len(before)


@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
@pytest.mark.slow
def test_without_contrast_it_is_fedavg_bit_by_bit(training):
    one = last(moon(mu=0.0, training=training), FED)
    two = last(method("fedavg", **GIVEN | {"training": training}), FED)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert bits(last(moon(training=training), FED).state.messages) != bits(two.state.messages)


def test_its_traffic_is_fedavgs():
    one, two = last(moon(), FED), last(method("fedavg", **GIVEN), FED)
    assert (one.up, one.down) == (two.up, two.down)


def test_another_loss_is_refused():
    with pytest.raises(InputError, match=r"^training.loss = fedasa_table3: moon has its own loss"):
        moon(training=replace(SGD, loss="fedasa_table3"))
