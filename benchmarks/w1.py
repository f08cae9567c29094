"""W1: a round of FedAvg over 16 devices, beside the plain DataLoader loop. The goal is a ratio of at most .60.

An MLP 784-400-200-100-10 on 60,000 images of 28 x 28 pixels, 3,750 on each device; one epoch of batches of 64 by SGD at
.1: 112 GFLOP. Images are MNIST's where FEDCORE_DATA leads to them, random bytes otherwise. Each repetition runs a round
of fedcore (two workers) and one of the plain loop with one thread and with two.

    python -m benchmarks.w1 [repetitions]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedcore import data, nets
from fedcore.core.rounds import Execute, run
from fedcore.core.training import Training
from fedcore.execute.workers import Workers
from fedcore.methods import method
from fedcore.types.federation import Data, Device, Federation, Splits

DEVICES, BATCH, RATE, WIDTHS = 16, 64, 0.1, (400, 200, 100)


def images() -> Data:
    """Return 60,000 images, uint8, and their labels."""
    if "FEDCORE_DATA" in os.environ:
        return data.load("mnist", root=os.environ["FEDCORE_DATA"], download=False).train
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8, generator=g)
    return Data(x, torch.randint(0, 10, (60_000,), generator=g))


def fedcore_rounds(
    parts: list[Data], rounds: int, execute: Execute, hold: Callable[[Splits], Any] = lambda splits: splits
) -> Iterator[object]:
    """Do a round at each `next`. hold: returns what a device holds, its data or a reference to them."""
    net = nets.net("mlp", shape=(1, 28, 28), classes=10, widths=WIDTHS)
    none = Data(parts[0].x[:0], parts[0].y[:0])
    names = [f"device-{i:02}" for i in range(DEVICES)]
    devices = {name: Device(name, net, hold(Splits(part, none, none))) for name, part in zip(names, parts, strict=True)}
    training = Training("sgd", RATE, momentum=0.0, weight_decay=0.0, schedule="constant", batch=BATCH, epochs=1)
    # One round more than asked for: the last one is scored, which the plain loop is not.
    own = {"rounds": rounds + 1, "fraction": 1.0, "weights": "size"}
    fedavg = method("fedavg", nets=dict.fromkeys(names, net), training=training, shared_init=True, **own)
    return run(fedavg, Federation(devices, none, 10), 0, execute, every=rounds + 2)


def plain_rounds(parts: list[Data]) -> Iterator[object]:
    """Do a round at each `next`: what a tutorial does."""
    sizes = [784, *WIDTHS, 10]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    server = nn.Sequential(nn.Flatten(), *layers[:-1])
    loaders = [DataLoader(TensorDataset(part.inputs(), part.y), batch_size=BATCH, shuffle=True) for part in parts]
    loss_of = nn.CrossEntropyLoss()
    while True:
        sent: list[dict[str, Tensor]] = []
        for loader in loaders:
            model = deepcopy(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
            for x, y in loader:
                optimiser.zero_grad()
                loss_of(model(x), y).backward()
                optimiser.step()
            sent.append(model.state_dict())
        server.load_state_dict({name: torch.stack([state[name] for state in sent]).mean(0) for name in sent[0]})
        yield


def seconds(rounds: Iterator[object], threads: int) -> float:
    """Return the wall time of the next round."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    next(rounds)
    return time.perf_counter() - start


def main(repetitions: int = 7) -> None:
    whole = images()
    parts = [Data(x.clone(), y.clone()) for x, y in zip(whole.x.chunk(DEVICES), whole.y.chunk(DEVICES), strict=True)]
    with Workers(2) as workers:
        ours, plain = fedcore_rounds(parts, repetitions + 1, workers), plain_rounds(parts)
        ways = {"fedcore, 2 workers": (ours, 2), "plain, 1 thread": (plain, 1), "plain, 2 threads": (plain, 2)}
        walls: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(repetitions + 1):
            for way, (rounds, threads) in ways.items():
                wall = seconds(rounds, threads)
                if repetition:  # the first starts the workers and warms up
                    walls[way].append(wall)
    for way, times in walls.items():
        print(f"{way:20} {median(times):.3f} s a round (from {min(times):.3f} to {max(times):.3f})")
    first, *others = (median(times) for times in walls.values())
    print(f"ratio {first / min(others):.2f} of the plain loop's better setting, goal at most .60")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
