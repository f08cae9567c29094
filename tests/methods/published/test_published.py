"""Published methods, each by a plain loop, and by what it is without its own part; in the order of their names."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, NBYTES, NET, SGD, bits, data, federation, last, trained
from plain_loops import CHAIN, NORMED, close, descend_by_hand, draw_batches, mean_by_size, module_of, params_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcore import InputError, Net, Splits, Training, nets, train
from fedcore.core import training_settings
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.methods.published.corrected_mean import path_length
from fedcore.methods.published.partial_sharing import batch_norms
from fedcore.types.federation import Threats
from fedcore.types.method import Message, Model, StepId, generator

# APFL: both models and their mixture by a plain loop; with none of its own it is FedAvg, with nothing else local.
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
def test_alone_with_the_whole_share_it_is_local_training_in_rounds():
    one = last(apfl(alpha=1.0, fraction=1.0), FED).state
    alone = last(method("fixed_depth", **GIVEN | {"fraction": 1.0}, depth=None), FED).state
    for name in FED.devices:
        close({key.removeprefix("own/"): x for key, x in one.memories[name].items() if key != "alpha"},
              alone.memories[name])  # fmt: skip


@pytest.mark.skipif(not training_settings.has_bfloat16(), reason="this processor has no bfloat16 products")
@pytest.mark.parametrize("name", ["apfl", "fedala", "perfedavg"])
def test_each_of_a_methods_gradients_has_the_precision(name):
    def loss(batch):
        assert torch.is_autocast_enabled("cpu")
        return cross_entropy(batch.logits.float(), batch.y)

    training = replace(SGD, precision="bfloat16", loss=loss)
    last(method(name, **GIVEN | {"training": training, "rounds": 2, "fraction": 1.0}), FED)


# FedALA: what each device takes of the global model by a plain loop; where it takes all of it, FedAvg.
GIVEN_FEDALA = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 5, "fraction": 0.75}
fedala = partial(method, "fedala", **GIVEN_FEDALA)
LAYERS = ("2.weight", "2.bias"), ("0.weight", "0.bias")


@pytest.mark.slow
@pytest.mark.parametrize("top", [1, 2])
def test_a_plain_loop_fedala(top: int):
    """Zhang et al. 2023, Algorithm 1, with three of four devices in each round."""
    rate, share, first = 0.7, 0.6, 3
    turns = list(run(fedala(top=top, share=share, weights_lr=rate, first_epochs=first), FED, 0, Inline()))
    sent = fedala().begin(FED.public, 0)[1]["a"].params
    own: dict[str, dict[str, Tensor]] = {}
    learnt: dict[str, dict[str, Tensor]] = {}
    weighed = {key for names in LAYERS[:top] for key in names}
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            device, start = FED.devices[name], dict(sent)
            if name in own:
                data, draws = device.data.train, StepId(0, 0, number, name).generator("weights")
                chosen = torch.randperm(len(data), generator=draws)[: round(share * len(data))]
                epochs = 1 if name in learnt else first
                w = learnt.setdefault(name, {key: torch.ones_like(sent[key]) for key in weighed})
                orders = [torch.randperm(len(chosen), generator=draws) for _ in range(epochs)]

                def mixed(w=w, mine=own[name], sent=sent):
                    return {n: mine[n] + (x - mine[n]) * w[n] if n in w else x for n, x in sent.items()}

                for index in (chosen[part] for order in orders for part in order.split(SGD.batch)):
                    hat = {key: x.clone().requires_grad_() for key, x in mixed().items()}
                    loss = cross_entropy(functional_call(module_of(sent), hat, data.x[index]), data.y[index])
                    for key, slope in zip(hat, torch.autograd.grad(loss, [*hat.values()]), strict=True):
                        if key in w:
                            w[key] = (w[key] - rate * slope * (sent[key] - own[name][key])).clamp(0, 1)
                start = mixed()
            models[name] = params_of(descend_by_hand(module_of(start), device, number, SGD))
            close({f"last/{key}": x for key, x in models[name].items()},
                  {n: x for n, x in one.state.memories[name].items() if n.startswith("last/")})  # fmt: skip
        own |= models
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    assert any(float(w["2.weight"].min()) < 1 for w in learnt.values())


@pytest.mark.slow
def test_a_device_runs_what_it_trained():
    built = fedala()
    state = last(built, FED).state
    for name in state.memories:
        found, kept = built.deploy(state.memories[name], state.messages[name]).members[0], state.memories[name]
        assert bits(found) == bits({n.removeprefix("last/"): x for n, x in kept.items() if n.startswith("last/")})


# FedDyn: the printed objective in a plain loop, and without its penalty FedAvg.
feddyn = partial(method, "feddyn", **GIVEN)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5)], ids=["sgd", "momentum"])
@pytest.mark.slow
def test_a_plain_loop_on_the_printed_objective(training):
    """Acar et al. 2021, Algorithm 1, with half of the devices in each round."""
    alpha, turns = 0.3, list(run(feddyn(alpha=0.3, training=training), FED, 0, Inline()))
    sent = feddyn().begin(FED.public, 0)[1]["a"].params
    zero = {key: torch.zeros_like(x) for key, x in sent.items()}
    h, gradients = zero, dict.fromkeys(FED.devices, zero)
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:

            def loss(module, x, y, g=gradients[name], sent=sent):
                params = dict(module.named_parameters())
                linear = sum((g[key] * w).sum() for key, w in params.items())
                near = sum(((w - sent[key]) ** 2).sum() for key, w in params.items())
                return cross_entropy(module(x), y) - linear + alpha / 2 * near

            models[name] = params_of(descend_by_hand(module_of(sent), FED.devices[name], number, training, loss))
        for name, model in models.items():
            mine = {key: g - alpha * (model[key] - sent[key]) for key, g in gradients[name].items()}
            gradients = gradients | {name: mine}
        moved = {key: sum(model[key] - sent[key] for model in models.values()) for key in sent}
        h = {key: h[key] - alpha / len(FED.devices) * moved[key] for key in sent}
        sent = {key: sum(model[key] for model in models.values()) / len(models) - h[key] / alpha for key in sent}
        close(one.state.messages["a"].params, sent)
    assert len({one.round_info.units for one in turns}) > 1
    for name, memory in one.state.memories.items():
        close(memory, gradients[name])


@pytest.mark.slow
def test_a_gradient_stays_with_its_device():
    fed = federation("abcd")
    state, up = (one := last(feddyn(nets=fed.public.nets, fraction=1.0), fed)).state, one.up
    assert up == dict.fromkeys("abcd", NBYTES)
    assert all(any(x.any() for x in memory.values()) for memory in state.memories.values())
    assert not any(message.extra for message in state.messages.values())


@pytest.mark.slow
def test_buffers_are_averaged():
    fed = federation("abcd", NORMED)
    given = {"nets": fed.public.nets, "rounds": 1}
    found = last(feddyn(**given), fed).state.messages["a"].params
    plain = last(feddyn(**given, alpha=0.0), fed).state.messages["a"].params
    assert not any(name.startswith("h/1.running") for name in last(feddyn(**given), fed).state.server)
    assert torch.isfinite(found["1.running_var"]).all()
    assert found["1.running_var"].min() > 0
    assert found.keys() == plain.keys()


# FedNova: a plain loop that counts weights of gradients, and with equal steps FedAvg.
FED_FEDNOVA = federation("abc", CHAIN)
GIVEN_FEDNOVA = {"nets": FED_FEDNOVA.public.nets, "training": SGD, "shared_init": True, "rounds": 3}
MOMENTUM = replace(SGD, momentum=0.8)
SIZES = {name: len(device.data.train) for name, device in FED_FEDNOVA.devices.items()}
fednova = partial(method, "fednova", **GIVEN_FEDNOVA)


def l1_norm(steps: int, rho: float) -> float:
    """||a||_1 of SGD with momentum (Wang et al. 2020, Section 4): a = [1 - rho^tau, ..., 1 - rho] / (1 - rho)."""
    return sum((1 - rho**k) / (1 - rho) for k in range(1, steps + 1))


@pytest.mark.parametrize("training", [SGD, MOMENTUM, replace(MOMENTUM, weight_decay=0.05)], ids=["sgd", "m", "decay"])
@pytest.mark.slow
def test_a_plain_loop_fednova(training):
    built = fednova(training=training)
    x, total = built.begin(FED_FEDNOVA.public, 0)[1]["a"].params, sum(SIZES.values())
    for number in range(3):
        directions, norms = {}, {}
        for name, device in FED_FEDNOVA.devices.items():
            y = params_of(descend_by_hand(module_of(x), device, number, training))
            norms[name] = l1_norm(len(draw_batches(device, number, training)), training.momentum)
            directions[name] = {key: (x[key] - y[key]) / norms[name] for key in x}
        effective = sum(SIZES[name] / total * norms[name] for name in SIZES)
        d = mean_by_size(FED_FEDNOVA, directions)
        x = {key: x[key] - effective * d[key] for key in x}
    assert len({*norms.values()}) > 1
    close(last(built, FED_FEDNOVA).state.messages["a"].params, x)


@pytest.mark.slow
def test_with_equal_steps_it_is_fedavg_but_for_rounding():
    training = replace(SGD, steps=5)
    one = last(fednova(training=training), FED_FEDNOVA).state.messages["a"].params
    two = last(method("fedavg", **GIVEN_FEDNOVA | {"training": training}), FED_FEDNOVA).state.messages["a"].params
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    other = last(fednova(), FED_FEDNOVA).state.messages["a"].params
    assert (
        other["0.weight"] - last(method("fedavg", **GIVEN_FEDNOVA), FED_FEDNOVA).state.messages["a"].params["0.weight"]
    ).any()


@pytest.mark.parametrize(
    "training",
    [
        replace(SGD, lr=0.2, schedule="linear"),
        replace(SGD, lr=0.3, momentum=0.6, schedule="cosine"),
        replace(SGD, lr=0.3, momentum=0.6, nesterov=True),
    ],
)
def test_a_path_is_how_far_a_gradient_of_one_leads(training: Training):
    """PyTorch's SGD on f(w) = -w."""
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], training.lr, training.momentum, nesterov=training.nesterov)
    factors = {
        "constant": lambda share: 1.0,
        "linear": lambda share: 1 - share,
        "cosine": lambda share: math.cos(math.pi * share / 2) ** 2,
    }
    for step in range(7):
        optimiser.param_groups[0]["lr"] = training.lr * factors[training.schedule](step / 7)
        optimiser.zero_grad()
        (-w).backward()
        optimiser.step()
    assert path_length(training, 7) == pytest.approx(w.item(), rel=1e-9)


