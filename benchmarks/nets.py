"""A minibatch's step of each net: fedcore's worker beside the plain loop in a fresh process. No goal is set.

Batches of 50, SGD at .01, one thread on both sides, images of random bytes. fedcore's time is that of a device's whole
step, divided by its minibatches: the model reaches the worker, the trained one returns. The plain loop is indices,
a forward and a backward pass, `torch.optim.SGD`. They take turns.

    python -m benchmarks.nets [repetitions [net ...]]
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.training import Training, train
from fedcore.execute.workers import Workers
from fedcore.types.federation import Data, Device, Net, Splits
from fedcore.types.method import Message, StepId, generator

BATCH, RATE, CLASSES = 50, 0.01, 10
GRAY, COLOUR = (1, 28, 28), (3, 32, 32)
SIZES: dict[str, tuple[tuple[int, int, int], int]] = {
    "dfl_cnn": (GRAY, 60), "mcmahan_cnn": (GRAY, 30), "stlf_cnn": (GRAY, 60), "lenet": (COLOUR, 60),
    "resnet20": (COLOUR, 12), "mobilenet_v2": (COLOUR, 6), "vgg11": (COLOUR, 6), "vgg16": (COLOUR, 6),
}  # fmt: skip
"""The shape of an image and the minibatches of a step, by net."""


def images(shape: tuple[int, ...], count: int) -> Data:
    """Return random pictures, of which nothing is learned but time."""
    draws = generator("images")
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=draws)
    return Data(x, torch.randint(0, CLASSES, (count,), generator=draws))


def plain(net: Net, data: Data) -> float:
    """Train for one epoch, in this process; returns seconds per minibatch."""
    torch.set_num_threads(1)
    model, x = net.build(), data.inputs()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = torch.randperm(len(data)).split(BATCH)
    start = time.perf_counter()
    for index in batches:
        optimiser.zero_grad()
        cross_entropy(model(x[index]), data.y[index]).backward()
        optimiser.step()
    return (time.perf_counter() - start) / len(batches)


def ours(workers: Workers, net: Net, data: Data, sent: Message) -> float:
    """Have a worker train a device's model for one epoch; returns seconds per minibatch."""
    none = Data(data.x[:0], data.y[:0])
    device = Device("device", net, Splits(data, none, none))
    training = Training("sgd", RATE, momentum=0.0, weight_decay=0.0, schedule="constant", batch=BATCH, epochs=1)
    start = time.perf_counter()
    workers.call(partial(train, training=training), {}, sent, device, StepId(0, 0, 0, "device"))
    return (time.perf_counter() - start) / (len(data) // BATCH)


def main(repetitions: int = 7, *chosen: str) -> None:
    with Workers(1) as workers, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        for name in chosen or SIZES:
            shape, batches = SIZES[name]
            net, data = nets.net(name, shape=shape, classes=CLASSES), images(shape, batches * BATCH)
            sent = Message(nets.init(net, generator("init")))
            here, there = [], []
            for repetition in range(repetitions + 1):
                one, other = ours(workers, net, data, sent), fresh.submit(plain, net, data).result()
                if repetition:  # the first starts the processes and warms up
                    here.append(one)
                    there.append(other)
            print(
                f"{name:14} fedcore {1e3 * median(here):7.2f} ms ({1e3 * min(here):.2f} to {1e3 * max(here):.2f}),"
                f" plain {1e3 * median(there):7.2f} ({1e3 * min(there):.2f} to {1e3 * max(there):.2f}),"
                f" ratio {median(here) / median(there):.2f}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
