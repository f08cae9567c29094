"""Devices that train side by side have the bits of one after another, whatever their method, task and sizes."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest
import torch
from every_method import ROWS
from federations import AT_THE_END, NETS, bits, federation

from fedcore import nets
from fedcore.core import side_by_side, together
from fedcore.core.rounds import run
from fedcore.core.together import SideBySide
from fedcore.core.training import Training, train
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, method
from fedcore.types import Data, Device, Federation, Message, Net, Splits, StepId, generator

SGD = Training("sgd", 0.05, batch=8, epochs=2)
ADAM = Training("adam", 0.001, batch=16, epochs=3, optimiser_state="keep")
SIZES = {"a": 40, "b": 31, "c": 160, "d": 7, "e": 96}
WAYS = {
    "sgd": SGD,
    "momentum and clipping": replace(SGD, momentum=0.5, clip=1.0),
    "weight decay": replace(SGD, weight_decay=0.01, round_decay=0.5),
    "class weights": replace(SGD, class_weights="balanced", batch=13),
    "one example": replace(SGD, batch=1, epochs=1),
    "some steps": replace(SGD, epochs=1, steps=7),
    "adam": ADAM,
    "adamw": replace(ADAM, optimiser="adamw", optimiser_state="fresh", batch=10),
}


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were trained side by side."""
    sizes: list[int] = []
    real = side_by_side.descend
    monkeypatch.setattr(side_by_side, "descend", lambda descents: [sizes.append(len(descents)), real(descents)])
    monkeypatch.setattr(together, "LEAST", 1)
    return sizes


def divided(net: Net, task: str = "classes", sizes: dict[str, int] = SIZES, val: int = 4) -> Federation:
    draws, shape = generator("side by side"), (6, 6)

    def data(count: int) -> Data:
        y = {
            "classes": lambda: torch.randint(0, 10, (count,), generator=draws),
            "number": lambda: torch.randn(count, generator=draws),
            "labels": lambda: torch.randint(0, 2, (count, 10), generator=draws).float(),
        }[task]()
        return Data(torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=draws), y)

    devices = {each: Device(each, net, Splits(data(size), data(val), data(4))) for each, size in sizes.items()}
    return Federation(devices, data(20), 1 if task == "number" else 10)


def net(name: str = "mlp", classes: int = 10, **settings: Any) -> Net:
    return nets.net(name, shape=(6, 6), classes=classes, **settings)


def last(fed: Federation, training: Training, execute: Any, name: str = "fedavg", rounds: int = 3) -> Any:
    own = {"fedavg": {"weights": "size", "sends": "model"}}.get(name, {})
    built = method(name, nets={each: fed.devices[each].net for each in fed.devices}, training=training,
                   shared_init=True, rounds=rounds, **own)  # fmt: skip
    return list(run(built, fed, 0, execute, every=AT_THE_END))[-1].state


def both(fed: Federation, training: Training, name: str = "fedavg") -> tuple[str, str]:
    one, other = (last(fed, training, execute, name) for execute in (Inline(), SideBySide(Inline())))
    return tuple(bits((state.server, dict(state.messages), dict(state.memories))) for state in (one, other))  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS)
def test_every_setting_has_the_same_bits(way: str, trained: list[int]):
    one, other = both(divided(net()), WAYS[way])
    assert one == other
    assert trained == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sgd", "weight decay", "adam"])
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedper", "ditto", "dfl", "fedrep", "feddyn", "fedbabu"])
def test_hooks_parts_and_soft_targets_have_the_same_bits(name: str, way: str, trained: list[int]):
    if name == "scaffold" and way == "adam":
        way = "sgd"
    one, other = both(divided(net()), WAYS[way], name)
    assert one == other
    assert set(trained) == {5}


@pytest.mark.parametrize("task", ["number", "labels"])
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_every_task_has_the_same_bits(task: str, training: Training, trained: list[int]):
    one, other = both(divided(net(classes=1 if task == "number" else 10), task), training)
    assert one == other
    assert trained == [5, 5, 5]


