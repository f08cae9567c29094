"""A module of one's own on small steps, beside a plain loop by hand. The goal is a ratio of at most 1.

FedAvg on scikit-learn's digits: 20 devices, six rounds of five epochs of batches of 16 by SGD, a module 64-32-10 that
is defined in the script. Both take as many steps of the same size; fedcore also counts validation hits, checks updates,
counts bytes and scores the last model. One thread each, in turn, the medians.

    python -m benchmarks.own_net [repetitions]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedcore as fc

DEVICES, ROUNDS, EPOCHS, BATCH, RATE = 20, 6, 5, 16, 0.1


class Own(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1)).relu())


def plain(fed: fc.Federation) -> dict[str, Tensor]:
    """Train as a tutorial does; returns the last model."""
    model = Own((1, 8, 8), 10)
    sizes = [len(device.data.train) for device in fed.devices.values()]
    for _ in range(ROUNDS):
        trained = []
        for device in fed.devices.values():
            x, y = device.data.train.inputs(), device.data.train.y
            local = Own((1, 8, 8), 10)
            local.load_state_dict(model.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), RATE)
            for _ in range(EPOCHS):
                for index in torch.randperm(len(x)).split(BATCH):
                    optimiser.zero_grad()
                    cross_entropy(local(x[index]), y[index]).backward()
                    optimiser.step()
            trained.append(local.state_dict())
        model.load_state_dict(
            {n: sum(s / sum(sizes) * one[n] for s, one in zip(sizes, trained, strict=True)) for n in trained[0]}
        )
    return model.state_dict()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(repetitions: int) -> None:
    torch.set_num_threads(1)
    described = fc.federate(fc.load("digits"), fc.iid(), devices=DEVICES, net=fc.net(Own))
    training = {"optimiser": "sgd", "lr": RATE, "batch": BATCH, "epochs": EPOCHS}
    method, fed = fc.fedavg(rounds=ROUNDS, training=training), described.federation(0)
    kinds: dict[str, Callable[[], object]] = {
        "fedcore": lambda: fc.run(method, described, every=ROUNDS, progress=False), "plain loop": lambda: plain(fed)
    }  # fmt: skip
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repetitions + 1):  # the first warms up
        for kind, call in kinds.items():
            times[kind].append(seconds(call))
    medians = {kind: median(all_[1:]) for kind, all_ in times.items()}
    for kind, value in medians.items():
        print(f"{kind:12} {value:.2f} s")
    print(f"ratio        {medians['fedcore'] / medians['plain loop']:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
