from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NET, NETS, SGD, bits, federation, last, trained
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.aggregation import by_size, mean
from fedcore.methods import method
from fedcore.types.method import StepId, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 1.0}
fedprox = partial(method, "fedprox", **GIVEN, mu=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_without_a_pull_it_is_fedavg(training, fraction):
    changes = {"training": training, "fraction": fraction}
    averaged = method("fedavg", **GIVEN | changes, weights="size")
    one, two = last(fedprox(mu=0.0, **changes), federation("abcd"), 2), last(averaged, federation("abcd"), 2)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)
    pulled = last(fedprox(**changes), federation("abcd"), 2)
    assert bits(pulled.state.messages) != bits(two.state.messages)


def test_a_plain_loop_on_the_printed_objective():
    """F_k(w) + mu/2 ||w - w^t||^2, by autograd."""
    fed, mu = federation(), 0.5
    sent = nets.init(NET, generator(1, "init"))
    for number in range(2):
        members = []
        for name, there in fed.devices.items():
            module, examples = NET.build(), there.data.train
            module.load_state_dict(sent)
            draw = StepId(1, 0, number, name).generator("batches")
            for _ in range(SGD.epochs):
                for index in torch.randperm(len(examples), generator=draw).split(SGD.batch):
                    module.zero_grad()
                    near = sum(((tensor - sent[at]) ** 2).sum() for at, tensor in module.named_parameters())
                    (cross_entropy(module(examples.x[index]), examples.y[index]) + mu / 2 * near).backward()
                    with torch.no_grad():
                        for tensor in module.parameters():
                            tensor -= SGD.lr * tensor.grad
            members.append({at: tensor.detach().clone() for at, tensor in module.named_parameters()})
        sent = mean(members, by_size([6, 9, 12]))
    found = last(fedprox(rounds=2, mu=mu), fed, 1).state.messages["a"].params
    torch.testing.assert_close(found, sent, rtol=1e-4, atol=1e-6)


def test_a_strong_pull_keeps_everyone_where_it_was():
    fed = federation()
    start = nets.init(NET, generator(0, "init"))

    def moved(params):
        return sum((params[name] - start[name]).square().sum().item() for name in start) ** 0.5

    freely = [moved(update.params) for update in trained(fed, SGD, 0, start).values()]
    distances = [moved(last(fedprox(rounds=1, mu=mu), fed).state.messages["a"].params) for mu in (0.0, 2.0, 9.0)]
    assert max(freely) > distances[0] > 1.2 * distances[1] > 2 * distances[2]
