"""Devices' steps on an NVIDIA accelerator, where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from federations import AT_THE_END, bits, federation

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.together import Together
from fedcore.core.training import Training
from fedcore.execute.accelerator import accelerate
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types import Data, Device, Federation, Splits, generator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA accelerator")

SGD = Training("sgd", 0.05, batch=8, epochs=2)


class OneByOne(Inline):
    """Runs devices' steps on the accelerator, one after another."""

    def map(self, fn: Any, calls: Any, **kwargs: Any) -> Any:
        return super().map(accelerate(fn, "cuda"), calls)


def pictures(name: str, shape: tuple[int, ...]) -> Federation:
    net, draws = nets.net(name, shape=shape, classes=10), generator("pictures")

    def data(count: int) -> Data:
        x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=draws)
        return Data(x, torch.randint(0, 10, (count,), generator=draws))

    devices = {
        name: Device(name, net, Splits(data(size), data(4), data(4)))
        for name, size in {"a": 40, "b": 31, "c": 160}.items()
    }
    return Federation(devices, data(20), 10)


def model(fed: Federation, training: Training, execute: Any, name: str = "fedavg", rounds: int = 2) -> Any:
    own = {"fedavg": {"weights": "size", "sends": "model"}}.get(name, {})
    built = method(name, nets={each: fed.devices[each].net for each in fed.devices}, training=training,
                   shared_init=True, rounds=rounds, fraction=1.0, **own)  # fmt: skip
    return list(run(built, fed, 0, execute, every=AT_THE_END))[-1].state.messages["a"].params


def gap(first: Any, second: Any) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.parametrize("execute", [OneByOne, lambda: Together("cuda")], ids=["one by one", "together"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp", "dfl_cnn"])
def test_the_same_bits_again(execute: Any, precision: Any, name: str):
    fed = pictures(name, (1, 28, 28))
    models = [model(fed, replace(SGD, precision=precision), execute()) for _ in range(2)]
    assert gap(*models) == 0


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5, clip=1.0), replace(SGD, weight_decay=0.01)])
def test_close_to_the_processor(training: Training):
    fed = pictures("mlp", (1, 28, 28))
    on_cpu = model(fed, training, Inline())
    assert gap(on_cpu, model(fed, training, OneByOne())) < 1e-5
    assert gap(on_cpu, model(fed, training, Together("cuda"))) < 1e-5


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_fewer_bits_change_the_model_a_little(precision: Any):
    fed = pictures("mlp", (1, 28, 28))
    exact, rough = (model(fed, replace(SGD, precision=each), Together("cuda")) for each in ("float32", precision))
    assert 0 < gap(exact, rough) < 0.02


def test_graphs_of_adam_count_its_steps():
    fed = pictures("mlp", (1, 28, 28))
    adam = Training("adam", 0.001, batch=8, epochs=4, optimiser_state="keep")
    assert gap(model(fed, adam, OneByOne()), model(fed, adam, Together("cuda"))) < 1e-4


def test_a_whole_method_is_scored():
    fed = federation("ab")
    for name in ("fedprox", "scaffold"):
        assert bits(model(fed, SGD, Together("cuda"), name)) == bits(model(fed, SGD, Together("cuda"), name))