@pytest.mark.parametrize("widths", [[], [7], [50, 30], [64, 32, 16]])
def test_every_depth_has_the_same_bits(widths: list[int], trained: list[int]):
    one, other = both(divided(net(widths=widths)), ADAM)
    assert one == other
    assert trained == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_same_bits(name: str):
    built = ROWS[name].build(NETS)
    alone, other = (
        list(run(built, federation("abc"), 1, each, every=AT_THE_END))[-1] for each in (Inline(), SideBySide(Inline()))
    )
    assert alone.up == other.up
    for part in ("server", "messages", "memories"):
        assert bits(getattr(alone.state, part)) == bits(getattr(other.state, part))


def test_where_products_differ_devices_train_one_by_one(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(side_by_side, "find_stacked", lambda *args: None)
    one, other = both(divided(net()), ADAM)
    assert one == other
    assert trained == [5, 5, 5]


def test_products_are_tried_out_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, float, float]] = []
    real = side_by_side.same_bits

    def same_bits(module: Any, make_rows: Any, batch: int, *, keep: float, scale: float) -> Any:
        asked.append((batch, keep, scale))
        return real(module, make_rows, batch, keep=keep, scale=scale)

    monkeypatch.setattr(side_by_side, "same_bits", same_bits)
    monkeypatch.setattr(side_by_side, "_STACKED", {})
    both(divided(net()), ADAM)
    assert asked == [(16, 0.0, 1 / 16)] * 3  # of four, three and two devices: e has 96 examples, b and d fewer than 32
    both(divided(net()), ADAM)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("built", "training"),
    [
        ("dfl_cnn", SGD),
        ("mlp", replace(SGD, schedule="cosine")),
        ("mlp", replace(SGD, patience=1)),
        ("mlp", replace(SGD, loss=lambda batch: (batch.logits**2).mean())),
        ("mlp", replace(SGD, loss="softmax_twice")),
    ],
)
def test_what_goes_alone(built: str, training: Training, trained: list[int]):
    fed = divided(nets.net(built, shape=(1, 28, 28), classes=10)) if built != "mlp" else divided(net())
    if built != "mlp":
        assert not any(together.is_worth_it((device,)) for device in fed.devices.values())
        return
    one, other = both(fed, training)
    assert one == other
    assert trained == []


def test_large_nets_and_few_examples_are_not_worth_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(together, "LEAST", 64)
    small, large = net(), net(widths=[4000])
    fed = divided(small)
    assert [together.is_worth_it((1, ({}, fed.devices[name]))) for name in "abc"] == [False, False, True]
    assert not together.is_worth_it((divided(large).devices["c"],))
    assert not together.is_worth_it((fed.devices["c"], fed.devices["c"]))


def test_groups_fit_into_the_cache(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(side_by_side, "ROWS", 1)
    one, other = both(divided(net()), SGD)
    assert one == other
    assert trained == [2, 2] * 3


def test_the_results_of_workers_are_in_the_order_of_the_calls():
    class Two(Inline):
        def places(self) -> int:
            return 2

    fed = divided(net())
    one, other = (last(fed, SGD, SideBySide(engine)) for engine in (Inline(), Two()))
    assert [*one.memories] == [*other.memories]
    assert bits(dict(one.messages)) == bits(dict(other.messages))


def test_each_has_its_share_of_the_seconds():
    fed = divided(net(), sizes={"a": 64, "b": 640})

    def step(memory: Any, message: Message, device: Device, step_id: StepId) -> Any:
        return train(memory, message, device, step_id, training=replace(ADAM, epochs=20))

    calls = [({}, Message(), device, StepId(0, 0, 0, name)) for name, device in fed.devices.items()]
    begin = time.perf_counter()
    few, many = together.run_each(step, calls, side_by_side)
    assert 0 < few.wall < many.wall
    assert few.wall + many.wall < time.perf_counter() - begin
    assert 0 < few.cpu < many.cpu


def test_a_step_sees_the_settings_of_its_caller():
    setting: ContextVar[str] = ContextVar("setting")
    setting.set("here")
    found = together.run_each(lambda: (setting.get(), torch.get_num_threads()), [(), ()], side_by_side)
    assert [outcome.result for outcome in found] == [("here", 1)] * 2
