"""FedALA: what each device takes of the global model by a plain loop; where it takes all of it, FedAvg."""

from functools import partial

import pytest
import torch
from federations import ADAM, SGD, bits, federation, last
from plain_loops import CHAIN, close, descend_by_hand, mean_by_size, module_of, params_of
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import StepId

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 5, "fraction": 0.75}
fedala = partial(method, "fedala", **GIVEN)
LAYERS = ("2.weight", "2.bias"), ("0.weight", "0.bias")


@pytest.mark.slow
@pytest.mark.parametrize("top", [1, 2])
def test_a_plain_loop(top: int):
    """Zhang et al. 2023, Algorithm 1, with three of four devices in each round."""
    rate, share, first = 0.7, 0.6, 3
    turns = list(run(fedala(top=top, share=share, weights_lr=rate, first_epochs=first), FED, 0, Inline()))
    sent = fedala().begin(FED.public, 0)[1]["a"].params
    own: dict[str, dict[str, Tensor]] = {}
    learnt: dict[str, dict[str, Tensor]] = {}
    weighed = {key for names in LAYERS[:top] for key in names}
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            device, start = FED.devices[name], dict(sent)
            if name in own:
                data, draws = device.data.train, StepId(0, 0, number, name).generator("weights")
                chosen = torch.randperm(len(data), generator=draws)[: round(share * len(data))]
                epochs = 1 if name in learnt else first
                w = learnt.setdefault(name, {key: torch.ones_like(sent[key]) for key in weighed})
                orders = [torch.randperm(len(chosen), generator=draws) for _ in range(epochs)]

                def mixed(w=w, mine=own[name], sent=sent):
                    return {n: mine[n] + (x - mine[n]) * w[n] if n in w else x for n, x in sent.items()}

                for index in (chosen[part] for order in orders for part in order.split(SGD.batch)):
                    hat = {key: x.clone().requires_grad_() for key, x in mixed().items()}
                    loss = cross_entropy(functional_call(module_of(sent), hat, data.x[index]), data.y[index])
                    for key, slope in zip(hat, torch.autograd.grad(loss, [*hat.values()]), strict=True):
                        if key in w:
                            w[key] = (w[key] - rate * slope * (sent[key] - own[name][key])).clamp(0, 1)
                start = mixed()
            models[name] = params_of(descend_by_hand(module_of(start), device, number, SGD))
            close({f"last/{key}": x for key, x in models[name].items()},
                  {n: x for n, x in one.state.memories[name].items() if n.startswith("last/")})  # fmt: skip
        own |= models
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    assert any(float(w["2.weight"].min()) < 1 for w in learnt.values())


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_where_all_is_taken_it_sends_what_fedavg_does_bit_by_bit(training):
    one, two = (last(built, FED) for built in (fedala(weights_lr=0.0, training=training), fedavg(training=training)))
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.up, one.down) == (two.up, two.down)


def fedavg(**changes):
    return method("fedavg", **GIVEN | changes)


def test_a_device_runs_what_it_trained():
    built = fedala()
    state = last(built, FED).state
    for name in state.memories:
        found, kept = built.deploy(state.memories[name], state.messages[name]).members[0], state.memories[name]
        assert bits(found) == bits({n.removeprefix("last/"): x for n, x in kept.items() if n.startswith("last/")})
