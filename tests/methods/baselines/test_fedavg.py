from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, constant, federation, fused, last, model, trained
from torch.nn.functional import cross_entropy

from fedcore import InputError, evenly, mean, nets
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import StepId, Update, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 1, "fraction": 1.0, "weights": "size"}
fedavg = partial(method, "fedavg", **GIVEN)


@pytest.mark.parametrize("weights", ["size", "even"])
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_one_device_is_that_device(weights, training):
    alone = federation("a")
    built = fedavg(training=training, weights=weights, shared_init=False)
    (update,) = trained(alone, training, 4).values()
    assert bits(last(built, alone, 4).state.messages["a"].params) == bits(update.params)


def test_rounds_on_one_device_are_rounds_of_training():
    alone, sent = federation("a"), nets.init(NET, generator(4, "init"))
    for number in range(3):
        sent = trained(alone, SGD, 4, sent, number)["a"].params
    assert bits(last(fedavg(rounds=3), alone, 4).state.messages["a"].params) == bits(sent)


def test_one_full_batch_step_is_gradient_descent_on_the_union():
    """Weighted by size, the mean of the devices' mean gradients is the union's mean gradient."""
    fed = federation()
    step = replace(SGD, batch=100, epochs=1, lr=0.5)
    module = NET.build()
    start = nets.init(NET, generator(0, "init"))
    module.load_state_dict(start)
    x = torch.cat([there.data.train.x for there in fed.devices.values()])
    y = torch.cat([there.data.train.y for there in fed.devices.values()])
    cross_entropy(module(x), y).backward()
    union = {name: start[name] - 0.5 * tensor.grad for name, tensor in module.named_parameters()}
    by_size = last(fedavg(training=step), fed).state.messages["a"].params
    evenly = last(fedavg(training=step, weights="even"), fed).state.messages["a"].params
    torch.testing.assert_close(by_size, union)
    assert not torch.allclose(evenly["fc3.bias"], union["fc3.bias"])


@pytest.mark.parametrize(("weights", "expected"), [("size", (1 * 1 + 3 * 5) / 4), ("even", (1 + 5) / 2)])
def test_weights_computed_by_hand(weights, expected):
    updates = {"a": Update(constant(1.0), size=1), "b": Update(constant(5.0), size=3)}
    assert bits(fused(fedavg(weights=weights), updates)) == bits(constant(expected))


@pytest.mark.slow
def test_only_those_who_took_part_are_averaged():
    fed = federation("abcde")
    sent, seen = nets.init(NET, generator(2, "init")), set()
    for number, one in enumerate(run(fedavg(rounds=4, fraction=0.4, weights="even"), fed, 2, Inline())):
        assert len(one.round_info.units) == 2
        updates = trained(fed, SGD, 2, sent, number)
        sent = mean([updates[name].params for name in one.round_info.units], evenly(2))
        assert all(bits(message.params) == bits(sent) for message in one.state.messages.values())
        seen |= set(one.round_info.units)
    assert len(seen) > 2


def test_equal_models_are_a_fixed_point():
    torch.testing.assert_close(fused(fedavg(), {name: Update(model()) for name in "abc"}), model())


@pytest.mark.parametrize("weights", ["size", "even"])
@pytest.mark.slow
def test_masked_sums_give_the_plain_mean(weights):
    three = dict.fromkeys("abc", NET)
    plain, masked = (
        last(fedavg(nets=three, rounds=3, weights=weights, secure_aggregation=masks), federation(), 2)
        for masks in (False, True)
    )
    torch.testing.assert_close(
        masked.state.messages["a"].params, plain.state.messages["a"].params, rtol=1e-5, atol=1e-6
    )
    assert set(masked.up.values()) == {2 * NBYTES}
    assert masked.down == plain.down


def test_a_masked_model_tells_nothing_and_no_mask_is_used_twice():
    built = fedavg(secure_aggregation=True)
    there, sent = federation().devices["b"], Update(constant(0.0), size=5)
    one, again, later = (
        built.stages[0].attach(sent, there, StepId(seed, 0, number, "b")).extra
        for seed, number in ((1, 0), (1, 0), (1, 1))
    )
    assert bits(one) == bits(again)
    numbers = torch.cat([tensor.flatten() for tensor in one.values()])
    assert numbers.double().abs().median() > 2.0**60
    assert not any(torch.equal(tensor, later[name]) for name, tensor in one.items())


@pytest.mark.parametrize(("key", "value"), [("fraction", 0.5), ("upload", "delta"), ("aggregation", "median")])
def test_masked_sums_take_all_devices_models(key, value):
    with pytest.raises(InputError, match=rf"^fedavg\.{key} = {value}: masked sums are of all devices' models"):
        fedavg(secure_aggregation=True, **{key: value})
