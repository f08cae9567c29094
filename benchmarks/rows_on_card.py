"""A study's rows on an NVIDIA accelerator, many at a time, without the pipeline: long runs of small nets.

Each row and seed runs in a process of its own; devices that can be trained together are. The words are those of
`fedcore run`; rows are begun in the order of `methods`, seed after seed. Writes, after each round that is scored, the
mean accuracy on the shared test set: a line for each study, setting, row and seed, a column for each such round. What
has not ended after --limit seconds is cut off; its line has the rounds until then.

    python -m benchmarks.rows_on_card rounds.csv [--processes 8] [--limit 600] [--cpu] study=dfl_table2 size=paper ...
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

import fedcore as fc
from fedcore.api.federation import Partitioner
from fedcore.config.methods import MethodConfig
from fedcore.config.request import ask, plan_jobs
from fedcore.config.settings import Setting
from fedcore.core.rounds import Execute, run
from fedcore.core.together import Together
from fedcore.data import Dataset
from fedcore.execute.workers import Inline


class Row(NamedTuple):
    """A row of a study's setting, with a seed."""

    setting: Setting
    method: MethodConfig
    seed: int

    @property
    def name(self) -> list[str]:
        """What its line begins with."""
        return [self.setting.study, self.setting.name, self.method.label, str(self.seed)]


def planned(words: list[str]) -> list[Row]:
    """Return the rows that take rounds, in the order of the methods, seed after seed."""
    _, jobs = plan_jobs(ask(words))
    rows = [
        (number, Row(setting, method, job.seed))
        for job in jobs
        for setting in job.settings
        for number, method in enumerate(setting.methods)
        if "rounds" in method.settings
    ]
    return [row for _, row in sorted(rows, key=lambda one: (one[1].seed, one[0]))]


def play(row: Row, dataset: Dataset, card: bool, file: Path) -> None:
    """Run a row; its line grows with each round that is scored."""
    torch.set_num_threads(1)
    settings = dict(row.setting.federation)
    partitioner = Partitioner(settings.pop("partition"), {})
    net = dict(row.setting.net)
    divided = fc.federate(dataset, partitioner, net=fc.net(net.pop("name"), **net), **settings)
    federation = divided.federation(row.seed)
    sizes = {name: len(device.data.train) for name, device in federation.devices.items()}
    method = row.method.build(federation.public.nets, sizes, federation.task)
    execute: Execute = Together(Inline(), "cuda", 128) if card else Inline()
    begun, line = time.perf_counter(), dict[int, float]()
    for result in run(method, federation, row.seed, execute, every=row.setting.every):
        if result.scores is not None:
            scores = [of_device["shared"]["accuracy"] for of_device in result.scores.values()]
            line[result.round_info.round + 1] = fmean(scores)
            seconds = time.perf_counter() - begun
            written = file.with_suffix(".new")
            written.write_text(json.dumps([row.name, seconds, line]))
            written.replace(file)


def write(folder: Path, out: Path) -> None:
    """Write the table of all lines that there are."""
    lines = [json.loads(file.read_text()) for file in sorted(folder.glob("*.line"))]
    rounds = sorted({number for *_, line in lines for number in line}, key=int)
    with out.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["study", "setting", "method", "seed", "seconds", *rounds])
        for name, seconds, line in sorted(lines):
            table.writerow([*name, f"{seconds:.1f}", *(f"{line[one]:.4f}" if one in line else "" for one in rounds)])


def main() -> None:
    """Run all rows and write their table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("out", type=Path)
    asked.add_argument("--processes", type=int, default=8)
    asked.add_argument("--limit", type=float, default=600)
    asked.add_argument("--cpu", action="store_true")
    asked.add_argument("words", nargs="+")
    args = asked.parse_args()
    end = time.monotonic() + args.limit
    torch.set_num_threads(1)
    waiting = list(enumerate(planned(args.words)))
    datasets = {row.setting.source: row.setting.data for _, row in waiting}
    loaded = {source: fc.load(**data) for source, data in datasets.items()}
    print(f"{len(waiting)} rows", flush=True)
    fork = multiprocessing.get_context("fork")  # the data are there, and no accelerator has been used yet
    running: list[BaseProcess] = []
    with TemporaryDirectory() as folder:
        while (waiting or running) and time.monotonic() < end:
            running = [one for one in running if one.is_alive()]
            while waiting and len(running) < args.processes:
                number, row = waiting.pop(0)
                file = Path(folder) / f"{number:04}.line"
                process = fork.Process(target=play, args=(row, loaded[row.setting.source], not args.cpu, file))
                process.start()
                running.append(process)
            time.sleep(0.5)
        for one in running:
            one.kill()
        write(Path(folder), args.out)
    print(f"{len(waiting)} rows not begun, {len(running)} cut off", flush=True)


if __name__ == "__main__":
    main()
