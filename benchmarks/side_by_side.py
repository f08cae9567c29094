"""Small perceptrons side by side, beside one after another: FedAvg's rounds in one process, with the same bits.

Made-up examples of normal numbers, as many minibatches in a round on each device as `steps` says. Each net is trained
both ways in turn, one thread; the models must be equal. Prints the microseconds of a device's step with all else that a
round takes, medians, and the ratio, and writes them with OUT.

    python -m benchmarks.side_by_side [repetitions] [OUT.csv]
"""

from __future__ import annotations

import csv
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.together import Together
from fedcore.core.training import Training
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.federation import Data, Device, Federation, Splits
from fedcore.types.method import Message

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """inputs, widths, classes: of the net. devices: in one process. batch: of a step. steps: of a round."""

    inputs: int
    widths: tuple[int, ...]
    classes: int
    devices: int = 7
    batch: int = 16
    optimiser: str = "adam"
    steps: int = 100


CASES = [
    Case(8, (64, 32), 2, 2), Case(8, (64, 32), 2), Case(8, (64, 32), 2, 28), Case(8, (64, 32), 2, steps=20),
    Case(8, (64, 32), 2, optimiser="sgd"), Case(64, (64, 32), 10), Case(64, (64, 32), 10, batch=64),
    Case(100, (128, 64), 10), Case(8, (), 2),
]  # fmt: skip


def federation(case: Case) -> Federation:
    draws = torch.Generator().manual_seed(0)

    def data(count: int) -> Data:
        x = torch.randn(count, case.inputs, generator=draws)
        return Data(x, torch.randint(0, case.classes, (count,), generator=draws))

    net = nets.net("mlp", shape=(case.inputs,), classes=case.classes, widths=[*case.widths])
    devices = {
        str(number): Device(str(number), net, Splits(data(case.steps * case.batch), data(0), data(0)))
        for number in range(case.devices)
    }
    return Federation(devices, data(4), case.classes)


def measure(case: Case, repetitions: int) -> list[float]:
    """Return the microseconds of a device's step, one after another and side by side."""
    fed = federation(case)
    of = {name: device.net for name, device in fed.devices.items()}
    training = Training(case.optimiser, 0.001, batch=case.batch, epochs=1)  # type: ignore[arg-type]
    built = method("fedavg", nets=of, training=training, shared_init=True, rounds=ROUNDS)
    ways: list[Any] = [Inline(), Together(Inline())]
    found: list[list[float]] = [[] for _ in ways]
    models: list[Message] = []
    for _ in range(repetitions + 1):  # the first warms up
        for way, times in zip(ways, found, strict=True):
            start = time.perf_counter()
            last = [*run(built, fed, 0, way, every=ROUNDS + 1)][-1]
            times.append((time.perf_counter() - start) / (ROUNDS * case.devices * case.steps) * 1e6)
            models.append(last.state.messages["0"])  # type: ignore[arg-type]
    assert all(torch.equal(models[0].params[name], one.params[name]) for one in models for name in one.params)
    return [median(times[1:]) for times in found]


def main(repetitions: int, out: Path | None) -> None:
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        alone, beside = measure(case, repetitions)
        shape = "-".join(map(str, (case.inputs, *case.widths, case.classes)))
        rows.append(
            {
                "net": shape, "optimiser": case.optimiser, "batch": case.batch, "steps": case.steps,
                "devices": case.devices, "alone_us": f"{alone:.0f}", "side_by_side_us": f"{beside:.0f}",
                "ratio": f"{beside / alone:.2f}",
            }
        )  # fmt: skip
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if out is not None:
        with out.open("w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
