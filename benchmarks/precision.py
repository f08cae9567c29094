"""Training in bfloat16 beside float32 on this processor: seconds, and accuracy over three seeds.

Seconds are of one device's epoch in one thread: W1's MLP 784-400-200-100-10 with batches of 64, and McMahan's CNN with
batches of 10 (W2) and 50, on random bytes; both precisions take turns, medians of five. Accuracy is FedAvg's after ten
rounds of one epoch, mean over devices: DFL's CNN on MNIST (600 images on 10 devices, Dir(.5); on MNIST's test images),
and FedASA's cells on CWRU by place (on each one's test windows). They need FEDCORE_DATA.

    python -m benchmarks.precision [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from statistics import mean, median, stdev
from typing import Any

import torch

import fedcore as fc
from fedcore import nets
from fedcore.core.precision import has_bfloat16
from fedcore.core.training import Training, train
from fedcore.types.federation import Data, Device, Splits
from fedcore.types.method import Message, StepId, generator

PRECISIONS = ("float32", "bfloat16")
GRAY = (1, 28, 28)
STEPS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "W1: MLP 400-200-100, batches of 64": ("mlp", {"widths": (400, 200, 100)}, 3750, 64),
    "W2: McMahan's CNN, batches of 10": ("mcmahan_cnn", {}, 300, 10),
    "McMahan's CNN, batches of 50": ("mcmahan_cnn", {}, 300, 50),
}
"""The net, its settings, the examples and the batch."""


def seconds(name: str, settings: dict[str, Any], examples: int, batch: int) -> dict[str, float]:
    """Return the seconds of an epoch, by precision."""
    net, draws = nets.net(name, shape=GRAY, classes=10, **settings), generator("images")
    x = torch.randint(0, 256, (examples, *GRAY), dtype=torch.uint8, generator=draws)
    data = Data(x, torch.randint(0, 10, (examples,), generator=draws))
    none = Data(data.x[:0], data.y[:0])
    device, times = Device("device", net, Splits(data, none, none)), {each: [0.0] * 0 for each in PRECISIONS}
    for _ in range(6):
        for precision in PRECISIONS:
            training: Any = Training("sgd", 0.1, batch=batch, epochs=1, precision=precision)  # type: ignore[arg-type]
            start = time.perf_counter()
            train({}, Message(), device, StepId(0, 0, 0, "device"), training=training)
            times[precision].append(time.perf_counter() - start)
    return {precision: median(found[1:]) for precision, found in times.items()}


def federations() -> dict[str, tuple[Any, str]]:
    """Return the federations whose accuracy is compared, and the split on which it is."""
    root = os.environ["FEDCORE_DATA"]
    mnist = fc.load("mnist", root=root, download=False)
    cwru = fc.load("cwru", root=root, download=False)
    return {
        "MNIST": (fc.federate(mnist, fc.dirichlet(0.5), devices=10, examples=600, net=fc.net("dfl_cnn")), "shared"),
        "CWRU": (fc.federate(cwru, fc.by_device(), net=fc.net("cells")), "test"),
    }


def accuracies(fed: Any, split: str, precision: str) -> list[float]:
    """Return the mean accuracy of FedAvg over devices, by seed."""
    training: Any = Training("adam", 0.001, batch=20, epochs=1, precision=precision)  # type: ignore[arg-type]
    found = fc.compare([fc.fedavg(rounds=10, training=training)], fed, seeds=range(3))
    table = found.table[(found.table.method == "fedavg") & (found.table.metric == "accuracy")]
    last = table[(table.split == split) & (table["round"] == table["round"].max())]
    return [float(each) for each in last.groupby("seed")["value"].mean()]


def main() -> None:
    """Measure, print and write the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--csv")
    args = asked.parse_args()
    if not has_bfloat16():
        sys.exit("benchmarks.precision: this processor has neither AVX-512 BF16 nor AMX")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for what, case in STEPS.items():
        found = seconds(*case)
        ratio = f"{found['bfloat16'] / found['float32']:.2f}"
        rows.append(
            {"what": f"{what}: seconds", **{name: f"{value:.3f}" for name, value in found.items()}, "ratio": ratio}
        )
        print(*rows[-1].values(), sep="  ", flush=True)
    for what, (fed, split) in federations().items() if "FEDCORE_DATA" in os.environ else ():
        ends = {precision: accuracies(fed, split, precision) for precision in PRECISIONS}
        gaps = [b - a for a, b in zip(*ends.values(), strict=True)]
        means = {name: f"{mean(each):.4f} (sd {stdev(each):.4f})" for name, each in ends.items()}
        rows.append(
            {
                "what": f"{what}: accuracy",
                **means,
                "ratio": f"{mean(gaps):+.4f} (mean difference, sd {stdev(gaps):.4f})",
            }
        )
        print(*rows[-1].values(), sep="  ", flush=True)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]])
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
