"""FD: soft targets of the others and nothing else; without them it is local training."""

from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last, trained, workers
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.dfl.soft_targets import COUNTS, SOFT, SUMS, initial_targets, label_wise, likelihoods
from fedcore.types.method import RoundInfo, StepId, Update, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 1.0, "gamma": 1.0}
fd = partial(method, "fd", **GIVEN)
FED = federation("abcde")


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


def test_nothing_but_soft_targets_travels():
    """Three classes: 72 bytes of logits and 24 of counts up, 72 down; the initial model once."""
    rounds = list(run(fd(), FED, 1, Inline()))
    assert [set(one.up.values()) for one in rounds] == [{96}] * 3
    assert [set(one.down.values()) for one in rounds] == [{NBYTES}, {72}, {144}]
    assert set(last(fd(rounds=1, shared_init=False), FED).down.values()) == {72}


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
