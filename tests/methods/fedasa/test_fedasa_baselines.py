from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, federation, last, trained
from plain_loops import turn_by_hand
from signals import WHOLE
from signals import federation as signals
from torch.nn.functional import cross_entropy

from fedcore import InputError, initial_messages, layers, merge_models, nets, train
from fedcore.core.aggregation import by_size, exchange_sampled, mean
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.core.training import train_shared
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.types.method import Message, Method, Model, Stage, StepId, generator

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


@pytest.mark.slow
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


GIVEN_FEDPER = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3}
fedper = partial(method, "fedper", **GIVEN_FEDPER, personal_lr=None)
HEAD = ("fc3.weight", "fc3.bias")
BODY = [name for name in nets.shapes(NET) if name not in HEAD]


def part(params, names):
    return {name: params[name] for name in names}


@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_a_plain_loop(training):
    fed = federation()
    whole = nets.init(NET, generator(2, "init"))
    body, heads = part(whole, BODY), {name: part(whole, HEAD) for name in fed.devices}
    for number in range(3):
        with one_thread():
            updates = {
                name: train({}, Message(body | heads[name]), there, StepId(2, 0, number, name), training=training)[
                    1
                ].params
                for name, there in fed.devices.items()
            }
        heads = {name: part(params, HEAD) for name, params in updates.items()}
        body = mean([part(params, BODY) for params in updates.values()], by_size([6, 9, 12]))
    one = last(fedper(training=training), fed, 2)
    for name, there in fed.devices.items():
        assert bits(one.state.messages[name].params) == bits(body)
        assert bits(part(one.state.memories[name], HEAD)) == bits(heads[name])
        assert one.scores[name]["test"] == evaluate(Model(({**body, **heads[name]},)), NET, there.data.test)


def test_sampled_devices_share_a_body_and_others_run_the_initial_head():
    """A plain loop over the devices that the loop samples; the head is sent to a device once, at first."""
    fed, whole = federation("abcd"), nets.init(NET, generator(2, "init"))
    body, heads, sizes = part(whole, BODY), {}, {name: len(there.data.train) for name, there in fed.devices.items()}
    rounds = list(run(fedper(fraction=0.25, rounds=3), fed, 2, Inline()))
    for number, one in enumerate(rounds):
        updates = {}
        for name in one.round_info.units:
            sent = Message(body | heads.get(name, part(whole, HEAD)))
            with one_thread():
                updates[name] = train({}, sent, fed.devices[name], StepId(2, 0, number, name), training=SGD)[1].params
            assert one.up[name] == NBYTES - 4 * (12 + 3)
            known = number == 0 or name not in heads
            assert number == len(rounds) - 1 or one.down[name] == (NBYTES if known else NBYTES - 4 * (12 + 3))
        heads |= {name: part(params, HEAD) for name, params in updates.items()}
        body = mean([part(params, BODY) for params in updates.values()], by_size([sizes[name] for name in updates]))
        for name, there in fed.devices.items():
            model = Model(({**body, **heads.get(name, part(whole, HEAD))},))
            assert one.scores[name]["test"] == evaluate(model, NET, there.data.test)
    assert len(heads) < 4


def test_a_sample_needs_one_start():
    with pytest.raises(InputError, match=r"^training.shared_init = false: fedper with fraction below 1"):
        fedper(fraction=0.5, shared_init=False)


def test_personal_layers_and_moments_never_travel():
    execute = Recorder()
    for one in run(fedper(training=KEPT), federation(), 0, execute):
        assert one.up == dict.fromkeys("abc", NBYTES - 4 * (12 + 3))
        for message in one.state.messages.values():
            assert [*message.params] == BODY
            assert not message.extra
        assert all(any(name.startswith("moments/") for name in memory) for memory in one.state.memories.values())
    updates = [result[1] for _, _, result in execute.steps if isinstance(result, tuple)]
    assert len(updates) == 9
    assert all([*update.params] == BODY and not update.extra for update in updates)


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, KEPT], ids=["sgd", "kept"])
@pytest.mark.parametrize("shared_init", [True, False])
def test_with_nothing_personal_it_is_fedavg(training, shared_init):
    everything = partial(train_shared, shared=tuple(nets.shapes(NET)), training=training, personal_lr=None)
    shared = Method(
        partial(initial_messages, shared_init=shared_init), (Stage(everything, exchange_sampled, 3),), merge_models
    )
    averaged = method(
        "fedavg", **GIVEN_FEDPER | {"training": training, "shared_init": shared_init}, fraction=1.0, weights="size"
    )
    one, two = (last(built, federation(), 4) for built in (shared, averaged))
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


def test_a_rate_of_its_own_for_the_last_layer():
    one, two = (last(fedper(rounds=1, personal_lr=lr), federation()).state.memories["a"] for lr in (None, 1e-12))
    start = nets.init(NET, generator(0, "init"))
    torch.testing.assert_close(part(two, HEAD), part(start, HEAD))
    assert not torch.allclose(one["fc3.bias"], start["fc3.bias"])
    assert not torch.allclose(two["sent/fc1.weight"], start["fc1.weight"])


@pytest.mark.slow
def test_the_papers_network_sends_322144_numbers():
    fed = signals("ab", WHOLE, (1, 512))
    built = method("fedper", **GIVEN_FEDPER | {"nets": fed.public.nets, "rounds": 1}, personal_lr=None)
    one = last(built, fed)
    assert one.up == {"a": 4 * 322_144, "b": 4 * 322_144}
    assert one.down == dict.fromkeys("ab", 4 * (323_434 + 322_144))  # the whole initial model, then the base
    assert [*layers(WHOLE)][-1] == "head.fc2"


def test_a_net_of_one_layer_is_refused():
    linear = nets.net("mlp", shape=(4,), classes=3, widths=[])
    with pytest.raises(InputError, match="keeps the last layer"):
        fedper(nets={"a": linear})


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


@pytest.mark.slow
def test_a_plain_loop_on_the_printed_objective_fedprox():
    """F_k(w) + mu/2 ||w - w^t||^2, by autograd."""
    fed, mu = federation(), 0.5
    sent = nets.init(NET, generator(1, "init"))
    for number in range(2):

        def loss(module, x, y, sent=sent):
            near = sum(((tensor - sent[at]) ** 2).sum() for at, tensor in module.named_parameters())
            return cross_entropy(module(x), y) + mu / 2 * near

        sent = turn_by_hand(fed, sent, number, SGD, loss, seed=1)
    found = last(fedprox(rounds=2, mu=mu), fed, 1).state.messages["a"].params
    torch.testing.assert_close(found, sent, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_strong_pull_keeps_everyone_where_it_was():
    fed = federation()
    start = nets.init(NET, generator(0, "init"))

    def moved(params):
        return sum((params[name] - start[name]).square().sum().item() for name in start) ** 0.5

    freely = [moved(update.params) for update in trained(fed, SGD, 0, start).values()]
    distances = [moved(last(fedprox(rounds=1, mu=mu), fed).state.messages["a"].params) for mu in (0.0, 2.0, 9.0)]
    assert max(freely) > distances[0] > 1.2 * distances[1] > 2 * distances[2]
