"""Per-FedAvg: the first-order algorithm by a plain loop; without a look ahead FedAvg on every other minibatch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, federation
from plain_loops import CHAIN, close, draw_batches, mean_by_size, module_of, params_of
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import Message, StepId

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 0.5}
perfedavg = partial(method, "perfedavg", **GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1e-12], ids=["ahead", "fedavg on every other minibatch"])
@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5, weight_decay=0.1)], ids=["sgd", "momentum"])
def test_a_plain_loop(training, alpha):
    """Fallah et al. 2020, Algorithm 1, FO; gradients by autograd at two models."""
    *rounds, tuned = run(perfedavg(inner_lr=alpha, training=training, tune_epochs=2), FED, 0, Inline())
    sent = perfedavg().begin(FED.public, 0)[1]["a"].params
    for number, one in enumerate(rounds):
        models = {}
        for name in one.round_info.units:
            data, module = FED.devices[name].data.train, module_of(sent)
            optimiser = torch.optim.SGD(module.parameters(), 0.1, training.momentum, weight_decay=training.weight_decay)
            batches = draw_batches(FED.devices[name], number, training)
            for first, second in zip(batches[::2], batches[1::2], strict=False):
                here = dict(module.named_parameters())
                slopes = torch.autograd.grad(cross_entropy(module(data.x[first]), data.y[first]), [*here.values()])
                ahead = {n: (w - alpha * g).detach() for (n, w), g in zip(here.items(), slopes, strict=True)}
                moved = module_of(ahead)
                cross_entropy(moved(data.x[second]), data.y[second]).backward()
                for w, there in zip(here.values(), moved.parameters(), strict=True):
                    w.grad = there.grad
                optimiser.step()
            models[name] = params_of(module)
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    for name, device in FED.devices.items():
        tuning = replace(training, momentum=0.0, lr=alpha, epochs=2)
        close(
            tuned.state.memories[name],
            train({}, Message(sent), device, StepId(0, 1, 0, name), training=tuning)[1].params,
        )


def test_one_minibatch_is_both():
    fed, training = federation("a", CHAIN), replace(SGD, batch=100, epochs=1)
    one = next(run(perfedavg(training=training, fraction=1.0, inner_lr=0.3), fed, 0, Inline()))
    start = perfedavg().begin(fed.public, 0)[1]["a"].params
    assert (one.state.messages["a"].params["0.weight"] - start["0.weight"]).any()


def test_moments_that_are_kept_are_refused():
    with pytest.raises(InputError, match=r"^training.optimiser_state = keep: perfedavg starts a new optimiser"):
        perfedavg(training=replace(ADAM, optimiser_state="keep"))