@pytest.mark.slow
def test_it_sends_one_number_more_than_fedavg():
    one, two = last(fednova(), FED_FEDNOVA), last(method("fedavg", **GIVEN_FEDNOVA), FED_FEDNOVA)
    assert one.up == {name: sent + 4 for name, sent in two.up.items()}
    assert one.down == two.down


@pytest.mark.slow
def test_a_device_without_examples_changes_nothing():
    idle = replace(FED_FEDNOVA.devices["b"], data=Splits(data(0), data(0), data(0)))
    fed = replace(FED_FEDNOVA, devices={**FED_FEDNOVA.devices, "b": idle})
    with_idle = last(fednova(), fed).state.messages["a"].params
    torch.testing.assert_close(with_idle, last(fednova(), federation("ac", CHAIN)).state.messages["a"].params)


def test_a_bound_limits_the_change_and_not_the_change_per_length_of_path():
    training = replace(SGD, lr=0.01, epochs=1)
    built = fednova(training=training, rounds=1)
    start = built.begin(FED_FEDNOVA.public, 0)[1]["a"]
    models = [train({}, start, device, StepId(0, 0, 0, name), training=training)[1].params
              for name, device in FED_FEDNOVA.devices.items()]  # fmt: skip
    longest = max(
        math.dist(*(torch.cat([part.flatten() for part in x.values()]).tolist() for x in (model, start.params)))
        for model in models
    )
    fed = replace(FED_FEDNOVA, threats=Threats(bound=1.01 * longest, beyond="refuse"))
    assert bits(last(built, fed).state.messages) == bits(last(built, FED_FEDNOVA).state.messages)
    clipped = last(built, replace(fed, threats=Threats(bound=0.99 * longest))).report.counts["conduct"]
    assert {told["clipped"] for told in clipped.values()} == {0.0, 1.0}


