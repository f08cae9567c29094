"""FedBN: batch norms stay with a device by a plain loop; a net without one is FedAvg's."""

from dataclasses import replace
from functools import partial

import pytest
from federations import ADAM, SGD, bits, federation, last
from plain_loops import CHAIN, NORMED, close, descend_by_hand, mean_by_size, module_of, params_of

from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.published.partial_sharing import batch_norms

FED = federation("abcd", NORMED)
OWN = ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
WHOLE = replace(SGD, batch=3)  # no batch of one example, which has no statistics
GIVEN = {"nets": FED.public.nets, "training": WHOLE, "shared_init": True, "rounds": 4, "fraction": 0.5}
fedbn = partial(method, "fedbn", **GIVEN)


def test_a_plain_loop_leaves_batch_norms_out():
    """Li et al. 2021, Algorithm 1, with half of the devices in each round."""
    assert batch_norms(NORMED) == OWN
    turns = list(run(fedbn(), FED, 0, Inline()))
    start = fedbn().begin(FED.public, 0)[1]["a"].params
    models = dict.fromkeys(FED.devices, start)
    shared = {key: x for key, x in start.items() if key not in OWN}
    for number, one in enumerate(turns):
        new = {}
        for name in one.round_info.units:
            module = module_of(models[name] | shared, NORMED)
            new[name] = params_of(descend_by_hand(module, FED.devices[name], number, WHOLE))
        models = models | new
        shared = mean_by_size(FED, {name: {key: model[key] for key in shared} for name, model in new.items()})
        for name in FED.devices:
            memory = one.state.memories.get(name, {})
            close({key: one.state.messages[name].params[key] for key in shared}, shared)
            for key in OWN:
                close({key: (memory or one.state.messages[name].params)[key]}, {key: models[name][key]})
                assert not memory or key not in one.state.messages[name].params


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, replace(ADAM, optimiser_state="keep")], ids=["sgd", "kept"])
def test_without_a_batch_norm_it_is_fedavg_bit_by_bit(training):
    fed = federation("abcd", CHAIN)
    given = GIVEN | {"training": training, "nets": fed.public.nets}
    one, two = last(method("fedbn", **given), fed), last(method("fedavg", **given), fed)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


def test_it_sends_less_than_fedavg_by_the_batch_norms():
    one, two = last(fedbn(fraction=1.0), FED), last(method("fedavg", **GIVEN | {"fraction": 1.0}), FED)
    assert one.up == {name: sent - (4 * 4 * 5 + 8) for name, sent in two.up.items()}
