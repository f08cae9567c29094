"""What a visit costs beside its step, with 4 and 20 devices as processes on this machine. The goal is at most .5 s.

A device that is asked again for a turn that it has answered gives the same answer without a step: such a call costs
what every visit costs beside its step (packing, TLS, the device's checks and its disk). All devices are asked at once,
as in a round. Nets: an MLP of 10 kB and one of 4 MB, on scikit-learn's digits. Seconds depend on what else the machine
does (`load`); processor time, of one round of such calls, hardly does.

    python -m benchmarks.field docs/results/field.csv
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import fedcore as fc
from fedcore.field import trial
from fedcore.field.plan import plan_of
from fedcore.field.server import Field, ask, federation_of, run_in_field
from fedcore.field.wire import unpack

DEVICES, WIDTHS, REPEATS = (4, 20), {"10 kB": (32,), "4 MB": (1024, 896)}, 15
SECONDS = 300.0


class Recorder:
    """A link that keeps the last visit of each device."""

    def __init__(self, link: Any) -> None:
        self.link, self.visits = link, dict[str, bytes]()

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        if unpack(call, "call")[0]["ask"] == "visit":
            self.visits[name] = call
        answer: bytes | None = self.link.send(name, call, seconds)
        return answer


def repeat(link: Any, visits: Mapping[str, bytes]) -> float:
    """Return the seconds until all devices have answered these calls again."""
    start = time.perf_counter()
    answers = ask(link, visits, SECONDS)
    seconds = time.perf_counter() - start
    assert {unpack(answer, "answer")[0]["reply"] for answer in answers.values()} == {"visited"}
    assert answers.keys() == visits.keys()
    return seconds


def processor_seconds() -> tuple[float, float]:
    """Return the processor time of this process and of the devices' processes so far."""
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return time.process_time(), sum(one.user + one.system for one in times)


def measure(devices: int) -> list[dict[str, Any]]:
    seconds_of_rounds = []
    method = fc.fedavg(rounds=2, training={"epochs": 1})
    feds = {
        size: fc.federate(fc.load("digits"), devices=devices, net=fc.mlp(*widths)).federation(0)
        for size, widths in WIDTHS.items()
    }
    first = next(iter(feds.values()))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, trial.processes(Path(folder), first, ["fedavg"]) as site:
        connected = time.perf_counter() - start
        for number, (size, fed) in enumerate(feds.items()):
            link = Recorder(site.link)
            plan = plan_of(method, fed.public.nets, 0, f"bench{number}", tuple(fed.test.x.shape[1:]), fed.classes)
            field = Field(link, plan, replace(federation_of(fed.public)), SECONDS)
            field.join()
            start = time.perf_counter()
            turns = list(run_in_field(field, 0))
            whole = (time.perf_counter() - start) / len(turns)
            before = processor_seconds()
            rounds = [repeat(site.link, link.visits) for _ in range(REPEATS)]
            server, others = ((b - a) / REPEATS for a, b in zip(before, processor_seconds(), strict=True))
            one = [repeat(site.link, dict([next(iter(link.visits.items()))])) for _ in range(REPEATS)]
            seconds_of_rounds.append(
                {
                    "devices": devices, "update": size, "bytes": max(turns[-1].up.values()),
                    "connecting": connected, "round": whole, "round_without_steps": median(rounds),
                    "longest": max(rounds), "processor_of_server": server, "processor_of_all_devices": others,
                    "one_visit_without_step": median(one), "load": os.getloadavg()[0],
                }
            )  # fmt: skip
    return seconds_of_rounds


def main() -> None:
    """Measure each number of devices in a process of its own, which has one server."""
    if len(sys.argv) > 1 and sys.argv[1].isdecimal():
        trial.STARTING = 1800.0  # on a busy machine
        for row in measure(int(sys.argv[1])):
            print(json.dumps(row), flush=True)
        return
    rows = []
    for devices in DEVICES:
        words = [sys.executable, "-m", "benchmarks.field", str(devices)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout, end="", flush=True)
        rows += [json.loads(line) for line in done.stdout.splitlines()]
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