def test_buffers_move_by_their_mean_change():
    fed = federation("abc", NORMED)
    built = fednova(nets=fed.public.nets, rounds=1)
    found = last(built, fed).state.messages["a"].params
    plain = (
        last(method("fedavg", **GIVEN_FEDNOVA | {"nets": fed.public.nets, "rounds": 1}), fed).state.messages["a"].params
    )
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        close({name: found[name]}, {name: plain[name]})


# FedOpt: each rule by a loop in NumPy, and without memory FedAvg.
GIVEN_FEDOPT = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3}
fedopt = partial(method, "fedopt", **GIVEN_FEDOPT)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["momentum", "adam", "yogi", "adagrad"])
def test_a_rule_is_that_of_the_paper(rule):
    built = fedopt(rule=rule, server_lr=0.05, beta1=0.7, beta2=0.9, tau=0.01, fraction=0.75)
    turns = list(run(built, FED, 0, Inline()))
    x = built.begin(FED.public, 0)[1]["a"].params
    m = {name: np.zeros(tensor.shape) for name, tensor in x.items()}
    v = {name: np.full(tensor.shape, 0.01**2) for name, tensor in x.items()}
    for number, one in enumerate(turns):
        names = one.round_info.units
        assert len(names) == 3
        models = {n: params_of(descend_by_hand(module_of(x), FED.devices[n], number, SGD)) for n in names}
        average = mean_by_size(FED, models)
        for name in x:
            delta = (average[name] - x[name]).double().numpy()
            m[name] = 0.7 * m[name] + (1 if rule == "momentum" else 0.3) * delta
            if rule == "momentum":
                step = m[name]
            else:
                if rule == "adagrad":
                    v[name] = v[name] + delta**2
                elif rule == "adam":
                    v[name] = 0.9 * v[name] + 0.1 * delta**2
                else:
                    v[name] = v[name] - 0.1 * delta**2 * np.sign(v[name] - delta**2)
                step = m[name] / (np.sqrt(v[name]) + 0.01)
            x = x | {name: x[name] + torch.tensor(0.05 * step).float()}
        close(one.state.messages["a"].params, x)


