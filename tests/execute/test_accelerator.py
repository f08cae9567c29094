"""Devices' steps on another device, emulated (simulated_device.py): the same bits, nothing mixed, everything back."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from every_method import ROWS
from federations import ADAM, AT_THE_END, NETS, SGD, bits, device_of, federation
from simulated_device import KIND, DeviceTensor, MixedDevices, SimulatedDevice
from torch import Tensor, nn

from fedcore import Data, Net, Splits, nets, received_model, train
from fedcore.builders import name_of
from fedcore.core import rows
from fedcore.core.evaluation import score
from fedcore.core.flat_nets import flatten_net
from fedcore.core.losses import LOSSES
from fedcore.core.rounds import device_step, run
from fedcore.core.training import Descent
from fedcore.execute.accelerator import (
    DrawOnCpu,
    accelerate,
    find_accelerator,
    flushes_denormals,
    move,
    one_thread,
    run_on,
)
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, method
from fedcore.pipeline.cache.keys import key
from fedcore.types.method import Message, PairStage, StepId, Update, generator

FED = federation("ab")


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What CUDA's generator was set to."""
    said: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", said.append)
    return said


class OnIt(Inline):
    """Runs devices' steps on the device that there is not."""

    def __init__(self) -> None:
        self.done = 0

    def map(self, fn: Any, calls: Any) -> Any:
        with SimulatedDevice() as elsewhere:
            results = super().map(accelerate(fn, KIND), calls)
        self.done += elsewhere.count
        assert not holds(results)
        return results


def holds(value: Any) -> bool:
    """Whether a tensor of the other device is in a value."""
    if isinstance(value, Update):
        value = (value.params, value.extra)
    if isinstance(value, dict):
        value = tuple(value.values())
    return any(map(holds, value)) if isinstance(value, tuple) else isinstance(value, DeviceTensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_on_it(name: str):
    built = ROWS[name].build(NETS)
    execute = OnIt()
    plain, moved_ = (list(run(built, FED, 1, each, every=AT_THE_END)) for each in (Inline(), execute))
    assert execute.done > 0
    assert [bits(one) for one in plain] == [bits(one) for one in moved_]
    assert plain[-1].scores == moved_[-1].scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "training", [SGD, ADAM, replace(SGD, momentum=0.5, optimiser_state="keep"), replace(ADAM, optimiser_state="keep")]
)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_and_optimiser_is_the_same_on_it(training: Any, loss: str):
    given = {"nets": NETS, "training": replace(training, loss=loss), "shared_init": True, "rounds": 2, "fraction": 1.0}
    built = method("fedavg", **given, weights="size", upload="model")
    plain, moved_ = (list(run(built, FED, 1, each, every=AT_THE_END)) for each in (Inline(), OnIt()))
    assert [bits(one) for one in plain] == [bits(one) for one in moved_]


def drawing() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(4 * 4 * 4, 3),
    )  # fmt: skip


def images(count: int, *words: object) -> Data:
    x = torch.randint(256, (count, 1, 6, 6), generator=generator(*words)).to(torch.uint8)
    return Data(x, torch.randint(3, (count,), generator=generator(*words, "labels")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "net", [Net(drawing, copied=True), nets.net("dfl_cnn", shape=(1, 28, 28), classes=3)], ids=["drawing", "cnn"]
)
def test_initial_weights_dropout_and_orders_are_drawn_as_on_the_cpu(net: Net, seeds: list[int]):
    side = 6 if net.build is drawing else 28
    data = images(10, "train")
    if side == 28:
        data = Data(torch.nn.functional.pad(data.x, (11, 11, 11, 11)), data.y)
    device = replace(device_of("a", net), data=Splits(data, data, data))
    step, step_id = partial(train, training=SGD), StepId(3, 0, 0, "a")
    with one_thread():
        plain = step({}, Message({}), device, step_id)
        with SimulatedDevice():
            flat = run_on(step, KIND, {}, Message({}), device, step_id)
    assert bits(plain) == bits(flat)
    assert seeds == [step_id.generator("accelerator").initial_seed()]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(), nn.Linear(64, 3))


