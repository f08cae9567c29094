"""FedGen: without generated examples it is FedAvg; its two objectives by autograd; what travels."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last, workers
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from fedcore import nets
from fedcore.core.rounds import begin, run
from fedcore.core.training import fit, flatten_net
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.dfl.fedgen import (
    GENERATOR,
    LABELS,
    classifier,
    diversity_loss,
    generated_grad_hook,
    strip_prefix,
    train_generator,
)
from fedcore.nets.copies import load
from fedcore.types.federation import Net, nbytes
from fedcore.types.method import RoundInfo, StepId, Update, generator

OWN = {
    "rounds": 3, "fraction": 1.0, "alpha": 10.0, "decay": 0.98, "generated": 8, "noise": 6, "hidden": 10, "steps": 5,
    "batch": 8, "lr": 0.01, "weight_decay": 0.01, "diversity": 1.0,
}  # fmt: skip
fedgen = partial(method, "fedgen", nets=NETS, training=SGD, shared_init=True, **OWN)
FED = federation("abcde")
EXTRA = 4 * ((6 + 3) * 10 + 10 + 4 * 10 + 10 * 4 + 4) + 8
"""Bytes of the generator: two layers, a norm of ten with its statistics, and its count of batches."""


def maker():
    return fedgen().stages[0].local.keywords["maker"]


def settings(**changes):
    return replace(fedgen().stages[0].combine.keywords["settings"], **changes)


@pytest.mark.slow
@pytest.mark.parametrize("shared_init", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
def test_without_generated_examples_it_is_fedavg(training, fraction, shared_init):
    changes = {"training": training, "fraction": fraction, "shared_init": shared_init}
    one = last(fedgen(alpha=0.0, **changes), FED, 2)
    averaged = method("fedavg", **{"nets": NETS, "rounds": 3, "weights": "size"} | changes)
    two = last(averaged, FED, 2)
    assert bits(one.state.messages["a"].params) == bits(two.state.messages["a"].params)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert one.scores == two.scores
    assert bits(last(fedgen(**changes), FED, 2).state.messages["a"].params) != bits(two.state.messages["a"].params)


def test_the_first_round_is_fedavgs_whatever_alpha():
    one, two = (next(run(fedgen(alpha=alpha), FED, 2, Inline())) for alpha in (0.0, 10.0))
    assert bits(one.state.messages) == bits(two.state.messages)


def test_a_devices_step_is_the_gradient_of_both_losses_by_autograd():
    """CE of its examples + weight * CE of h(z) for generated z, of which only the last layer learns."""
    sent = next(run(fedgen(), FED, 1, Inline())).state.messages["a"]
    there, training = FED.devices["a"], replace(SGD, batch=100, epochs=1)
    flat = flatten_net(NET, sent.params)
    grad_hook = generated_grad_hook(flat, sent.extra, maker(), 2.5, 8, generator("draws"))
    fit(flat, there, StepId(1, 0, 1, "a"), training, {}, grad_hook=grad_hook)
    module, made = NET.build(), load(maker().net, strip_prefix(GENERATOR, sent.extra)).eval()
    module.load_state_dict(sent.params)
    y, noise = maker().draw(sent.extra[LABELS], 8, generator("draws"))
    z = maker().make(made, y, noise).detach()
    loss = cross_entropy(module(there.data.train.x), there.data.train.y)
    (loss + 2.5 * cross_entropy(module.fc3(z), y)).backward()
    expected = {name: (x - training.lr * x.grad).detach() for name, x in module.named_parameters()}
    torch.testing.assert_close(flat.params(), expected, rtol=1e-4, atol=1e-6)


def test_the_generator_learns_by_its_objective_with_pytorchs_adam():
    """sum_k a_ky CE(h_k(z), y) + diversity, one device after the other, labels drawn by their counts."""
    counts = torch.tensor([[3, 0, 5], [1, 2, 0]])
    heads = [
        (torch.randn(3, 4, generator=generator("w", k)), torch.randn(3, generator=generator("b", k))) for k in (0, 1)
    ]
    start, round_info = nets.init(maker().net, generator("start")), RoundInfo(3, 0, 4, ("a", "b"), ("a", "b"))
    flat = flatten_net(maker().net, start)
    train_generator(flat, {}, maker(), settings(steps=4), heads, counts.double(), round_info)

    module = maker().net.build()
    module.load_state_dict(start)
    optimiser = torch.optim.Adam(module.parameters(), 0.01 * 0.98**4, weight_decay=0.01)
    draws = round_info.generator("generator")
    for _ in range(4):
        y = torch.multinomial(torch.tensor([4.0, 2.0, 5.0]).double(), 8, replacement=True, generator=draws)
        noise = torch.randn(8, 6, generator=draws)
        z = module(torch.cat([noise, torch.eye(3)[y]], 1))
        loss = torch.zeros(())
        for (weight, bias), mine in zip(heads, counts, strict=True):
            for i in range(8):
                share = mine[y[i]] / counts.sum(0)[y[i]]
                loss = loss + share * nll_loss(log_softmax(weight @ z[i] + bias, 0), y[i]) / 8
        pairs = [(z[i] - z[j]).abs().mean() * (noise[i] - noise[j]).square().mean() for i in range(8) for j in range(8)]
        loss = loss + torch.exp(-torch.stack(pairs).mean())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(flat.params(), dict(module.state_dict()), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_generators_loss_falls_and_its_optimiser_goes_on():
    rounds = list(run(fedgen(rounds=12, steps=20), FED, 0, Inline()))
    losses = [one.report.series["distillation"]["generator_loss"] for one in rounds]
    assert losses[-1] < 0.5 * losses[0]
    assert rounds[-1].state.server["moments/steps"].item() == 12 * 20


def test_features_all_alike_crowd_most():
    noise = torch.randn(5, 3, generator=generator("noise"))
    assert diversity_loss(torch.ones(5, 4), noise).item() == 1
    assert diversity_loss(torch.randn(5, 4, generator=generator("z")), noise) < 0.8


def test_its_traffic_is_fedavgs_and_the_generator():
    """Beside the generator the frequencies of three labels go down, in doubles, and their counts up, as integers."""
    rounds = list(run(fedgen(rounds=2), FED, 1, Inline()))
    assert nbytes(strip_prefix(GENERATOR, rounds[-1].state.server)) == EXTRA
    assert [set(one.up.values()) for one in rounds] == [{NBYTES + 24}] * 2
    assert [set(one.down.values()) for one in rounds] == [{NBYTES}, {2 * (NBYTES + EXTRA + 24)}]


def test_frequencies_are_the_labels_of_those_who_took_part():
    one = next(run(fedgen(fraction=0.4), FED, 1, Inline()))
    y = torch.cat([FED.devices[name].data.train.y for name in one.round_info.units])
    expected = torch.bincount(y, minlength=3).double() / len(y)
    torch.testing.assert_close(one.state.messages["e"].extra[LABELS], expected)


@pytest.mark.slow
def test_a_device_keeps_nothing_and_workers_give_the_same_bits():
    here = [*run(fedgen(fraction=0.4), FED, 4, Inline())]
    assert here[-1].state.memories == {}
    assert [bits(one) for one in run(fedgen(fraction=0.4), FED, 4, workers(2))] == [bits(one) for one in here]


def test_devices_without_labels_leave_the_generator_alone():
    combine = fedgen().stages[0].combine
    start = begin(fedgen(), FED, 0, Inline())
    updates = {
        name: Update(start.messages["a"].params, {LABELS: torch.zeros(3, dtype=torch.int64)}, 0) for name in "ab"
    }
    server, messages, report = combine(start.server, updates, RoundInfo(0, 0, 0, ("a", "b"), ("a", "b")))
    assert math.isnan(report.series["distillation"]["generator_loss"])
    assert bits(server) == bits(start.server)
    assert not messages["a"].extra


# Nets


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1), nn.Flatten())


def squashed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Tanh())


def scaled() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3, affine=False))


def unbiased() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3, bias=False))


@pytest.mark.parametrize("build", [convolutional, scaled])
def test_a_net_without_a_linear_end_is_refused_at_once(build):
    with pytest.raises(InputError, match=r"^net: fedgen needs a net whose last layer is linear"):
        fedgen(nets=dict.fromkeys("abcde", Net(build)))


def test_a_net_that_does_more_after_it_is_refused_before_training():
    net = Net(squashed)
    with pytest.raises(InputError, match=r"^net: fedgen needs a net that ends in its last linear layer"):
        begin(fedgen(nets=dict.fromkeys("abcde", net)), federation("abcde", net), 0, Inline())


def test_a_net_without_a_bias_there_learns_as_well():
    net = Net(unbiased)
    assert classifier(net) == ("3.weight", None)
    one = last(fedgen(nets=dict.fromkeys("abcde", net)), federation("abcde", net))
    assert all(bool(tensor.isfinite().all()) for tensor in one.state.messages["a"].params.values())


@pytest.mark.parametrize("name", ["lenet", "dfl_cnn", "mcmahan_cnn", "resnet20", "mobilenet_v2"])
def test_the_papers_nets_end_in_a_linear_layer(name):
    net = nets.net(name, shape=(1, 28, 28), classes=10)
    weight, bias = classifier(net)
    assert nets.shapes(net)[weight][0] == 10
    assert nets.shapes(net)[bias] == (10,)