@pytest.mark.slow
def test_with_rate_one_and_no_memory_it_is_fedavg_but_for_rounding():
    one = last(fedopt(rule="momentum", server_lr=1.0, beta1=0.0), FED).state.messages["a"].params
    two = last(method("fedavg", **GIVEN_FEDOPT), FED).state.messages["a"].params
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_buffers_become_their_mean():
    """With a rate that moves no parameter, as devices train from the same model in each round."""
    fed = federation("abc", NORMED)
    built = fedopt(nets=fed.public.nets, rounds=1, server_lr=1e-12)
    start, end = built.begin(fed.public, 0)[1]["a"].params, last(built, fed).state.messages["a"].params
    plain = (
        last(method("fedavg", **GIVEN_FEDOPT | {"nets": fed.public.nets, "rounds": 1}), fed).state.messages["a"].params
    )
    for name in end:
        close({name: end[name]}, {name: (plain if name.startswith("1.run") or "num" in name else start)[name]})


# FedProto: prototypes and models by a plain loop, and without their pull local training.
fedproto = partial(method, "fedproto", **GIVEN_FEDOPT)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.slow
def test_a_plain_loop_fedproto(fraction):
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


@pytest.mark.slow
def test_its_first_round_is_local_only():
    one = last(fedproto(rounds=1, shared_init=False), FED)
    assert bits(one.state.memories) == bits({name: update.params for name, update in trained(FED, SGD, 0).items()})


@pytest.mark.slow
def test_only_prototypes_and_counts_travel():
    one = last(fedproto(), FED)
    assert one.up == dict.fromkeys("abcd", 4 * (3 * 5 + 3))
    assert not any(message.params for message in one.state.messages.values())


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.slow
def test_nets_may_differ_but_for_their_features():
    fed = federation("ab", CHAIN)
    other = replace(fed.devices["b"], net=Net(wide))
    fed = replace(fed, devices={**fed.devices, "b": other})
    assert last(fedproto(nets=fed.public.nets), fed).scores.keys() == {"a", "b"}
    with pytest.raises(InputError, match=r"^net.variants: fedproto averages features"):
        fedproto(nets={"a": CHAIN, "b": NET})
    with pytest.raises(InputError, match=r"^net.variants: this method combines"):
        fedproto(nets=fed.public.nets, fraction=0.5)