@pytest.mark.slow
def test_devices_that_train_together_draw_as_on_the_cpu():
    net = Net(dropping, copied=True)

    def begin(number: int, kind: str) -> Descent:
        data, model = images(20 + number, number), nets.init(net, generator(number))
        with torch.device(kind):
            flat = flatten_net(net, move(model, kind))
        batches = [move(batch, kind) for batch in torch.arange(20 + number).split(8)]
        return Descent(flat, SGD, move(data, kind), batches, {}, generator("noise", number))

    def vectors(kind: str, together: bool) -> Tensor:
        descents = [begin(number, kind) for number in range(3)]
        if together:
            assert rows.groups(descents, exact=False) == [[0, 1, 2]]
            rows.descend(descents, exact=False)
        else:
            with torch.device(kind), DrawOnCpu(kind):
                for descent in descents:
                    descent.run()
        return torch.stack([move(descent.flat.vector, "cpu") for descent in descents])

    alone, together = vectors("cpu", False), vectors("cpu", True)
    with SimulatedDevice():
        assert torch.equal(vectors(KIND, False), alone)
        assert torch.equal(vectors(KIND, True), together)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_an_evaluation_draws_nothing():
    x, layers = torch.rand(2, 3, 4, 4), [nn.Dropout(), nn.Dropout2d()]
    with DrawOnCpu("cpu", lambda *call: pytest.fail("draws")):
        assert all(layer.eval()(x) is x for layer in layers)


@pytest.mark.slow
def test_a_score_is_the_same_on_it():
    sent = Message(nets.init(NETS["a"], generator(1)))
    args = (received_model, {}, sent, dict(FED.devices), FED.test)
    with one_thread():
        plain = score(*args)
        with SimulatedDevice() as elsewhere:
            assert run_on(score, KIND, *args) == plain
    assert elsewhere.count > 0


def forgetful(own: Any, message: Message, device: Any, step_id: StepId) -> Tensor:
    return device.data.train.x + FED.test.x[:1]


def test_a_step_that_mixes_devices_is_seen():
    with SimulatedDevice(), pytest.raises(MixedDevices):
        run_on(forgetful, KIND, {}, Message({}), FED.devices["a"], StepId(0, 0, 0, "a"))


def test_what_pytorch_is_told_holds_for_the_step_alone():
    ways = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    before, said = [way() for way in ways], list[bool]()
    with SimulatedDevice():
        run_on(lambda: said.append(torch.are_deterministic_algorithms_enabled()), KIND)
        assert torch.zeros(1).device.type == "cpu"
    assert said == [True]
    assert before == [way() for way in ways]


def test_what_counts_or_sends_stays_on_the_processor():
    stays = set()
    for row in ROWS.values():
        for stage in row.build(NETS).stages:
            steps = [stage.local] if isinstance(stage, PairStage) else [device_step(stage), stage.attach]
            stays |= {name_of(step).rpartition(":")[2] for step in steps if step and accelerate(step, KIND) is step}
    sent = "count_labels count_hits send_model offer_model report_errors measure_accuracies boost_more send_rows"
    assert stays == {*sent.split(), "visit"}  # a control's whole part, without a server


def test_without_one_a_step_stays_what_it_is(monkeypatch: pytest.MonkeyPatch):
    assert accelerate(train, None) is train
    for there_is in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", partial(bool, there_is))
        assert find_accelerator("none") is None
        assert find_accelerator("auto") == ("cuda" if there_is else None)


@pytest.mark.slow
def test_a_step_gets_a_key_of_its_own():
    step = partial(train, training=SGD)
    one, two = accelerate(step, "cuda"), accelerate(step, "other")
    assert len({key(step, 1), key(one, 1), key(two, 1)}) == 3


def test_what_is_moved_keeps_its_kind():
    device = FED.devices["a"]
    value = {"x": (device, [Update(constant())], StepId(1, 2, 3, "a"), "word", None)}
    again = move(value, "cpu")
    assert bits(again) == bits(value)
    assert again["x"][0].data.train.x is device.data.train.x
    assert again["x"][2] is value["x"][2]


def constant() -> dict[str, Tensor]:
    return {"w": torch.ones(2)}


def test_float32_there_is_not_rounded_to_tf32():
    """PyTorch rounds in convolutions unless it is told not to."""
    assert run_on(lambda: torch.backends.cudnn.allow_tf32, "cpu") is False
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("before", [True, False])
def test_what_was_set_comes_back(before: bool):
    threads = torch.get_num_threads()
    torch.set_flush_denormal(before)
    try:
        with one_thread():
            assert flushes_denormals()
            assert torch.get_num_threads() == 1
        assert flushes_denormals() == before
        assert torch.get_num_threads() == threads
    finally:
        torch.set_flush_denormal(False)
