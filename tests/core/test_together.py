"""Steps that train together: in this process the same as one after another; on an accelerator where there is one."""

import _thread
import signal
import threading
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from every_method import ROWS
from federations import AT_THE_END, NETS, bits, federation
from torch import Tensor, nn
from torch.nn import functional

from fedcore import nets
from fedcore.core import rows, together
from fedcore.core.rounds import run, visit
from fedcore.core.together import placed_on, run_on_together
from fedcore.core.training import Training, fit, flatten_net, train
from fedcore.execute.accelerator import accelerate, trains
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, method
from fedcore.methods.baselines.majority import count_labels
from fedcore.methods.dfl.soft_targets import smoothing_grad
from fedcore.types.federation import Data, Device, Federation, Net, Splits
from fedcore.types.method import Message, Stage, StepId, Update, generator

needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA accelerator")

SGD = Training("sgd", 0.05, batch=8, epochs=2)
ADAM = Training("adam", 0.001, batch=8, epochs=2, optimiser_state="keep")
FED = federation("ab")


class OneByOne(Inline):
    """Runs devices' steps on the accelerator, one after another."""

    def map(self, fn: Any, calls: Any, **kwargs: Any) -> Any:
        return super().map(accelerate(fn, "cuda"), calls)


class InRows(together.Together):
    """Trains devices as rows by vmap, on the processor, too."""

    def __init__(self, kind: str | None = None, most: int = 128) -> None:
        super().__init__(Inline(), kind, most)

    def map(self, fn: Any, calls: Any, **kwargs: Any) -> Any:
        if self.kind or not trains(fn):
            return super().map(fn, calls, **kwargs)
        every, size = [*calls.values()], self.most
        parts = [run_on_together(fn, None, *every[first : first + size]) for first in range(0, len(every), size)]
        return dict(zip(calls, (one for part in parts for one in part), strict=True))