# MOON: the printed loss in a plain loop, and without its contrast FedAvg.
moon = partial(method, "moon", **GIVEN)


@pytest.mark.slow
def test_a_plain_loop_on_the_printed_loss():
    """Li et al. 2021, Algorithm 1; a device that rested is told from its model of an earlier round."""
    turns = list(run(moon(mu=2.0, tau=0.4), FED, 0, Inline()))
    sent, before = moon().begin(FED.public, 0)[1]["a"].params, {}
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            near, far = module_of(sent)[:-1], module_of(before.get(name, sent))[:-1]

            def loss(module, x, y, near=near, far=far):
                z = module[:-1](x)
                with torch.no_grad():
                    good, bad = near(x), far(x)
                same, other = (cosine_similarity(z, of).div(0.4).exp() for of in (good, bad))
                return cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()

            models[name] = params_of(descend_by_hand(module_of(sent), FED.devices[name], number, SGD, loss))
        before, sent = before | models, mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    assert sum(len(one.round_info.units) for one in turns) > len(before)


# FedBABU: body, mean and tuning by a plain loop; a head that nobody trains.
HEAD = ("2.weight", "2.bias")
GIVEN_FEDBABU = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3, "fraction": 0.5}
fedbabu = partial(method, "fedbabu", **GIVEN_FEDBABU)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.8, weight_decay=0.1)], ids=["sgd", "momentum"])
@pytest.mark.slow
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


@pytest.mark.slow
def test_without_tuning_devices_run_the_common_layers_and_the_first_head():
    (*_, one) = run(built := fedbabu(tune_epochs=0), FED, 0, Inline())
    models = [built.deploy(one.state.memories.get(n) or {}, one.state.messages[n]).params[0] for n in FED.devices]
    for model in models:
        close(model, models[0])


@pytest.mark.slow
def test_the_head_never_travels_up_nor_moves():
    training = replace(ADAM, optimiser_state="keep", weight_decay=0.1)
    turns = list(run(fedbabu(fraction=1.0, training=training), FED, 0, Inline()))
    assert [one.up for one in turns] == [dict.fromkeys("abcd", 4 * (5 * 4 + 5))] * 3 + [dict.fromkeys("abcd", 0)]
    start = nets.init(CHAIN, generator(0, "init"))
    close({name: turns[2].state.memories["a"][name] for name in HEAD}, {name: start[name] for name in HEAD})


# FedBN: batch norms stay with a device by a plain loop; a net without one is FedAvg's.
FED_FEDBN = federation("abcd", NORMED)
OWN = ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
WHOLE = replace(SGD, batch=3)  # no batch of one example, which has no statistics
GIVEN_FEDBN = {"nets": FED_FEDBN.public.nets, "training": WHOLE, "shared_init": True, "rounds": 4, "fraction": 0.5}
fedbn = partial(method, "fedbn", **GIVEN_FEDBN)


@pytest.mark.slow
def test_a_plain_loop_leaves_batch_norms_out():
    """Li et al. 2021, Algorithm 1, with half of the devices in each round."""
    assert batch_norms(NORMED) == OWN
    turns = list(run(fedbn(), FED_FEDBN, 0, Inline()))
    start = fedbn().begin(FED_FEDBN.public, 0)[1]["a"].params
    models = dict.fromkeys(FED_FEDBN.devices, start)
    shared = {key: x for key, x in start.items() if key not in OWN}
    for number, one in enumerate(turns):
        new = {}
        for name in one.round_info.units:
            module = module_of(models[name] | shared, NORMED)
            new[name] = params_of(descend_by_hand(module, FED_FEDBN.devices[name], number, WHOLE))
        models = models | new
        shared = mean_by_size(FED_FEDBN, {name: {key: model[key] for key in shared} for name, model in new.items()})
        for name in FED_FEDBN.devices:
            memory = one.state.memories.get(name, {})
            close({key: one.state.messages[name].params[key] for key in shared}, shared)
            for key in OWN:
                close({key: (memory or one.state.messages[name].params)[key]}, {key: models[name][key]})
                assert not memory or key not in one.state.messages[name].params


@pytest.mark.slow
def test_it_sends_less_than_fedavg_by_the_batch_norms():
    one, two = (
        last(fedbn(fraction=1.0), FED_FEDBN),
        last(method("fedavg", **GIVEN_FEDBN | {"fraction": 1.0}), FED_FEDBN),
    )
    assert one.up == {name: sent - (4 * 4 * 5 + 8) for name, sent in two.up.items()}


