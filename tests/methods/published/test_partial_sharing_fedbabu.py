"""FedBABU: body, mean and tuning by a plain loop; a head that nobody trains."""

from dataclasses import replace
from functools import partial

import pytest
from federations import ADAM, SGD, federation
from plain_loops import CHAIN, close, descend_by_hand, mean_by_size, module_of, params_of

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import Message, StepId, generator

FED = federation("abcd", CHAIN)
HEAD = ("2.weight", "2.bias")
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 0.5}
fedbabu = partial(method, "fedbabu", **GIVEN)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.8, weight_decay=0.1)], ids=["sgd", "momentum"])
def test_a_plain_loop_trains_the_body_alone(training):
    """Oh et al. 2022, Algorithm 1, and tuning of the whole model on every device."""
    *rounds, tuned = run(built := fedbabu(training=training, tune_epochs=3), FED, 0, Inline())
    model = start = built.begin(FED.public, 0)[1]["a"].params
    for number, one in enumerate(rounds):
        models = {}
        for name in one.round_info.units:
            module = module_of(model)
            descend_by_hand(module, FED.devices[name], number, training, trains=lambda key: key not in HEAD)
            models[name] = params_of(module)
        model = mean_by_size(FED, models)
        close({key: model[key] for key in HEAD}, {key: start[key] for key in HEAD})
        for name in FED.devices:
            close(built.deploy(one.state.memories.get(name) or {}, one.state.messages[name]).params[0], model)
    for name, device in FED.devices.items():
        step, longer = StepId(0, 1, 0, name), replace(training, epochs=3)
        expected = train({}, Message(model), device, step, training=longer)[1].params
        close(built.deploy(tuned.state.memories[name], tuned.state.messages[name]).params[0], expected)


def test_without_tuning_devices_run_the_common_layers_and_the_first_head():
    (*_, one) = run(built := fedbabu(tune_epochs=0), FED, 0, Inline())
    models = [built.deploy(one.state.memories.get(n) or {}, one.state.messages[n]).params[0] for n in FED.devices]
    for model in models:
        close(model, models[0])


def test_the_head_never_travels_up_nor_moves():
    training = replace(ADAM, optimiser_state="keep", weight_decay=0.1)
    turns = list(run(fedbabu(fraction=1.0, training=training), FED, 0, Inline()))
    assert [one.up for one in turns] == [dict.fromkeys("abcd", 4 * (5 * 4 + 5))] * 3 + [dict.fromkeys("abcd", 0)]
    start = nets.init(CHAIN, generator(0, "init"))
    close({name: turns[2].state.memories["a"][name] for name in HEAD}, {name: start[name] for name in HEAD})


def test_a_net_of_one_layer_is_refused():
    with pytest.raises(InputError, match=r"^net: fedbabu shares all but the last layer"):
        fedbabu(nets={"a": nets.net("mlp", shape=(4,), classes=3, widths=[])})
