"""FedRep: head and representation in turn by a plain loop; with one device, training of its parts alone."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, federation, last
from plain_loops import CHAIN, NORMED, close, descend_by_hand, mean_by_size, module_of, params_of

from fedcore import nets
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import Model

FED = federation("abcd", CHAIN)
HEAD = ("2.weight", "2.bias")
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 0.5}
fedrep = partial(method, "fedrep", **GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training", [SGD, replace(SGD, momentum=0.8, weight_decay=0.1)], ids=["sgd", "momentum and decay"]
)
def test_a_plain_loop_trains_the_parts_in_turn(training):
    """Collins et al. 2021, Algorithm 1, with half of the devices in each round."""
    turns = list(run(fedrep(head_epochs=3, training=training), FED, 0, Inline()))
    start = fedrep().begin(FED.public, 0)[1]["a"].params
    heads = {device: {key: start[key] for key in HEAD} for device in FED.devices}
    base = {key: x for key, x in start.items() if key not in HEAD}
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            module, device = module_of(base | heads[name]), FED.devices[name]
            descend_by_hand(module, device, number, replace(training, epochs=3), trains=lambda key: key in HEAD)
            descend_by_hand(module, device, number, training, trains=lambda key: key not in HEAD)
            models[name] = params_of(module)
        heads = heads | {name: {key: model[key] for key in HEAD} for name, model in models.items()}
        base = mean_by_size(FED, {name: {key: model[key] for key in base} for name, model in models.items()})
        for name, device in FED.devices.items():
            close(one.state.messages[name].params, base | (heads[name] if name not in one.state.memories else {}))
            expected = evaluate(Model((base | heads[name],)), CHAIN, device.data.test)
            assert one.scores[name]["test"]["loss"] == pytest.approx(expected["loss"], abs=1e-5)


@pytest.mark.parametrize("training", [replace(ADAM, optimiser_state="keep"), replace(SGD, clip=0.1)])
def test_what_is_not_trained_stays_as_it_is(training):
    """Also with the moments of earlier rounds, of which each part has its own."""
    built = fedrep(training=training, fraction=1.0, rounds=2)
    one = last(built, federation("a", CHAIN))
    memory = one.state.memories["a"]
    kept = {name for name in memory if name.startswith("moments/")}
    assert bool(kept) == (training.optimiser_state == "keep")
    for name in kept - {"moments/head/steps", "moments/base/steps"}:
        head = name.startswith("moments/head/")
        cut = 5 * 4 + 12 + 5 + 11  # where the last layer begins, in steps of 16
        assert not (memory[name][:cut] if head else memory[name][cut:]).any()
        assert memory[name].any()


def test_the_head_never_travels_up():
    one = last(fedrep(fraction=1.0), FED)
    assert one.up == dict.fromkeys("abcd", 4 * (5 * 4 + 5))


def test_buffers_are_shared():
    fed = federation("abc", NORMED)
    state = last(fedrep(nets=fed.public.nets, fraction=1.0), fed).state
    assert {"1.running_mean", "1.running_var"} <= state.messages["a"].params.keys()
    assert all(torch.isfinite(x).all() for x in state.messages["a"].params.values())


def test_a_net_of_one_layer_is_refused():
    with pytest.raises(InputError, match=r"^net: fedrep shares all but the last layer"):
        fedrep(nets={"a": nets.net("mlp", shape=(4,), classes=3, widths=[])})
