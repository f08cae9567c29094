"""FedDyn: the printed objective in a plain loop, and without its penalty FedAvg."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, SGD, bits, federation, last
from plain_loops import CHAIN, NORMED, close, descend_by_hand, module_of, params_of
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 0.5}
feddyn = partial(method, "feddyn", **GIVEN)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5)], ids=["sgd", "momentum"])
def test_a_plain_loop_on_the_printed_objective(training):
    """Acar et al. 2021, Algorithm 1, with half of the devices in each round."""
    alpha, turns = 0.3, list(run(feddyn(alpha=0.3, training=training), FED, 0, Inline()))
    sent = feddyn().begin(FED.public, 0)[1]["a"].params
    zero = {key: torch.zeros_like(x) for key, x in sent.items()}
    h, gradients = zero, dict.fromkeys(FED.devices, zero)
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:

            def loss(module, x, y, g=gradients[name], sent=sent):
                params = dict(module.named_parameters())
                linear = sum((g[key] * w).sum() for key, w in params.items())
                near = sum(((w - sent[key]) ** 2).sum() for key, w in params.items())
                return cross_entropy(module(x), y) - linear + alpha / 2 * near

            models[name] = params_of(descend_by_hand(module_of(sent), FED.devices[name], number, training, loss))
        for name, model in models.items():
            mine = {key: g - alpha * (model[key] - sent[key]) for key, g in gradients[name].items()}
            gradients = gradients | {name: mine}
        moved = {key: sum(model[key] - sent[key] for model in models.values()) for key in sent}
        h = {key: h[key] - alpha / len(FED.devices) * moved[key] for key in sent}
        sent = {key: sum(model[key] for model in models.values()) / len(models) - h[key] / alpha for key in sent}
        close(one.state.messages["a"].params, sent)
    assert len({one.round_info.units for one in turns}) > 1
    for name, memory in one.state.memories.items():
        close(memory, gradients[name])


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
def test_without_a_penalty_it_is_fedavg_bit_by_bit(training):
    one = last(feddyn(alpha=0.0, training=training), FED)
    two = last(method("fedavg", **GIVEN | {"training": training}, weights="even"), FED)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert bits(last(feddyn(training=training), FED).state.messages) != bits(two.state.messages)


def test_a_gradient_stays_with_its_device():
    fed = federation("abcd")
    state, up = (one := last(feddyn(nets=fed.public.nets, fraction=1.0), fed)).state, one.up
    assert up == dict.fromkeys("abcd", NBYTES)
    assert all(any(x.any() for x in memory.values()) for memory in state.memories.values())
    assert not any(message.extra for message in state.messages.values())


def test_buffers_are_averaged():
    fed = federation("abcd", NORMED)
    given = {"nets": fed.public.nets, "rounds": 1}
    found = last(feddyn(**given), fed).state.messages["a"].params
    plain = last(feddyn(**given, alpha=0.0), fed).state.messages["a"].params
    assert not any(name.startswith("h/1.running") for name in last(feddyn(**given), fed).state.server)
    assert torch.isfinite(found["1.running_var"]).all()
    assert found["1.running_var"].min() > 0
    assert found.keys() == plain.keys()


def test_devices_must_begin_alike():
    with pytest.raises(InputError, match=r"^training.shared_init = false: feddyn averages changes"):
        feddyn(shared_init=False)
