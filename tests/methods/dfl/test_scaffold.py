"""SCAFFOLD: its variates by a plain loop in double precision, and with none of them FedAvg."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, federation, last
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.evaluation import score
from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.federation import Data, Net, Splits
from fedcore.types.method import StepId, generator

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


def test_without_variates_and_one_step_it_is_fedavg_bit_by_bit():
    for changes in ({"training": ONE_STEP, "rounds": 1}, {"rounds": 1}):
        one, two = last(scaffold(**changes), TEN, 1), last(fedavg(**changes), TEN, 1)
        assert bits(one.state.messages["a"].params) == bits(two.state.messages["a"].params)
        assert one.scores == two.scores
    later, plainly = (last(build(rounds=2), TEN, 1).state.messages["a"].params for build in (scaffold, fedavg))
    assert (later["fc3.bias"] - plainly["fc3.bias"]).abs().max() > 1e-3


def test_after_one_step_a_variate_is_the_gradient():
    """c = c_i = 0 and K = 1: c_i+ = (x - y) / eta = g_i(x)."""
    state = last(scaffold(training=ONE_STEP, rounds=1, fraction=1.0), TEN, 1).state
    for name, there in TEN.devices.items():
        module = NET.build()
        module.load_state_dict(nets.init(NET, generator(1, "init")))
        cross_entropy(module(there.data.train.x), there.data.train.y).backward()
        gradient = {key: y.grad for key, y in module.named_parameters()}
        torch.testing.assert_close(state.memories[name], gradient, rtol=1e-3, atol=1e-5)


def test_where_all_devices_hold_the_same_the_correction_cancels():
    """With everyone's gradient the same in every step, c_i = c and SCAFFOLD is FedAvg."""
    one = next(iter(TEN.devices.values()))
    fed = replace(TEN, devices={name: replace(one, name=name) for name in TEN.devices})
    changes = {"training": ONE_STEP, "fraction": 1.0, "rounds": 4}
    corrected, plain = (last(build(**changes), fed, 1).state.messages["a"].params for build in (scaffold, fedavg))
    torch.testing.assert_close(corrected, plain, rtol=1e-4, atol=1e-6)


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


def test_its_one_model_is_scored_once_for_all_devices():
    """Variates tell the devices' memories apart, not what they run."""
    execute = Recorder()
    rounds = list(run(scaffold(rounds=3), TEN, 1, execute))
    assert len(rounds[-1].state.memories) > 1
    assert sum(fn is score for fn, _, _ in execute.steps) == 3


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


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
