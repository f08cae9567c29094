import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore import Data, Device, Message, Net, Splits, StepId, Training, nets, train
from fedcore.core.prediction import accuracy, predict
from fedcore.nets.copies import load

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch=4, epochs=2)

ADAM = replace(SGD, optimiser="adam", lr=0.01)

AT = StepId(seed=3, stage=0, round=0, unit="a")

BY_HAND = nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5])


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def forgetful() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3))


def on_a_backbone() -> nn.Module:
    """A frozen convolution and norm, and a layer that learns."""
    module = normed()
    module[:2].requires_grad_(False)
    return module


NETS = {"by hand": BY_HAND, "autograd": Net(plain), "batch norm": Net(normed)}


def data(count, seed=0, kind=torch.uint8):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, 1, 6, 6), generator=g).to(kind)
    return Data(x, torch.randint(0, 3, (count,), generator=g))


def device(net, count=10, kind=torch.uint8):
    return Device("a", net, Splits(data(count, 0, kind), data(7, 1, kind), data(0)))


def start(net, seed=5):
    return nets.init(net, torch.Generator().manual_seed(seed))


def after(net, training=SGD, step_id=AT, **settings):
    """What `train` returns from one common start."""
    return train({}, Message(start(net)), device(net, **settings), step_id, training=training)[1].params


