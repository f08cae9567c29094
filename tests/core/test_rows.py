"""Devices that train side by side have the bits of one after another, whatever their method, task and sizes."""

import threading
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from every_method import ROWS
from federations import AT_THE_END, NETS, bits, federation

from fedcore import nets
from fedcore.core import rows, together
from fedcore.core.flat_nets import flatten_net
from fedcore.core.rounds import run
from fedcore.core.together import Together
from fedcore.core.training import Descent, Training, train
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, method
from fedcore.types.federation import Data, Device, Federation, Net, Splits
from fedcore.types.method import Message, StepId, generator

SGD = Training("sgd", 0.05, batch=16, epochs=2)
ADAM = Training("adam", 0.001, batch=16, epochs=3, optimiser_state="keep")
SIZES = {"a": 80, "b": 62, "c": 320, "d": 7, "e": 192}
WAYS = {
    "sgd": SGD, "momentum and clipping": replace(SGD, momentum=0.5, clip=0.05),
    "weight decay": replace(SGD, weight_decay=0.01, round_decay=0.5),
    "class weights": replace(SGD, class_weights="balanced", batch=32), "one example": replace(SGD, batch=1, epochs=1),
    "some steps": replace(SGD, epochs=1, steps=7), "adam": ADAM,
    "adamw": replace(ADAM, optimiser="adamw", optimiser_state="fresh", batch=48),
}  # fmt: skip


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were trained side by side."""
    sizes: list[int] = []
    real = rows.descend

    def descend(descents: Any, exact: bool) -> None:
        real(descents, exact)
        sizes.append(len(descents))

    monkeypatch.setattr(rows, "descend", descend)
    monkeypatch.setattr(together, "LEAST", 1)
    monkeypatch.setattr(rows, "WORTH", 1)
    return sizes


def groups(fed: Federation, training: Training, expected: list[int]) -> list[int]:
    """What is expected where a stack of two models has the bits of one after another, else nothing."""
    device = fed.devices["a"]
    flat = flatten_net(device.net, nets.init(device.net, torch.Generator()))
    descent = Descent(flat, training, device.data.train, [], {}, torch.Generator())
    return expected if rows.find_stacked(descent, 2) is not None else []


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
    own = {"fedavg": {"weights": "size", "upload": "model"}}.get(name, {})
    built = method(name, nets={each: fed.devices[each].net for each in fed.devices}, training=training,
                   shared_init=True, rounds=rounds, **own)  # fmt: skip
    return list(run(built, fed, 0, execute, every=AT_THE_END))[-1].state


def both(fed: Federation, training: Training, name: str = "fedavg") -> tuple[str, str]:
    one, other = (last(fed, training, execute, name) for execute in (Inline(), Together(Inline())))
    return tuple(bits((state.server, dict(state.messages), dict(state.memories))) for state in (one, other))  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_every_setting_has_the_same_bits(way: str, trained: list[int]):
    fed = divided(net())
    one, other = both(fed, WAYS[way])
    assert one == other
    assert trained == groups(fed, WAYS[way], [5, 5, 5])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sgd", "weight decay", "adam"])
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedper", "ditto", "dfl", "fedrep", "feddyn", "fedbabu"])
def test_hooks_parts_and_soft_targets_have_the_same_bits(name: str, way: str, trained: list[int]):
    if name == "scaffold" and way == "adam":
        way = "sgd"
    fed = divided(net())
    one, other = both(fed, WAYS[way], name)
    assert one == other
    assert set(trained) <= {5}


@pytest.mark.parametrize("task", ["number", "labels"])
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_every_task_has_the_same_bits(task: str, training: Training, trained: list[int]):
    fed = divided(net(classes=1 if task == "number" else 10), task)
    one, other = both(fed, training)
    assert one == other
    assert trained == groups(fed, training, [5, 5, 5])


@pytest.mark.parametrize("widths", [[], [7], [50, 30], [64, 32, 16]])
@pytest.mark.slow
def test_every_depth_has_the_same_bits(widths: list[int], trained: list[int]):
    fed = divided(net(widths=widths))
    one, other = both(fed, ADAM)
    assert one == other
    assert trained == groups(fed, ADAM, [5, 5, 5])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_same_bits(name: str):
    built = ROWS[name].build(NETS)
    alone, other = (
        list(run(built, federation("abc"), 1, each, every=AT_THE_END))[-1] for each in (Inline(), Together(Inline()))
    )
    assert alone.up == other.up
    for part in ("server", "messages", "memories"):
        assert bits(getattr(alone.state, part)) == bits(getattr(other.state, part))


@pytest.mark.slow
def test_where_products_differ_devices_train_one_by_one(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(rows, "find_stacked", lambda *args: None)
    one, other = both(divided(net()), ADAM)
    assert one == other
    assert trained == []


@pytest.mark.slow
def test_where_products_of_some_numbers_differ_these_train_one_by_one(
    monkeypatch: pytest.MonkeyPatch, trained: list[int]
):
    real = rows.find_stacked
    monkeypatch.setattr(rows, "find_stacked", lambda of, count: real(of, count) if count == 2 else None)
    fed = divided(net())
    one, other = both(fed, ADAM)
    assert one == other
    assert trained == groups(fed, ADAM, [5, 5, 5])


@pytest.mark.slow
def test_products_are_tried_out_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, float]] = []
    real = rows.same_bits

    def same_bits(flat: Any, count: int, batch: int, keep: float, labels: Any) -> Any:
        asked.append((batch, keep))
        return real(flat, count, batch, keep, labels)

    monkeypatch.setattr(rows, "same_bits", same_bits)
    monkeypatch.setattr(rows, "_STACKED", {})
    both(divided(net()), replace(ADAM, round_decay=0.5))
    first = [*asked]
    assert set(first) == {(16, 0.0)}
    assert len(first) == len(rows._STACKED) <= 3  # two, four and three devices: d has no full minibatch
    both(divided(net()), ADAM)
    assert asked == first


@pytest.mark.parametrize(
    ("built", "training"),
    [
        ("dfl_cnn", SGD), ("mlp", replace(SGD, schedule="cosine")), ("mlp", replace(SGD, patience=1)),
        ("mlp", replace(SGD, loss=lambda batch: (batch.logits**2).mean())), ("mlp", replace(SGD, loss="softmax_twice")),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_goes_alone(built: str, training: Training, trained: list[int]):
    fed = divided(nets.net(built, shape=(1, 28, 28), classes=10)) if built != "mlp" else divided(net())
    if built != "mlp":
        assert not any(together.is_worth_it(train, (device,)) for device in fed.devices.values())
        return
    one, other = both(fed, training)
    assert one == other
    assert trained == []


def test_large_nets_and_few_examples_are_not_worth_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(together, "LEAST", 128)
    small, large = net(), net(widths=[700])
    fed = divided(small)
    assert [together.is_worth_it(train, (1, ({}, fed.devices[name]))) for name in "abc"] == [False, False, True]
    assert not together.is_worth_it(train, (divided(large).devices["c"],))
    assert not together.is_worth_it(train, (fed.devices["c"], fed.devices["c"]))


@pytest.mark.slow
def test_short_rounds_go_alone(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(rows, "WORTH", 10)  # of two epochs of batches of 16: b takes 8 of them, d two
    fed = divided(net())
    one, other = both(fed, SGD)
    assert one == other
    assert trained == groups(fed, SGD, [3, 3, 3])


@pytest.mark.slow
def test_groups_fit_into_the_cache(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(rows, "ROWS", 1)
    fed = divided(net())
    one, other = both(fed, SGD)
    assert one == other
    assert trained == groups(fed, SGD, [2, 2] * 3)


@pytest.mark.slow
def test_the_results_of_workers_are_in_the_order_of_the_calls():
    class Two(Inline):
        def capacity(self) -> int:
            return 2

    fed = divided(net())
    one, other = (last(fed, SGD, Together(engine)) for engine in (Inline(), Two()))
    assert [*one.memories] == [*other.memories]
    assert bits(dict(one.messages)) == bits(dict(other.messages))


@pytest.mark.slow
def test_each_has_its_share_of_the_seconds(monkeypatch: pytest.MonkeyPatch):
    """By a clock that is a second further whenever somebody looks at it."""
    walls, cpus = count(), count()
    clock = SimpleNamespace(perf_counter=lambda: next(walls), thread_time=lambda: next(cpus) if main() else 0)
    monkeypatch.setattr(together, "time", clock)
    fed = divided(net(), sizes={"a": 64, "b": 640})
    calls = [({}, Message(), device, StepId(0, 0, 0, name)) for name, device in fed.devices.items()]
    few, many = together.run_each(partial(train, training=SGD), calls)
    if groups(fed, SGD, [2]):
        assert (few.wall, many.wall) == pytest.approx((2 + 1 / 11, 2 + 10 / 11))  # each was let go on twice
        assert (few.cpu, many.cpu) == pytest.approx((1 / 11, 10 / 11))


def main() -> bool:
    return threading.current_thread() is threading.main_thread()


def test_a_step_sees_the_settings_of_its_caller():
    setting: ContextVar[str] = ContextVar("setting")
    setting.set("here")
    found = together.run_each(lambda: (setting.get(), torch.get_num_threads()), [(), ()])
    assert [outcome.result for outcome in found] == [("here", 1)] * 2


def own_step(memory: Any, message: Message, device: Device, step_id: StepId) -> Any:
    return train(memory, message, device, step_id, training=SGD)


@pytest.mark.slow
def test_a_step_of_ones_own_goes_alone(trained: list[int]):
    fed = divided(net())
    calls = {name: ({}, Message(), device, StepId(0, 0, 0, name)) for name, device in fed.devices.items()}
    assert [together.is_own(step) for step in (train, own_step, partial(train, training=SGD))] == [True, False, True]
    assert not together.is_own(partial(train, own_step))
    assert not together.is_own(partial(train, loss=own_step))
    one, other = (engine.map(own_step, calls) for engine in (Inline(), Together(Inline())))
    assert bits(one) == bits(other)
    assert trained == []


def test_an_error_is_that_of_the_first_device_and_says_where():
    fed = divided(net())
    broken = {
        name: replace(device, data=replace(device.data, train=Data(device.data.train.x, device.data.train.y + 99)))
        if name in "bce" else device
        for name, device in fed.devices.items()
    }  # fmt: skip
    calls = {name: ({}, Message(), device, StepId(0, 0, 0, name)) for name, device in broken.items()}
    said = []
    for engine in (Inline(), Together(Inline())):
        with pytest.raises(Exception, match=r".") as caught:
            engine.map(partial(train, training=SGD), calls)
        said.append((str(caught.value), caught.value.__notes__))
    assert said[0] == said[1]
    assert "device b" in said[0][1][0]


def test_the_calls_of_a_group_that_failed_have_failed():
    fed = divided(net())
    broken = replace(fed.devices["b"].data, train=Data(fed.devices["b"].data.train.x, torch.full((62,), 99)))
    devices = {**fed.devices, "b": replace(fed.devices["b"], data=broken), "f": fed.devices["a"]}
    calls = [({}, Message(), device, StepId(0, 0, 0, name)) for name, device in devices.items()]
    ends = together.run_each(partial(train, training=SGD), calls)
    assert ends[1].error is not None
    if groups(fed, SGD, [1]):
        assert all(end.error is not None and end.result is None for end in ends)


def test_who_holds_the_generator_does_not_wait_for_others(trained: list[int]):
    fed = divided(net())
    calls = {name: ({}, Message(), device, StepId(0, 0, 0, name)) for name, device in fed.devices.items()}
    with nets.use_generator(torch.Generator()):
        Together(Inline()).map(partial(train, training=SGD), calls)
    assert trained == []


@pytest.mark.slow
def test_threads_are_few_and_groups_of_bounded_data(monkeypatch: pytest.MonkeyPatch, trained: list[int]):
    monkeypatch.setattr(together, "MOST", 2)
    fed = divided(net())
    last(fed, SGD, Together(Inline()), rounds=1)
    assert set(trained) <= {2}
    trained.clear()
    monkeypatch.setattr(together, "MOST", 64)
    monkeypatch.setattr(rows, "EXAMPLES", 36 * (320 + 192))
    last(fed, SGD, Together(Inline()), rounds=1)
    assert trained == groups(fed, SGD, [2, 3])
