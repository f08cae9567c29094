"""DFL through the flow (cached steps, Prefect, MLflow, page) beside the same rounds through the library alone.

The federation of study `dfl` at the paper's size: MNIST (below FEDCORE_DATA), 100 devices with 80 % of one label, 10
per round, 5 epochs, batches of 50, dfl_cnn, two workers. Both sides read and divide the data, start the workers, play
the rounds and score the model on 10,000 images every tenth round and in the end. The flow also stores and caches,
keeps the record in MLflow, draws, and writes table and page. Left out on both sides: starting Python, imports and a
short run before the first; on the flow's the start of Prefect's server, which stays for other runs.

Training takes longer in one minute than in another by more than the flow adds. Therefore the two sides take turns of a
second: the processes of the one, Prefect's server among the flow's, are stopped while the other's go on. A side's wall
time is the sum of its turns, without the milliseconds in which its new processes are looked for. As the clock goes on
meanwhile, a segment of the flow's rounds lasts twice as many seconds here: as many checkpoints are written as by a run
that is not stopped.

    python -m benchmarks.orchestration [rounds] [repetitions] [examples] [profile]

repetitions: of different seeds.
examples: of MNIST that are shared out, 60,000 unless told: with few, the seconds that the flow adds can be seen of many
rounds in little time, the ratio says nothing.
profile: do one repetition and print where the flow's process spent its time.
"""

from __future__ import annotations

import cProfile
import json
import multiprocessing
import os
import pstats
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).parents[1]
WORKERS, EVERY, GOAL = 2, 10, 1.05
TURN = 1.0
"""Seconds until it is the other side's turn. Prefect's connections, stopped as long, stand this."""


def main(rounds: int = 100, repetitions: int = 3, examples: int = 60_000, *, profile: bool = False) -> None:
    home = Path(tempfile.mkdtemp(prefix="orchestration-"))
    shutil.copyfile(HERE / "params.yaml", home / "params.yaml")
    shutil.copytree(HERE / "studies", home / "studies")
    os.chdir(home)
    os.environ["FEDCORE_HOME"] = str(home)
    from fedcore.pipeline.orchestration import server  # reads FEDCORE_HOME

    sides: dict[str, Side] = {}
    try:
        with server.lease():
            sides |= {way: Side(way) for way in ("library", "flow")}
            for side in sides.values():
                side.ask(seed=10_000, rounds=2, examples=examples)
                side.talk.recv()
            if profile:
                sides["flow"].ask(seed=0, rounds=rounds, examples=examples, profile=True)
                sides["flow"].talk.recv()
            else:
                report([in_turns(sides, seed, rounds, examples) for seed in range(repetitions)], rounds)
            for side in sides.values():
                side.ask()
                side.process.join()
    finally:
        for side in sides.values():
            side.end()
        server.stop()
        shutil.rmtree(home)


def report(pairs: list[dict[str, tuple[float, float]]], rounds: int) -> None:
    """Print what each side took, and the ratios pair by pair."""
    for way in pairs[0]:
        wall, cpu = (median(part) for part in zip(*(pair[way] for pair in pairs), strict=True))
        print(f"{way:8} {rounds} rounds: {wall:.2f} s, processors {cpu:.2f} s")
    for i, what in enumerate(("wall", "processor seconds")):
        ratios = [pair["flow"][i] / pair["library"][i] for pair in pairs]
        added = [pair["flow"][i] - pair["library"][i] for pair in pairs]
        print(
            f"{what}: ratio {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"added {median(added):.2f} s ({min(added):.2f} to {max(added):.2f})"
        )
    print(f"goal at most {GOAL:.2f}; load of the machine {os.getloadavg()[0]:.1f}, this among it")


