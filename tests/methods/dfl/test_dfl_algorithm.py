"""DFL's Algorithms 1 and 2 as a program of its own: formulas (1) to (6) in double precision, no code of the library.

The program is given what chance decides: the first model, each round's devices, and the order of examples. Where the
algorithms leave a choice it follows docs/methods/dfl.md: steps are minibatches, round 1 has no soft targets.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from federations import SGD, federation
from torch import Tensor, nn
from torch.func import functional_call

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.federation import Net
from fedcore.types.method import StepId, generator

CLASSES, ROUNDS, THRESHOLD, FRACTION, SEED = 3, 5, 0.3, 0.6, 7

Weights = dict[str, Tensor]
Examples = tuple[Tensor, Tensor]


def prediction(module: nn.Module, w: Weights, x: Tensor) -> Tensor:
    z: Tensor = functional_call(module, w, (x,))
    return z


def loss(z: Tensor, y: Tensor, table: Tensor, rho: float) -> Tensor:
    """(3): rho F + (1 - rho) G, F the cross-entropy with the hard label, G the divergence from its soft target."""
    log_p = z - z.exp().sum(1, keepdim=True).log()
    soft = (table.exp() / table.exp().sum(1, keepdim=True))[y]
    hard_part = -log_p[torch.arange(len(y)), y]
    soft_part = (soft * (soft.log() - log_p)).sum(1)
    return (rho * hard_part + (1 - rho) * soft_part).mean()


def device_update(
    module: nn.Module, w: Weights, table: Tensor, examples: Examples, order: Iterator[Tensor], rho: float
) -> tuple[Weights, Tensor, Tensor]:
    """Algorithm 2: the change of the model, the label-wise averages of the logits, the number of each label."""
    x, y = examples
    received = w
    for batch in order:
        w = {name: value.detach().requires_grad_() for name, value in w.items()}
        gradients = torch.autograd.grad(loss(prediction(module, w, x[batch]), y[batch], table, rho), list(w.values()))
        w = {
            name: value - SGD.lr * logit_grad for (name, value), logit_grad in zip(w.items(), gradients, strict=True)
        }  # (4)
    w = {name: value.detach() for name, value in w.items()}
    averages, counts = torch.zeros(CLASSES, CLASSES).double(), torch.zeros(CLASSES).double()
    z = prediction(module, w, x)
    for label in range(CLASSES):
        mine = z[y == label]
        counts[label] = len(mine)
        if len(mine):
            averages[label] = mine.mean(0)
    return {name: w[name] - received[name] for name in w}, averages, counts  # (5)


def program(
    module: nn.Module,
    w: Weights,
    devices: dict[str, Examples],
    selected: list[tuple[str, ...]],
    order: Callable[[int, str, int], Iterator[Tensor]],
    weighting: str,
) -> tuple[Weights, Tensor]:
    """Algorithm 1."""
    table = torch.zeros(CLASSES, CLASSES).double()
    for r, names in enumerate(selected, start=1):
        rho = max(1 - r / ROUNDS, THRESHOLD) if r > 1 else 1.0  # (6)
        sent = [
            device_update(module, w, table, devices[name], order(r, name, len(devices[name][1])), rho) for name in names
        ]
        sizes = [len(devices[name][1]) for name in names]
        w = {
            key: value + sum(n * change[key] for n, (change, _, _) in zip(sizes, sent, strict=True)) / sum(sizes)
            for key, value in w.items()
        }  # (1)
        for label in range(CLASSES):
            weights = sizes if weighting == "examples" else [float(counts[label]) for _, _, counts in sent]
            if any(counts[label] for _, _, counts in sent):
                total = sum(n * averages[label] for n, (_, averages, _) in zip(weights, sent, strict=True))
                table[label] = total / sum(weights)  # (2)
    return w, table


def images() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, CLASSES))


NETS = {"mlp": nets.net("mlp", shape=(4,), classes=CLASSES, widths=[5, 4]), "convolution": Net(images)}


def order(r: int, name: str, count: int) -> Iterator[Tensor]:
    draw = StepId(SEED, 0, r - 1, name).generator("batches")
    for _ in range(SGD.epochs):
        yield from torch.randperm(count, generator=draw).split(SGD.batch)


@pytest.mark.parametrize("weighting", ["counts", "examples"])
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.slow
def test_five_rounds_of_five_devices_are_the_programs_to_rounding(kind, weighting):
    net, fed = NETS[kind], federation("abcde", NETS[kind])
    built = method(
        "dfl", nets=dict.fromkeys("abcde", net), training=SGD, shared_init=True, rounds=ROUNDS, fraction=FRACTION,
        ratio="threshold", threshold=THRESHOLD, temperature=1.0, weighting=weighting,
    )  # fmt: skip
    rounds = list(run(built, fed, SEED, Inline()))
    selected = [one.round_info.units for one in rounds]
    assert {len(set(names)) for names in selected} == {max(int(FRACTION * 5), 1)}
    assert len(set(selected)) > 1
    first = {key: x.double() for key, x in nets.init(net, generator(SEED, "init")).items()}
    devices = {name: (there.data.train.x.double(), there.data.train.y) for name, there in fed.devices.items()}
    w, table = program(net.build().double(), first, devices, selected, order, weighting)
    message = rounds[-1].state.messages["a"]
    torch.testing.assert_close(dict(message.params), w, rtol=1e-4, atol=1e-5, check_dtype=False)
    torch.testing.assert_close(message.extra["soft/targets"], table, rtol=1e-4, atol=1e-4)
    assert (message.params[next(iter(w))].double() - first[next(iter(w))]).abs().max() > 0.01
