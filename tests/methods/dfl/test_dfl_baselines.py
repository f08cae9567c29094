"""FedGen: without generated examples it is FedAvg; its two objectives by autograd; what travels."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, federation, last, trained, workers
from plain_loops import turn_by_hand
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from fedcore import InputError, nets
from fedcore.core.evaluation import score
from fedcore.core.rounds import begin, run
from fedcore.core.training import fit, flatten_net, predict
from fedcore.execute.workers import Inline
from fedcore.methods import builder, method
from fedcore.methods.dfl.fedgen import (
    GENERATOR,
    LABELS,
    classifier,
    diversity_loss,
    generated_grad_hook,
    strip_prefix,
)
from fedcore.methods.dfl.soft_targets import COUNTS, SOFT, SUMS, initial_targets, label_wise, likelihoods
from fedcore.nets.copies import load
from fedcore.types.federation import Data, Net, Splits, nbytes
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_generator_learns_by_its_objective_with_pytorchs_adam():
    """sum_k a_ky CE(h_k(z), y) + diversity, one device after the other, labels drawn by their counts."""
    counts = torch.tensor([[3, 0, 5], [1, 2, 0]])
    heads = [
        (torch.randn(3, 4, generator=generator("w", k)), torch.randn(3, generator=generator("b", k))) for k in (0, 1)
    ]
    start, round_info = nets.init(maker().net, generator("start")), RoundInfo(3, 0, 4, ("a", "b"), ("a", "b"))
    flat = flatten_net(maker().net, start)
    train_maker = fedgen(steps=4).stages[0].combine.keywords["train_maker"]
    train_maker(flat, {}, heads, counts.double(), round_info)

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_net_without_a_bias_there_learns_as_well():
    net = Net(unbiased)
    assert classifier(net) == ("3.weight", None)
    one = last(fedgen(nets=dict.fromkeys("abcde", net)), federation("abcde", net))
    assert all(bool(tensor.isfinite().all()) for tensor in one.state.messages["a"].params.values())


@pytest.mark.parametrize("name", ["lenet", "dfl_cnn", "mcmahan_cnn", "resnet20", "mobilenet_v2"])
@pytest.mark.slow
def test_the_papers_nets_end_in_a_linear_layer(name):
    net = nets.net(name, shape=(1, 28, 28), classes=10)
    weight, bias = classifier(net)
    assert nets.shapes(net)[weight][0] == 10
    assert nets.shapes(net)[bias] == (10,)


# SCAFFOLD: its variates by a plain loop in double precision, and with none of them FedAvg.
GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 8, "fraction": 0.3}
scaffold = partial(method, "scaffold", **GIVEN)
TEN = federation("abcdefghij")
ONE_STEP = replace(SGD, epochs=1, batch=100)


def fedavg(**changes):
    return method("fedavg", **GIVEN | {"weights": "even"} | changes)


def zeros():
    return {name: torch.zeros(shape) for name, shape in nets.shapes(NET).items()}


def by_a_plain_loop(fed, seed, turns, training):
    """Algorithm 1, option II, with autograd in double precision; turns: who takes part in each round."""
    x = {key: number.double() for key, number in nets.init(NET, generator(seed, "init")).items()}
    c = {key: number.double() for key, number in zeros().items()}
    memory = dict.fromkeys(fed.devices, c)
    for number, names in enumerate(turns):
        models, changes = [], []
        for name in names:
            module = NET.build().double()
            module.load_state_dict(x)
            examples = fed.devices[name].data.train
            draw = StepId(seed, 0, number, name).generator("batches")
            batches = [
                index
                for _ in range(training.epochs)
                for index in torch.randperm(len(examples), generator=draw).split(training.batch)
            ]
            rates = [training.lr * (1 - s / len(batches) if training.schedule == "linear" else 1)
                     for s in range(len(batches))]  # fmt: skip
            for index, rate in zip(batches, rates, strict=True):
                module.zero_grad()
                cross_entropy(module(examples.x[index].double()), examples.y[index]).backward()
                with torch.no_grad():
                    for key, y in module.named_parameters():
                        y -= rate * (y.grad + training.weight_decay * y - memory[name][key] + c[key])
            y = {key: number.detach() for key, number in module.named_parameters()}
            new = {key: memory[name][key] - c[key] + (x[key] - y[key]) / sum(rates) for key in y}
            changes.append({key: new[key] - memory[name][key] for key in y})
            models.append(y)
            memory = {**memory, name: new}
        x = {key: sum(y[key] for y in models) / len(models) for key in x}
        c = {key: c[key] + sum(change[key] for change in changes) / len(fed.devices) for key in c}
    return x, c, memory


@pytest.mark.slow
@pytest.mark.parametrize(
    "training", [SGD, replace(SGD, weight_decay=0.05), replace(SGD, schedule="linear")], ids=["sgd", "decay", "linear"]
)
def test_models_and_variates_are_those_of_the_algorithm(training):
    rounds = list(run(scaffold(training=training), TEN, 1, Inline()))
    turns = [one.round_info.units for one in rounds]
    assert any(name in earlier for k, names in enumerate(turns) for name in names for earlier in turns[:k])
    model, variate, memory = by_a_plain_loop(TEN, 1, turns, training)
    state = rounds[-1].state
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=2e-5, check_dtype=False)
    close(state.messages["a"].params, model)
    close(state.server, variate)
    for name in TEN.devices:
        close(state.memories.get(name, zeros()), memory[name])


@pytest.mark.slow
def test_without_variates_and_one_step_it_is_fedavg_bit_by_bit():
    for changes in ({"training": ONE_STEP, "rounds": 1}, {"rounds": 1}):
        one, two = last(scaffold(**changes), TEN, 1), last(fedavg(**changes), TEN, 1)
        assert bits(one.state.messages["a"].params) == bits(two.state.messages["a"].params)
        assert one.scores == two.scores
    later, plainly = (last(build(rounds=2), TEN, 1).state.messages["a"].params for build in (scaffold, fedavg))
    assert (later["fc3.bias"] - plainly["fc3.bias"]).abs().max() > 1e-3


@pytest.mark.slow
def test_after_one_step_a_variate_is_the_gradient():
    """c = c_i = 0 and K = 1: c_i+ = (x - y) / eta = g_i(x)."""
    state = last(scaffold(training=ONE_STEP, rounds=1, fraction=1.0), TEN, 1).state
    for name, there in TEN.devices.items():
        module = NET.build()
        module.load_state_dict(nets.init(NET, generator(1, "init")))
        cross_entropy(module(there.data.train.x), there.data.train.y).backward()
        gradient = {key: y.grad for key, y in module.named_parameters()}
        torch.testing.assert_close(state.memories[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_where_all_devices_hold_the_same_the_correction_cancels():
    """With everyone's gradient the same in every step, c_i = c and SCAFFOLD is FedAvg."""
    one = next(iter(TEN.devices.values()))
    fed = replace(TEN, devices={name: replace(one, name=name) for name in TEN.devices})
    changes = {"training": ONE_STEP, "fraction": 1.0, "rounds": 4}
    corrected, plain = (last(build(**changes), fed, 1).state.messages["a"].params for build in (scaffold, fedavg))
    torch.testing.assert_close(corrected, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_servers_variate_stays_the_mean_of_the_devices_own():
    """This breaks as soon as one device's memory is lost between two of its rounds."""
    seen, memory = set(), {}
    for one in run(scaffold(), TEN, 1, Inline()):
        seen |= set(one.round_info.units)
        assert set(one.state.memories) == seen
        assert all(one.state.memories[name] is memory[name] for name in memory if name not in one.round_info.units)
        memory = one.state.memories
        average = {key: sum(mine[key] for mine in one.state.memories.values()) / 10 for key in zeros()}
        torch.testing.assert_close(one.state.server, average, rtol=1e-4, atol=1e-5)
    assert one.state.server["fc3.bias"].abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("shared_init", [True, False])
def test_its_traffic_is_twice_fedavgs_both_ways(shared_init):
    changes = {"rounds": 3, "shared_init": shared_init}
    for one, two in zip(
        run(scaffold(**changes), TEN, 1, Inline()), run(fedavg(**changes), TEN, 1, Inline()), strict=True
    ):
        assert one.up == {name: 2 * count for name, count in two.up.items()}
        assert one.down == {name: 2 * count for name, count in two.down.items()}
    assert max(one.up.values()) == 2 * NBYTES


@pytest.mark.slow
def test_its_one_model_is_scored_once_for_all_devices():
    """Variates tell the devices' memories apart, not what they run."""
    execute = Recorder()
    rounds = list(run(scaffold(rounds=3), TEN, 1, execute))
    assert len(rounds[-1].state.memories) > 1
    assert sum(fn is score for fn, _, _ in execute.steps) == 3


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.slow
def test_buffers_travel_with_the_model_and_have_no_variate():
    net = Net(normed)
    fed = federation("abc", net)
    state = last(scaffold(nets=dict.fromkeys("abc", net), rounds=2, fraction=1.0), fed).state
    assert set(state.server) == set(state.memories["a"]) == {"0.weight", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert set(state.messages["a"].params) == set(nets.shapes(net))


def test_a_device_without_examples_changes_no_variate():
    none = Data(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    idle = replace(TEN.devices["b"], data=Splits(none, none, none))
    fed = replace(TEN, devices={"a": TEN.devices["a"], "b": idle})
    state = last(scaffold(fraction=1.0, rounds=2), fed).state
    assert all(not bool(tensor.any()) for tensor in state.memories["b"].values())
    assert bool(state.memories["a"]["fc1.weight"].any())


def test_all_but_plain_sgd_is_refused():
    with pytest.raises(
        InputError, match=r"^training.optimiser = adam: scaffold needs plain sgd; use sgd and momentum 0$"
    ):
        scaffold(training=ADAM)
    with pytest.raises(InputError, match=r"^training.optimiser = sgd with momentum 0.9: scaffold needs plain sgd"):
        scaffold(training=replace(SGD, momentum=0.9))


# FD: soft targets of the others and nothing else; without them it is local training.
GIVEN_FD = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 1.0, "gamma": 1.0}
fd = partial(method, "fd", **GIVEN_FD)


def says(logits, labels):
    sums, counts = label_wise(torch.tensor(logits), torch.tensor(labels))
    return Update(extra={SUMS: sums, COUNTS: counts}, size=len(labels))


def test_each_device_gets_the_mean_of_the_others_by_hand():
    """Label 0: a's mean is (2, 1, 2) and b's (5, 1, 2), each counts once. Label 1: a's alone. Label 2: c's alone."""
    updates = {
        "a": says([[1.0, 2.0, 3.0], [3.0, 0.0, 1.0], [0.0, 6.0, 0.0]], [0, 0, 1]),
        "b": says([[5.0, 1.0, 2.0]], [0]),
        "c": says([[8.0, 1.0, 0.0], [0.0, 0.0, 9.0]], [0, 2]),
    }
    nobody = {SOFT: initial_targets(3)}
    server, messages, report = (
        fd().stages[0].combine(nobody, updates, RoundInfo(0, 0, 0, ("a", "b", "c"), ("a", "b", "c", "d")))
    )
    inf = float("inf")
    expected = {
        "a": [[6.5, 1.0, 1.0], [-inf, 0.0, -inf], [0.0, 0.0, 9.0]],
        "b": [[5.0, 1.0, 1.0], [0.0, 6.0, 0.0], [0.0, 0.0, 9.0]],
        "c": [[3.5, 1.0, 2.0], [0.0, 6.0, 0.0], [-inf, -inf, 0.0]],
    }
    for name, table in expected.items():
        torch.testing.assert_close(messages[name].extra[SOFT], torch.tensor(table, dtype=torch.float64))
    everyones = torch.tensor([[5.0, 1.0, 4 / 3], [0.0, 6.0, 0.0], [0.0, 0.0, 9.0]], dtype=torch.float64)
    torch.testing.assert_close(server[SOFT], everyones)
    torch.testing.assert_close(messages["d"].extra[SOFT], everyones)
    torch.testing.assert_close(report.matrices["soft_targets"], likelihoods(everyones, 1.0).float())


@pytest.mark.slow
@pytest.mark.parametrize("shared_init", [True, False])
def test_without_soft_targets_it_is_local_training(shared_init):
    built, start = fd(gamma=0.0, shared_init=shared_init, training=ADAM), nets.init(NET, generator(2, "init"))
    mine = {name: update.params for name, update in trained(FED, ADAM, 2, start if shared_init else None).items()}
    for number in (1, 2):
        mine = {name: trained(FED, ADAM, 2, params, number)[name].params for name, params in mine.items()}
    one = last(built, FED, 2)
    for name in FED.devices:
        assert bits(built.deploy(one.state.memories[name], one.state.messages[name]).members[0]) == bits(mine[name])
    assert bits(last(fd(training=ADAM, shared_init=shared_init), FED, 2).state.memories) != bits(one.state.memories)


@pytest.mark.slow
def test_a_round_with_soft_targets_is_the_plain_loop():
    """CE(y) + gamma CE(softmax(the others' mean logits))."""
    gamma, fed = 0.7, federation()
    first, second = (one.state for one in run(fd(rounds=2, gamma=gamma), fed, 1, Inline()))
    for name, there in fed.devices.items():
        module, examples = NET.build(), there.data.train
        module.load_state_dict(first.memories[name])
        soft = first.messages[name].extra[SOFT].softmax(1).float()
        optimiser = torch.optim.SGD(module.parameters(), SGD.lr)
        draw = StepId(1, 0, 1, name).generator("batches")
        for _ in range(SGD.epochs):
            for index in torch.randperm(len(examples), generator=draw).split(SGD.batch):
                logits, y = module(examples.x[index]), examples.y[index]
                optimiser.zero_grad()
                (cross_entropy(logits, y) + gamma * cross_entropy(logits, soft[y])).backward()
                optimiser.step()
        torch.testing.assert_close(second.memories[name], dict(module.state_dict()), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_nothing_but_soft_targets_travels():
    """Three classes: 72 bytes of logits and 24 of counts up, 72 down; the initial model once."""
    rounds = list(run(fd(), FED, 1, Inline()))
    assert [set(one.up.values()) for one in rounds] == [{96}] * 3
    assert [set(one.down.values()) for one in rounds] == [{NBYTES}, {72}, {144}]
    assert set(last(fd(rounds=1, shared_init=False), FED).down.values()) == {72}


@pytest.mark.slow
def test_a_device_never_sampled_has_initial_model_and_latest_targets():
    built, chosen, down = fd(fraction=0.2, rounds=12), set(), []
    start = nets.init(NET, generator(1, "init"))
    for one in run(built, FED, 1, Inline()):
        (name,) = one.round_info.units
        down.append((name in chosen, one.round_info.round, one.down[name]))
        chosen.add(name)
        assert set(one.state.memories) == chosen
        for other in set(FED.devices) - chosen:
            message = one.state.messages[other]
            assert bits(built.deploy({}, message).members[0]) == bits(start)
            assert torch.equal(message.extra[SOFT], one.state.server[SOFT])
        for other in chosen:
            assert not one.state.messages[other].params
    before = [size for known, number, size in down[:-1] if not known and number]
    again = [size for known, _, size in down[:-1] if known]
    assert set(before) == {NBYTES + 72}
    assert set(again) == {72}


def test_logits_are_those_of_the_devices_own_model_after_training():
    fed = federation("ab")
    state = last(fd(rounds=1), fed).state
    examples = fed.devices["b"].data.train
    sums, counts = label_wise(predict(state.memories["b"], NET, examples.x, 100), examples.y)
    seen = counts > 0
    torch.testing.assert_close(state.messages["a"].extra[SOFT][seen], (sums / counts[:, None])[seen])


@pytest.mark.slow
def test_nets_may_differ_and_workers_give_the_same_bits():
    wide = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = federation("ab")
    devices = {**fed.devices, "c": federation("c", wide).devices["c"]}
    built = fd(nets={"a": NET, "b": NET, "c": wide})
    fed = type(fed)(devices, fed.test, 3)
    here = [bits(one) for one in run(built, fed, 4, Inline())]
    assert [bits(one) for one in run(built, fed, 4, workers(2))] == here


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InputError, match=r"^training.shared_init = false: fd with fraction below 1 "):
        fd(shared_init=False, fraction=0.5)
    with pytest.raises(InputError, match=r"^net.variants: "):
        fd(nets={"a": NET, "b": nets.net("mlp", shape=(4,), classes=3, widths=[7])}, fraction=0.5)


# The control of DFL: FedAvg with smoothed labels, by PyTorch's own label smoothing.
GIVEN_LABEL_SMOOTHING = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 1.0}
label_smoothing = partial(method, "label_smoothing", **GIVEN_LABEL_SMOOTHING, ratio="threshold", threshold=0.6)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
@pytest.mark.parametrize("shared_init", [True, False])
def test_with_threshold_1_it_is_fedavg_bit_by_bit(training, fraction, shared_init):
    changes, fed = {"training": training, "fraction": fraction, "shared_init": shared_init}, federation("abcd")
    one = last(label_smoothing(threshold=1.0, **changes), fed, 2)
    two = last(method("fedavg", **GIVEN_LABEL_SMOOTHING | changes, weights="size"), fed, 2)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


@pytest.mark.parametrize(
    ("ratio", "shares"), [("threshold", [0, 0.4, 0.4]), ("dynamic", [0, 2 / 3, 1]), ("fixed", [0, 0.4, 0.4])]
)
@pytest.mark.slow
def test_a_plain_loop_with_pytorchs_label_smoothing(ratio, shares):
    fed, sent = federation(), nets.init(NET, generator(1, "init"))
    for number, share in enumerate(shares):

        def loss(module, x, y, share=share):
            return cross_entropy(module(x), y, label_smoothing=share)

        sent = turn_by_hand(fed, sent, number, SGD, loss, seed=1)
    rounds = list(run(label_smoothing(rounds=3, ratio=ratio), fed, 1, Inline()))
    torch.testing.assert_close(rounds[-1].state.messages["a"].params, sent, rtol=1e-4, atol=1e-5)
    rho = [one.report.series["distillation"]["rho"] for one in rounds]
    assert rho == pytest.approx([1 - share for share in shares])


def test_nothing_more_than_the_model_travels():
    for number, one in enumerate(run(label_smoothing(rounds=2), federation(), 1, Inline())):
        assert set(one.up.values()) == {NBYTES}
        assert set(one.down.values()) == {NBYTES * (1 + number)}


def test_it_is_a_control_and_needs_cross_entropy():
    assert hasattr(builder("label_smoothing"), "control")
    with pytest.raises(InputError, match=r"^training.loss = fedasa_table3: label_smoothing"):
        label_smoothing(training=replace(SGD, loss="fedasa_table3"))
