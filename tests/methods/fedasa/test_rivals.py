from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import NETS as MLPS
from federations import SGD, bits, federation, last, workers
from signals import ADAM, NET, NETS, WHOLE
from signals import federation as signals

from fedcore import InputError, by_size, mean, nets, train
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.methods.fedasa.rivals import draw_depth
from fedcore.nets.parts import max_depth, names_up_to
from fedcore.types.method import Message, StepId, generator

GIVEN = {"nets": NETS, "training": ADAM, "shared_init": True, "rounds": 2, "personal_lr": None}
fixed_depth = partial(method, "fixed_depth", **GIVEN)


@pytest.mark.slow
def test_uplink_bytes_are_shared_parameters_times_four():
    fed = signals("ab", WHOLE, (1, 512))
    for depth, count in enumerate([10_464, 22_816, 35_168, 47_520, 59_872]):
        one = last(fixed_depth(nets=fed.public.nets, rounds=1, depth=depth), fed)
        assert one.up == {"a": 4 * count, "b": 4 * count}
    once = last(fixed_depth(nets=fed.public.nets, rounds=1, depth=None), fed)
    assert once.up == {"a": 0, "b": 0}


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(4))
def test_a_plain_loop(depth):
    fed, shared = signals(), names_up_to(NET, depth)
    memory = {name: {} for name in fed.devices}
    params = {name: nets.init(NET, generator(2, "init")) for name in fed.devices}
    for number in range(2):
        with one_thread():
            for name, there in fed.devices.items():
                memory[name], update = train(
                    memory[name], Message(params[name]), there, StepId(2, 0, number, name), training=ADAM
                )
                params[name] = update.params
        base = mean([{key: params[name][key] for key in shared} for name in params], by_size([6, 9, 12]))
        params = {name: mine | base for name, mine in params.items()}
    built = fixed_depth(depth=depth)
    state = last(built, fed, 2).state
    for name in fed.devices:
        assert bits(built.deploy(state.memories[name], state.messages[name]).members[0]) == bits(params[name])


@pytest.mark.slow
@pytest.mark.parametrize("shared_init", [True, False])
@pytest.mark.parametrize("moments", ["fresh", "keep"])
def test_with_nothing_shared_it_is_local_only(shared_init, moments):
    training = replace(ADAM, optimiser_state=moments)
    built = fixed_depth(training=training, shared_init=shared_init, rounds=1, depth=None)
    one, two = (
        last(b, signals(), 3)
        for b in (built, method("local_only", nets=NETS, training=training, shared_init=shared_init))
    )
    for name in "abc":
        mine = built.deploy(one.state.memories[name], one.state.messages[name]).members[0]
        assert bits(mine) == bits(two.state.memories[name])
    assert (one.scores, one.up) == (two.scores, two.up)
    alone, many = (last(fixed_depth(depth=None), signals(names), 3) for names in ("a", "abc"))
    assert alone.scores["a"] == many.scores["a"]


@pytest.mark.slow
def test_a_rate_of_its_own_where_nothing_is_shared():
    one = last(fixed_depth(depth=None, personal_lr=0.003), signals(), 3)
    two = last(fixed_depth(depth=None, training=replace(ADAM, lr=0.003)), signals(), 3)
    torch.testing.assert_close(one.state.memories, two.state.memories, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_random_depths_are_drawn_by_seed_and_name():
    depths = {name: draw_depth(NET, 5, name) for name in "abcdefghijklmnopqrst"}
    assert set(depths.values()) == set(range(max_depth(NET) + 1))
    assert depths != {name: draw_depth(NET, 6, name) for name in depths}
    weights = [sum(nets.init(NET, generator(0))[key].numel() for key in names_up_to(NET, m)) for m in range(4)]
    for one in run(fixed_depth(depth="random"), signals("abcd"), 5, Inline()):
        assert one.up == {name: 4 * weights[depths[name]] for name in "abcd"}
        for name in "abcd":
            assert [*one.state.messages[name].params] == [*names_up_to(NET, depths[name])]


@pytest.mark.slow
def test_the_order_of_devices_does_not_matter():
    fed = signals()
    turned = replace(fed, devices=dict(reversed(fed.devices.items())))
    one, two = (last(fixed_depth(depth="random"), each, 1) for each in (fed, turned))
    for name in fed.devices:
        torch.testing.assert_close(one.state.messages[name].params, two.state.messages[name].params)


@pytest.mark.slow
def test_layers_of_other_nets():
    one = last(fixed_depth(nets=MLPS, training=SGD, depth=0), federation())
    assert [*one.state.messages["a"].params] == ["fc1.weight", "fc1.bias"]
    per = last(method("fedper", **GIVEN | {"nets": MLPS, "training": SGD}), federation())
    all_but_one = last(fixed_depth(nets=MLPS, training=SGD, depth=1), federation())
    assert bits(per.state) == bits(all_but_one.state)


def test_depths_that_the_net_does_not_have_are_refused():
    for depth in (4, -1):
        with pytest.raises(InputError, match=rf"fixed_depth.depth = {depth}: this net's depths are 0 to 3"):
            fixed_depth(depth=depth)


@pytest.mark.slow
def test_the_same_bits_in_worker_processes_and_after_a_stop():
    built = fixed_depth(depth="random", rounds=3)
    here, there = ([bits(one) for one in run(built, signals(), 8, execute)] for execute in (Inline(), workers(2)))
    assert here == there
    first = next(run(built, signals(), 8, Inline()))
    assert [bits(one) for one in run(built, signals(), 8, workers(2), state=first.state)] == here[1:]
