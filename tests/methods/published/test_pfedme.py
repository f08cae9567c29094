"""pFedMe: both models by a plain loop; without a pull the global model rests and the personal one trains alone."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, bits, federation, last
from plain_loops import CHAIN, close, draw_batches, mean_by_size, module_of, params_of
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.types.method import StepId

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 0.5}
pfedme = partial(method, "pfedme", **GIVEN)


def test_a_plain_loop():
    """Dinh et al. 2020, Algorithm 1, with half of the devices in each round."""
    strength, eta, steps = 4.0, 0.05, 3
    turns = list(run(pfedme(strength=strength, outer_lr=eta, inner_steps=steps), FED, 0, Inline()))
    sent = pfedme().begin(FED.public, 0)[1]["a"].params
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            data, theta, w = FED.devices[name].data.train, module_of(sent), dict(sent)
            optimiser = torch.optim.SGD(theta.parameters(), SGD.lr)
            for batch in draw_batches(FED.devices[name], number, SGD):
                for _ in range(steps):
                    optimiser.zero_grad()
                    near = sum(((x - w[key]) ** 2).sum() for key, x in theta.named_parameters())
                    (cross_entropy(theta(data.x[batch]), data.y[batch]) + strength / 2 * near).backward()
                    optimiser.step()
                w = {key: w[key] - eta * strength * (w[key] - x) for key, x in params_of(theta).items()}
            models[name] = w
            close(one.state.memories[name], params_of(theta))
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)


@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_without_a_pull_the_personal_model_is_trained_alone(training):
    """Bit by bit, with one step on a minibatch; the global model stays, but for rounding of the mean."""
    built = pfedme(strength=0.0, inner_steps=1, training=training, fraction=1.0)
    one, start = last(built, FED), built.begin(FED.public, 0)[1]["a"]
    close(one.state.messages["a"].params, start.params)
    turns = list(run(replace(built, stages=(replace(built.stages[0], rounds=1),)), FED, 0, Inline()))
    with one_thread():
        for name, device in FED.devices.items():
            alone = train({}, start, device, StepId(0, 0, 0, name), training=training)[1].params
            assert bits(turns[0].state.memories[name]) == bits(alone)


def test_its_traffic_is_fedavgs():
    one, two = last(pfedme(), FED), last(method("fedavg", **GIVEN), FED)
    assert (one.up, one.down) == (two.up, two.down)


def test_what_cannot_work_is_refused():
    with pytest.raises(InputError, match=r"^pfedme.outer_lr = 0.5: times pfedme.strength = 3.0 must be at most 1$"):
        pfedme(outer_lr=0.5, strength=3.0)
    with pytest.raises(InputError, match=r"^training.optimiser_state = keep: pfedme starts a new optimiser"):
        pfedme(training=replace(ADAM, optimiser_state="keep"))
