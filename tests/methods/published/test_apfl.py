"""APFL: both models and their mixture by a plain loop; with none of its own it is FedAvg, with nothing else local."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, bits, federation, last
from plain_loops import CHAIN, close, draw_batches, mean_by_size, module_of, params_of
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method

FED = federation("abcd", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 0.5}
apfl = partial(method, "apfl", **GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_plain_loop(rate: float):
    """Deng et al. 2020, Algorithm 1, with half of the devices in each round; autograd finds the chain rule's alpha."""
    built = apfl(alpha=0.3, alpha_lr=rate)
    turns = list(run(built, FED, 0, Inline()))
    sent = built.begin(FED.public, 0)[1]["a"].params
    own: dict[str, dict[str, Tensor]] = {}
    alpha = dict.fromkeys(FED.devices, 0.3)
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            data, w = FED.devices[name].data.train, module_of(sent)
            v = {key: x.clone() for key, x in own.get(name, sent).items()}
            for count, batch in enumerate(draw_batches(FED.devices[name], number, SGD)):
                x, y = data.x[batch], data.y[batch]
                mine = {key: value.requires_grad_() for key, value in v.items()}
                share = torch.tensor(alpha[name], requires_grad=True)
                mixed = {key: share * mine[key] + (1 - share) * p.detach() for key, p in w.named_parameters()}
                slopes = torch.autograd.grad(
                    cross_entropy(functional_call(w, mixed, x), y), [*mine.values(), share], retain_graph=True
                )
                w.zero_grad()
                cross_entropy(w(x), y).backward()
                with torch.no_grad():
                    for tensor in w.parameters():
                        tensor -= SGD.lr * tensor.grad
                    v = {key: mine[key] - SGD.lr * g for key, g in zip(mine, slopes, strict=False)}
                if count == 0:
                    alpha[name] = min(max(alpha[name] - rate * float(slopes[-1]), 0.0), 1.0)
            own[name], models[name] = {key: value.detach() for key, value in v.items()}, params_of(w)
            kept = one.state.memories[name]
            close({key: kept[f"own/{key}"] for key in v}, own[name])
            assert float(kept["alpha"]) == pytest.approx(alpha[name], abs=1e-6)
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    for name in own:
        found = built.deploy(turns[-1].state.memories[name], turns[-1].state.messages[name]).members[0]
        close(found, {key: alpha[name] * own[name][key] + (1 - alpha[name]) * x for key, x in sent.items()})
    assert len(set(alpha.values())) == (1 if rate == 0 else 1 + len(own))


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_with_no_share_of_its_own_it_is_fedavg_bit_by_bit(training):
    one, two = (last(built, FED) for built in (apfl(alpha=0.0, training=training), fedavg(training=training)))
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


def fedavg(**changes):
    return method("fedavg", **GIVEN | changes)


def test_alone_with_the_whole_share_it_is_local_training_in_rounds():
    one = last(apfl(alpha=1.0, fraction=1.0), FED).state
    alone = last(method("fixed_depth", **GIVEN | {"fraction": 1.0}, depth=None), FED).state
    for name in FED.devices:
        close({key.removeprefix("own/"): x for key, x in one.memories[name].items() if key != "alpha"},
              alone.memories[name])  # fmt: skip


def test_what_cannot_work_is_refused():
    with pytest.raises(InputError, match=r"^training.optimiser_state = keep: apfl starts a new optimiser"):
        apfl(training=replace(ADAM, optimiser_state="keep"))
