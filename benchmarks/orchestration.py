"""DFL through the flow (cached steps, Prefect, MLflow, page) beside the same rounds through the library alone.

The federation of study `dfl` at the paper's size: MNIST (below FEDCORE_DATA), 100 devices with 80 % of one label, 10
per round, 5 epochs, batches of 50, dfl_cnn, two workers. Both sides read and divide the data, start the workers, play
the rounds and score the model on 10,000 images every tenth round and in the end. The flow also stores and caches,
keeps the record in MLflow, draws, and writes table and page. Left out on both sides: starting Python and imports; on
the flow's the start of Prefect's server, which stays for other runs. Its processor seconds count. Repetitions are
different seeds, interleaved, after a short run of each. Where other work is done on the machine, processor seconds
say more, and of these what this process, the server and the record's process used: the workers' part is training and
scoring, the same on both sides.

    python -m benchmarks.orchestration [rounds] [repetitions] [examples] [profile]

examples: of MNIST that are shared out, 60,000 unless told: with few, the seconds that the flow adds can be seen of many
rounds in little time, the ratio says nothing.
profile: do one repetition and print where the flow's process spent its time.
"""

from __future__ import annotations

import atexit
import cProfile
import json
import os
import pstats
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parents[1]
WORKERS, EVERY, GOAL = 2, 10, 1.05
RECORD: list[float] = []


def main(rounds: int = 100, repetitions: int = 3, examples: int = 60_000, profile: bool = False) -> None:
    home = Path(tempfile.mkdtemp(prefix="orchestration-"))
    shutil.copyfile(HERE / "params.yaml", home / "params.yaml")
    os.chdir(home)
    os.environ["FEDCORE_HOME"] = str(home)
    from tasks import server  # reads FEDCORE_HOME

    # In the opposite order, and after what Prefect, imported below, still tells the server when this process leaves.
    atexit.register(shutil.rmtree, home)
    atexit.register(server.stop)
    from flows import federate
    from tasks.clerk import Clerk
    from tasks.session import orchestrated

    leave = Clerk.__exit__

    def noted(clerk: Clerk, *error: Any) -> None:
        """Ask the record's process what it has used, last of all; it ends as the workers do."""
        RECORD.append(clerk._orders.submit(clerk._process.call, time.process_time).result())
        leave(clerk, *error)

    Clerk.__exit__ = noted  # type: ignore[method-assign]

    def request(seed: int, rounds: int) -> Any:
        changes = {"dfl.rounds": rounds, "run.workers": WORKERS, "run.every": EVERY, "federation.examples": examples}
        return federate.Request(studies=["dfl"], size="paper", seeds=[seed], methods=["dfl"], changes=changes)

    def flow(seed: int, rounds: int) -> None:
        federate.run(request(seed, rounds))

    def bare(seed: int, rounds: int) -> None:
        _, (job,) = federate.planned(request(seed, rounds))
        library(job.settings[0], seed)

    ways = {"library": bare, "flow": flow}
    spent: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    with orchestrated():
        for play in ways.values():
            play(10_000, 2)
        if profile:
            profiled(lambda: flow(0, rounds))
            return
        for seed in range(repetitions):
            for way, play in ways.items():
                spent[way].append(seconds(lambda: play(seed, rounds)))  # noqa: B023
    for way, found in spent.items():
        wall, cpu, here = (median(part) for part in zip(*found, strict=True))
        print(f"{way:8} {rounds} rounds: {wall:.2f} s, processors {cpu:.2f} s, {here:.2f} of them not the workers'")
    for i, what in enumerate(("wall", "processor seconds")):
        ratios = [flow[i] / bare[i] for bare, flow in zip(*spent.values(), strict=True)]
        print(f"ratio of {what}: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    added = [flow[2] - bare[2] for bare, flow in zip(*spent.values(), strict=True)]
    share = median(added) / median(cpu for _, cpu, _ in spent["library"])
    print(f"added outside of the workers: {median(added):.2f} s ({min(added):.2f} to {max(added):.2f} s), {share:.1%}")
    print(f"goal at most {GOAL:.2f}; load of the machine {os.getloadavg()[0]:.1f}, this among it")


def library(setting: Any, seed: int) -> None:
    """Play a setting's first method with nothing but fedcore."""
    from fedcore.data import load
    from fedcore.nets import net
    from fedcore.partition import partition, servers, splits
    from fedcore.rounds import run
    from fedcore.types import Device, Federation
    from fedcore.workers import Workers

    dataset = load(setting.data["name"], **{k: v for k, v in setting.data.items() if k != "name"})
    words = {"name" if k == "partition" else k: v for k, v in setting.federation.items()}
    scale = words.pop("scale")
    held, shared = splits(dataset, partition(dataset, seed=seed, **words), scale)
    one = net(shape=tuple(dataset.train.x.shape[1:]), classes=len(dataset.classes), **setting.net)
    devices = {name: Device(name, one, part) for name, part in held.items()}
    fed = Federation(devices, shared, len(dataset.classes), servers(dataset, scale))
    with Workers(WORKERS) as workers:
        for _ in run(setting.methods[0].build(fed.public.nets), fed, seed, workers, every=EVERY):
            pass


def seconds(play: Callable[[], None]) -> tuple[float, float, float]:
    """Return wall time, and processor seconds: of all, and of all but the workers."""
    wall, (all_before, here_before) = time.perf_counter(), processors()
    play()
    all_after, here_after = processors()
    return time.perf_counter() - wall, all_after - all_before, here_after - here_before


def processors() -> tuple[float, float]:
    """Return the processor seconds of this process, those it started, and Prefect's server; without the workers."""
    import psutil

    from tasks import server

    mine, workers = (
        use.ru_utime + use.ru_stime for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    top = psutil.Process(json.loads(server.STATE.read_text())["pid"])
    tree = [one.cpu_times() for one in (top, *top.children(recursive=True))]
    here = mine + sum(use.user + use.system for use in tree)
    return here + workers, here + sum(RECORD)


def profiled(play: Callable[[], None]) -> None:
    profile = cProfile.Profile()
    profile.runcall(play)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word != "profile"), profile="profile" in sys.argv)  # type: ignore[misc]
