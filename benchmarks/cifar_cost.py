"""What DFL's Tables II and III cost on CIFAR-10 with the CNN of 62,006 parameters: python -m benchmarks.cifar_cost

A hundred devices of 500 images, random pixels of CIFAR-10's shape, ten devices a round, 5 epochs of batches of 50.
Seconds of one processor in a round (the second of three: the first also draws models) and in the scoring of one model
on 10,000 images; FD has one model for each device. Hours are those of 100 rounds, scored at the end, on both
partitions with three seeds. Writes docs/results/dfl-cifar-cost.csv.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import SCORING_BATCH, Training, predict
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.federation import Data, Device, Federation, Splits
from fedcore.types.method import generator

DEVICES, EXAMPLES, TEST, CLASSES = 100, 500, 10_000, 10
ROUNDS, RUNS = 100, 2 * 3
GENERATOR = {"noise": 64, "hidden": 512}
ROWS: dict[str, dict[str, Any]] = {"fedavg": {}, "scaffold": {}, "dfl": {}, "fedgen": GENERATOR, "fd": {}}
FILE = Path(__file__).parents[1] / "docs" / "results" / "dfl-cifar-cost.csv"


def images(count: int) -> Data:
    """Return random images and labels."""
    g = generator("cost", count)
    return Data(
        torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=g),
        torch.randint(0, CLASSES, (count,), generator=g),
    )


def round_seconds(name: str, federation: Federation) -> float:
    """Return the processor seconds of a row's second round of three."""
    training = Training("sgd", 0.01, momentum=0.0, weight_decay=0.0, schedule="constant", batch=50, epochs=5)
    built = method(
        name,
        nets={device: one.net for device, one in federation.devices.items()},
        training=training,
        rounds=3,
        fraction=0.1,
        shared_init=True,
        **ROWS[name],
    )
    rounds = run(built, federation, 0, Inline(), every=4)
    next(rounds)
    start = time.process_time()
    next(rounds)
    return time.process_time() - start


def cost() -> pd.DataFrame:
    """Return a row's seconds per round, its models that are scored, and the hours of all its runs."""
    torch.set_num_threads(1)
    net = nets.net("lenet", shape=(3, 32, 32), classes=CLASSES)
    none = images(1)
    empty = Data(none.x[:0], none.y[:0])
    every = images(DEVICES * EXAMPLES)
    parts = [slice(EXAMPLES * k, EXAMPLES * (k + 1)) for k in range(DEVICES)]
    devices = {
        f"device-{k:02}": Device(f"device-{k:02}", net, Splits(Data(every.x[part], every.y[part]), empty, empty))
        for k, part in enumerate(parts)
    }
    federation = Federation(devices, empty, CLASSES)
    start = time.process_time()
    predict(nets.init(net, generator("cost")), net, images(TEST).x, SCORING_BATCH)
    scoring = time.process_time() - start
    rows = []
    for name in ROWS:
        seconds, models = round_seconds(name, federation), DEVICES if name == "fd" else 1
        hours = RUNS * (ROUNDS * seconds + models * scoring) / 3600
        rows.append({"method": name, "round_s": seconds, "scoring_s": models * scoring, "hours": hours})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    table = cost().round(2)
    table.to_csv(FILE, index=False)
    print(table.to_string(index=False))
