import pytest
import torch
from federations import NET, federation, model

from fedcore import nets
from fedcore.core.aggregation import apply_changes
from fedcore.core.messages import (
    begin_with_memory,
    from_memory,
    initial_messages,
    received_model,
    to_everyone,
    to_memory,
    to_sampled,
)
from fedcore.types.federation import Federation
from fedcore.types.method import Message, Model, generator

WIDE = nets.net("mlp", shape=(4,), classes=3, widths=[7])


def test_everyone_gets_the_very_same_message():
    message = Message(model())
    sent = to_everyone(("a", "b"), message)
    assert list(sent) == ["a", "b"]
    assert all(one is message for one in sent.values())


def test_common_initial_models_are_drawn_by_the_server_from_the_seed():
    server, messages = initial_messages(federation().public, 3, shared_init=True)
    assert server == {}
    assert len({id(message) for message in messages.values()}) == 1
    torch.testing.assert_close(messages["b"].params, nets.init(NET, generator(3, "init")), rtol=0, atol=0)
    other = initial_messages(federation().public, 4, shared_init=True)[1]["b"].params
    assert not torch.equal(other["fc1.weight"], messages["b"].params["fc1.weight"])


def test_devices_with_different_nets_get_one_model_per_net_drawn_alike():
    fed = federation("abcd")
    devices = {**fed.devices, **federation("bd", WIDE).devices}
    _, messages = initial_messages(Federation(devices, fed.test, 3).public, 3, shared_init=True)
    assert messages["a"] is messages["c"]
    assert messages["b"] is messages["d"]
    for name, net in (("a", NET), ("b", WIDE)):
        torch.testing.assert_close(messages[name].params, nets.init(net, generator(3, "init")), rtol=0, atol=0)


def test_nothing_is_sent_where_devices_initialise_themselves():
    server, messages = initial_messages(federation().public, 3, shared_init=False)
    assert server == {}
    assert list(messages) == ["a", "b", "c"]
    assert all(message == Message() and message.nbytes == 0 for message in messages.values())


@pytest.mark.parametrize("memory", [{}, {"fc1.weight": torch.zeros(5, 4)}], ids=["no memory", "memory"])
def test_what_was_received_is_run_whatever_the_device_owns(memory):
    params = model()
    found = received_model(memory, Message(params))
    assert found == Model((params,))
    assert found.weights == (1.0,)


def test_what_is_kept_of_one_start_follows_the_mean_change():
    server, messages = begin_with_memory(federation().public, 3)
    start = messages["a"].params
    assert all(message.params is start for message in messages.values())
    ones, threes = ({name: torch.full_like(x, n) for name, x in start.items()} for n in (1.0, 3.0))
    moved = apply_changes(server, [ones, threes], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(moved, {name: x + 1.5 for name, x in start.items()})
    assert from_memory({**to_memory(moved), "soft/targets": torch.zeros(1)}) == moved
    assert from_memory({}) == {}


def test_a_device_gets_the_initial_tensors_until_it_takes_part():
    whole = model()
    part = {"fc1.bias": whole["fc1.bias"] + 1}
    server, first = to_sampled(to_memory(whole), ["a"], "ab", Message(part))
    assert first["a"].params == part
    assert first["b"].params == whole | part
    _, second = to_sampled(server, ["b"], "ab", Message(part))
    assert second["a"].params == second["b"].params == part
