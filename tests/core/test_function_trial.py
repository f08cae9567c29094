"""A user's losses and metrics: what follows from their arguments equals plain PyTorch; anything else is refused."""

import random
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import SGD, device_of
from plain_loops import NORMED, chain, close, descend_by_hand, module_of, params_of
from torch import nn
from torch.nn import functional as F

from fedcore import InputError, Message, Net, StepId, nets, train, with_parts
from fedcore.core.evaluation import metrics
from fedcore.types.federation import Scoring

AT, NET = StepId(3, 0, 1, "a"), Net(chain)


def ce(batch):
    return F.cross_entropy(batch.logits, batch.y)


class Centred:
    def __init__(self):
        self.centre = torch.zeros(3)

    def __call__(self, batch):
        self.centre = 0.9 * self.centre + 0.1 * batch.logits.detach().mean(0)
        return F.cross_entropy(batch.logits - self.centre, batch.y)


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return F.cross_entropy(batch.logits / self.temperature, batch.y)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, batch):
        return F.cross_entropy(self.norm(batch.logits), batch.y)


CALLS, HEAD, DRAWS = [0], nn.Linear(5, 3), np.random.default_rng(0)


def warming(batch):
    CALLS[0] += 1
    return ce(batch) * min(1, CALLS[0] / 100)


def headed(batch):
    return ce(batch) + F.cross_entropy(HEAD(batch.features), batch.y)


def drawing(batch):
    return F.cross_entropy(batch.logits * DRAWS.random(), batch.y)


def bank():
    rows = []

    def loss(batch):
        rows.append(batch.logits.detach().mean(0))
        return F.cross_entropy(batch.logits - torch.stack(rows).mean(0), batch.y)

    return loss


def in_closure():
    count = 0

    def loss(batch):
        nonlocal count
        count += 1
        return ce(batch) * (2 if count > 100 else 1)

    return loss


WEIGHTS: dict[str, torch.Tensor] = {}


def weighing(batch):
    return ce(batch) * WEIGHTS.setdefault("first", batch.y.float().mean())


class Weighing:
    weight = None

    def __call__(self, batch):
        if self.weight is None:
            self.weight = batch.y.float().mean()
        return ce(batch) * self.weight


def warmed(batch):
    if batch.round > 5:
        WEIGHTS["late"] = batch.y.float().mean()
    return ce(batch) * WEIGHTS.get("late", 1)


WRAP = """
from functools import wraps
def wrap(loss):
    calls = {"own": 0}
    @wraps(loss)
    def counting(batch):
        calls["own"] += 1
        return loss(batch)
    return counting
"""


def wrapped(loss):
    """Return a loss as a decorator of an installed package returns it, which counts calls for itself."""
    exec(WRAP, installed := {"__name__": "torch.hub"})
    return installed["wrap"](loss)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (warmed, "keeps its WEIGHTS.late from a call"),
        (Centred(), "Centred changes its centre at each call"),
        (Tempered(), "has a gradient at its own temperature, which nothing trains"),
        (Normed(), "changes its norm.num_batches_tracked"),
        (warming, "changes its CALLS.0"),
        (partial(warming), "changes its CALLS.0"),
        (wrapped(warming), "changes its CALLS.0"),
        (headed, "its own HEAD.(weight|bias), which nothing trains"),
        (drawing, "changes its DRAWS"),
        (bank(), "another value for the same batch"),
        (in_closure(), "changes its count"),
        (weighing, "keeps its WEIGHTS.first from a call"),
        (Weighing(), "keeps its weight from a call"),
        (lambda batch: ce(batch) * np.random.default_rng().random(), "another value for the same batch"),
    ],
)
@pytest.mark.slow
def test_a_loss_that_keeps_or_trains_something_is_refused(loss, words):
    with pytest.raises(InputError, match=rf"^training.loss: .*{words}"):
        train({}, Message(), device_of("a", NET), AT, training=SGD, loss=loss)


def centre(net):
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(3))
    return module


@with_parts(centre)
def centred(batch):
    batch.parts.mean.lerp_(batch.logits.detach().mean(0), 0.1)
    return F.cross_entropy(batch.logits - batch.parts.mean, batch.y)


