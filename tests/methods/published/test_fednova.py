"""FedNova: a plain loop that counts weights of gradients, and with equal steps FedAvg."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, data, federation, last
from plain_loops import CHAIN, NORMED, close, descend_by_hand, draw_batches, mean_by_size, module_of, params_of

from fedcore.core.training import Training
from fedcore.errors import InputError
from fedcore.methods import method
from fedcore.methods.published.fednova import path_length
from fedcore.types.federation import Splits

FED = federation("abc", CHAIN)
GIVEN = {"nets": FED.public.nets, "training": SGD, "shared_init": True, "rounds": 3}
MOMENTUM = replace(SGD, momentum=0.8)
SIZES = {name: len(device.data.train) for name, device in FED.devices.items()}
fednova = partial(method, "fednova", **GIVEN)


def l1_norm(steps: int, rho: float) -> float:
    """||a||_1 of SGD with momentum (Wang et al. 2020, Section 4): a = [1 - rho^tau, ..., 1 - rho] / (1 - rho)."""
    return sum((1 - rho**k) / (1 - rho) for k in range(1, steps + 1))


@pytest.mark.parametrize("training", [SGD, MOMENTUM, replace(MOMENTUM, weight_decay=0.05)], ids=["sgd", "m", "decay"])
def test_a_plain_loop(training):
    built = fednova(training=training)
    x, total = built.begin(FED.public, 0)[1]["a"].params, sum(SIZES.values())
    for number in range(3):
        directions, norms = {}, {}
        for name, device in FED.devices.items():
            y = params_of(descend_by_hand(module_of(x), device, number, training))
            norms[name] = l1_norm(len(draw_batches(device, number, training)), training.momentum)
            directions[name] = {key: (x[key] - y[key]) / norms[name] for key in x}
        effective = sum(SIZES[name] / total * norms[name] for name in SIZES)
        d = mean_by_size(FED, directions)
        x = {key: x[key] - effective * d[key] for key in x}
    assert len({*norms.values()}) > 1
    close(last(built, FED).state.messages["a"].params, x)


def test_with_equal_steps_it_is_fedavg_but_for_rounding():
    training = replace(SGD, steps=5)
    one = last(fednova(training=training), FED).state.messages["a"].params
    two = last(method("fedavg", **GIVEN | {"training": training}), FED).state.messages["a"].params
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    other = last(fednova(), FED).state.messages["a"].params
    assert (other["0.weight"] - last(method("fedavg", **GIVEN), FED).state.messages["a"].params["0.weight"]).any()


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


def test_it_sends_one_number_more_than_fedavg():
    one, two = last(fednova(), FED), last(method("fedavg", **GIVEN), FED)
    assert one.up == {name: sent + 4 for name, sent in two.up.items()}
    assert one.down == two.down


def test_a_device_without_examples_changes_nothing():
    idle = replace(FED.devices["b"], data=Splits(data(0), data(0), data(0)))
    fed = replace(FED, devices={**FED.devices, "b": idle})
    with_idle = last(fednova(), fed).state.messages["a"].params
    torch.testing.assert_close(with_idle, last(fednova(), federation("ac", CHAIN)).state.messages["a"].params)


def test_buffers_move_by_their_mean_change():
    fed = federation("abc", NORMED)
    built = fednova(nets=fed.public.nets, rounds=1)
    found = last(built, fed).state.messages["a"].params
    plain = last(method("fedavg", **GIVEN | {"nets": fed.public.nets, "rounds": 1}), fed).state.messages["a"].params
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        close({name: found[name]}, {name: plain[name]})


def test_an_optimiser_whose_path_is_not_known_is_refused():
    with pytest.raises(InputError, match=r"^training.optimiser = adam: fednova needs sgd"):
        fednova(training=ADAM)
    with pytest.raises(InputError, match=r"^training.optimiser_state = keep: fednova needs a fresh momentum"):
        fednova(training=replace(MOMENTUM, optimiser_state="keep"))
