from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, federation, last
from signals import WHOLE
from signals import federation as signals

from fedcore import nets
from fedcore.core.aggregation import by_size, exchange, mean
from fedcore.core.evaluation import evaluate
from fedcore.core.messages import initial_messages, merge_models
from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.methods.fedasa.sharing import train_shared
from fedcore.nets.parts import layers
from fedcore.types.method import Message, Method, Model, Stage, StepId, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 3}
fedper = partial(method, "fedper", **GIVEN, personal_lr=None)
HEAD = ("fc3.weight", "fc3.bias")
BODY = [name for name in nets.shapes(NET) if name not in HEAD]
KEPT = replace(ADAM, optimiser_state="keep")


def part(params, names):
    return {name: params[name] for name in names}


@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
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
    shared = Method(partial(initial_messages, shared_init=shared_init), (Stage(everything, exchange, 3),), merge_models)
    averaged = method(
        "fedavg", **GIVEN | {"training": training, "shared_init": shared_init}, fraction=1.0, weights="size"
    )
    one, two = (last(built, federation(), 4) for built in (shared, averaged))
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


def test_a_rate_of_its_own_for_the_last_layer():
    one, two = (last(fedper(rounds=1, personal_lr=lr), federation()).state.memories["a"] for lr in (None, 1e-12))
    start = nets.init(NET, generator(0, "init"))
    torch.testing.assert_close(part(two, HEAD), part(start, HEAD))
    assert not torch.allclose(one["fc3.bias"], start["fc3.bias"])
    assert not torch.allclose(two["fc1.weight"], start["fc1.weight"])


def test_the_papers_network_sends_322144_numbers():
    fed = signals("ab", WHOLE, (1, 512))
    built = method("fedper", **GIVEN | {"nets": fed.public.nets, "rounds": 1}, personal_lr=None)
    one = last(built, fed)
    assert one.up == {"a": 4 * 322_144, "b": 4 * 322_144}
    assert one.down == dict.fromkeys("ab", 4 * (323_434 + 322_144))  # the whole initial model, then the base
    assert [*layers(WHOLE)][-1] == "head.fc2"


def test_a_net_of_one_layer_is_refused():
    linear = nets.net("mlp", shape=(4,), classes=3, widths=[])
    with pytest.raises(InputError, match="keeps the last layer"):
        fedper(nets={"a": linear})