@pytest.mark.slow
def test_losses_that_the_trial_lets_pass_train_as_they_would_without_it():
    log, teacher = [], chain().requires_grad_(False)
    noise, calls = torch.Generator(), []

    def logging(batch):
        log.append(ce(batch).item())
        return ce(batch)

    def taught(batch):
        return ce(batch) + F.mse_loss(batch.logits, teacher(batch.x))

    def noisy(batch):
        calls.append(torch.get_rng_state())
        return ce(batch) * torch.rand(()) * random.random()

    start, device = nets.init(NET, noise), device_of("a", NET)
    for loss in (logging, taught, noisy, wrapped(ce)):
        train({}, Message(start), device, AT, training=SGD, loss=loss)
    assert torch.equal(calls[0], calls[6])  # of the trial; then comes the step's own
    assert not torch.equal(calls[6], calls[7])
    memory, update = train({}, Message(start), device, replace(AT, seed=0), training=SGD, loss=centred)
    mean = torch.zeros(3)

    def by_hand(module, x, y):
        mean.lerp_((logits := module(x)).detach().mean(0), 0.1)
        return F.cross_entropy(logits - mean, y)

    close(update.params, params_of(descend_by_hand(module_of(start), device, 1, SGD, by_hand)))
    close(memory, {"parts/mean": mean})


def adversarial(module, x, y):
    moved = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(module(moved), y), moved)
    return F.cross_entropy(module(x + 0.1 * slope.sign()), y)


def clamped(module, x, y):
    for parameter in module.parameters():
        parameter.data = parameter.data.clamp(-0.1, 0.1)
    return F.cross_entropy(module(x), y)


@pytest.mark.slow
def test_losses_that_pass_batches_or_set_parameters_equal_pytorch():
    """One that never reads `logits` does not pass the batch through the net, and statistics count the passes."""
    at, start, device = StepId(0, 0, 1, "a"), nets.init(NORMED, torch.Generator()), device_of("a", NORMED)
    for loss, by_hand in (
        (lambda batch: adversarial(batch.module, batch.x, batch.y), adversarial),
        (lambda batch: clamped(batch.module, batch.x, batch.y), clamped),
        (lambda batch: ce(batch) + adversarial(batch.module, batch.x, batch.y),
         lambda module, x, y: F.cross_entropy(module(x), y) + adversarial(module, x, y)),
    ):  # fmt: skip
        _, update = train({}, Message(start), device, at, training=SGD, loss=loss)
        close(update.params, params_of(descend_by_hand(module_of(start, NORMED), device, 1, SGD, by_hand)))


