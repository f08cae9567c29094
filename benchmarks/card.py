"""Rounds of FedAvg on an NVIDIA accelerator: a plain loop, fedcore device by device, and fedcore with all together.

Each case has its data and, for the plain loop, its models on the accelerator from the start: one model after another,
`torch.optim.SGD`; float32 is without TF32, which PyTorch takes for convolutions by default. The three take turns; times
are medians after one round of warm-up. With fewer bits all together is measured alone. "of the limit": the products'
floating-point operations in the time of a round, beside those of a large product of the same precision on that card.
memory: the most that tensors take. Images are random bytes: nothing is learned but time. At the end a run of three
rounds is done twice for each way: how far apart its models are, 0 for the same bits. Without an accelerator it says so.

    python -m benchmarks.card [--rounds 5] [--csv FILE] [case ...]
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fedcore import nets
from fedcore.core.rounds import Execute, run
from fedcore.core.together import Together
from fedcore.core.training import Training
from fedcore.execute.accelerator import accelerate, using_tf32
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.federation import Data, Device, Federation, Net, Splits
from fedcore.types.method import generator

CLASSES = 10
GRAY, COLOUR = (1, 28, 28), (3, 32, 32)


@dataclass(frozen=True)
class Case:
    """A federation: `devices` with `examples` each train `net` for one epoch of batches of `batch`, by SGD at .05."""

    net: str
    shape: tuple[int, ...]
    devices: int
    examples: int
    batch: int
    settings: Mapping[str, Any]

    def built(self) -> Net:
        """Return the net."""
        return nets.net(self.net, shape=self.shape, classes=CLASSES, **self.settings)


CASES = {
    "W1: 16 x MLP": Case("mlp", GRAY, 16, 3750, 64, {"widths": (400, 200, 100)}),
    "W2: 10 x McMahan's CNN": Case("mcmahan_cnn", GRAY, 10, 600, 10, {}),
    "100 x MLP": Case("mlp", GRAY, 100, 600, 10, {"widths": (64, 32)}),
    "100 x LeNet": Case("lenet", COLOUR, 100, 500, 50, {}),
    "100 x DFL's CNN": Case("dfl_cnn", GRAY, 100, 600, 50, {}),
    "10 x ResNet-20": Case("resnet20", COLOUR, 10, 500, 50, {}),
}


class OneByOne(Inline):
    """Runs devices' steps on the accelerator, one after another."""

    def map(self, fn: Any, calls: Any, **kwargs: Any) -> Any:
        """Run a step on each key's arguments."""
        return super().map(accelerate(fn, "cuda"), calls)


def images(case: Case) -> list[Data]:
    """Return each device's examples."""
    draws = generator("images")
    size = (case.examples, *case.shape)
    return [
        Data(
            torch.randint(0, 256, size, dtype=torch.uint8, generator=draws),
            torch.randint(0, CLASSES, size[:1], generator=draws),
        )
        for _ in range(case.devices)
    ]