# FedRep: head and representation in turn by a plain loop; with one device, training of its parts alone.
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
@pytest.mark.slow
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


@pytest.mark.slow
def test_the_head_never_travels_up():
    one = last(fedrep(fraction=1.0), FED)
    assert one.up == dict.fromkeys("abcd", 4 * (5 * 4 + 5))


@pytest.mark.slow
def test_buffers_are_shared():
    fed = federation("abc", NORMED)
    state = last(fedrep(nets=fed.public.nets, fraction=1.0), fed).state
    assert {"1.running_mean", "1.running_var"} <= state.messages["a"].params.keys()
    assert all(torch.isfinite(x).all() for x in state.messages["a"].params.values())


# Per-FedAvg: the first-order algorithm by a plain loop; without a look ahead FedAvg on every other minibatch.
perfedavg = partial(method, "perfedavg", **GIVEN_FEDBABU)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1e-12], ids=["ahead", "fedavg on every other minibatch"])
@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5, weight_decay=0.1)], ids=["sgd", "momentum"])
def test_a_plain_loop_perfedavg(training, alpha):
    """Fallah et al. 2020, Algorithm 1, FO; gradients by autograd at two models."""
    *rounds, tuned = run(perfedavg(inner_lr=alpha, training=training, tune_epochs=2), FED, 0, Inline())
    sent = perfedavg().begin(FED.public, 0)[1]["a"].params
    for number, one in enumerate(rounds):
        models = {}
        for name in one.round_info.units:
            data, module = FED.devices[name].data.train, module_of(sent)
            optimiser = torch.optim.SGD(module.parameters(), 0.1, training.momentum, weight_decay=training.weight_decay)
            batches = draw_batches(FED.devices[name], number, training)
            for first, second in zip(batches[::2], batches[1::2], strict=False):
                here = dict(module.named_parameters())
                slopes = torch.autograd.grad(cross_entropy(module(data.x[first]), data.y[first]), [*here.values()])
                ahead = {n: (w - alpha * g).detach() for (n, w), g in zip(here.items(), slopes, strict=True)}
                moved = module_of(ahead)
                cross_entropy(moved(data.x[second]), data.y[second]).backward()
                for w, there in zip(here.values(), moved.parameters(), strict=True):
                    w.grad = there.grad
                optimiser.step()
            models[name] = params_of(module)
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)
    for name, device in FED.devices.items():
        tuning = replace(training, momentum=0.0, lr=alpha, epochs=2)
        close(
            tuned.state.memories[name],
            train({}, Message(sent), device, StepId(0, 1, 0, name), training=tuning)[1].params,
        )


def test_one_minibatch_is_both():
    fed, training = federation("a", CHAIN), replace(SGD, batch=100, epochs=1)
    one = next(run(perfedavg(training=training, fraction=1.0, inner_lr=0.3), fed, 0, Inline()))
    start = perfedavg().begin(fed.public, 0)[1]["a"].params
    assert (one.state.messages["a"].params["0.weight"] - start["0.weight"]).any()


# pFedMe: both models by a plain loop; without a pull the global model rests and the personal one trains alone.
pfedme = partial(method, "pfedme", **GIVEN_FEDBABU)


@pytest.mark.slow
def test_a_plain_loop_pfedme():
    """Dinh et al. 2020, Algorithm 1, with half of the devices in each round."""
    strength, eta, steps = 4.0, 0.05, 3
    turns = list(run(pfedme(strength=strength, outer_lr=eta, inner_steps=steps), FED, 0, Inline()))
    sent = pfedme().begin(FED.public, 0)[1]["a"].params
    for number, one in enumerate(turns):
        models = {}
        for name in one.round_info.units:
            data, theta, w = FED.devices[name].data.train, module_of(sent), dict(sent)
            optimiser = torch.optim.SGD(theta.parameters(), SGD.lr)
            for batch in draw_batches(FED.devices[name], number, SGD):
                for _ in range(steps):
                    optimiser.zero_grad()
                    near = sum(((x - w[key]) ** 2).sum() for key, x in theta.named_parameters())
                    (cross_entropy(theta(data.x[batch]), data.y[batch]) + strength / 2 * near).backward()
                    optimiser.step()
                w = {key: w[key] - eta * strength * (w[key] - x) for key, x in params_of(theta).items()}
            models[name] = w
            close(one.state.memories[name], params_of(theta))
        sent = mean_by_size(FED, models)
        close(one.state.messages["a"].params, sent)