OF_NUMBERS = {
    "mse": F.mse_loss, "l1": nn.L1Loss(), "huber": nn.HuberLoss(delta=0.5), "smooth": F.smooth_l1_loss,
    "own": lambda z, y: (z - y).abs().pow(1.5).mean(), "keyword": partial(F.huber_loss, delta=2.0),
    "cosh": lambda z, y: torch.log(torch.cosh(z - y)).mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.slow
def test_losses_of_numbers_equal_plain_pytorch_or_are_refused(name):
    each = OF_NUMBERS[name]
    net, at = Net(partial(nn.Linear, 4, 1)), StepId(0, 0, 1, "a")
    device = device_of("a", net)
    data = replace(device.data.train, y=device.data.train.x.sum(1))
    device = replace(device, data=replace(device.data, train=data, val=replace(data, x=data.x[:0], y=data.y[:0])))
    start = nets.init(net, torch.Generator())
    module = descend_by_hand(module_of(start, net), device, 1, SGD, lambda m, x, y: each(m(x)[:, 0], y))
    for loss in (lambda batch: each(batch.logits[:, 0], batch.y), lambda batch: each(batch.logits, batch.y[:, None])):
        _, update = train({}, Message(start), device, at, training=SGD, loss=loss)
        close(update.params, params_of(module))
    for loss in (lambda batch: each(batch.logits, batch.y), lambda batch: each(batch.module(batch.x), batch.y)):
        with pytest.raises(InputError, match=r"compares each output with the labels of all .* batch.logits\[:, 0\]"):
            train({}, Message(start), device, at, training=SGD, loss=loss)


def test_a_loss_of_sums_and_one_without_labels_do_not_broadcast():
    net = Net(partial(nn.Linear, 4, 1))
    device = device_of("a", net)
    data = replace(device.data.train, y=device.data.train.x.sum(1))
    device = replace(device, data=replace(device.data, train=data, val=replace(data, x=data.x[:0], y=data.y[:0])))
    for loss in (lambda batch: (batch.logits.mean() - batch.y.mean()) ** 2, lambda batch: batch.logits.square().mean()):
        train({}, Message(), device, AT, training=SGD, loss=loss)


def of_numbers(function):
    y, guess = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([[0.5], [1.5], [2.0]])
    return metrics(guess, y, Scoring(own=(("mine", function),)))["mine"]


def test_metrics_of_numbers_are_given_two_rows_of_numbers():
    for function, value in (
        (lambda p, y: (p - y).abs().mean(), 4 / 3), (lambda p, y: (p - y).mean(), -2 / 3),
        (lambda p, y: F.l1_loss(p, y), 4 / 3), (lambda p, y: np.abs(p.numpy() - y.numpy()).max(), 3.0),
        (lambda p, y: (p.flatten() - y).abs().mean(), 4 / 3),
    ):  # fmt: skip
        assert of_numbers(function) == pytest.approx(value)
    with pytest.raises(InputError, match=r"^metrics.mine: predictions and labels are both \(N,\): write p - y"):
        of_numbers(lambda p, y: (p[:, 0] - y).abs().mean())


NUMBERS = torch.tensor([[10.0], [10.0], [10.0], [10.0]]), torch.tensor([8.0, 9.0, 11.0, 15.0])
CLASSES = torch.tensor([[0.7, 0.2, 0.1]] * 4).log(), torch.zeros(4).long()  # all predicted alike
SEVERAL = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [2.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
BROADCASTING = [
    (NUMBERS, lambda p, y: (p - y[:, None]).abs().mean()),
    (NUMBERS, lambda p, y: (p[:, None] - y).square().mean().sqrt()),
    (NUMBERS, lambda p, y: 1 - (p[:, None] - y).square().mean() / y.var()),
    (NUMBERS, lambda p, y: np.median(np.abs(p.numpy()[:, None] - y.numpy()))),
    (CLASSES, lambda p, y: (p.argmax(1, keepdim=True) == y).float().mean()),
    (CLASSES, lambda p, y: (p.argmax(1) == y[:, None]).float().mean()),
    (CLASSES, lambda p, y: (p[:, 1:2] - (y == 1).float()).square().mean()),
    (SEVERAL, lambda p, y: (p[:, None] - y).abs().mean()),
]
RIGHT = [
    (NUMBERS, lambda p, y: p.mean() - y.mean()), (NUMBERS, lambda p, y: p.std() / y.std()),
    (NUMBERS, lambda p, y: p.max() / y.mean()), (NUMBERS, lambda p, y: (p.sort()[0] - y.sort()[0]).abs().mean()),
    (NUMBERS, lambda p, y: ((p[:, None] - p) * (y[:, None] - y) > 0).float().mean()),
    (NUMBERS, lambda p, y: 2 * (p[:, None] - y).abs().mean() - sum((z[:, None] - z).abs().mean() for z in (p, y))),
    (CLASSES, lambda p, y: (p.topk(2).indices == y[:, None]).any(1).float().mean()),
    (CLASSES, lambda p, y: (p.argmax(1, keepdim=True) == y.view(-1, 1)).float().mean()),
    (CLASSES, lambda p, y: (p[y == 1, 1][:, None] > p[y != 1, 1]).float().mean()),  # ROC AUC: of pairs
    (CLASSES, lambda p, y: p[:, 1].mean() - (y == 1).float().mean()),
    (SEVERAL, lambda p, y: (p.mean(0) - y.mean(0)).abs().mean()),
    (SEVERAL, lambda p, y: ((p > 0.5) == y).float().mean()),
]  # fmt: skip


@pytest.mark.slow
def test_metrics_that_broadcast_are_refused_and_those_of_pairs_are_not():
    for (answers, y), function in BROADCASTING:
        with pytest.raises(InputError, match=r"^metrics.mine: compares each prediction with the labels of all rows"):
            metrics(answers, y, Scoring(own=(("mine", function),)))
    for (answers, y), function in RIGHT:
        metrics(answers, y, Scoring(own=(("mine", function),)))


class Smooth:
    """A mean over calls; of the last call alone if `share` is 0."""

    def __init__(self, share):
        self.share, self.value = share, 0.0

    def __call__(self, p, y):
        mean = float((p - y).abs().mean())
        if self.share:
            mean = self.value = self.share * self.value + (1 - self.share) * mean
        return mean


def test_a_metric_that_keeps_something_is_refused():
    seen = []

    def running(p, y):
        seen.append((p - y).abs().mean())
        return torch.stack(seen).mean()

    with pytest.raises(InputError, match=r"^metrics.mine: returns another value for the same rows"):
        of_numbers(running)
    first: list[float] = []

    def of_the_first(p, y):
        first[:] = first or [float((p - y).abs().mean())]
        return first[0]

    with pytest.raises(InputError, match=r"^metrics.mine: keeps its first.0 from a call"):
        of_numbers(of_the_first)
    of_numbers(Smooth(0))
    with pytest.raises(InputError, match=r"^metrics.mine: changes its value at each call"):
        of_numbers(Smooth(0.9))
    assert 0 <= of_numbers(lambda p, y: random.random()) < 1


class Keeping(nn.Module):
    """Parts of a loss that count its calls somewhere, and scale logits by the count."""

    def __init__(self, kind):
        super().__init__()
        self.head, self.kind, self.n, self._rows = nn.Linear(3, 3), kind, 0, []
        self.fixed = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.register_buffer("lost", torch.zeros(()), persistent=False)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, z):
        if self.kind == "_rows":
            self._rows.append(1)
            count = len(self._rows)
        elif self.kind == "n":
            self.n += 1
            count = self.n
        else:
            count = float(getattr(self, self.kind).add_(1))
        return self.head(z) * (1 if count < 50 else 0.1)


class Teaching(nn.Module):
    """A teacher that follows the student from the second call on, with and without a trained head."""

    def __init__(self, frozen=True):
        super().__init__()
        self.net, self.begun = chain().requires_grad_(not frozen), False


def taught_by_mean(batch):
    with torch.no_grad():
        for own, other in zip(batch.parts.net.parameters(), batch.module.parameters(), strict=True):
            own.lerp_(other, 0.2 if batch.parts.begun else 1.0)
        batch.parts.begun = True
        target = batch.parts.net(batch.x)
    return ce(batch) + F.mse_loss(batch.logits, target)


def on_module(batch):
    batch.module.calls = getattr(batch.module, "calls", 0) + 1
    return ce(batch) * (1 if batch.module.calls < 50 else 0.1)


def by_head(batch):
    return F.cross_entropy(batch.parts(batch.logits), batch.y)


def with_log(batch):
    """Keeps what its value does not depend on."""
    batch.parts.last, batch.module.last = batch.logits.detach(), batch.logits.detach()
    return by_head(batch)


@pytest.mark.parametrize("kind", ["kept", "log", "fixed", "lost", "n", "_rows", "teacher", "module", "constant"])
def test_what_a_losss_parts_would_lose_after_a_round_is_refused(kind):
    """Against buffers, which stay, and what no value depends on."""
    loss = with_parts(lambda net: Keeping("kept" if kind == "log" else kind))(with_log if kind == "log" else by_head)
    words = f"changes {kind}, which begins anew in each round.*register_buffer"
    if kind == "teacher":
        loss, words = with_parts(lambda net: Teaching())(lambda batch: taught_by_mean(batch)), r"changes (begun|net\.)"
    if kind == "module":
        loss, words = on_module, "changes calls"
    if kind == "constant":
        constant = with_parts(lambda net: chain().requires_grad_(False))
        loss = constant(lambda batch: ce(batch) + F.mse_loss(batch.logits, batch.parts(batch.x)))
    good = kind in ("kept", "log", "constant")
    with nullcontext() if good else pytest.raises(InputError, match=rf"^training.loss: .*{words}"):
        train({}, Message(), device_of("a", NET), AT, training=SGD, loss=loss)