def plain_rounds(case: Case, parts: list[Data]) -> Iterator[object]:
    """Do a round at each `next`, as a tutorial does on an accelerator."""
    there = [(part.inputs().cuda(), part.y.cuda()) for part in parts]
    server = case.built().build().cuda().state_dict()
    model = case.built().build().cuda()
    while True:
        sent: list[dict[str, Tensor]] = []
        for x, y in there:
            model.load_state_dict(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
            for index in torch.split(torch.randperm(len(x), device="cuda"), case.batch):
                optimiser.zero_grad()
                torch.autograd.backward(cross_entropy(model(x[index]), y[index]))
                optimiser.step()
            sent.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        server = {name: torch.stack([state[name] for state in sent]).float().mean(0) for name in sent[0]}
        torch.cuda.synchronize()
        yield None


def fedcore_rounds(case: Case, parts: list[Data], execute: Execute, rounds: int, precision: str) -> Iterator[Any]:
    """Do a round at each `next`; the last one is scored."""
    net, none = case.built(), Data(parts[0].x[:0], parts[0].y[:0])
    names = [f"device-{i:03}" for i in range(case.devices)]
    devices = {name: Device(name, net, Splits(part, none, none)) for name, part in zip(names, parts, strict=True)}
    training: Any = Training("sgd", 0.05, batch=case.batch, epochs=1, precision=precision)  # type: ignore[arg-type]
    own: dict[str, Any] = {"rounds": rounds, "fraction": 1.0, "weights": "size", "upload": "model"}
    fedavg = method("fedavg", nets=dict.fromkeys(names, net), training=training, shared_init=True, **own)
    return run(fedavg, Federation(devices, none, CLASSES), 0, execute, every=rounds + 1)


def operations(case: Case) -> int:
    """Return the floating-point operations of a round's products."""
    model = case.built().build().cuda()
    x = torch.rand(case.batch, *case.shape, device="cuda")
    with FlopCounterMode(display=False) as counter:
        zeros = torch.zeros(case.batch, dtype=torch.int64, device="cuda")
        torch.autograd.backward(cross_entropy(model(x), zeros))
    return int(counter.get_total_flops() * case.devices * case.examples / case.batch)


def limit(precision: str) -> float:
    """Return the floating-point operations a second of a large product."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    factor = torch.randn(8192, 8192, device="cuda", dtype=kind)
    times = []
    with using_tf32(precision == "tf32"):
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            factor @ factor
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return 2 * 8192**3 / median(times[2:])


def measure(case: Case, precision: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Return seconds a round and peak bytes, by way; with fewer bits that of all together."""
    parts = images(case)
    ways: dict[str, Iterator[Any]] = {
        "together": fedcore_rounds(case, parts, Together(Inline(), "cuda", 128), rounds + 2, precision)
    }
    if precision == "float32":
        ways |= {
            "plain": plain_rounds(case, parts),
            "one by one": fedcore_rounds(case, parts, OneByOne(), rounds + 2, precision),
        }
    times: dict[str, list[float]] = {way: [] for way in ways}
    peaks = dict.fromkeys(ways, 0.0)
    with using_tf32(precision == "tf32"):
        for _ in range(rounds + 1):
            for way, steps in ways.items():
                torch.cuda.reset_peak_memory_stats()
                start = time.perf_counter()
                next(steps)
                torch.cuda.synchronize()
                times[way].append(time.perf_counter() - start)
                peaks[way] = max(peaks[way], torch.cuda.max_memory_allocated())
    return {way: (median(times[way][1:]), peaks[way]) for way in ways}


def differences(case: Case) -> dict[str, float]:
    """Return how far the models of two equal runs of three rounds are apart, by way, and those of the two ways."""
    few = replace(case, devices=min(case.devices, 20), examples=min(case.examples, 300))
    ends = {}
    for way in ("one by one", "one by one again", "together", "together again"):
        execute: Any = OneByOne() if way.startswith("one") else Together(Inline(), "cuda", 128)
        *_, last = fedcore_rounds(few, images(few), execute, 3, "float32")
        ends[way] = last.state.messages["device-000"].params
    pairs = {
        "one by one": ("one by one", "one by one again"),
        "together": ("together", "together again"),
        "between": ("one by one", "together"),
    }
    return {
        what: max((ends[a][name].float() - ends[b][name].float()).abs().max().item() for name in ends[a])
        for what, (a, b) in pairs.items()
    }


def main() -> None:
    """Measure, print and write the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--csv")
    asked.add_argument("cases", nargs="*", default=[])
    args = asked.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.card: there is no NVIDIA accelerator")
    card = torch.cuda.get_device_name()
    limits = {precision: limit(precision) for precision in ("float32", "tf32", "bfloat16")}
    print(card, "PyTorch", torch.__version__, {name: f"{value / 1e12:.0f} TFLOP/s" for name, value in limits.items()})
    rows = []
    for name, case in CASES.items():
        if args.cases and name not in args.cases:
            continue
        work = operations(case)
        plain = 0.0
        for precision in limits:
            timings = measure(case, precision, args.rounds)
            plain = timings["plain"][0] if "plain" in timings else plain
            for way, (seconds, peak) in timings.items():
                rows.append(
                    {
                        "case": name,
                        "precision": precision,
                        "way": way,
                        "seconds a round": f"{seconds:.4f}",
                        "of the plain loop": f"{seconds / plain:.3f}",
                        "of the limit": f"{work / seconds / limits[precision]:.4f}",
                        "memory (MB)": f"{peak / 1e6:.0f}",
                        "card": card,
                    }
                )
                print(*rows[-1].values(), sep="  ", flush=True)
        print("apart:", differences(case), flush=True)
        if args.csv:
            with open(args.csv, "w", newline="") as file:
                table = csv.DictWriter(file, [*rows[0]])
                table.writeheader()
                table.writerows(rows)


if __name__ == "__main__":
    main()