class Side:
    """One of the two ways, in a process of its own that plays what it is asked to."""

    def __init__(self, way: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.talk, other = context.Pipe()
        # Not a daemon: those may not start processes of their own.
        self.process = context.Process(target=plays, args=(way, other))
        self.process.start()
        other.close()
        self.roots = [psutil.Process(self.process.pid)]
        if way == "flow":
            self.roots.append(prefects())
        self.known: list[psutil.Process] = []

    def ask(self, **settings: Any) -> None:
        """Ask for a run; for nothing, the end."""
        self.talk.send(settings)

    def stop(self) -> None:
        """Stop the processes that are known, at once: the clock runs meanwhile."""
        for process in self.known:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def gather(self) -> None:
        """Learn which processes there are, and stop those that have been started since; takes milliseconds."""
        found: list[psutil.Process] = []
        for root in self.roots:
            still(root, found)
        self.known = found

    def go_on(self) -> None:
        for process in self.known:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def end(self) -> None:
        """End it whatever it does; what it has started then leaves by itself, unless it is stopped."""
        if self.process.is_alive():
            self.go_on()
            self.process.kill()


def still(process: psutil.Process, into: list[psutil.Process]) -> None:
    """Stop a process and what it has started; itself first, so that it starts nothing meanwhile."""
    with suppress(psutil.NoSuchProcess):
        process.suspend()
        into.append(process)
        for child in process.children():
            still(child, into)


def in_turns(sides: dict[str, Side], seed: int, rounds: int, examples: int) -> dict[str, tuple[float, float]]:
    """Play on both sides in turns; returns the wall and processor seconds of each."""
    wall = dict.fromkeys(sides, 0.0)
    found: dict[str, tuple[float, float]] = {}
    for side in sides.values():
        side.gather()
        side.ask(seed=seed, rounds=rounds, examples=examples)
    while len(found) < len(sides):
        for way, side in sides.items():
            if way in found:
                continue
            start = time.perf_counter()
            side.go_on()
            ended = side.talk.poll(TURN)
            side.stop()
            wall[way] += time.perf_counter() - start
            side.gather()
            if ended:
                found[way] = (wall[way], side.talk.recv())
    for side in sides.values():
        side.go_on()
    return found


def plays(way: str, talk: Connection) -> None:
    """Play what is asked for until nothing is; answers with the processor seconds of all processes that took part."""
    from fedcore.config.request import Request, plan_jobs
    from fedcore.pipeline.orchestration.session import prefect_server
    from fedcore.pipeline.run import chunks as segments
    from flows.federate import federate

    segments.SEGMENT *= 2  # of which each side is stopped half

    def request(seed: int, rounds: int, examples: int) -> Any:
        changes = {"dfl.rounds": rounds, "run.workers": WORKERS, "run.every": EVERY, "federation.examples": examples}
        return Request(studies=["dfl"], size="paper", seeds=[seed], methods=["dfl"], changes=changes)

    def play(**settings: int) -> None:
        if way == "flow":
            federate(request(**settings))
        else:
            _, (job,) = plan_jobs(request(**settings))
            library(job.settings[0], settings["seed"])

    with prefect_server():
        while asked := talk.recv():
            before = processors(way)
            if asked.pop("profile", False):
                profiled(lambda: play(**asked))
            else:
                play(**asked)
            talk.send(processors(way) - before)


def library(setting: Any, seed: int) -> None:
    """Play a setting's first method with nothing but fedcore."""
    from fedcore.core.rounds import run
    from fedcore.data import load
    from fedcore.execute.workers import Workers
    from fedcore.nets import net
    from fedcore.partition import partition, server_examples, splits
    from fedcore.types import Device, Federation

    dataset = load(setting.data["name"], **{k: v for k, v in setting.data.items() if k != "name"})
    words = {"name" if k == "partition" else k: v for k, v in setting.federation.items()}
    scale = words.pop("scale")
    held, shared = splits(dataset, partition(dataset, seed=seed, **words), scale)
    one = net(shape=tuple(dataset.train.x.shape[1:]), classes=len(dataset.classes), **setting.net)
    devices = {name: Device(name, one, part) for name, part in held.items()}
    fed = Federation(devices, shared, len(dataset.classes), server_examples(dataset, scale))
    with Workers(WORKERS) as workers:
        for _ in run(setting.methods[0].build(fed.public.nets), fed, seed, workers, every=EVERY):
            pass


def processors(way: str) -> float:
    """Return the processor seconds of this process, of those it started and that have ended, of Prefect's server."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(use.ru_utime + use.ru_stime for use in own)
    if way == "flow":
        top = prefects()
        tree = [one.cpu_times() for one in (top, *top.children(recursive=True))]
        used += sum(use.user + use.system for use in tree)
    return used


def prefects() -> psutil.Process:
    """Return the first of the server's processes."""
    from fedcore.pipeline.orchestration import server

    return psutil.Process(json.loads(server.STATE.read_text())["pid"])


def profiled(play: Callable[[], None]) -> None:
    profile = cProfile.Profile()
    profile.runcall(play)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word != "profile"), profile="profile" in sys.argv)