def plainly(net, training, step_id=AT, count=10):
    """The same by a plain loop over PyTorch's optimisers and schedulers."""
    module = net.build()
    module.load_state_dict(start(net))
    generator = step_id.generator("batches")
    examples = data(count)
    batches = [b for _ in range(training.epochs)
               for b in torch.randperm(count, generator=generator).split(training.batch)]  # fmt: skip
    if training.optimiser == "sgd":
        optimiser = torch.optim.SGD(
            module.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
        )
    else:
        optimiser = torch.optim.Adam(module.parameters(), training.lr, weight_decay=training.weight_decay)
    schedule = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches)),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, len(batches)),
    }[training.schedule]()
    for index in batches:
        optimiser.zero_grad()
        cross_entropy(module(examples.x[index] / 255), examples.y[index]).backward()
        optimiser.step()
        schedule.step()
    return dict(module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
@pytest.mark.parametrize(
    "training",
    [
        SGD,
        replace(SGD, weight_decay=0.1, schedule="linear"),
        replace(SGD, momentum=0.9, weight_decay=0.01, schedule="cosine"),
        ADAM,
        replace(ADAM, weight_decay=0.01, schedule="cosine"),
    ],
    ids=["sgd", "decay", "momentum", "adam", "adam-decay"],
)
def test_training_is_the_plain_loop(net, training):
    torch.testing.assert_close(after(net, training), plainly(net, training), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("training", [SGD, replace(SGD, momentum=0.5), ADAM], ids=["sgd", "momentum", "adam"])
def test_by_hand_and_autograd_agree(training):
    def autograd():
        return Device("a", Net(plain), device(BY_HAND).data)

    message = start(BY_HAND)
    renamed = dict(zip(nets.shapes(Net(plain)), message.values(), strict=True))
    _, hand = train({}, Message(message), device(BY_HAND), AT, training=training)
    _, auto = train({}, Message(renamed), autograd(), AT, training=training)
    torch.testing.assert_close(list(hand.params.values()), list(auto.params.values()), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_step_computed_by_hand(momentum):
    # A linear model of zeros gives each of two classes 1/2. One example x = 2 of class 0: the loss's slope at the
    # logits is (1/2 - 1, 1/2); times x at the weights. One step of .1 moves against it.
    net = nets.net("mlp", shape=(1,), classes=2, widths=[])
    one, none = Data(torch.tensor([[2.0]]), torch.tensor([0])), Data(torch.empty(0, 1), torch.empty(0).long())
    zeros = {"fc1.weight": torch.zeros(2, 1), "fc1.bias": torch.zeros(2)}
    training = replace(SGD, epochs=1, momentum=momentum)
    _, update = train({}, Message(zeros), Device("a", net, Splits(one, none, none)), AT, training=training)
    expected = {"fc1.weight": torch.tensor([[0.1], [-0.1]]), "fc1.bias": torch.tensor([0.05, -0.05])}
    torch.testing.assert_close(update.params, expected)
    assert update.size == 1
    assert math.isnan(update.score)


@pytest.mark.parametrize(
    "training",
    [replace(SGD, weight_decay=0.1), replace(SGD, momentum=0.9, weight_decay=0.1), replace(ADAM, weight_decay=0.1)],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.slow
def test_a_frozen_backbone_stays_and_is_not_sent(training):
    """Oracle: PyTorch's optimiser of the parameters that learn alone, the norm in evaluation mode."""
    net, initial = Net(on_a_backbone), start(Net(on_a_backbone))
    assert set(initial) == {"4.weight", "4.bias"}
    module = load(net, {name: tensor.clone() for name, tensor in initial.items()}).train()
    module[1].eval()
    backbone = {name: tensor.clone() for name, tensor in nets.frozen(module).items()}
    assert len(backbone) == 6  # a kernel; weight, bias and the three buffers of a norm
    learnt = [parameter for parameter in module.parameters() if parameter.requires_grad]
    options = {"lr": training.lr, "weight_decay": training.weight_decay}
    momentum = {"momentum": training.momentum} if training.optimiser == "sgd" else {}
    optimiser = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[training.optimiser](learnt, **options, **momentum)
    examples, generator = data(10), AT.generator("batches")
    for _ in range(training.epochs):
        for batch in torch.randperm(10, generator=generator).split(training.batch):
            optimiser.zero_grad()
            cross_entropy(module(examples.x[batch] / 255), examples.y[batch]).backward()
            optimiser.step()
    update = train({}, Message(initial), device(net), AT, training=training)[1]
    assert update.nbytes == 4 * (3 * 32 + 3)
    torch.testing.assert_close(update.params, {name: module.state_dict()[name] for name in initial})
    after_it = load(net, update.params)
    torch.testing.assert_close(nets.frozen(after_it), backbone, rtol=0, atol=0)
    torch.testing.assert_close(predict(update.params, net, examples.x, 4), module.eval()(examples.x / 255).detach())


def test_batch_statistics_travel_with_the_model():
    params = after(NETS["batch norm"])
    assert params["1.num_batches_tracked"].item() == 6  # 10 examples by 4, twice
    assert not torch.equal(params["1.running_mean"], start(NETS["batch norm"])["1.running_mean"])


def test_a_lone_last_example_is_left_out_where_batches_have_statistics():
    assert after(NETS["batch norm"], count=9)["1.num_batches_tracked"].item() == 4
    assert after(NETS["batch norm"], count=1)["1.num_batches_tracked"].item() == 0
    torch.testing.assert_close(after(BY_HAND, count=9), plainly(BY_HAND, SGD, count=9), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("net", [*NETS.values(), Net(forgetful)], ids=[*NETS, "dropout"])
@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.slow
def test_same_seed_same_bits_and_nothing_is_changed(net, training):
    memory, message, here = {}, Message(start(net)), device(net, kind=torch.float32)
    before = deepcopy((memory, message.params, here.data.train.x))
    everyones = torch.get_rng_state()
    first, second = (train(memory, message, here, AT, training=training)[1] for _ in range(2))
    torch.testing.assert_close(first.params, second.params, rtol=0, atol=0)
    torch.testing.assert_close((memory, message.params, here.data.train.x), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), everyones)
    owners = {tensor.untyped_storage().data_ptr() for tensor in [*first.params.values(), *message.params.values()]}
    assert len(owners) == 2 * len(message.params)  # no tensor stands in another's memory
    later = train(memory, message, here, replace(AT, round=1), training=training)[1]
    assert any(not torch.equal(tensor, later.params[name]) for name, tensor in first.params.items())


@pytest.mark.parametrize("named", [False, True])
def test_two_trainings_of_a_step_draw_alike_unless_their_stages_differ(named: bool):
    """As fedrep and ditto rely on; `train` and the page on parts of methods say so."""
    seen, calls = [], []

    def loss(batch):
        seen.append(batch.x)
        return cross_entropy(batch.logits, batch.y)

    here, message = device(Net(forgetful), kind=torch.float32), Message(start(Net(forgetful)))
    for at in (AT, replace(AT, stage=AT.stage + 100) if named else AT):
        train({}, message, here, at, training=replace(SGD, lr=1e-9, epochs=1), loss=loss)
        calls.append(torch.cat(seen[-3:]))  # those before try the loss
    assert torch.equal(*calls) != named
    method_parts = (Path(__file__).parents[2] / "docs/method_parts.md").read_text()
    assert "replace(step_id, stage=step_id.stage + 100)" in method_parts
    assert "replace(step_id, stage=step_id.stage + 100)" in train.__doc__


def test_what_a_device_owns_goes_before_what_it_was_sent():
    message, head = start(BY_HAND, 1), {"fc3.weight": start(BY_HAND, 2)["fc3.weight"]}
    memory, update = train(head, Message(message), device(BY_HAND), AT, training=SGD)
    _, expected = train({}, Message({**message, **head}), device(BY_HAND), AT, training=SGD)
    assert memory == head
    torch.testing.assert_close(update.params, expected.params, rtol=0, atol=0)


def test_without_a_message_a_device_starts_from_the_same_model_each_round():
    initial = nets.init(BY_HAND, AT.generator("init"))
    for step in (AT, replace(AT, stage=1, round=4)):
        _, update = train({}, Message(), device(BY_HAND), step, training=SGD)
        _, expected = train({}, Message(initial), device(BY_HAND), step, training=SGD)
        torch.testing.assert_close(update.params, expected.params, rtol=0, atol=0)


def test_other_memory_is_no_parameter():
    memory = {"variate": torch.ones(2)}
    kept, update = train(memory, Message(start(BY_HAND)), device(BY_HAND), AT, training=SGD)
    assert kept == memory
    assert set(update.params) == set(nets.shapes(BY_HAND))


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
@pytest.mark.parametrize("training", [SGD, replace(ADAM, weight_decay=0.1, schedule="cosine")], ids=["sgd", "adam"])
@pytest.mark.slow
def test_without_examples_the_model_stays_and_weighs_nothing(net, training):
    none = data(0)
    for x in (none.x, torch.empty(0)):
        here = Device("a", net, Splits(Data(x, none.y), none, none))
        _, update = train({}, Message(start(net)), here, AT, training=training)
        torch.testing.assert_close(update.params, start(net), rtol=0, atol=0)
        assert update.size == 0
        assert math.isnan(update.score)


@pytest.mark.parametrize("training", [SGD, ADAM], ids=["sgd", "adam"])
def test_what_is_not_a_number_flows_out(training):
    broken = {name: tensor * torch.nan for name, tensor in start(BY_HAND).items()}
    _, update = train({}, Message(broken), device(BY_HAND), AT, training=training)
    assert all(bool(tensor.isnan().all()) for tensor in update.params.values())


def test_the_score_is_the_accuracy_on_validation():
    _, update = train({}, Message(start(BY_HAND)), device(BY_HAND), AT, training=SGD)
    assert update.score == accuracy(update.params, BY_HAND, device(BY_HAND).data.val)