@pytest.fixture
def trained_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were trained together."""
    sizes: list[int] = []
    real = rows.descend
    monkeypatch.setattr(rows, "descend", lambda of, exact: [sizes.append(len(of)), real(of, exact)][1])
    return sizes


def pictures(name: str, shape: tuple[int, ...]) -> Federation:
    return divided(nets.net(name, shape=shape, classes=10), shape, {"a": 40, "b": 31, "c": 160})


def divided(net: Net, shape: tuple[int, ...], sizes: dict[str, int]) -> Federation:
    draws = generator("pictures")

    def data(count: int) -> Data:
        x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=draws)
        return Data(x, torch.randint(0, 10, (count,), generator=draws))

    devices = {each: Device(each, net, Splits(data(size), data(4), data(4))) for each, size in sizes.items()}
    return Federation(devices, data(20), 10)


def model(
    fed: Federation, training: Training, execute: Any, name: str = "fedavg", rounds: int = 2, fraction: float = 1.0
) -> Any:
    own = {"fedavg": {"weights": "size", "upload": "model"}}.get(name, {})
    built = method(name, nets={each: fed.devices[each].net for each in fed.devices}, training=training,
                   shared_init=True, rounds=rounds, fraction=fraction, **own)  # fmt: skip
    return list(run(built, fed, 0, execute, every=AT_THE_END))[-1].state.messages["a"].params


def gap(first: Any, second: Any) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


@needs_a_card
@pytest.mark.parametrize("execute", [OneByOne, lambda: InRows("cuda")], ids=["one by one", "together"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp", "dfl_cnn"])
def test_an_accelerator_gives_the_same_bits_again(execute: Any, precision: Any, name: str):
    fed = pictures(name, (1, 28, 28))
    models = [model(fed, replace(SGD, precision=precision), execute()) for _ in range(2)]
    assert gap(*models) == 0


@needs_a_card
@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5, clip=1.0), replace(SGD, weight_decay=0.01)])
def test_an_accelerator_is_close_to_a_processor(training: Training):
    fed = pictures("mlp", (1, 28, 28))
    on_cpu = model(fed, training, Inline())
    assert gap(on_cpu, model(fed, training, OneByOne())) < 1e-5
    assert gap(on_cpu, model(fed, training, InRows("cuda"))) < 1e-5


@needs_a_card
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_fewer_bits_on_an_accelerator(precision: Any):
    fed = pictures("mlp", (1, 28, 28))
    exact, rough = (model(fed, replace(SGD, precision=each), InRows("cuda")) for each in ("float32", precision))
    assert 0 < gap(exact, rough) < 0.02


@needs_a_card
def test_a_recorded_step_of_adam_counts():
    fed = pictures("mlp", (1, 28, 28))
    adam = Training("adam", 0.001, batch=8, epochs=4, optimiser_state="keep")
    assert gap(model(fed, adam, OneByOne()), model(fed, adam, InRows("cuda"))) < 1e-4


@needs_a_card
@pytest.mark.parametrize("name", ["dfl", "label_smoothing"])
@pytest.mark.parametrize("net", ["mlp", "dfl_cnn"])
def test_soft_targets_are_recorded(name: str, net: str, monkeypatch: pytest.MonkeyPatch):
    recorded: list[int] = []
    real = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: [recorded.append(1), real(graph)])
    fed, longer = pictures(net, (1, 28, 28)), replace(SGD, epochs=4)
    alone = model(fed, longer, OneByOne(), name, rounds=3)
    together = [model(fed, longer, InRows("cuda"), name, rounds=3) for _ in range(2)]
    assert len(recorded) == 2 * 3 * (16 + 60 - 2 * rows.WARM_UP)  # steps of all devices and of the largest alone
    room = 1e-5 if net == "mlp" else 0.01  # so far does rounding lead the CNN in FedAvg, too
    assert gap(alone, together[0]) < room
    assert gap(*together) == 0


@needs_a_card
def test_a_whole_method_is_scored():
    fed = federation("ab")
    for name in ("fedprox", "scaffold"):
        assert bits(model(fed, SGD, InRows("cuda"), name)) == bits(model(fed, SGD, InRows("cuda"), name))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_together(name: str):
    built = ROWS[name].build(NETS)
    alone, together = (list(run(built, FED, 1, each, every=AT_THE_END))[-1] for each in (Inline(), InRows()))
    assert alone.up == together.up
    for each in FED.devices:
        one, other = (end.state.messages[each].params for end in (alone, together))
        assert one.keys() == other.keys()
        assert all(torch.allclose(one[key].double(), other[key].double(), rtol=1e-4, atol=1e-5) for key in one)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5, optimiser_state="keep"), ADAM,
                                      replace(SGD, schedule="cosine"), replace(SGD, clip=0.1, weight_decay=0.1),
                                      replace(SGD, class_weights="balanced", round_decay=0.5)])  # fmt: skip
@pytest.mark.slow
def test_every_setting_is_the_same_together(training: Training, trained_together: list[int]):
    fed = pictures("mlp", (1, 6, 6))
    assert gap(model(fed, training, Inline(), rounds=3), model(fed, training, InRows(), rounds=3)) < 1e-5
    assert bool(trained_together) == (training.schedule == "constant")


def soft_or_hard(memory: Any, message: Any, device: Device, step_id: StepId) -> Any:
    flat = flatten_net(device.net, nets.init(device.net, generator("start")))
    fit(flat, device, step_id, SGD, {}, logit_grad=smoothing_grad(0.2) if device.name == "b" else None)
    return memory, Update(flat.params())


@pytest.mark.slow
def test_a_group_of_soft_and_hard_labels(trained_together: list[int]):
    fed = pictures("mlp", (1, 6, 6))
    calls = {each: ({}, Message(), fed.devices[each], StepId(0, 0, 0, each)) for each in fed.devices}
    alone, together = (each.map(soft_or_hard, calls) for each in (Inline(), InRows()))
    assert all(gap(alone[each][1].params, together[each][1].params) < 1e-5 for each in calls)
    assert trained_together == [3]


@pytest.mark.parametrize(
    ("name", "training", "expected"),
    [
        ("fedavg", SGD, True),
        ("dfl", SGD, True),
        ("fedper", replace(SGD, momentum=0.5), True),
        ("fedprox", SGD, False),
        ("fedavg", replace(SGD, class_weights="balanced"), False),
        ("fedavg", replace(SGD, schedule="cosine"), False),
    ],
)
@pytest.mark.slow
def test_what_repeats(name: str, training: Training, expected: bool, monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    real = rows.descend
    monkeypatch.setattr(rows, "descend", lambda of, exact: [asked.append(rows.repeats(of)), real(of, exact)][1])
    net = nets.net("mlp", shape=(1, 6, 6), classes=10)
    model(divided(net, (1, 6, 6), dict.fromkeys("ab", 20)), training, InRows(), name)
    assert asked == [expected] * 2


@pytest.mark.slow
def test_new_and_kept_moments_of_sampled_devices():
    fed = divided(nets.net("mlp", shape=(1, 6, 6), classes=10), (1, 6, 6), dict.fromkeys("abcde", 20))
    training = replace(SGD, momentum=0.9, optimiser_state="keep")
    alone, together = (model(fed, training, each, rounds=4, fraction=0.6) for each in (Inline(), InRows()))
    assert gap(alone, together) < 1e-5


@pytest.mark.slow
def test_groups_follow_one_another(trained_together: list[int]):
    fed = pictures("mlp", (1, 6, 6))
    model(fed, SGD, InRows(most=2), rounds=1)
    assert trained_together == [2]


@pytest.mark.slow
def test_a_net_with_batch_norm_needs_equal_sizes(trained_together: list[int]):
    net = Net(normed)
    for sizes, expected in (({"a": 16, "b": 16}, [2]), ({"a": 16, "b": 18}, [])):
        trained_together.clear()
        fed = divided(net, (1, 6, 6), sizes)
        models = [model(fed, SGD, execute, rounds=1) for execute in (Inline(), InRows())]
        assert gap(*models) < 1e-4
        assert models[0]["1.running_mean"].abs().max() > 0
        assert trained_together == expected


@pytest.mark.slow
def test_a_net_that_looks_at_its_batch_needs_equal_sizes(trained_together: list[int]):
    for sizes, expected in (({"a": 16, "b": 16}, [2]), ({"a": 16, "b": 19}, [])):
        trained_together.clear()
        fed = divided(Net(Centred), (1, 6, 6), sizes)
        assert gap(*(model(fed, SGD, execute, rounds=1) for execute in (Inline(), InRows()))) < 1e-4
        assert trained_together == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dropout", "noise", "mask", "weights", "filled", "examples last"])
def test_devices_that_draw_do_so_as_alone(kind: str, trained_together: list[int]):
    """Other draws would be another model: they differ by a tenth."""
    net = Net(partial(Drawing, kind), copied=True)
    fed = divided(net, (1, 6, 6), {"a": 16, "b": 19, "c": 5} if kind != "examples last" else {"a": 16, "b": 16})
    alone, *together = (model(fed, SGD, execute) for execute in (Inline(), InRows(), InRows()))
    assert gap(alone, together[0]) < 1e-6
    assert gap(*together) == 0
    assert trained_together == [len(fed.devices)] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stlf_cnn", "vgg16"])
def test_dropout_of_convolutions_is_as_alone(name: str, trained_together: list[int]):
    """Whose numbers lie in memory with the channels last, and are drawn in that order."""
    more = {"dropout": 0.5} if name == "stlf_cnn" else {"width": 0.05, "hidden": [16]}
    shape = (1, 28, 28) if name == "stlf_cnn" else (3, 32, 32)
    fed = divided(nets.net(name, shape=shape, classes=10, **more), shape, {"a": 16, "b": 11})
    assert gap(model(fed, SGD, Inline()), model(fed, SGD, InRows())) < 1e-5
    assert trained_together == [2, 2]


@pytest.mark.slow
def test_numbers_made_for_a_whole_batch_need_equal_sizes(trained_together: list[int]):
    for sizes, expected in (({"a": 16, "b": 16}, [2, 2]), ({"a": 16, "b": 19}, [])):
        trained_together.clear()
        fed = divided(Net(partial(Drawing, "made"), copied=True), (1, 6, 6), sizes)
        assert gap(model(fed, SGD, Inline()), model(fed, SGD, InRows())) < 1e-6
        assert trained_together == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["depth", "slope"])
def test_a_net_that_draws_in_a_way_of_its_own_goes_alone(kind: str, trained_together: list[int]):
    fed = divided(Net(partial(Drawing, kind), copied=True), (1, 6, 6), {"a": 16, "b": 16})
    assert gap(model(fed, SGD, Inline()), model(fed, SGD, InRows())) == 0
    assert trained_together == []


def test_masks_of_devices_are_independent_and_as_frequent_as_dropout_says():
    count, size = 6, 4000
    each = [(generator("mask", number), size - number) for number in range(count)]
    call = functional.dropout, (torch.ones(count, size, 5), 0.3), {}
    masks = rows.draw_each(each, size, iter([(True, (0, 1))]), (None, (0, None), {}), call)
    dropped = (masks == 0).double()[:, : size - count]
    assert masks.unique().tolist() == [0, torch.tensor(1 / 0.7).item()]
    assert (dropped.mean((1, 2)) - 0.3).abs().max() < 4 * (0.21 / size / 5) ** 0.5
    apart = torch.corrcoef(dropped.flatten(1)) - torch.eye(count)
    assert apart.abs().max() < 4 / (size * 5) ** 0.5


@needs_a_card
@pytest.mark.parametrize("kind", ["dropout", "noise"])
def test_an_accelerator_draws_as_a_processor(kind: str, trained_together: list[int]):
    """As many steps as are worth a record, which would repeat the numbers."""
    fed = divided(Net(partial(Drawing, kind), copied=True), (1, 6, 6), {"a": 160, "b": 131})
    alone, *together = (model(fed, SGD, execute) for execute in (Inline(), InRows("cuda"), InRows("cuda")))
    assert gap(alone, together[0]) < 1e-5
    assert gap(*together) == 0
    assert trained_together == [2] * 4


@needs_a_card
@pytest.mark.parametrize("execute", [OneByOne, lambda: InRows("cuda")], ids=["one by one", "together"])
def test_an_accelerator_drops_maps_as_a_processor(execute: Any):
    fed = divided(nets.net("stlf_cnn", shape=(1, 28, 28), classes=10, dropout=0.5), (1, 28, 28), {"a": 16, "b": 11})
    assert gap(model(fed, SGD, Inline(), rounds=1), model(fed, SGD, execute(), rounds=1)) < 1e-4


@needs_a_card
@pytest.mark.parametrize("kind", ["draws", "makes"])
def test_a_net_that_goes_alone_on_an_accelerator(kind: str):
    fed = divided(Net(partial(Drawing, "depth") if kind == "draws" else making), (1, 6, 6), {"a": 16, "b": 16})
    assert gap(model(fed, SGD, Inline()), model(fed, SGD, InRows("cuda"))) < 1e-5


@pytest.mark.slow
def test_what_goes_alone_does_so_in_its_own_thread():
    fed = divided(Net(making), (1, 6, 6), {"a": 16, "b": 16})
    assert not any(rows.rows_agree(nets.key(Net(making)), (1, 6, 6), *fewer) for fewer in ((), (2,)))
    Making.threads.clear()
    model(fed, SGD, InRows(), rounds=1)
    assert Making.threads == ["fedcore-together"] * 8


@pytest.mark.slow
def test_a_loss_of_your_own_goes_alone(trained_together: list[int]):
    fed = pictures("mlp", (1, 6, 6))
    training = replace(SGD, loss=lambda batch: (batch.logits**2).mean())
    assert gap(model(fed, training, Inline()), model(fed, training, InRows())) == 0
    assert trained_together == []


def failing(memory: Any, message: Any, device: Device, step_id: StepId) -> Any:
    found = train(memory, message, device, step_id, training=SGD)
    if device.name == "b":
        raise ValueError("b cannot")
    return found


@pytest.mark.slow
def test_an_error_ends_all_threads():
    fed = pictures("mlp", (1, 6, 6))
    calls = {each: ({}, Message(), fed.devices[each], StepId(0, 0, 0, each)) for each in fed.devices}
    with pytest.raises(ValueError, match="b cannot") as caught:
        InRows().map(failing, calls)
    assert "device b, round 1 of stage 1" in caught.value.__notes__[0]
    assert not [thread for thread in threading.enumerate() if thread.name == "fedcore-together" and thread.is_alive()]


def interrupting(memory: Any, message: Any, device: Device, step_id: StepId) -> Any:
    if device.name == "b":
        _thread.interrupt_main()
    return train(memory, message, device, step_id, training=SGD)


def test_an_interrupt_ends_all_threads():
    fed = pictures("mlp", (1, 6, 6))
    calls = {each: ({}, Message(), fed.devices[each], StepId(0, 0, 0, each)) for each in fed.devices}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            InRows().map(interrupting, calls)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [thread for thread in threading.enumerate() if thread.name == "fedcore-together"]


def holding(memory: Any, message: Any, device: Device, step_id: StepId) -> Any:
    with nets.use_generator(step_id.generator("own")):
        return train(memory, message, device, step_id, training=SGD)


@pytest.mark.slow
def test_a_step_that_holds_the_generator_does_not_wait(trained_together: list[int]):
    fed = pictures("mlp", (1, 6, 6))
    calls = {each: ({}, Message(), fed.devices[each], StepId(0, 0, 0, each)) for each in fed.devices}
    alone, together = (each.map(holding, calls) for each in (Inline(), InRows()))
    assert bits(alone) == bits(together)
    assert trained_together == []


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


class Drawing(nn.Module):
    """Draws random numbers while it is trained; in one way for each kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Linear(36, 30), nn.Linear(30, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        if self.training and self.kind == "weights":
            return functional.linear(x, self.last.weight + torch.randn_like(self.last.weight), self.last.bias)
        return self.last(getattr(self, self.kind.replace(" ", "_"))(x) if self.training else x)

    def dropout(self, x: Tensor) -> Tensor:
        parts = functional.dropout(x.view(-1, 6), 0.2).view(-1, 5, 6)
        return functional.dropout(functional.dropout1d(parts, 0.3).flatten(1), p=0.5)

    def noise(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * torch.rand_like(x)

    def mask(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(x.sigmoid()) * torch.normal(1.0, torch.ones_like(x))

    def filled(self, x: Tensor) -> Tensor:
        return x + torch.empty_like(x).normal_(0, 0.5) + x.new_zeros(1)

    def examples_last(self, x: Tensor) -> Tensor:
        return functional.dropout(x.t(), 0.5).t()

    def made(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape)

    def depth(self, x: Tensor) -> Tensor:
        return 2 * x if torch.rand(()) < 0.5 else x

    def slope(self, x: Tensor) -> Tensor:
        return functional.rrelu(x, training=True)


class Making(nn.Module):
    """Makes a tensor in each call, and goes alone as it looks at a number."""

    threads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.threads.append(threading.current_thread().name)
        shift = torch.ones(36)
        return self.last(x.flatten(1) + shift * float(x.mean().item() < 0))


def making() -> nn.Module:
    return Making()


class Centred(nn.Module):
    """Subtracts the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1) - x.flatten(1).mean(0))


def test_auto_takes_an_accelerator_for_a_billion_multiplications():
    small, large = pictures("lenet", (1, 28, 28)), pictures("mcmahan_cnn", (1, 28, 28))
    step = partial(train, training=replace(SGD, batch=50))

    def placed(fed: Federation, step: Any, together: int, count: int = 64) -> Any:
        calls = {str(i): ({}, Message({}), [*fed.devices.values()][i % 3], None) for i in range(count)}
        return placed_on(step, calls, "cuda", together)

    assert placed(small, step, 1) == (None, 1)
    assert placed(small, step, 64) == ("cuda", 64)
    assert placed(small, step, 64, count=3) == (None, 1)  # as few as there are
    assert placed(large, step, 2) == ("cuda", 2)
    assert placed(large, partial(train, training=replace(SGD, batch=4)), 1) == (None, 1)
    assert placed(large, partial(visit, Stage(step, None)), 2) == ("cuda", 2)
    assert placed(large, count_labels, 64) == (None, 1)
    assert placed_on(step, {}, None, 64) == (None, 1)


def test_what_counts_is_not_moved_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(together, "move", lambda *args: pytest.fail("moved"))
    there = InRows("cuda")
    devices = {name: ({}, Message({}), device, StepId(0, 0, 0, name)) for name, device in FED.devices.items()}
    assert [*there.map(count_labels, devices)] == [*FED.devices]
