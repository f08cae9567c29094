"""FedProto: prototypes and models by a plain loop, and without their pull local training."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NET, SGD, bits, federation, last, trained
from plain_loops import CHAIN, close, descend_by_hand, module_of, params_of
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.types.federation import Net
from fedcore.types.method import Message, StepId

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3}
fedproto = partial(method, "fedproto", **GIVEN)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_plain_loop(fraction):
    """Tan et al. 2022, Algorithm 1, over examples and classes one by one."""
    turns = list(run(fedproto(strength=0.7, fraction=fraction), FED, 0, Inline()))
    models = dict.fromkeys(FED.devices, fedproto().begin(FED.public, 0)[1]["a"].params)
    prototypes = None
    for number, one in enumerate(turns):
        seen = {}
        for name in one.round_info.units:

            def loss(module, x, y, prototypes=prototypes):
                z = module[:-1](x)
                if prototypes is None:
                    return cross_entropy(module[-1](z), y)
                apart = [
                    ((z[i] - prototypes[k]) ** 2).mean() if k in prototypes else 0 * z.sum()
                    for i, k in enumerate(y.tolist())
                ]
                return cross_entropy(module[-1](z), y) + 0.7 * sum(apart) / len(y)

            module = descend_by_hand(module_of(models[name]), FED.devices[name], number, SGD, loss)
            models = models | {name: params_of(module)}
            data = FED.devices[name].data.train
            for x, k in zip(data.x, data.y.tolist(), strict=True):
                seen.setdefault(k, []).append(module[:-1](x[None])[0].detach())
        prototypes = {k: torch.stack(rows).mean(0) for k, rows in seen.items()}
        sent = one.state.messages["a"].extra
        close(dict(enumerate(sent["counts"])), {k: torch.tensor(float(len(seen.get(k, [])))) for k in range(3)})
        close({k: sent["prototypes"][k] for k in prototypes}, prototypes)
        for name, memory in one.state.memories.items():
            close(memory, models[name])
    assert len(one.state.memories) == 4 or fraction < 1


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_without_a_pull_it_is_local_training_bit_by_bit(training):
    models = {}
    with one_thread():
        for number in range(3):
            for name, device in FED.devices.items():
                start = Message(models.get(name) or fedproto().begin(FED.public, 0)[1]["a"].params)
                models[name] = train({}, start, device, StepId(0, 0, number, name), training=training)[1].params
    one = last(fedproto(strength=0.0, training=training), FED)
    assert bits(one.state.memories) == bits({name: models[name] for name in FED.devices})
    assert bits(last(fedproto(training=training), FED).state.memories) != bits(one.state.memories)


def test_its_first_round_is_local_only():
    one = last(fedproto(rounds=1, shared_init=False), FED)
    assert bits(one.state.memories) == bits({name: update.params for name, update in trained(FED, SGD, 0).items()})


def test_only_prototypes_and_counts_travel():
    one = last(fedproto(), FED)
    assert one.up == dict.fromkeys("abcd", 4 * (3 * 5 + 3))
    assert not any(message.params for message in one.state.messages.values())


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))


def test_nets_may_differ_but_for_their_features():
    fed = federation("ab", CHAIN)
    other = replace(fed.devices["b"], net=Net(wide))
    fed = replace(fed, devices={**fed.devices, "b": other})
    assert last(fedproto(nets=fed.public.nets), fed).scores.keys() == {"a", "b"}
    with pytest.raises(InputError, match=r"^net.variants: fedproto averages features"):
        fedproto(nets={"a": CHAIN, "b": NET})
    with pytest.raises(InputError, match=r"^net.variants: this method combines"):
        fedproto(nets=fed.public.nets, fraction=0.5)


def test_another_loss_is_refused():
    with pytest.raises(InputError, match=r"^training.loss = fedasa_table3: fedproto has its own loss"):
        fedproto(training=replace(SGD, loss="fedasa_table3"))
