from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.types.method import Message, Model, StepId, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 1.0}
ditto = partial(method, "ditto", **GIVEN, strength=0.5)
NAMES = tuple(nets.shapes(NET))
KEPT = replace(ADAM, optimiser_state="keep")


def personal(state, name):
    return {key: state.memories[name][key] for key in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, KEPT], ids=["sgd", "kept"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_global_model_is_fedavgs(training, fraction):
    changes = {"training": training, "fraction": fraction}
    averaged = method("fedavg", **GIVEN | changes, weights="size")
    for one, two in zip(*(run(b, federation("abcd"), 2, Inline()) for b in (ditto(**changes), averaged)), strict=True):
        assert bits(one.state.messages) == bits(two.state.messages)
        assert (one.up, one.down) == (two.up, two.down)
    assert one.up["a"] in (0, NBYTES)


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM, KEPT], ids=["sgd", "adam", "kept"])
def test_without_a_tie_the_personal_model_is_local_training(training):
    one = last(ditto(training=training, strength=0.0), federation(), 2)
    alone = last(ditto(training=training, strength=0.0, rounds=1, shared_init=False), federation(), 2)
    single = last(method("local_only", nets=NETS, training=training, shared_init=False), federation(), 2)
    for name, there in federation().devices.items():
        memory, params = {}, nets.init(NET, generator(2, "init"))
        for number in range(3):
            with one_thread():
                memory, update = train(memory, Message(params), there, StepId(2, 0, number, name), training=training)
            params = update.params
        assert bits(personal(one.state, name)) == bits(params)
        assert bits(personal(alone.state, name)) == bits(single.state.memories[name])
    assert alone.scores == single.scores


def test_a_plain_loop_on_the_printed_objective():
    """v <- v - eta (grad F_k(v) + lambda (v - w^t)), w^t as it was sent."""
    fed, strength = federation(), 0.5
    rounds = list(run(ditto(strength=strength, rounds=2), fed, 1, Inline()))
    globals_ = [nets.init(NET, generator(1, "init")), rounds[0].state.messages["a"].params]
    for name, there in fed.devices.items():
        module, examples = NET.build(), there.data.train
        module.load_state_dict(globals_[0])
        for number, sent in enumerate(globals_):
            draw = StepId(1, 0, number, name).generator("batches")
            for _ in range(SGD.epochs):
                for index in torch.randperm(len(examples), generator=draw).split(SGD.batch):
                    module.zero_grad()
                    cross_entropy(module(examples.x[index]), examples.y[index]).backward()
                    with torch.no_grad():
                        for key, v in module.named_parameters():
                            v -= SGD.lr * (v.grad + strength * (v - sent[key]))
        torch.testing.assert_close(personal(rounds[1].state, name), dict(module.state_dict()), rtol=1e-4, atol=1e-6)
        run_by = Model((personal(rounds[1].state, name),))
        assert rounds[1].scores[name]["test"] == evaluate(run_by, NET, there.data.test)


def test_a_device_that_never_took_part_runs_the_global_model():
    one = next(run(ditto(fraction=0.25), federation("abcd"), 0, Inline()))
    (there,) = one.round_info.units
    sent = one.state.messages["a"].params
    for name, device in federation("abcd").devices.items():
        model = Model((personal(one.state, name) if name == there else sent,))
        assert one.scores[name]["test"] == evaluate(model, NET, device.data.test)
