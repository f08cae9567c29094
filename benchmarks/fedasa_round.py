"""A round of FedASA over twelve devices, beside the bare training loops. The goal is a ratio of at most 1.15.

The paper's size: the cells net (323,434 parameters), 800 windows of 512 numbers on each device, 5 epochs of batches of
32 by Adam: 12 x 125 steps. Each repetition does a round of fedcore (two workers) after the one in which depths were
found, and the bare loops of all devices, one after the other with one thread: indices, a forward and a backward pass,
`torch.optim.Adam`, nothing else. They train the net of Conv1d that a tutorial would have, the house's net, and the
latter with channels innermost and Adam fused, as fedcore does. What they take is divided by the number of workers.
Where other work is done on the machine, the ratio of processor seconds says more than that of wall times.

    python -m benchmarks.fedasa_round [repetitions]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import Training
from fedcore.execute.workers import Workers
from fedcore.methods import method
from fedcore.types import Data, Device, Federation, Splits, generator

DEVICES, EXAMPLES, LENGTH, CLASSES = 12, 800, 512, 10
EPOCHS, BATCH, RATE = 5, 32, 2e-4
WORKERS, GOAL = 2, 1.15
NET = nets.net("cells", shape=(1, LENGTH), classes=CLASSES)


def windows(count: int, *words: object) -> Data:
    """Return spectra of noise: what is learned does not matter here."""
    draws = generator(*words)
    return Data(torch.rand(count, 1, LENGTH, generator=draws), torch.randint(CLASSES, (count,), generator=draws))


def fedcore_rounds(parts: dict[str, Data], rounds: int, workers: Workers) -> Iterator[object]:
    """Do a round at each `next`; the first one also finds the depths."""
    none = windows(0)
    devices = {name: Device(name, NET, Splits(part, none, none)) for name, part in parts.items()}
    training = Training(
        "adam",
        RATE,
        momentum=0.0,
        weight_decay=0.0,
        schedule="constant",
        batch=BATCH,
        epochs=EPOCHS,
        optimiser_state="keep",
    )
    # One round more than asked for: the last one is scored, which the bare loops are not.
    memory = {"rounds": rounds + 1, "alignment_rounds": 1, "auxiliary": None, "target": None, "steps": 30, "cell": None,
           "distance": "printed", "budget": None, "personal_lr": None}  # fmt: skip
    fedasa = method("fedasa", nets=dict.fromkeys(parts, NET), training=training, shared_init=True, **memory)
    federation = Federation(devices, none, CLASSES, windows(160, "server"))
    return run(fedasa, federation, 0, workers, every=rounds + 2)


class Cell(nn.Module):
    """x + pool(ReLU(conv(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv1d(64, 64, 3, padding=1), nn.MaxPool1d(3, stride=1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        shortened: Tensor = self.pool(torch.relu(self.conv(x)))
        return x + shortened


def tutorial() -> nn.Module:
    """Build the same net as one writes it down."""
    stem = (nn.Conv1d(1, 32, 4, stride=4), nn.ReLU(), nn.Conv1d(32, 64, 5, stride=4, padding=2), nn.ReLU())
    return nn.Sequential(*stem, *(Cell() for _ in range(4)), nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(),
                         nn.Linear(128, CLASSES))  # fmt: skip


def tuned() -> nn.Module:
    """Build the house's net with channels innermost."""
    return NET.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def bare_rounds(parts: dict[str, Data], build: Callable[[], nn.Module], fused: bool | None = None) -> Iterator[object]:
    """Train every device's model at each `next`, and nothing else."""
    models = [build() for _ in parts]
    optimisers = [torch.optim.Adam(model.parameters(), lr=RATE, fused=fused) for model in models]
    while True:
        for part, model, optimiser in zip(parts.values(), models, optimisers, strict=True):
            for _ in range(EPOCHS):
                for index in torch.randperm(len(part)).split(BATCH):
                    optimiser.zero_grad()
                    cross_entropy(model(part.x[index]), part.y[index]).backward()
                    optimiser.step()
        yield


def seconds(rounds: Iterator[object]) -> tuple[float, float]:
    """Return the wall time of the next round, and the processor seconds of this process and its workers."""
    start, used = time.perf_counter(), processor()
    next(rounds)
    return time.perf_counter() - start, processor() - used


def processor() -> float:
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)))


def main(repetitions: int = 5) -> None:
    assert sum(x.numel() for x in tutorial().parameters()) == sum(x.numel() for x in NET.build().parameters())
    torch.set_num_threads(1)
    parts = {f"device-{i:02}": windows(EXAMPLES, i) for i in range(DEVICES)}
    with Workers(WORKERS) as workers:
        ways = {
            f"fedcore, {WORKERS} workers": fedcore_rounds(parts, repetitions + 1, workers),
            "bare, Conv1d": bare_rounds(parts, tutorial),
            "bare, the house's net": bare_rounds(parts, NET.build),
            "bare, tuned": bare_rounds(parts, tuned, fused=True),
        }
        walls: dict[str, list[float]] = {way: [] for way in ways}
        cpus: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(repetitions + 1):
            for way, rounds in ways.items():
                wall, cpu = seconds(rounds)
                if repetition:  # the first starts the workers, finds the depths and warms up
                    walls[way].append(wall)
                    cpus[way].append(cpu)
    for way, times in walls.items():
        used = f"processors {median(cpus[way]):.2f} s"
        print(f"{way:22} {median(times):6.2f} s a round (from {min(times):.2f} to {max(times):.2f}), {used}")
    ours, *bare = ways
    for way in bare:
        ratios = [WORKERS * one / other for one, other in zip(walls[ours], walls[way], strict=True)]
        ratio = WORKERS * median(walls[ours]) / median(walls[way])
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        spent = median(cpus[ours]) / median(cpus[way])
        print(f"ratio to {way}, divided by {WORKERS}: {ratio:.2f} ({spread}), of processor seconds {spent:.2f}")
    print(f"goal at most {GOAL:.2f}; load of the machine {os.getloadavg()[0]:.1f}, this among it")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