@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_without_a_pull_the_personal_model_is_trained_alone(training):
    """Bit by bit, with one step on a minibatch; the global model stays, but for rounding of the mean."""
    built = pfedme(strength=0.0, inner_steps=1, training=training, fraction=1.0)
    one, start = last(built, FED), built.begin(FED.public, 0)[1]["a"]
    close(one.state.messages["a"].params, start.params)
    turns = list(run(replace(built, stages=(replace(built.stages[0], rounds=1),)), FED, 0, Inline()))
    with one_thread():
        for name, device in FED.devices.items():
            alone = train({}, start, device, StepId(0, 0, 0, name), training=training)[1].params
            assert bits(turns[0].state.memories[name]) == bits(alone)


# All of them.
KEPT = replace(ADAM, optimiser_state="keep")
ONE_LAYER = {"a": nets.net("mlp", shape=(4,), classes=3, widths=[])}


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, ADAM, KEPT], ids=["sgd", "adam", "kept"])
@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("apfl", {"alpha": 0.0}), ("fedala", {"weights_lr": 0.0}), ("fedbn", {}), ("feddyn", {"alpha": 0.0}),
        ("moon", {"mu": 0.0}),
    ],
)  # fmt: skip
def test_without_its_own_part_it_is_fedavg_bit_by_bit(name, off, training):
    """CHAIN has no batch norm, APFL keeps no moments, and FedALA scores what a device trained."""
    if name == "apfl" and training is KEPT:
        return
    given = GIVEN | {"training": training}
    one = last(method(name, **given, **off), FED)
    two = last(method("fedavg", **given, weights="even" if name == "feddyn" else "size"), FED)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert (one.up, one.down) == (two.up, two.down)
    assert name == "fedala" or one.scores == two.scores
    if name in ("feddyn", "moon"):
        assert bits(one.state.memories) == bits(two.state.memories)
        assert bits(last(method(name, **given), FED).state.messages) != bits(two.state.messages)


@pytest.mark.parametrize("name", ["fedopt", "moon", "pfedme"])
@pytest.mark.slow
def test_its_traffic_is_fedavgs(name):
    one, two = (last(method(each, **GIVEN), FED) for each in (name, "fedavg"))
    assert (one.up, one.down) == (two.up, two.down)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("apfl", {"training": KEPT}, "training.optimiser_state = keep: apfl starts a new optimiser"),
        ("fedbabu", {"nets": ONE_LAYER}, "net: fedbabu shares all but the last layer"),
        ("feddyn", {"shared_init": False}, "training.shared_init = false: feddyn averages changes"),
        ("fednova", {"training": ADAM}, "training.optimiser = adam: fednova needs sgd"),
        (
            "fednova", {"training": replace(MOMENTUM, optimiser_state="keep")},
            "training.optimiser_state = keep: fednova needs a fresh momentum",
        ),
        ("fedopt", {"shared_init": False}, "training.shared_init = false: fedopt averages changes"),
        (
            "fedproto", {"training": replace(SGD, loss="fedasa_table3")},
            "training.loss = fedasa_table3: fedproto has its own loss",
        ),
        ("fedrep", {"nets": ONE_LAYER}, "net: fedrep shares all but the last layer"),
        ("moon", {"training": replace(SGD, loss="fedasa_table3")}, "training.loss = fedasa_table3: moon has its own"),
        ("perfedavg", {"training": KEPT}, "training.optimiser_state = keep: perfedavg starts a new optimiser"),
        ("pfedme", {"training": KEPT}, "training.optimiser_state = keep: pfedme starts a new optimiser"),
        (
            "pfedme", {"outer_lr": 0.5, "strength": 3.0},
            "pfedme.outer_lr = 0.5: times pfedme.strength = 3.0 must be at most 1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(name, changes, words):
    with pytest.raises(InputError, match=f"^{re.escape(words)}"):
        method(name, **GIVEN | changes)
